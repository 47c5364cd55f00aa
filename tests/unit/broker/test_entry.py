"""Clients that come in to durable sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from siltstone.broker.access import Access, Credentials, Hook
from siltstone.mqtt.packets import ConnAck, Disconnect
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from tests.support.broker_core import V3, V5, Wire
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
                properties=Properties(reason_string="too many sessions"),
            )


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
