"""Clients that come in to durable sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from siltstone.broker.access.access import Access, Credentials, Hook
from siltstone.broker.control.sys_topics import SysTopics
from siltstone.broker.sessions.turns import Turn
from siltstone.mqtt.packets import ConnAck, Connect, Disconnect
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.session.durable.session import Durable
from tests.support.broker_core import V3, V5, Wire, message
from tests.support.durable_desk import (
    VERSIONS,
    DurableDesk,
    Got,
    consume,
    durable_desk,
    leave,
    lose,
    news,
    will,
)


@pytest.fixture
def desk() -> Iterator[DurableDesk]:
    with durable_desk() as made:
        yield made


def found_session(desk: DurableDesk, wire: Wire) -> Callable[[], None]:
    """Connect as far as the session was found; return what goes on from there."""
    with desk.core.held():
        wire.connect("s", clean_start=False, session_expiry_interval=100)
        work, then = desk.core.shell.works.popleft()
    work()
    return then


class TestFound:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_a_session_is_there_after_a_power_cut_with_its_subscriptions(
        self, desk: DurableDesk, version: Version
    ) -> None:
        wire = desk.come(version=version)
        assert wire.accepted is not None
        assert not wire.accepted.session_present
        wire.subscribe("a/+", qos=1)
        desk.crash()
        desk.publish("a/b", "missed")
        again = desk.come(version=version)
        assert again.accepted is not None
        assert again.accepted.session_present
        assert consume(again) == [Got("missed")]

    def test_that_it_is_connected_is_on_disk_before_the_client_is_told(
        self, desk: DurableDesk
    ) -> None:
        leave(desk.come())
        wire = desk.core.wire()
        found = found_session(desk, wire)
        with desk.core.held():
            found()
            assert wire.take() == []
            assert not desk.saved().connected
        [answer] = wire.take()
        assert isinstance(answer, ConnAck)
        assert desk.saved().connected

    def test_a_session_of_nobody_begins_anew(self, desk: DurableDesk) -> None:
        wire = desk.come()
        assert wire.accepted is not None
        assert not wire.accepted.session_present
        assert desk.saved().connected

    def test_one_whose_time_is_over_is_not_found(self, desk: DurableDesk) -> None:
        wire = desk.come()
        wire.subscribe("#")
        leave(wire)
        # Nobody has looked yet for what has expired.
        desk.core.clock.advance(100)
        wire = desk.come()
        assert wire.accepted is not None
        assert not wire.accepted.session_present
        desk.publish("t", "x")
        assert news(wire) == []

    def test_one_whose_time_is_not_over_is(self, desk: DurableDesk) -> None:
        leave(desk.come())
        desk.core.clock.advance(99.9)
        wire = desk.come()
        assert wire.accepted is not None
        assert wire.accepted.session_present

    def test_a_later_connection_says_anew_how_long_it_is_kept(self, desk: DurableDesk) -> None:
        leave(desk.come())
        leave(desk.come(session_expiry_interval=7))
        assert desk.saved().expiry_seconds == 7


class TestDiscarded:
    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize("expiry", [0, 100])
    def test_clean_start_discards_the_session_and_all_that_waits_for_it(
        self, desk: DurableDesk, version: Version, expiry: int
    ) -> None:
        wire = desk.come(version=version)
        wire.subscribe("#", qos=1)
        lose(wire)
        desk.publish("t", "missed")
        desk.crash()
        fields = {"session_expiry_interval": expiry} if version is V5 else {}
        wire = desk.core.connect("s", version=version, clean_start=True, **fields)
        assert wire.accepted is not None
        assert not wire.accepted.session_present
        desk.publish("t", "live")
        assert news(wire) == []
        is_kept = version is V5 and expiry > 0
        kept = desk.core.peek("s")
        assert (kept is not None) == is_kept
        assert kept is None or (kept.subscriptions, kept.inflight) == ((), ())

    def test_the_next_one_does_not_get_what_was_left_unsent(self, desk: DurableDesk) -> None:
        wire = desk.come(receive_maximum=1)
        for number in range(3):
            desk.publish(f"r/{number}", str(number), retain=True)
        assert len(wire.subscribe("r/#", qos=1)) == 1
        lose(wire)
        leave(desk.come(clean_start=True, session_expiry_interval=100))
        wire = desk.come()
        wire.subscribe("r/#", qos=1, retain_handling=2)
        lose(wire)
        assert news(desk.come()) == []

    @pytest.mark.parametrize("version", VERSIONS)
    def test_goodbye_for_ever_ends_the_session(self, desk: DurableDesk, version: Version) -> None:
        if version is V3:
            leave(desk.core.connect("s", version=V3, clean_start=True))
        else:
            leave(desk.come(), expiry=0)
        assert (desk.core.peek("s"), desk.core.archive.count()) == (None, 0)


class TestTakenOver:
    def test_the_former_connection_is_ended_and_its_session_goes_on(
        self, desk: DurableDesk
    ) -> None:
        first = desk.come()
        first.subscribe("#")
        desk.publish("t", "x")
        second = desk.come()
        assert first.take()[-1] == Disconnect(reason=Reason.SESSION_TAKEN_OVER)
        assert first.is_closed
        assert second.accepted is not None
        assert second.accepted.session_present
        assert consume(second) == [Got("x", dup=True)]

    def test_it_is_no_time_away(self, desk: DurableDesk) -> None:
        desk.come(will=will(delay=5))
        desk.come()
        desk.core.advance(200)
        assert (desk.saved().connected, desk.core.stored()) == (True, [])

    def test_many_at_once_come_in_one_after_the_other(self, desk: DurableDesk) -> None:
        wires = [desk.core.wire() for _ in range(4)]
        with desk.core.held():
            for wire in wires:
                wire.connect("s", clean_start=False, session_expiry_interval=100)
        found = [wire.take() for wire in wires]
        assert [
            [packet.session_present for packet in packets if isinstance(packet, ConnAck)]
            for packets in found
        ] == [[False], [True], [True], [True]]
        assert [wire.is_closed for wire in wires] == [True, True, True, False]
        assert desk.core.broker.is_settled

    def test_one_that_goes_when_the_next_is_about_to_come_is_saved_first(
        self, desk: DurableDesk, caplog: pytest.LogCaptureFixture
    ) -> None:
        core, shell = desk.core, desk.core.shell
        first, second = core.wire(), core.wire()
        for wire in (first, second):
            wire.send(
                Connect(
                    version=V5,
                    client_id="s",
                    clean_start=False,
                    properties=Properties(session_expiry_interval=100),
                )
            )
        while "s" not in core.broker.clients:
            if shell.acts:
                shell.acts.popleft()()
            elif shell.works:
                work, then = shell.works.popleft()
                work()
                then()
            else:
                core.flush_commits()
        # It is the second one's turn, and it has not begun to look.
        first.drop()
        core.run()
        assert [type(packet) for packet in second.take()] == [ConnAck]
        assert second.accepted is not None
        assert (second.accepted.session_present, desk.saved().connected) == (True, True)
        assert [record.getMessage() for record in caplog.records] == []

    def test_messages_of_the_former_one_have_their_outcome_first(self) -> None:
        with durable_desk(automatic=False) as desk:
            first = desk.come()
            first.publish("t", "x", 2, 1)
            assert len(desk.core.database.pending) == 1
            second = desk.core.wire()
            assert second.connect("s", clean_start=False, session_expiry_interval=100) == []
            desk.core.settle()
            assert second.take() != []
            second.publish("t", "x", 2, 1, dup=True)
            desk.core.settle()
            assert desk.core.stored() == [b"x"]


class Door:
    def authenticate(self, credentials: Credentials) -> bool:
        return credentials.password == b"right"


class TestRefused:
    def test_the_session_of_another_user_stays_untouched(self) -> None:
        access = Access(None, None, Hook(Door()))
        with durable_desk(access=access) as desk:
            wire = desk.core.wire()
            credentials = {"username": "ann", "password": b"right"}
            wire.connect("s", clean_start=False, session_expiry_interval=100, **credentials)
            leave(wire)
            before = desk.saved()
            other = desk.core.wire()
            [answer] = other.connect("s", clean_start=True, username="bob", password=b"right")
            assert isinstance(answer, ConnAck)
            assert answer.reason is Reason.CLIENT_IDENTIFIER_NOT_VALID
            assert desk.saved() == before

    def test_a_visitor_that_is_gone_leaves_the_session_as_it_was(self, desk: DurableDesk) -> None:
        leave(desk.come())
        before = desk.saved()
        desk.core.clock.advance(5)
        with desk.core.held():
            wire = desk.core.wire()
            wire.connect("s", clean_start=True)
            wire.drop()
        desk.core.run()
        assert (desk.saved(), desk.core.broker.is_settled) == (before, True)

    def test_one_that_goes_while_it_is_let_in_is_away_again(self, desk: DurableDesk) -> None:
        wire = desk.come()
        wire.subscribe("#")
        leave(wire)
        wire = desk.core.wire()
        found = found_session(desk, wire)
        with desk.core.held():
            found()
            wire.drop()
        desk.core.run()
        assert (desk.saved().connected, len(desk.saved().subscriptions)) == (False, 1)
        assert (desk.core.broker.is_settled, desk.core.broker.registry.sessions) == (True, {})

    def test_where_sessions_cannot_be_loaded_the_client_is_told(self, desk: DurableDesk) -> None:
        desk.core.break_commits()
        for _ in range(2):
            wire = desk.core.wire()
            [answer] = wire.connect("s", clean_start=False, session_expiry_interval=100)
            assert isinstance(answer, ConnAck)
            assert answer.reason is Reason.SERVER_UNAVAILABLE
            assert wire.is_closed
        assert desk.core.broker.is_settled

    def test_where_they_cannot_be_saved_too(self, desk: DurableDesk) -> None:
        leave(desk.come())
        wire = desk.core.wire()
        found = found_session(desk, wire)
        desk.core.break_commits()
        found()
        [answer] = wire.take()
        assert isinstance(answer, ConnAck)
        assert answer.reason is Reason.SERVER_UNAVAILABLE
        assert (desk.core.broker.is_settled, desk.core.broker.registry.sessions) == (True, {})

    def test_where_there_are_too_many_sessions_already(self) -> None:
        with durable_desk(sessions_max=1) as desk:
            desk.come("first")
            wire = desk.core.wire()
            [answer] = wire.connect("s", clean_start=False, session_expiry_interval=100)
            assert answer == ConnAck(
                reason=Reason.QUOTA_EXCEEDED,
                properties=Properties(
                    reason_string="too many sessions: limits.sessions_max is reached"
                ),
            )


class TestTooManySessions:
    """The limit counts sessions whose clients are away."""

    def _is_refused(self, desk: DurableDesk, client_id: str, **fields: Any) -> bool:
        fields = {"clean_start": False, "session_expiry_interval": 100} | fields
        [answer] = desk.core.wire().connect(client_id, **fields)
        assert isinstance(answer, ConnAck)
        if answer.reason is not Reason.SUCCESS:
            assert answer == ConnAck(
                reason=Reason.QUOTA_EXCEEDED,
                properties=Properties(
                    reason_string="too many sessions: limits.sessions_max is reached"
                ),
            )
        return answer.reason is not Reason.SUCCESS

    def test_sessions_that_are_away_count_also_after_a_crash(self) -> None:
        with durable_desk(sessions_max=3) as desk:
            for number in range(3):
                lose(desk.come(f"s{number}"))
            assert self._is_refused(desk, "s3")
            assert self._is_refused(desk, "clean", clean_start=True, session_expiry_interval=0)
            desk.crash()
            assert self._is_refused(desk, "s3")
            # Those that are kept may return, and begin anew.
            assert not self._is_refused(desk, "s0")
            assert not self._is_refused(desk, "s1", clean_start=True)
            assert self._is_refused(desk, "s3")
            assert len(desk.core.broker.registry) == 3

    def test_there_is_room_when_one_has_ended(self) -> None:
        with durable_desk(sessions_max=2) as desk:
            leave(desk.come("ends"), expiry=0)
            lose(desk.come("expires", session_expiry_interval=5))
            lose(desk.come("stays", session_expiry_interval=1000))
            assert self._is_refused(desk, "new")
            desk.core.clock.advance(6)
            desk.wait(3)
            assert not self._is_refused(desk, "new")
            assert self._is_refused(desk, "newer")

    def test_those_that_come_at_once_do_not_exceed_the_limit(self) -> None:
        with durable_desk(sessions_max=3) as desk:
            wires = [desk.core.wire() for _ in range(6)]
            with desk.core.held():
                for number, wire in enumerate(wires):
                    wire.connect(f"s{number}", clean_start=False, session_expiry_interval=100)
            desk.core.run()
            assert (desk.core.archive.count(), len(desk.core.broker.registry)) == (3, 3)

    def test_they_are_told_under_sys(self) -> None:
        with durable_desk() as desk:
            lose(desk.come("away"))
            desk.come("here")
            desk.core.connect("volatile")
            values = SysTopics(desk.core.broker).values(1.0)
            told = [
                values[b"clients/" + name] for name in (b"connected", b"disconnected", b"total")
            ]
            assert told == ["2", "1", "3"]
            desk.crash()
            values = SysTopics(desk.core.broker).values(1.0)
            told = [
                values[b"clients/" + name] for name in (b"connected", b"disconnected", b"total")
            ]
            assert told == ["0", "2", "2"]


class TestWills:
    def test_one_whose_delay_was_over_before_the_client_came_back_is_published(
        self, desk: DurableDesk
    ) -> None:
        desk.come(will=will(delay=10))
        desk.crash()
        desk.core.clock.advance(10)
        desk.come()
        assert (desk.core.stored(), desk.saved().will) == ([b"gone"], None)

    def test_one_whose_delay_was_not_is_forgotten(self, desk: DurableDesk) -> None:
        desk.come(will=will(delay=10))
        desk.crash()
        desk.core.clock.advance(9)
        desk.come()
        desk.core.advance(50)
        assert (desk.core.stored(), desk.saved().will) == ([], None)

    def test_with_the_session_ends_its_delay(self, desk: DurableDesk) -> None:
        lose(desk.come(will=will(delay=50)))
        desk.come(clean_start=True)
        assert desk.core.stored() == [b"gone"]

    def test_it_is_stored_before_the_session_is_gone(self) -> None:
        with durable_desk(automatic=False) as desk:
            lose(desk.come(will=will(delay=50)))
            wire = desk.core.wire()
            assert wire.connect("s", clean_start=True) == []
            desk.crash(automatic=True)
            desk.core.advance(51)
            assert desk.core.stored() == [b"gone"]


class TestTime:
    def test_who_waits_for_its_turn_too_long_is_told_and_gives_its_place_up(
        self, desk: DurableDesk
    ) -> None:
        stuck = Turn("s", lambda: None)
        desk.core.durables.turns.begin(stuck)
        stuck.step("the disk", lambda: None)
        wire = desk.core.wire()
        assert wire.connect("s", clean_start=False, session_expiry_interval=100) == []
        desk.core.advance(9.9)
        assert wire.take() == []
        desk.core.advance(0.1)
        assert wire.take() == [
            ConnAck(
                reason=Reason.SERVER_BUSY,
                properties=Properties(
                    reason_string="the session is busy, try again: it waits for the disk"
                ),
            )
        ]
        assert wire.is_closed
        stuck.end()
        assert desk.core.broker.is_settled
        assert desk.come().accepted is not None

    def test_a_save_that_takes_too_long_holds_up_nobody(self, desk: DurableDesk) -> None:
        leave(desk.come())
        wire = desk.core.wire()
        found = found_session(desk, wire)
        with desk.core.held():
            found()
            desk.core.clock.advance(10)
            desk.core.broker.tick()
            desk.core.shell.run()
            assert [type(packet) for packet in wire.overhear()] == [ConnAck]
            assert wire.is_closed
        desk.core.run()
        assert (desk.core.broker.is_settled, desk.saved().connected) == (True, False)
        assert (desk.core.durables.sessions, desk.core.broker.registry.sessions) == ({}, {})

    def test_who_is_in_is_not_put_out(self, desk: DurableDesk) -> None:
        wire = desk.come()
        desk.wait(20)
        assert (wire.take(), wire.is_closed) == ([], False)


def fail(*_: object, **__: object) -> Any:
    raise RuntimeError("on purpose")


class TestMistakes:
    """Of ours, in any step: the visitor is told, and the next one gets in."""

    @pytest.mark.parametrize("name", ["find", "make", "attach", "drop_away", "due_will"])
    def test_in_a_step(self, desk: DurableDesk, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        if name != "make":
            leave(desk.come())
        with monkeypatch.context() as patched:
            patched.setattr(desk.core.durables, name, fail)
            wire = desk.core.wire()
            clean = name == "drop_away"
            [answer] = wire.connect("s", clean_start=clean, session_expiry_interval=100)
            assert isinstance(answer, ConnAck)
            assert (answer.reason, wire.is_closed) == (Reason.SERVER_UNAVAILABLE, True)
        assert desk.core.broker.is_settled
        assert desk.come().accepted is not None

    @pytest.mark.parametrize("name", ["restore", "save"])
    def test_where_a_session_is_joined_nothing_is_left_of_it_in_memory(
        self, desk: DurableDesk, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leave(desk.come())
        core = desk.core
        with monkeypatch.context() as patched:
            patched.setattr(Durable, name, fail)
            wire = core.wire()
            wire.connect("s", clean_start=False, session_expiry_interval=100)
            assert wire.is_closed
        assert (core.broker.registry.sessions, core.durables.sessions) == ({}, {})
        assert (len(core.broker.registry), core.broker.is_settled) == (1, True)
        again = desk.come()
        assert again.accepted is not None
        assert again.accepted.session_present

    @pytest.mark.parametrize("expiry", [0, 100])
    @pytest.mark.parametrize("when", ["before", "behind"])
    def test_in_the_welcome(
        self, desk: DurableDesk, expiry: int, when: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wire = desk.core.wire()
        with monkeypatch.context() as patched:
            if when == "before":
                patched.setattr(wire, "write", fail)
            else:
                patched.setattr(desk.core.broker.rules, "syncs_all", False)
                patched.setattr(desk.core.broker.rules, "split", fail)
            wire.send(
                Connect(
                    version=V5,
                    client_id="s",
                    clean_start=False,
                    properties=Properties(session_expiry_interval=expiry),
                ),
                message("t", "x", 2, 1),
            )
            desk.core.run()
        assert wire.is_closed
        core = desk.core
        assert (core.broker.is_settled, core.broker.clients, core.durables.sessions) == (
            True,
            {},
            {},
        )
        assert desk.come().accepted is not None

    def test_in_the_end_of_the_former_one(
        self, desk: DurableDesk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        desk.come()
        with monkeypatch.context() as patched:
            patched.setattr(desk.core.broker.subscriptions, "put_off", fail)
            again = desk.core.wire()
            again.connect("s", clean_start=False, session_expiry_interval=100)
        assert [type(packet) for packet in again.take()] == []
        assert again.accepted is not None
        assert desk.core.broker.clients == {"s": again.client}
