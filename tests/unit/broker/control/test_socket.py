from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from siltstone.broker.control.socket import Control, ControlOperations, deeds_in_memory
from siltstone.broker.sessions.turns import Turn
from siltstone.errors import OverloadedError
from siltstone.mqtt.packets import Disconnect, Will
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.session.archive.store import SessionArchive, TakenGroups
from tests.support.durable_core import DurableCore
from tests.support.group_core import (
    GROUP,
    acknowledge,
    come,
    consume,
    group_core,
    groups_of,
    join,
    publish,
    saved,
    taken,
    values,
)


class Desk:
    """A control over a core."""

    def __init__(self, core: DurableCore, **fields: float) -> None:
        self.core = core
        self.sessions = Control(
            core.broker, core.durables, groups_of(core), core.real.feed_source(), **fields
        )
        self.control = ControlOperations(core.broker, self.sessions.deeds)

    def ask(self, do: str, **fields: Any) -> Any:
        """Send a request; return the answer when the broker has come to rest."""
        return self.ask_bytes(json.dumps({"do": do, **fields}).encode())

    def ask_bytes(self, line: bytes) -> Any:
        answer = asyncio.run(self._ask(line))
        self.core.run()
        assert len(self.core.durables.turns) == 0, "a turn never ends"
        assert answer.endswith(b"\n")
        return json.loads(answer)

    async def _ask(self, line: bytes) -> bytes:
        task = asyncio.ensure_future(self.control.answer(line))
        while not task.done():
            self.core.run()
            await asyncio.wait([task], timeout=0.001)
        return task.result()


UNKNOWN = "the broker does not know this request: broker and command must have the same version"


@contextmanager
def desk() -> Iterator[Desk]:
    with group_core() as core:
        yield Desk(core)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b"{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b"[]", UNKNOWN),
        (b"[" * 100_000, "the request is nested too deeply"),
        (b'{"do": "dance"}', UNKNOWN),
        (b'{"do": "kick"}', "the request lacks 'client_id'"),
        (b'{"do": "move", "client_id": "a"}', "the request lacks 'to'"),
        (
            b'{"do": "move", "client_id": "a", "to": "noon"}',
            "to must be earliest, latest or a time, got 'noon'",
        ),
        (
            b'{"do": "move-group", "group": "t", "to": "latest"}',
            "a share group has the form $share/NAME/FILTER, got 't'",
        ),
        (
            b'{"do": "drop-group", "group": "t"}',
            "a share group has the form $share/NAME/FILTER, got 't'",
        ),
    ],
)
def test_a_request_that_is_wrong_is_answered_with_a_sentence(line: bytes, error: str) -> None:
    with desk() as each:
        assert each.ask_bytes(line) == {"error": error}


def test_a_broker_without_stored_sessions_knows_the_same_requests() -> None:
    with desk() as each:
        assert set(deeds_in_memory()) == set(each.sessions.deeds)


def test_groups_with_members_are_listed_durable_or_not() -> None:
    with desk() as each:
        join(each.core, "a", GROUP)
        volatile = join(each.core, "b", "$share/h/t/#", durable=False)
        first = {"group": GROUP, "strategy": "least-loaded", "members": 1, "position": {"0": 0}}
        assert each.ask("groups") == {"ok": [first, first | {"group": "$share/h/t/#"}]}
        volatile.drop()
        assert each.ask("groups") == {"ok": [first]}


def test_who_is_kicked_is_told_and_keeps_its_session() -> None:
    with desk() as each:
        member = join(each.core, "a", "t/#")
        assert each.ask("kick", client_id="a") == {"ok": True}
        assert member.take() == [Disconnect(reason=Reason.ADMINISTRATIVE_ACTION)]
        assert (each.ask("kick", client_id="a"), each.core.peek("a") is None) == (
            {"ok": False},
            False,
        )


@pytest.mark.parametrize("connected", [True, False])
def test_a_session_that_is_dropped_is_gone_with_what_waits(connected: bool) -> None:
    with desk() as each:
        wire = join(each.core, "a", "t/#")
        if not connected:
            wire.drop()
            each.core.run()
        publish(each.core, "1")
        assert each.ask("drop", client_id="a") == {"ok": True}
        assert each.core.peek("a") is None
        assert each.ask("drop", client_id="a") == {"ok": False}
        again = come(each.core, "a")
        assert again.accepted is not None
        assert not again.accepted.session_present
        assert values(again) == []


@pytest.mark.parametrize("connected", [True, False])
def test_mqtt_3_1_3_9_a_will_does_not_wait_longer_than_its_session(*, connected: bool) -> None:
    with desk() as each:
        heir = join(each.core, "heir", "t/#")
        will = Will(
            topic=b"t/w", payload=b"gone", qos=1, properties=Properties(will_delay_interval=30)
        )
        wire = each.core.connect("a", will=will, session_expiry_interval=100)
        if not connected:
            wire.drop()
            each.core.run()
        assert each.ask("drop", client_id="a") == {"ok": True}
        each.core.run()
        assert values(heir) == ["gone"]


def test_a_volatile_session_is_dropped_too() -> None:
    with desk() as each:
        wire = join(each.core, "a", "t/#", durable=False)
        assert each.ask("drop", client_id="a") == {"ok": True}
        assert wire.is_closed


@pytest.mark.parametrize(("to", "expected"), [("earliest", ["1", "2"]), ("latest", [])])
def test_a_session_is_moved_in_time(to: str, expected: list[str]) -> None:
    with desk() as each:
        publish(each.core, "1")
        wire = join(each.core, "a", "t/#")
        publish(each.core, "2")
        packets = taken(wire)
        acknowledge(wire, packets if to == "earliest" else [])
        assert each.ask("move", client_id="a", to=to) == {"ok": True}
        assert wire.is_closed
        assert consume(come(each.core, "a")) == expected


def test_a_session_is_moved_to_a_time() -> None:
    with desk() as each:
        wire = join(each.core, "a", "t/#")
        publish(each.core, "1")
        each.core.advance(10)
        at_us = each.core.clock.now_us()
        publish(each.core, "2")
        assert consume(wire) == ["1", "2"]
        assert each.ask("move", client_id="a", to=at_us) == {"ok": True}
        assert consume(come(each.core, "a")) == ["2"]


def test_a_session_that_is_not_there_is_not_moved() -> None:
    with desk() as each:
        assert each.ask("move", client_id="a", to="latest") == {
            "error": "client 'a' has no durable session; 'siltstone sessions list' shows all",
            "kind": "NotFoundError",
        }


@pytest.mark.parametrize("has_members", [True, False])
def test_a_group_is_moved_with_and_without_members(has_members: bool) -> None:
    with desk() as each:
        wire = join(each.core, "a")
        publish(each.core, "1", "2")
        assert consume(wire) == ["1", "2"]
        if not has_members:
            wire.drop()
            each.core.run()
        assert each.ask("move-group", group=GROUP, to="earliest") == {"ok": True}
        group = saved(each.core)
        assert group is not None
        assert [*group.position.serials.values()] == [0]
        wire = wire if has_members else come(each.core, "a")
        assert consume(wire) == ["1", "2"]


def test_what_is_done_to_groups_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with desk() as each:
        wire = join(each.core, "a")
        each.ask("move-group", group=GROUP, to="latest")
        wire.drop()
        each.core.run()
        each.ask("move-group", group=GROUP, to="earliest")
        each.ask("drop-group", group=GROUP)
        each.ask("drop-group", group=GROUP)
    told = [record for record in caplog.records if record.name == "siltstone.control"]
    assert [(record.getMessage(), vars(record)["facts"]) for record in told] == [
        ("share_group_moved", {"group": GROUP, "to": "latest"}),
        ("share_group_moved", {"group": GROUP, "to": "earliest"}),
        ("share_group_dropped", {"group": GROUP}),
    ]


def test_a_visit_that_has_pinned_the_rows_keeps_them_until_it_ends() -> None:
    with desk() as each:
        pins = each.core.broker.pins
        visit = each.control.visit()
        for _ in range(2):
            answer = asyncio.run(each.control.answer(b'{"do": "pin"}', visit))
            assert json.loads(answer) == {"ok": True}
        assert (visit.has_pin, pins.is_free(pins.taken)) == (True, False)
        visit.end()
        assert pins.is_free(1)


def test_a_group_that_is_not_there_is_not_moved() -> None:
    with desk() as each:
        assert each.ask("move-group", group=GROUP, to="latest") == {
            "error": f"share group {GROUP!r} does not exist; 'siltstone groups list' shows all",
            "kind": "NotFoundError",
        }


def test_a_group_is_dropped_when_it_has_no_members() -> None:
    with desk() as each:
        wire = join(each.core, "a")
        assert each.ask("drop-group", group=GROUP) == {
            "error": f"the share group has members that are connected: group={GROUP!r}"
        }
        wire.drop()
        each.core.run()
        assert each.ask("drop-group", group=GROUP) == {"ok": True}
        assert each.ask("drop-group", group=GROUP) == {"ok": False}
        assert saved(each.core) is None


def test_a_group_that_is_not_stored_is_moved_but_not_dropped() -> None:
    with desk() as each:
        wire = join(each.core, "a", durable=False)
        publish(each.core, "1")
        assert consume(wire) == ["1"]
        assert each.ask("move-group", group=GROUP, to="earliest") == {"ok": True}
        assert consume(wire) == ["1"]
        assert each.ask("drop-group", group=GROUP) == {
            "error": f"share group {GROUP!r} is not stored: it is in memory while it has members, "
            "and ends when the last one disconnects"
        }
        wire.drop()
        assert each.ask("groups") == {"ok": []}


def test_a_group_that_is_listed_and_could_not_be_loaded_is_moved_at_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fails = [OverloadedError("no room")]
    take_groups = SessionArchive.take_groups

    def refuse(archive: SessionArchive, groups: Sequence[tuple[str, str]]) -> TakenGroups:
        if fails:
            raise fails.pop()
        return take_groups(archive, groups)

    monkeypatch.setattr(SessionArchive, "take_groups", refuse)
    with desk() as each:
        join(each.core, "a", durable=False)
        assert [group["group"] for group in each.ask("groups")["ok"]] == [GROUP]
        assert each.ask("move-group", group=GROUP, to="latest") == {
            "error": f"share group {GROUP!r} is not loaded, try again and see the log of the "
            "broker",
            "failed": True,
        }
        each.core.advance(1.1)
        assert each.ask("move-group", group=GROUP, to="latest") == {"ok": True}


def test_what_the_archive_cannot_do_is_told_and_leaves_no_turn_behind() -> None:
    with desk() as each:
        join(each.core, "a").drop()
        each.core.run()

        def refuse(*_: object) -> None:
            raise OverloadedError("no room")

        each.core.archive.take_group = refuse  # type: ignore[assignment]
        for do in ("move-group", "drop-group"):
            assert each.ask(do, group=GROUP, to="latest") == {
                "error": "no room",
                "failed": True,
                "kind": "OverloadedError",
            }


def test_a_session_that_is_busy_is_told_so_in_time_and_the_place_is_given_up() -> None:
    with group_core() as core:
        each = Desk(core, turn_seconds=0.0)
        stuck = Turn("a", lambda: None)
        core.durables.turns.begin(stuck)
        stuck.step("the disk", lambda: None)
        for do in ("drop", "move"):
            answer = asyncio.run(
                each.control.answer(
                    json.dumps({"do": do, "client_id": "a", "to": "latest"}).encode()
                )
            )
            assert json.loads(answer) == {
                "error": "'a' is busy, try again: it waits for the disk",
                "failed": True,
            }
        stuck.end()
        core.run()
        assert len(core.durables.turns) == 0


@pytest.mark.parametrize("do", ["drop", "move"])
def test_a_mistake_of_ours_leaves_no_turn_behind(do: str) -> None:
    with desk() as each:
        come(each.core, "a").drop()
        each.core.run()

        def fail(*_: object) -> None:
            raise RuntimeError("on purpose")

        each.core.durables.drop_away = fail  # type: ignore[method-assign,assignment]
        each.sessions._in_thread = fail  # type: ignore[method-assign,assignment] # noqa: SLF001
        with pytest.raises(RuntimeError, match="on purpose"):
            each.ask(do, client_id="a", to="latest")
        each.core.run()
        assert len(each.core.durables.turns) == 0
