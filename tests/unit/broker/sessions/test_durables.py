"""Durable sessions while their clients come and go, and the broker too."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from siltstone.broker.deliver.feeds import SessionFeeds
from siltstone.broker.publish.interest import Interest
from siltstone.broker.sessions.durables import Durables
from siltstone.broker.settings.storage import StoreRule
from siltstone.errors import OverloadedError, PoisonedError
from siltstone.guard import contain
from siltstone.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Unsubscribe,
)
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.session.archive.owned.parts import CommitInParts
from siltstone.session.archive.records import SavedReceived, SerialRange
from siltstone.session.durable.session import Durable
from siltstone.session.sending.outbox import Outbox
from siltstone.store.feed.position import Position
from siltstone.topic.grammar import TopicFilter
from tests.support.broker_core import V3, V5, Wire, message
from tests.support.durable_core import DurableCore
from tests.support.durable_desk import (
    DurableDesk,
    Got,
    consume,
    durable_desk,
    got,
    leave,
    lose,
    news,
)


@pytest.fixture
def desk() -> Iterator[DurableDesk]:
    with durable_desk() as made:
        yield made


def messages(*payloads: str, qos: int = 1) -> list[Got]:
    return [Got(payload, qos) for payload in payloads]


class TestMissed:
    @pytest.mark.parametrize("crashes", [False, True])
    @pytest.mark.parametrize("qos", [1, 2])
    def test_it_comes_in_order_and_once_and_then_what_is_live(
        self, desk: DurableDesk, qos: int, crashes: bool
    ) -> None:
        wire = desk.come()
        wire.subscribe("t")
        leave(wire)
        desk.publish("t", "1", "2", qos=qos)
        if crashes:
            desk.crash()
        desk.publish("t", "3", qos=qos)
        wire = desk.come()
        desk.publish("t", "4", qos=qos)
        assert consume(wire) == messages("1", "2", "3", "4", qos=qos)
        lose(wire)
        assert news(desk.come()) == []

    @pytest.mark.parametrize("restarts", [False, True])
    @pytest.mark.parametrize("qos", [0, 1])
    @pytest.mark.parametrize("clean", [False, True])
    def test_it_is_sent_to_who_wants_it_with_qos_1_and_has_not_begun_anew(
        self, desk: DurableDesk, restarts: bool, qos: int, clean: bool
    ) -> None:
        wire = desk.come()
        wire.subscribe("t", qos=qos)
        lose(wire)
        desk.publish("t", "missed")
        if restarts:
            desk.crash()
        expected = messages("missed") if qos and not clean else []
        assert consume(desk.come(clean_start=clean)) == expected

    def test_it_outlives_three_runs_and_power_cuts_while_they_begin(
        self, desk: DurableDesk
    ) -> None:
        wire = desk.come()
        wire.subscribe("t")
        first = desk.core.durables.run
        lose(wire)
        for number in range(3):
            desk.crash()
            desk.publish("t", str(number))
            desk.crash()
        assert (desk.core.durables.run, desk.saved().run) == (first + 6, first)
        assert consume(desk.come()) == messages("0", "1", "2")
        assert desk.saved().run == first + 6

    def test_it_is_dropped_when_it_is_acknowledged_and_not_before(self, desk: DurableDesk) -> None:
        wire = desk.come()
        wire.subscribe("t")
        lose(wire)
        desk.publish("t", "1", "2")
        wire = desk.come()
        assert news(wire) == messages("1", "2")
        desk.crash()
        assert consume(desk.come()) == [Got("1", dup=True), Got("2", dup=True)]
        desk.wait()
        state = desk.saved()
        assert (dict(state.position.serials), state.inflight, state.done) == ({0: 2}, (), ())

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("a/+", ["a/b", "a/c"]),
            ("a/#", ["a", "a/b", "a/c", "a/b/d"]),
            ("+/b", ["a/b"]),
            ("#", ["a", "a/b", "a/c", "a/b/d"]),
            ("t//+//#", []),
        ],
    )
    def test_wildcards_match_what_they_do_when_it_is_live(
        self, desk: DurableDesk, text: str, found: list[str]
    ) -> None:
        wire = desk.come()
        wire.subscribe(text)
        lose(wire)
        for topic in ("a", "a/b", "a/c", "a/b/d"):
            desk.publish(topic, topic)
        desk.crash()
        assert consume(desk.come()) == messages(*found)

    def test_empty_levels_are_levels(self, desk: DurableDesk) -> None:
        wire = desk.come()
        wire.subscribe("t//+//#")
        lose(wire)
        desk.publish("t//a//b/c", "in")
        desk.publish("t/x/a//b", "out")
        assert consume(desk.come()) == messages("in")

    def test_one_copy_is_stored_however_many_sessions_want_it(self, desk: DurableDesk) -> None:
        for number in range(5):
            wire = desk.come(f"s{number}")
            wire.subscribe("t")
            lose(wire)
        desk.publish("t", "1")
        assert desk.core.stored() == [b"1"]
        assert [consume(desk.come(f"s{number}")) for number in range(5)] == [messages("1")] * 5
        assert desk.core.stored() == [b"1"]

    def test_qos_0_is_for_who_is_there(self, desk: DurableDesk) -> None:
        wire = desk.come()
        wire.subscribe("t")
        desk.publish("t", "1", "2", qos=0)
        assert news(wire) == messages("1", "2", qos=0)
        lose(wire)
        desk.publish("t", "3", qos=0)
        assert news(desk.come()) == []

    def test_what_has_expired_meanwhile_is_not_sent(self, desk: DurableDesk) -> None:
        wire = desk.come()
        wire.subscribe("t")
        lose(wire)
        desk.publish("t", "short", message_expiry_interval=10)
        desk.publish("t", "long", message_expiry_interval=60)
        # A second is taken off when it has passed whole.
        desk.core.clock.advance(20.5)
        desk.crash()
        [packet] = desk.come().take()
        assert isinstance(packet, Publish)
        assert (packet.payload, packet.properties.message_expiry_interval) == (b"long", 40)

    def test_rows_that_the_store_has_dropped_are_passed_over(self, desk: DurableDesk) -> None:
        wire = desk.come()
        wire.subscribe("t")
        desk.publish("t", "1", qos=2)
        assert news(wire) == messages("1", qos=2)
        lose(wire)
        desk.publish("t", "2")
        desk.core.real.seal()
        desk.core.real.drop_slab(desk.core.real.slabs()[0].slab)
        desk.crash()
        desk.publish("t", "3")
        wire = desk.come()
        desk.wait()
        # The client may have the first one: its packet id is to be released.
        packets = wire.take()
        assert [type(packet) for packet in packets] == [Publish, PubRel]
        assert packets[1] == PubRel(packet_id=2)

    def test_what_nobody_stores_is_for_who_is_there(self) -> None:
        with durable_desk(rules=(StoreRule(filter="never/#", store="never"),)) as desk:
            wire = desk.come()
            wire.subscribe("#", qos=1)
            desk.publish("never/x", "1")
            assert consume(wire) == messages("1")
            lose(wire)
            desk.publish("never/x", "2")
            desk.publish("x", "3")
            assert (desk.core.stored(), consume(desk.come())) == ([b"3"], messages("3"))

    @pytest.mark.parametrize("shards", [1, 4])
    def test_the_order_of_each_publisher_is_kept(self, shards: int) -> None:
        with durable_desk(shards=shards) as desk:
            wire = desk.come(receive_maximum=2)
            wire.subscribe("#", qos=1)
            lose(wire)
            publishers = [desk.core.connect(f"p{number}") for number in range(4)]
            for number in range(5):
                for name, publisher in enumerate(publishers):
                    publisher.publish("t", f"{name} {number}", 1, 1)
            desk.crash()
            found = [each.payload for each in consume(desk.come(receive_maximum=2))]
            for name in range(4):
                mine = [payload for payload in found if payload.startswith(str(name))]
                assert mine == [f"{name} {number}" for number in range(5)]


class TestInFlight:
    def test_it_comes_again_under_its_packet_ids(self, desk: DurableDesk) -> None:
        wire = desk.come()
        wire.subscribe("t")
        desk.publish("t", "1", "2", "3")
        before = [packet.packet_id for packet in wire.take() if isinstance(packet, Publish)]
        wire.send(PubAck(packet_id=before[1]))
        leave(wire)
        wire = desk.come()
        found = [packet for packet in wire.take() if isinstance(packet, Publish)]
        assert [(packet.payload, packet.packet_id, packet.dup) for packet in found] == [
            (b"1", before[0], True),
            (b"3", before[2], True),
        ]

    def test_what_waited_for_the_window_is_new(self, desk: DurableDesk) -> None:
        wire = desk.come(receive_maximum=1)
        wire.subscribe("t")
        desk.publish("t", "1", "2")
        assert news(wire) == messages("1")
        lose(wire)
        assert consume(desk.come()) == [Got("1", dup=True), Got("2")]

    def test_packet_ids_begin_anew_behind_the_last_and_leave_out_those_in_use(
        self, desk: DurableDesk
    ) -> None:
        wire = desk.come()
        wire.subscribe("t")
        desk.publish("t", "1")
        lose(wire)
        owned = desk.core.archive.take("s")
        assert owned is not None
        state = owned.state
        owned.put_progress(position=state.position, inflight=state.inflight, next_packet_id=65_534)
        owned.save()
        desk.publish("t", "2", "3", "4")
        found = [packet for packet in desk.come().take() if isinstance(packet, Publish)]
        assert [packet.packet_id for packet in found] == [2, 65_535, 1, 3]

    @pytest.mark.parametrize("cut", range(4))
    def test_qos_2_is_delivered_once_wherever_the_power_is_cut(
        self, desk: DurableDesk, cut: int
    ) -> None:
        wire = desk.come()
        wire.subscribe("t")
        desk.publish("t", "1", qos=2)
        [packet] = wire.take()
        assert isinstance(packet, Publish)
        packet_id = packet.packet_id
        if cut == 1:
            # The client has answered, and the broker did not save that.
            desk.core.hold()
            wire.send(PubRec(packet_id=packet_id))
        elif cut > 1:
            assert wire.exchange(PubRec(packet_id=packet_id)) == [PubRel(packet_id=packet_id)]
        if cut == 3:
            wire.send(PubComp(packet_id=packet_id))
            desk.wait()
        desk.crash()
        found = desk.come().take()
        if cut < 2:
            [again] = found
            assert isinstance(again, Publish)
            assert (again.packet_id, again.dup) == (packet_id, True)
        else:
            assert found == ([PubRel(packet_id=packet_id)] if cut == 2 else [])

    @pytest.mark.parametrize("stored", [False, True])
    def test_qos_2_of_the_client_is_stored_once_wherever_the_power_is_cut(
        self, stored: bool
    ) -> None:
        with durable_desk(automatic=False) as desk:
            wire = desk.come()
            assert wire.publish("t", "1", 2, 7) == []
            [received] = desk.saved().received
            assert (received.packet_id, received.sequence) == (7, 1)
            if stored:
                desk.core.database.settle()
            desk.crash(automatic=True)
            wire = desk.come()
            assert wire.publish("t", "1", 2, 7, dup=True) == [PubRec(packet_id=7)]
            assert desk.core.stored() == [b"1"]
            lose(wire)
            assert desk.saved().received == (SavedReceived(7),)
            wire = desk.come()
            assert wire.exchange(PubRel(packet_id=7)) == [PubComp(packet_id=7)]
            assert desk.saved().received == ()

    def test_who_releases_after_a_crash_is_not_told_that_it_is_unknown(
        self, desk: DurableDesk
    ) -> None:
        wire = desk.come()
        assert wire.publish("t", "1", 2, 7) == [PubRec(packet_id=7)]
        desk.crash()
        assert desk.come().exchange(PubRel(packet_id=7)) == [PubComp(packet_id=7)]

    def test_a_packet_id_is_released_on_disk_before_the_client_is_told(
        self, desk: DurableDesk
    ) -> None:
        wire = desk.come()
        wire.publish("t", "1", 2, 7)
        with desk.core.held():
            assert wire.exchange(PubRel(packet_id=7)) == []
        assert (wire.take(), desk.saved().received) == ([PubComp(packet_id=7)], ())

    def test_messages_behind_one_of_qos_2_keep_their_order(self, desk: DurableDesk) -> None:
        wire = desk.come()
        with desk.core.held():
            packets = [message("t", "1", 2, 1), message("t", "2", 1, 2), message("t", "3", 0)]
            wire.send(packets[0])
            wire.send(packets[1], packets[2])
            assert not wire.reads()
        assert wire.take() == [PubRec(packet_id=1), PubAck(packet_id=2)]
        assert (desk.core.stored(), wire.reads()) == ([b"1", b"2", b"3"], True)

    def test_qos_2_of_all_durabilities_is_stored(self) -> None:
        rules = (StoreRule(filter="w", durability="written"),)
        with durable_desk(rules=rules) as desk:
            wire = desk.come()
            for number in range(3):
                first, second = 2 * number + 1, 2 * number + 2
                wire.send(message("w", "w", 2, first), message("s", "s", 2, second))
                assert wire.take() == [PubRec(packet_id=first), PubRec(packet_id=second)]
            assert sorted(desk.core.stored()) == [b"s", b"s", b"s", b"w", b"w", b"w"]


class TestSaving:
    def test_acknowledgements_are_saved_within_a_second(self, desk: DurableDesk) -> None:
        wire = desk.come()
        wire.subscribe("t")
        desk.publish("t", "1", "2", "3")
        packets = wire.take()
        second, third = packets[1], packets[2]
        assert isinstance(second, Publish)
        assert isinstance(third, Publish)
        wire.send(PubAck(packet_id=second.packet_id), PubAck(packet_id=third.packet_id))
        assert desk.saved().position.serials == {0: 0}
        desk.wait()
        state = desk.saved()
        assert (state.position.serials, state.done) == ({0: 0}, (SerialRange(0, 1, 3),))
        desk.crash()
        assert consume(desk.come()) == [Got("1", dup=True)]

    def test_so_is_each_of_many_sessions(self, desk: DurableDesk) -> None:
        wires = [desk.come(f"s{number}") for number in range(20)]
        for wire in wires:
            wire.subscribe("t")
        desk.publish("t", "1")
        for wire in wires:
            consume(wire)
        desk.wait()
        states = [desk.saved(f"s{number}") for number in range(20)]
        assert {dict(state.position.serials)[0] for state in states} == {1}

    def test_who_comes_often_is_looked_after_once(self, desk: DurableDesk) -> None:
        for _ in range(5):
            lose(desk.come())
        desk.come()
        assert len(desk.core.durables.sessions) == 1
        assert len(desk.core.durables._rota) == 1  # noqa: SLF001 - it must not grow
        desk.wait()
        assert sum(map(len, desk.core.durables._moved)) == 0  # noqa: SLF001 - nor must this

    def test_all_is_saved_at_the_end_of_a_connection(self, desk: DurableDesk) -> None:
        wire = desk.come()
        wire.subscribe("t")
        desk.publish("t", "1")
        consume(wire)
        leave(wire)
        state = desk.saved()
        assert (dict(state.position.serials), state.inflight, state.connected) == (
            {0: 1},
            (),
            False,
        )
        assert state.away_since_us == desk.core.clock.now_us()

    def test_a_save_without_room_is_tried_again(
        self, desk: DurableDesk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wire = desk.come()
        wire.subscribe("t")
        session = desk.core.durables.sessions["s"]
        assert session.durable is not None
        refusals = [OverloadedError("full")]
        save = session.durable.owned.save_in_parts

        def save_in_parts(soon: Callable[[Callable[[], None]], None]) -> object:
            if refusals:
                raise refusals.pop()
            return save(soon)

        owned = replace_save(session.durable.owned, save_in_parts)
        monkeypatch.setattr(session.durable, "owned", owned)
        leave(wire)
        assert desk.saved().connected
        desk.wait()
        assert not desk.saved().connected

    def test_where_it_cannot_be_saved_the_client_is_told_and_the_broker_goes_on(
        self, desk: DurableDesk
    ) -> None:
        wire = desk.come()
        wire.subscribe("t")
        desk.core.break_commits()
        [packet] = wire.publish("t", "1", 2, 1)
        assert isinstance(packet, Disconnect)
        assert wire.is_closed
        assert packet.reason is Reason.UNSPECIFIED_ERROR
        assert (desk.core.broker.is_settled, desk.core.durables.sessions) == (True, {})


class TestPassingBy:
    """A commit costs nothing for the sessions that it does not match."""

    def _settled(self, desk: DurableDesk, sessions: int) -> list[Wire]:
        wires = [desk.come(f"s{number}") for number in range(sessions)]
        for number, wire in enumerate(wires):
            wire.subscribe(f"own/{number}", "all")
        desk.wait()
        return wires

    def test_no_session_is_looked_at_or_saved_for_rows_of_others(self, desk: DurableDesk) -> None:
        self._settled(desk, 40)
        looks, commits = desk.core.durables.looks, desk.core.commits()
        for number in range(20):
            desk.publish("other", str(number))
            desk.wait()
        # In those 20 seconds each has two thirds of a turn, and no save.
        assert desk.core.durables.looks - looks <= 27
        assert desk.core.commits() - commits == 0

    @pytest.mark.parametrize("qos", [1, 2])
    def test_only_the_session_that_matches_is(self, desk: DurableDesk, qos: int) -> None:
        wires = self._settled(desk, 40)
        positions = [desk.saved(f"s{number}").position for number in range(40)]
        for number in range(3):
            desk.publish("own/7", str(number), qos=qos)
            assert consume(wires[7]) == messages(str(number), qos=qos)
            desk.wait()
        moved = [desk.saved(f"s{number}").position for number in range(40)]
        positions[7] = Position({0: 3}, positions[7].identity)
        assert moved == positions

    def test_a_session_at_work_is_looked_at_as_often_as_before(self, desk: DurableDesk) -> None:
        [wire] = self._settled(desk, 1)
        looks, commits = desk.core.durables.looks, desk.core.commits()
        for number in range(40):
            desk.publish("all", str(number))
            consume(wire)
            desk.core.advance(0.1)
        assert desk.core.durables.looks - looks == 5
        assert desk.core.commits() - commits == 5

    def test_an_old_position_is_saved_within_five_minutes(self, desk: DurableDesk) -> None:
        self._settled(desk, 3)
        desk.publish("other", "1", "2")
        commits = desk.core.commits()
        desk.wait(330)
        states = [desk.saved(f"s{number}") for number in range(3)]
        assert [state.position.serials for state in states] == [{0: 2}] * 3
        assert desk.core.commits() - commits == 3

    def test_one_that_many_rows_have_passed_is_saved_within_half_a_minute(
        self, desk: DurableDesk
    ) -> None:
        self._settled(desk, 3)
        publisher = desk.core.connect("p")
        for _ in range(9):
            publisher.send(*(message("other", "x", 1, each + 1) for each in range(500)))
            publisher.take()
        commits = desk.core.commits()
        desk.wait(31)
        states = [desk.saved(f"s{number}") for number in range(3)]
        assert [state.position.serials for state in states] == [{0: 4500}] * 3
        assert desk.core.commits() - commits == 3

    def test_after_a_crash_what_was_acknowledged_or_is_of_others_does_not_come_again(
        self, desk: DurableDesk
    ) -> None:
        [wire] = self._settled(desk, 1)
        desk.publish("all", "1", "2")
        assert consume(wire) == messages("1", "2")
        desk.wait()
        desk.publish("other", *map(str, range(50)))
        desk.publish("all", "qos 0", qos=0)
        assert news(wire) == messages("qos 0", qos=0)
        desk.wait()
        desk.crash()
        desk.publish("all", "3")
        assert consume(desk.come("s0")) == messages("3")

    def test_so_is_what_is_in_no_store(self) -> None:
        with durable_desk(rules=(StoreRule(filter="never/#", store="never"),)) as desk:
            wire = desk.come()
            wire.subscribe("#", qos=1)
            desk.wait()
            desk.publish("never/x", "1")
            assert news(wire) == messages("1")
            desk.wait()
            desk.crash()
            wire = desk.come()
            assert consume(wire) == [Got("1", dup=True)]
            desk.wait()
            desk.crash()
            assert news(desk.come()) == []

    def test_what_the_limits_drop_is_counted_on_disk_within_a_second(self) -> None:
        with durable_desk() as desk:
            wire = desk.come(maximum_packet_size=100)
            wire.subscribe("t")
            desk.wait()
            desk.publish("t", "x" * 200, "small")
            assert consume(wire) == messages("small")
            desk.wait()
            assert desk.saved().dropped == 1


class TestManyFilters:
    """Sessions whose filters are put into the hub in several turns of the loop."""

    TEXTS = tuple(f"f/{number}/#" for number in range(250))

    @pytest.fixture
    def desk(self) -> Iterator[DurableDesk]:
        with durable_desk() as made:
            wire = made.come()
            wire.subscribe(*self.TEXTS)
            leave(wire)
            yield made

    def half_come(self, desk: DurableDesk) -> Wire:
        """Connect, and stop before all filters are in the hub."""
        core = desk.core
        wire = core.wire()
        wire.send(
            Connect(
                version=V5,
                client_id="s",
                clean_start=False,
                properties=Properties(session_expiry_interval=100),
            )
        )
        for _ in range(1000):
            core.flush_commits()
            if core.shell.works:
                work, then = core.shell.works.popleft()
                work()
                then()
            elif core.shell.acts:
                core.shell.acts.popleft()()
            session = core.durables.sessions.get("s")
            if session is not None and len(session.subscriptions) == len(self.TEXTS):
                assert session.durable is not None
                assert session.durable.feed is None
                return wire
        raise AssertionError("the session was not restored")

    def filed(self, desk: DurableDesk) -> int:
        """Return how many filters the hub has."""
        desk.core.run()
        return len(desk.core.durables.feeding.hub._groups._matcher)  # noqa: SLF001

    def test_what_comes_meanwhile_is_delivered_once_and_in_order(self, desk: DurableDesk) -> None:
        desk.publish("f/0/x", "1")
        wire = self.half_come(desk)
        desk.publish("f/249/x", "2")
        desk.publish("f/0/x", "3")
        connected, *rest = wire.take()
        assert isinstance(connected, ConnAck)
        wire.arrived.extend(rest)
        assert consume(wire) == messages("1", "2", "3")
        assert self.filed(desk) == len(self.TEXTS)

    def test_a_client_that_goes_meanwhile_leaves_nothing_and_misses_nothing(
        self, desk: DurableDesk
    ) -> None:
        wire = self.half_come(desk)
        lose(wire)
        assert self.filed(desk) == 0
        desk.publish("f/7/x", "1")
        assert consume(desk.come()) == messages("1")
        assert self.filed(desk) == len(self.TEXTS)

    def test_one_that_unsubscribes_meanwhile_has_the_rest(self, desk: DurableDesk) -> None:
        wire = self.half_come(desk)
        filters = tuple(map(TopicFilter.parse, self.TEXTS))
        wire.send(Unsubscribe(packet_id=1, filters=filters[1:]))
        desk.core.run()
        assert self.filed(desk) == 1
        desk.publish("f/1/x", "no")
        desk.publish("f/0/x", "yes")
        assert got([each for each in wire.take() if isinstance(each, Publish)]) == messages("yes")
        wire.send(Unsubscribe(packet_id=2, filters=filters[:1]))
        assert self.filed(desk) == 0

    def test_the_end_of_a_session_leaves_nothing_and_takes_several_turns(
        self, desk: DurableDesk
    ) -> None:
        wire = desk.come()
        assert self.filed(desk) == len(self.TEXTS)
        wire.send(Disconnect(properties=Properties(session_expiry_interval=0)))
        hub = desk.core.durables.feeding.hub
        assert len(hub) == 0
        assert 0 < len(hub._groups._matcher) < len(self.TEXTS)  # noqa: SLF001
        assert self.filed(desk) == 0

    def test_its_filters_are_counted_in_turns_when_it_comes_and_when_it_goes(
        self, desk: DurableDesk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("siltstone.session.archive.index.COUNTS_AT_ONCE", 20)
        parts = count_parts(monkeypatch)
        wire = desk.come()
        # The first part is prepared at once.
        assert len(parts) == 12
        assert list(desk.core.archive.filters()) == []
        leave(wire)
        assert len(parts) == 24
        assert len(list(desk.core.archive.filters())) == len(self.TEXTS)

    def test_one_that_ends_is_deleted_in_turns(
        self, desk: DurableDesk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wire = desk.come()
        parts = count_parts(monkeypatch)
        monkeypatch.setattr("siltstone.session.archive.owned.rows._ROWS_AT_ONCE", 20)
        leave(wire, 0)
        # 250 filters, the state, the owner, the progress, and the row of the connected client.
        assert len(parts) == 12
        assert (desk.core.peek("s"), desk.core.archive.count()) == (None, 0)

    @pytest.mark.parametrize("stop", [1, 6, 12, 13, 18, 24])
    def test_a_power_cut_between_the_parts_leaves_it_as_it_was(
        self, desk: DurableDesk, monkeypatch: pytest.MonkeyPatch, stop: int
    ) -> None:
        monkeypatch.setattr("siltstone.session.archive.index.COUNTS_AT_ONCE", 20)
        desk.publish("f/7/x", "1")
        parts = count_parts(monkeypatch)
        wire = desk.core.wire()
        properties = Properties(session_expiry_interval=100)
        wire.send(Connect(version=V5, client_id="s", clean_start=False, properties=properties))
        core = desk.core
        while len(parts) < stop:
            core.flush_commits()
            if len(parts) == 12 and not core.shell.acts and not core.shell.works:
                wire.drop()
            if core.shell.works:
                work, then = core.shell.works.popleft()
                work()
                then()
            if core.shell.acts:
                core.shell.acts.popleft()()
        desk.crash()
        assert {each.filter for each in desk.saved().subscriptions} == set(self.TEXTS)
        assert consume(desk.come())[-1:] == [Got("1", 1, dup=stop > 12)]


class TestAFullQueue:
    """A client that acknowledges one message at a time, and whose queue holds two."""

    @pytest.fixture
    def desk(self) -> Iterator[DurableDesk]:
        with durable_desk(queued_messages_max=2, queue_policy="drop-old") as made:
            yield made

    def test_qos_0_pushes_out_no_row_and_the_position_moves_on(self, desk: DurableDesk) -> None:
        wire = desk.come(receive_maximum=1)
        wire.subscribe("t")
        desk.publish("t", "1", "2", "3", "4")
        desk.publish("t", "dropped", qos=0)
        assert consume(wire) == messages("1", "2", "3", "4")
        desk.wait()
        state = desk.saved()
        assert (state.position.serials, state.dropped) == ({0: 5}, 1)

    def test_nor_does_it_push_out_a_row_that_a_group_lent(self, desk: DurableDesk) -> None:
        wire = desk.come(receive_maximum=1)
        wire.subscribe("$share/g/t")
        desk.publish("t", "1", "2", "3", "4")
        desk.publish("t", "dropped", qos=0)
        assert consume(wire) == messages("1", "2", "3", "4")
        desk.wait()
        group = desk.core.archive.peek_group("g", "t")
        assert group is not None
        assert group.position.serials == {0: 5}

    def test_neither_does_a_message_that_is_not_stored(self) -> None:
        rules = (StoreRule(filter="live", store="never"),)
        with durable_desk(queued_messages_max=2, rules=rules) as desk:
            wire = desk.come(receive_maximum=1)
            wire.subscribe("#")
            desk.publish("t", "1", "2", "3")
            desk.publish("live", "dropped")
            assert consume(wire) == messages("1", "2", "3")
            desk.wait()
            assert desk.saved().position.serials == {0: 3}

    def test_rows_of_a_credit_and_more_come_though_the_queue_is_full_all_the_time(
        self, desk: DurableDesk
    ) -> None:
        wire = desk.come(receive_maximum=1)
        wire.subscribe("t")
        lose(wire)
        rows = [str(number) for number in range(600)]
        desk.publish("t", *rows)
        wire = desk.come(receive_maximum=1)
        for _ in range(300):
            desk.publish("t", "dropped", qos=0)
        assert consume(wire) == messages(*rows)
        desk.wait()
        assert desk.saved().position.serials == {0: 900}


def test_a_group_is_saved_for_rows_of_others_within_five_minutes_and_not_at_once(
    desk: DurableDesk,
) -> None:
    desk.come().subscribe("$share/g/t/#")
    desk.wait()
    commits = desk.core.commits()
    desk.publish("other", "1", "2")
    desk.wait(20)
    group = desk.core.archive.peek_group("g", "t/#")
    assert group is not None
    assert (group.position.serials, desk.core.commits() - commits) == ({0: 0}, 0)
    desk.wait(320)
    group = desk.core.archive.peek_group("g", "t/#")
    assert group is not None
    assert (group.position.serials, desk.core.commits() - commits) == ({0: 2}, 1)


def count_parts(monkeypatch: pytest.MonkeyPatch) -> list[CommitInParts]:
    """Return the list of the parts that are prepared later, each with its transaction."""
    parts: list[CommitInParts] = []
    prepare = CommitInParts._one  # noqa: SLF001

    def one(self: CommitInParts) -> None:
        parts.append(self)
        prepare(self)

    monkeypatch.setattr(CommitInParts, "_one", one)
    return parts


def replace_save(owned: object, save_in_parts: object) -> object:
    """Return what an owned session is, but for the way it is saved."""

    class Other:
        def __getattr__(self, name: str) -> object:
            return save_in_parts if name == "save_in_parts" else getattr(owned, name)

    return Other()


class TestReading:
    def test_where_rows_cannot_be_read_the_client_is_told(self, desk: DurableDesk) -> None:
        wire = desk.come()
        wire.subscribe("t")
        session = desk.core.durables.sessions["s"]
        assert session.durable is not None
        session.durable.broken(OverloadedError("bad frame"))
        [packet] = wire.take()
        assert isinstance(packet, Disconnect)
        assert (packet.reason, wire.is_closed) == (Reason.UNSPECIFIED_ERROR, True)
        assert len(desk.saved().subscriptions) == 1

    def test_memory_holds_a_window_and_a_little_more(self, desk: DurableDesk) -> None:
        wire = desk.come(receive_maximum=10)
        wire.subscribe("t")
        lose(wire)
        publisher = desk.core.connect("p")
        for start in range(0, 1000, 100):
            publisher.send(*(message("t", str(start + each), 1, each + 1) for each in range(100)))
            publisher.take()
        wire = desk.come(receive_maximum=10)
        outbox = desk.core.durables.sessions["s"].outbox
        assert (outbox.inflight, outbox.queued) == (10, 256)
        assert consume(wire) == messages(*map(str, range(1000)))


@pytest.mark.parametrize("version", [V3, V5])
def test_sessions_that_are_away_take_no_memory(desk: DurableDesk, version: object) -> None:
    for number in range(10):
        wire = desk.come(f"s{number}", version=version)
        wire.subscribe("t", qos=1)
        lose(wire)
    core: DurableCore = desk.core
    assert (core.durables.sessions, core.broker.registry.sessions) == ({}, {})
    assert (len(core.durables.turns), core.archive.count()) == (0, 10)


def test_a_save_that_fails_late_does_not_end_the_connection_that_came_since(
    desk: DurableDesk,
) -> None:
    wire = desk.come()
    session = desk.core.durables.sessions["s"]
    assert session.durable is not None
    lose(wire)
    again = desk.come()
    session.durable.broken(PoisonedError("a sync failed"))
    desk.core.run()
    assert (again.take(), again.is_closed) == ([], False)


def fail(*_: object) -> None:
    raise RuntimeError("on purpose")


class TestMistakes:
    """Of ours, when a connection ends: its turn ends, and the client gets in again."""

    @pytest.mark.parametrize("expiry", [0, 100])
    @pytest.mark.parametrize("waits", [False, True])
    @pytest.mark.parametrize(
        ("owner", "name"),
        [
            (Interest, "miss"),
            (SessionFeeds, "end"),
            (Durable, "freeze"),
            (Durable, "put_progress"),
            (Durable, "close"),
            (Durable, "end"),
            (Outbox, "discard"),
        ],
    )
    def test_nothing_is_left_of_the_session_in_memory(
        self, owner: type, name: str, waits: bool, expiry: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rules = [StoreRule(filter="t", store="subscribed")]
        with durable_desk(rules=rules, automatic=not waits) as desk:
            core = desk.core
            wire = desk.come()
            wire.subscribe("t")
            core.durables.sessions["s"].expiry_seconds = expiry
            wire.send(message("u", "x", 1, 1))
            with monkeypatch.context() as patched:
                patched.setattr(owner, name, fail)
                # What the channel does.
                contain(wire.drop)
                core.settle()
            desk.wait()
            assert (core.durables.sessions, core.broker.registry.sessions) == ({}, {})
            assert (core.broker.clients, core.broker.registry.subscription_count) == ({}, 0)
            assert core.broker.is_settled
            again = desk.come()
            assert again.accepted is not None
            lose(again)
            desk.wait()
            assert (core.durables.sessions, core.durables._rota) == ({}, {})  # noqa: SLF001

    def test_what_was_saved_before_counts_where_the_last_state_cannot_be_had(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with durable_desk(automatic=False) as desk:
            wire = desk.come()
            wire.subscribe("t")
            wire.send(message("t", "x", 2, 1))
            desk.core.settle()
            [answer, got_x] = wire.take()
            assert isinstance(got_x, Publish)
            before = desk.saved().inflight
            wire.send(message("u", "waits", 1, 2))
            with monkeypatch.context() as patched:
                patched.setattr(Durable, "put_progress", fail)
                contain(wire.drop)
            # The outbox has forgotten by now what is in flight.
            desk.core.settle()
            assert (len(before), desk.saved().inflight) == (1, before)
            assert desk.saved().unclean
            again = desk.come()
            assert [packet.packet_id for packet in again.take() if isinstance(packet, Publish)] == [
                got_x.packet_id
            ]
            assert answer == PubRec(packet_id=1)

    def test_when_others_are_looked_after_the_next_time_comes(
        self, desk: DurableDesk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wire = desk.come()
        wire.subscribe("t")
        core = desk.core
        with monkeypatch.context() as patched:
            patched.setattr(core.durables.turns, "look", fail)
            patched.setattr(core.durables, "_rota", None)
            patched.setattr(core.broker.subscriptions.groups, "groups", None)
            patched.setattr(core.broker.subscriptions.groups, "busy", None)
            desk.wait(2)
        looks: list[str] = []
        monkeypatch.setattr(core.durables.turns, "look", lambda: looks.append("turns"))
        desk.publish("t", "1")
        assert consume(wire) == messages("1")
        desk.wait(2)
        assert (len(looks), desk.saved().position.serials) == (2, {0: 1})

    def test_a_backlog_that_cannot_be_judged_ends_the_connection(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limits = {"backlog_messages_max": 1, "backlog_policy": "drop-old"}
        with durable_desk(sessions=limits) as desk:
            wire = desk.come()
            wire.subscribe("t")
            lose(wire)
            desk.publish("t", "1", "2")
            with monkeypatch.context() as patched:
                patched.setattr(Durables, "_measured", fail)
                wire = desk.core.wire()
                wire.connect("s", clean_start=False, session_expiry_interval=100)
            assert (wire.is_closed, desk.core.broker.is_settled) == (True, True)
            assert consume(desk.come()) == messages("2")

    def test_what_follows_a_commit_is_done_though_the_count_of_sessions_fails(
        self, desk: DurableDesk
    ) -> None:
        lose(desk.come())
        owned = desk.core.archive.take("s")
        assert owned is not None
        done: list[str] = []
        desk.core.durables.carry_out("s", owned.drop_later, lambda: done.append("then"), fail)
        desk.core.run()
        assert done == ["then"]
