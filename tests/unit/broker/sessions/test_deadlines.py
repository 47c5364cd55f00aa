"""Wills and ends of sessions that are away: never early, at least once, whoever is down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import PurePath

import pytest

from siltstone.broker.publish.observers import SettlePart
from siltstone.errors import DiskError, OverloadedError
from siltstone.mqtt.packets import Disconnect
from siltstone.mqtt.publish import PublishBatch
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.session.archive.owned.session import OwnedSession
from tests.support.broker_core import V3, FailingTap, Wire, over_quota
from tests.support.durable_desk import (
    VERSIONS,
    DurableDesk,
    Got,
    consume,
    durable_desk,
    got,
    leave,
    lose,
    will,
)


@pytest.fixture
def desk() -> Iterator[DurableDesk]:
    with durable_desk() as made:
        yield made


class FullTap:
    """Has no room, until it has."""

    is_full = True

    def refused(self, batch: PublishBatch, publisher: bytes) -> list[int]:
        return list(range(len(batch.topics))) if self.is_full else []

    def take(self, batch: PublishBatch, publisher: bytes, settle: SettlePart | None) -> int:
        if self.is_full and settle is not None:
            settle(batch, OverloadedError("full"))
            return 1
        return 0


class Bridge:
    """Has what it is given, unless its disk fails."""

    def __init__(self) -> None:
        self.fails = False
        self.taken: list[bytes] = []
        self._later: list[Callable[[], None]] = []

    def refused(self, batch: PublishBatch, publisher: bytes) -> list[int]:
        return []

    def take(self, batch: PublishBatch, publisher: bytes, settle: SettlePart | None) -> int:
        assert settle is not None
        error = DiskError(PurePath("/spool"), "write", "scripted", errno=5) if self.fails else None
        if error is None:
            self.taken += batch.values
        self._later.append(partial(settle, batch, error))
        return 1

    def settle(self) -> None:
        while self._later:
            self._later.pop(0)()


def bridged_desk(desk: DurableDesk, count: int) -> list[Bridge]:
    """Add bridges to a broker."""
    bridges = [Bridge() for _ in range(count)]
    for bridge in bridges:
        desk.core.broker.taps.add(bridge)
    return bridges


def wait(desk: DurableDesk, bridges: list[Bridge], seconds: int = 5) -> None:
    """Let time pass, and bridges answer."""
    for _ in range(seconds * 10):
        desk.core.advance(0.1)
        for bridge in bridges:
            bridge.settle()
        desk.core.run()


def test_a_deadline_that_is_under_way_is_not_begun_again_by_later_looks() -> None:
    with durable_desk(automatic=False) as desk:
        lose(desk.come(will=will(delay=1)))
        before = desk.core.durables.turns.count
        # The store does not answer while it is looked several times.
        wait(desk, [], 5)
        desk.core.settle()
        wait(desk, [], 2)
        assert (desk.core.stored(), desk.saved().will) == ([b"gone"], None)
        assert desk.core.durables.turns.count - before == 1


class TestBridged:
    """Wills that bridges get as well: whoever has one is not given it again."""

    @pytest.mark.parametrize("failing", [0, 1])
    def test_while_a_spool_fails_it_is_neither_stored_nor_sent_nor_given_to_others_again(
        self, desk: DurableDesk, failing: int
    ) -> None:
        bridges = bridged_desk(desk, 2)
        watcher = desk.core.connect("watcher")
        watcher.subscribe("will", qos=0)
        bridges[failing].fails = True
        lose(desk.come(will=will(delay=1)))
        wait(desk, bridges)
        assert desk.saved().will is not None
        assert (desk.core.stored(), watcher.take()) == ([], [])
        assert bridges[1 - failing].taken == [b"gone"]
        bridges[failing].fails = False
        wait(desk, bridges)
        assert (desk.core.stored(), desk.saved().will) == ([b"gone"], None)
        assert got(watcher.take()) == [Got("gone", 0)]
        assert [bridge.taken for bridge in bridges] == [[b"gone"]] * 2

    def test_while_the_store_refuses_it_it_is_bridged_and_sent_once(self) -> None:
        with durable_desk(automatic=False) as desk:
            bridges = bridged_desk(desk, 1)
            watcher = desk.core.connect("watcher")
            watcher.subscribe("will", qos=0)
            lose(desk.come(will=will(delay=1)))
            for _ in range(3):
                wait(desk, bridges, 2)
                desk.core.settle(over_quota())
            assert watcher.take() == []
            wait(desk, bridges, 2)
            desk.core.settle()
            assert (desk.core.stored(), desk.saved().will) == ([b"gone"], None)
            assert got(watcher.take()) == [Got("gone", 0)]
            assert bridges[0].taken == [b"gone"]

    @pytest.mark.parametrize("expiry", [2, 100])
    @pytest.mark.parametrize("name", ["save_later", "drop_in_parts"])
    def test_while_its_session_cannot_be_saved_or_deleted_it_is_not_published_again(
        self, desk: DurableDesk, name: str, expiry: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_: OwnedSession, *__: object) -> None:
            raise over_quota()

        bridges = bridged_desk(desk, 1)
        lose(desk.come(will=will(delay=1), session_expiry_interval=expiry))
        with monkeypatch.context() as patched:
            patched.setattr(OwnedSession, name, fail)
            wait(desk, bridges)
        wait(desk, bridges)
        assert (desk.core.stored(), bridges[0].taken) == ([b"gone"], [b"gone"])
        saved = desk.core.peek("s")
        assert (saved is None) if expiry == 2 else (saved is not None and saved.will is None)

    def test_who_comes_back_while_a_spool_fails_has_it_stored_once(self, desk: DurableDesk) -> None:
        bridges = bridged_desk(desk, 2)
        bridges[1].fails = True
        lose(desk.come(will=will(delay=1)))
        wait(desk, bridges)
        wire = desk.core.wire()
        wire.connect("s", clean_start=False, session_expiry_interval=100)
        wait(desk, bridges, 1)
        wire.take()
        assert wire.accepted is not None
        bridges[1].fails = False
        wait(desk, bridges)
        assert (desk.core.stored(), desk.saved().will) == ([b"gone"], None)
        assert [bridge.taken for bridge in bridges] == [[b"gone"], []]

    def test_the_next_will_of_the_same_client_is_another(self, desk: DurableDesk) -> None:
        bridges = bridged_desk(desk, 1)
        for _ in range(2):
            lose(desk.come(will=will(delay=1)))
            wait(desk, bridges)
        assert desk.core.stored() == bridges[0].taken == [b"gone"] * 2

    def test_a_mistake_in_a_bridge_leaves_it_due(self, desk: DurableDesk) -> None:
        desk.core.broker.taps.add(FailingTap())
        lose(desk.come(will=will(delay=1)))
        desk.wait(3)
        assert (desk.core.stored(), desk.core.broker.is_settled) == ([], True)
        assert desk.saved().will is not None


class TestExpiry:
    def test_a_session_ends_when_its_time_is_over_and_not_before(self, desk: DurableDesk) -> None:
        leave(desk.come(session_expiry_interval=10))
        desk.wait(9)
        assert desk.core.archive.count() == 1
        desk.wait(2)
        assert (desk.core.peek("s"), desk.core.archive.count()) == (None, 0)

    def test_the_time_counts_on_while_the_broker_is_down(self, desk: DurableDesk) -> None:
        leave(desk.come(session_expiry_interval=10))
        desk.core.clock.advance(9)
        desk.crash()
        desk.wait(2)
        assert desk.core.archive.count() == 0

    def test_of_who_was_connected_it_counts_from_the_next_start(self, desk: DurableDesk) -> None:
        desk.come(session_expiry_interval=10)
        desk.core.clock.advance(1000)
        desk.crash()
        desk.wait(9)
        assert desk.core.archive.count() == 1
        desk.wait(2)
        assert desk.core.archive.count() == 0

    def test_goodbye_may_change_it(self, desk: DurableDesk) -> None:
        leave(desk.come(session_expiry_interval=10), expiry=20)
        desk.wait(15)
        assert desk.core.archive.count() == 1
        desk.wait(6)
        assert desk.core.archive.count() == 0

    def test_who_is_connected_does_not_end(self, desk: DurableDesk) -> None:
        leave(desk.come(session_expiry_interval=10))
        wire = desk.come(session_expiry_interval=10)
        desk.wait(20)
        assert (desk.core.archive.count(), wire.is_closed) == (1, False)

    def test_only_those_end_whose_time_is_over(self, desk: DurableDesk) -> None:
        for name, expiry in (("a", 5), ("b", 50), ("c", 0xFFFF_FFFF)):
            leave(desk.come(name, session_expiry_interval=expiry))
        desk.wait(7)
        assert [each.client_id for each in desk.core.archive.list()] == ["b", "c"]

    def test_a_clock_that_jumps_forward_ends_it_and_one_that_jumps_back_keeps_it(
        self, desk: DurableDesk
    ) -> None:
        for name in ("a", "b"):
            leave(desk.come(name, session_expiry_interval=100))
            desk.core.clock.jump(-1000)
            desk.wait(2)
            assert desk.core.peek(name) is not None
            desk.core.clock.jump(1000)
        desk.wait(2)
        assert desk.core.archive.count() == 2
        desk.core.clock.jump(100)
        desk.wait(2)
        assert desk.core.archive.count() == 0

    def test_3_1_1_is_kept_as_long_as_the_broker_allows(self) -> None:
        with durable_desk(session_expiry_max=10) as desk:
            lose(desk.come(version=V3))
            desk.wait(9)
            assert desk.core.archive.count() == 1
            desk.wait(2)
            assert desk.core.archive.count() == 0


class TestWills:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_one_without_delay_is_published_at_once(
        self, desk: DurableDesk, version: Version
    ) -> None:
        lose(desk.come(version=version, will=will()))
        assert desk.core.stored() == [b"gone"]
        desk.wait(2)
        assert desk.core.stored() == [b"gone"]

    @pytest.mark.parametrize(("delay", "expiry"), [(10, 100), (100, 10), (10, 10)])
    def test_it_waits_for_its_delay_or_the_end_of_the_session_and_comes_once(
        self, desk: DurableDesk, delay: int, expiry: int
    ) -> None:
        lose(desk.come(session_expiry_interval=expiry, will=will(delay=delay)))
        desk.wait(9)
        assert desk.core.stored() == []
        desk.wait(2)
        assert desk.core.stored() == [b"gone"]
        desk.wait(200)
        assert (desk.core.stored(), desk.core.archive.count()) == ([b"gone"], 0)

    def test_goodbye_takes_it_along(self, desk: DurableDesk) -> None:
        leave(desk.come(will=will(delay=5)))
        desk.wait(20)
        assert desk.core.stored() == []

    def test_unless_it_asks_for_it(self, desk: DurableDesk) -> None:
        wire = desk.come(will=will(delay=5))
        wire.send(Disconnect(reason=Reason.DISCONNECT_WITH_WILL_MESSAGE))
        desk.wait(7)
        assert desk.core.stored() == [b"gone"]

    def test_who_comes_back_in_time_takes_it_back(self, desk: DurableDesk) -> None:
        lose(desk.come(will=will(delay=5)))
        desk.wait(4)
        desk.come()
        desk.wait(10)
        assert desk.core.stored() == []

    @pytest.mark.parametrize("delay", [0, 5])
    def test_it_is_published_for_who_was_connected_when_the_power_was_cut(
        self, desk: DurableDesk, delay: int
    ) -> None:
        desk.come(will=will(delay=delay))
        desk.crash()
        if delay:
            desk.wait(4)
            assert desk.core.stored() == []
        desk.wait(3)
        assert desk.core.stored() == [b"gone"]

    def test_it_is_published_when_its_time_was_while_the_broker_was_down(
        self, desk: DurableDesk
    ) -> None:
        lose(desk.come(will=will(delay=5)))
        desk.core.clock.advance(30)
        desk.crash()
        desk.wait(2)
        assert (desk.core.stored(), desk.saved().will) == ([b"gone"], None)

    def test_one_that_is_on_its_way_when_the_power_is_cut_is_not_lost(self) -> None:
        with durable_desk(automatic=False) as desk:
            desk.come(will=will()).drop()
            desk.core.run()
            assert len(desk.core.database.pending) == 1
            desk.crash(automatic=True)
            desk.wait(2)
            assert desk.core.stored() == [b"gone"]

    def test_one_that_could_not_be_stored_stays_due(self) -> None:
        with durable_desk(automatic=False) as desk:
            lose(desk.come(will=will(delay=1)))
            desk.wait(3)
            desk.core.settle(over_quota())
            assert desk.saved().will is not None
            desk.wait(2)
            desk.core.settle()
            assert (desk.core.stored(), desk.saved().will) == ([b"gone"], None)

    def test_one_that_a_bridge_has_no_room_for_is_stored_when_there_is_some_and_once(
        self, desk: DurableDesk
    ) -> None:
        tap = FullTap()
        desk.core.broker.taps.add(tap)
        lose(desk.come(will=will(delay=1)))
        desk.wait(5)
        assert (desk.core.stored(), desk.saved().will is None) == ([], False)
        tap.is_full = False
        desk.wait(3)
        assert (desk.core.stored(), desk.saved().will) == ([b"gone"], None)

    def test_it_is_retained_and_reaches_sessions_that_are_away(self, desk: DurableDesk) -> None:
        watcher = desk.come("watcher")
        watcher.subscribe("will", qos=1)
        lose(watcher)
        lose(desk.come(will=will(delay=5, retain=True)))
        desk.wait(7)
        desk.crash()
        assert consume(desk.come("watcher")) == [Got("gone")]
        late = desk.come("late")
        late.arrived.extend(late.subscribe("will", qos=1))
        assert consume(late) == [Got("gone")]


def test_what_cannot_be_looked_for_is_looked_for_again(desk: DurableDesk) -> None:
    leave(desk.come(session_expiry_interval=1))
    due = desk.core.archive.due
    failures = [over_quota()]

    def fail(*args: object, **options: object) -> object:
        if failures:
            raise failures.pop()
        return due(*args, **options)  # type: ignore[arg-type]

    desk.core.archive.due = fail  # type: ignore[method-assign,assignment]
    desk.wait(2)
    desk.wait(1)
    assert (failures, desk.core.archive.count()) == ([], 0)


class TestReturned:
    """A client that came back before the turn of what is due: it keeps its session."""

    @pytest.fixture
    def look(self, desk: DurableDesk) -> Callable[[], None]:
        """Find the will of a session due; return what begins its turn."""
        lose(desk.come(will=will(delay=1)))
        desk.core.clock.advance(2)
        desk.core.broker.tick()
        desk.core.shell.run()
        [(work, then)] = desk.core.shell.works
        desk.core.shell.works.clear()
        work()
        return then

    def demand_session(self, desk: DurableDesk, wire: Wire) -> None:
        """See that a client has its session, and can save it."""
        wire.take()
        wire.subscribe("t", qos=1)
        desk.wait(2)
        assert (wire.is_closed, desk.saved().connected) == (False, True)
        assert len(desk.saved().subscriptions) == 1
        assert (desk.core.stored(), desk.core.broker.is_settled) == ([b"gone"], True)

    def test_one_that_is_in_is_not_fenced(
        self, desk: DurableDesk, look: Callable[[], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        wire = desk.come()
        look()
        self.demand_session(desk, wire)
        assert [record.getMessage() for record in caplog.records] == []

    def test_one_whose_turn_was_before_is_not_fenced(
        self, desk: DurableDesk, look: Callable[[], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        with desk.core.held():
            wire = desk.core.wire()
            wire.connect("s", clean_start=False, session_expiry_interval=100)
            look()
        self.demand_session(desk, wire)
        assert [record.getMessage() for record in caplog.records] == []

    def test_one_that_comes_behind_finds_what_was_due_done(
        self, desk: DurableDesk, look: Callable[[], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        with desk.core.held():
            look()
            wire = desk.core.wire()
            wire.connect("s", clean_start=False, session_expiry_interval=100)
        self.demand_session(desk, wire)
        assert [record.getMessage() for record in caplog.records] == []

    def test_the_end_of_a_group_whose_member_returned_leaves_it_alone(self) -> None:
        with durable_desk(share={"expiry": 1}) as desk:
            member = desk.come("m")
            member.subscribe("$share/g/t", qos=1)
            lose(member)
            desk.core.clock.advance(3)
            desk.core.broker.tick()
            desk.core.shell.run()
            [(work, then)] = desk.core.shell.works
            desk.core.shell.works.clear()
            work()
            member = desk.come("m")
            then()
            desk.core.run()
            desk.publish("t", "x")
            assert consume(member) == [Got("x")]
            assert len(desk.core.archive.list_groups()) == 1


def test_a_mistake_of_ours_with_one_that_is_due_stops_no_other(
    desk: DurableDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        leave(desk.come(name, session_expiry_interval=1))
    drop_away = desk.core.durables.drop_away

    def fail(owned: OwnedSession, then: Callable[[], None]) -> None:
        if owned.client_id == "a":
            raise RuntimeError("on purpose")
        drop_away(owned, then)

    with monkeypatch.context() as patched:
        patched.setattr(desk.core.durables, "drop_away", fail)
        desk.wait(3)
        assert [each.client_id for each in desk.core.archive.list()] == ["a"]
        assert desk.core.broker.is_settled
    desk.wait(2)
    assert desk.core.archive.count() == 0
