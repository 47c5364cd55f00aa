from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from siltstone.mqtt.packets import Subscription
from siltstone.rows.batch import DUP
from siltstone.session.archive.owned.session import OwnedSession
from siltstone.session.archive.records import (
    NOT_STORED,
    RELEASED,
    SavedInflight,
    SavedMessage,
    SavedReceived,
    SavedSession,
    SavedSubscription,
    SerialRange,
)
from siltstone.session.durable.progress import SessionProgress
from siltstone.session.durable.session import Durable, new_session
from siltstone.session.sending.delivery import Delivery, Loan
from siltstone.session.sending.outbox import Outbox
from siltstone.store.feed.position import Position
from siltstone.topic.grammar import TopicFilter
from tests.support.archive_builders import ArchiveWorld
from tests.support.feed_rows import WALL_US, rows
from tests.support.packets import Ack, Message
from tests.support.receiver import Receiver, make_outbox
from tests.support.tx_model import held, queue_of

PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70
NOW = 50.0
NEW = new_session("c", user="", version=5, expiry_seconds=100, run=1, ends={0: 0})


class Desk:
    """One session, taken from an archive in memory, with a client at its other end."""

    def __init__(self, saved: SavedSession = NEW, *, world: ArchiveWorld | None = None) -> None:
        self.world = world or ArchiveWorld()
        archive = self.world.archive
        if world is None:
            archive.create(saved)
        taken = archive.take("c")
        assert taken is not None
        self.owned: OwnedSession = taken
        self.acts: list[Callable[[], None]] = []
        self.failures: list[Exception] = []
        self.ends = {0: 0}
        self.outbox: Outbox = make_outbox()
        self.durable = Durable(
            self.owned,
            b"c",
            self.outbox,
            ends=lambda: dict(self.ends),
            soon=self.acts.append,
            hop=self.acts.append,
            later=lambda seconds, act: None,
            failed=self.failures.append,
        )

    def connect(self, *, doubtful: int = 0, window: int = 100) -> Receiver:
        """Restore what was saved and attach the client, with one subscription to all."""
        self.durable.restore(self.ends, {0: doubtful}, window, now=NOW, wall_us=WALL_US)
        receiver = Receiver(self.outbox, window=window, now=NOW)
        for known in self.durable.subscriptions():
            self.durable.want(known.subscription, b"", None)
        return receiver

    def subscribe(self, text: str, qos: int = 2) -> None:
        subscription = Subscription(filter=TopicFilter.parse(text), qos=qos)
        self.durable.want(subscription, b"", None)
        self.durable.keep(subscription, 0)

    def receive(self, *flags: int, first: int = 0, topic: str = "t") -> None:
        self.durable.receive(rows(*flags, first=first, topic=topic), None, NOW, WALL_US)

    def run(self) -> None:
        """Let saves be done, and hear of them."""
        while True:
            queue_of(self.world.database).order(lambda: None)
            if not self.acts:
                return
            self.acts.pop(0)()

    def saved(self) -> SavedSession:
        """Save all, and return what is on disk."""
        self.durable.save()
        self.run()
        found = self.world.archive.peek("c")
        assert found is not None
        return found

    def away(self) -> SavedSession:
        """End the connection, and return what is on disk."""
        self.outbox.detach()
        self.durable.freeze()
        done: list[bool] = []
        self.durable.close(lambda: done.append(True))
        self.run()
        assert done == [True]
        found = self.world.archive.peek("c")
        assert found is not None
        return found

    def again(self) -> Desk:
        """Return the desk of the next connection."""
        desk = Desk(world=self.world)
        desk.ends = self.ends
        return desk


def packets(receiver: Receiver) -> list[tuple[bytes, int, int] | Ack]:
    found: list[tuple[bytes, int, int] | Ack] = []
    for item in receiver.read():
        assert isinstance(item, Message | Ack)
        if isinstance(item, Message):
            found.append((item.payload, item.flags, item.packet_id))
        else:
            found.append(item)
    return found


SUBSCRIBED = SavedSession(
    client_id="c",
    position=Position({0: 0}),
    subscriptions=(SavedSubscription(filter="#", qos=2),),
)


def test_a_new_session_begins_at_the_ends_of_all_shards() -> None:
    session = new_session("c", user="u", version=4, expiry_seconds=9, run=3, ends={1: 7, 0: 5})
    assert session == SavedSession(
        client_id="c",
        user="u",
        version=4,
        expiry_seconds=9,
        connected=True,
        run=3,
        position=Position({0: 5, 1: 7}),
    )


class TestSubscriptions:
    def test_they_are_saved_with_all_options_and_the_row_they_begin_with(self) -> None:
        desk = Desk()
        desk.connect()
        desk.ends = {0: 12}
        subscription = Subscription(
            filter=TopicFilter.parse("a/+"),
            qos=1,
            no_local=True,
            retain_as_published=True,
            retain_handling=2,
        )
        desk.durable.want(subscription, b"", None)
        desk.durable.keep(subscription, 268_435_455)
        assert desk.saved().subscriptions == (
            SavedSubscription(
                filter="a/+",
                qos=1,
                no_local=True,
                retain_as_published=True,
                retain_handling=2,
                identifier=268_435_455,
                since=Position({0: 12}),
            ),
        )
        [restored] = desk.again().durable.subscriptions()
        assert (restored.subscription, restored.identifier) == (subscription, 268_435_455)

    def test_one_that_is_made_again_does_not_begin_again(self) -> None:
        desk = Desk()
        desk.connect()
        desk.subscribe("a", 1)
        desk.ends = {0: 12}
        desk.subscribe("a", 2)
        [found] = desk.saved().subscriptions
        assert (found.qos, found.since) == (2, Position({0: 0}))

    def test_one_that_is_made_after_it_was_dropped_does(self) -> None:
        desk = Desk()
        desk.connect()
        desk.subscribe("a")
        desk.durable.unsubscribe(TopicFilter.parse("a"))
        assert desk.saved().subscriptions == ()
        desk.ends = {0: 12}
        desk.subscribe("a")
        assert desk.saved().subscriptions[0].since == Position({0: 12})

    def test_mqtt_3_8_4_4_what_has_waited_is_sent_though_less_is_asked_for_now(self) -> None:
        desk = Desk(SUBSCRIBED)
        desk.ends = {0: 3}
        receiver = desk.connect()
        desk.subscribe("#", 0)
        desk.receive(0, 1, 2, 0)
        # What came with QoS 0 while the client was away has not waited; the last one came later.
        assert packets(receiver) == [(b"1", 0, 0), (b"2", 0, 0), (b"3", 0, 0)]

    def test_what_came_when_nothing_waited_is_not_sent_though_more_is_asked_for_now(self) -> None:
        saved = replace(SUBSCRIBED, subscriptions=(SavedSubscription(filter="#", qos=0),))
        desk = Desk(saved)
        desk.ends = {0: 2}
        receiver = desk.connect()
        desk.receive(1, 2, 1)
        assert packets(receiver) == [(b"2", 0, 0)]


class TestHandshakes:
    def test_a_message_of_qos_2_is_sent_when_its_packet_id_is_saved_and_others_behind_it(
        self,
    ) -> None:
        desk = Desk(SUBSCRIBED)
        receiver = desk.connect()
        with held(desk.world.database):
            desk.receive(2, 1)
            assert packets(receiver) == []
        desk.run()
        assert packets(receiver) == [(b"0", 2, 2), (b"1", 1, 3)]
        assert desk.saved().inflight == (
            SavedInflight(2, 0, 0, 2 | DUP),
            SavedInflight(3, 0, 1, 1 | DUP),
        )

    def test_what_comes_while_that_is_being_saved_is_sent_too(self) -> None:
        desk = Desk(SUBSCRIBED)
        receiver = desk.connect()
        with held(desk.world.database):
            desk.receive(2)
            desk.receive(2, first=1)
        desk.run()
        assert packets(receiver) == [(b"0", 2, 2), (b"1", 2, 3)]

    def test_pubrel_is_sent_when_it_is_saved_that_the_client_has_the_message(self) -> None:
        desk = Desk(SUBSCRIBED)
        receiver = desk.connect()
        desk.receive(2)
        desk.run()
        packets(receiver)
        with held(desk.world.database):
            desk.outbox.acknowledge(PUBREC, [2], NOW)
            desk.outbox.acknowledge(PUBREC, [2], NOW)
            assert packets(receiver) == []
        desk.run()
        assert packets(receiver) == [Ack(PUBREL, 2)]
        assert desk.saved().inflight == (SavedInflight(2, NOT_STORED, 0, 2 | RELEASED),)
        desk.outbox.acknowledge(PUBCOMP, [2], NOW)
        assert desk.saved().inflight == ()

    def test_after_that_the_client_is_asked_to_release_it_and_not_sent_it_again(self) -> None:
        desk = Desk(replace(SUBSCRIBED, inflight=(SavedInflight(5, NOT_STORED, 0, 2 | RELEASED),)))
        receiver = desk.connect()
        assert packets(receiver) == [Ack(PUBREL, 5)]
        desk.outbox.acknowledge(PUBCOMP, [5], NOW)
        assert desk.away().inflight == ()

    def test_what_was_received_of_the_client_is_saved_on_demand(self) -> None:
        desk = Desk()
        desk.connect()
        told: list[bool] = []
        desk.durable.inbound.keep(4)
        desk.durable.save_received(lambda: told.append(True))
        assert told == []
        desk.run()
        assert (told, desk.saved().received) == ([True], (SavedReceived(4),))


class TestLeaving:
    def test_the_place_and_what_is_in_flight_are_saved(self) -> None:
        desk = Desk(SUBSCRIBED)
        receiver = desk.connect()
        desk.receive(1, 1, 1)
        assert packets(receiver) == [(b"0", 1, 2), (b"1", 1, 3), (b"2", 1, 4)]
        desk.outbox.acknowledge(PUBACK, [3], NOW)
        state = desk.away()
        assert (state.position.serials, state.done, state.next_packet_id) == (
            {0: 0},
            (SerialRange(0, 1, 2),),
            4,
        )
        assert state.inflight == (SavedInflight(2, 0, 0, 1 | DUP), SavedInflight(4, 0, 2, 1 | DUP))

    def test_the_next_connection_is_sent_it_again_and_then_what_it_missed(self) -> None:
        desk = Desk(SUBSCRIBED)
        desk.connect()
        desk.receive(1, 2)
        desk.run()
        desk.away()
        again = desk.again()
        receiver = again.connect()
        again.receive(1, 2, 1)
        assert packets(receiver) == [(b"0", 1 | DUP, 2), (b"1", 2 | DUP, 3), (b"2", 1, 4)]

    def test_what_had_to_wait_again_keeps_its_packet_id_over_several_connections(self) -> None:
        desk = Desk(SUBSCRIBED)
        desk.connect()
        desk.receive(2, 2, 2)
        desk.run()
        for _ in range(2):
            desk.away()
            desk = desk.again()
            receiver = desk.connect(window=1)
            desk.receive(2, 2, 2)
            assert packets(receiver) == [(b"0", 2 | DUP, 2)]
        assert [(each.packet_id, each.serial) for each in desk.away().inflight] == [
            (2, 0),
            (3, 1),
            (4, 2),
        ]

    def test_what_was_not_read_again_yet_keeps_its_packet_id_over_a_short_connection(self) -> None:
        desk = Desk(SUBSCRIBED)
        desk.connect()
        desk.receive(1, 2)
        desk.run()
        before = desk.away()
        assert len(before.inflight) == 2
        short = desk.again()
        short.connect()
        # Something else is saved before the feed has read any row.
        short.durable.put_progress()
        assert short.saved().inflight == before.inflight
        assert short.away().inflight == before.inflight
        again = short.again()
        receiver = again.connect()
        again.receive(1, 2)
        assert packets(receiver) == [(b"0", 1 | DUP, 2), (b"1", 2 | DUP, 3)]

    def test_a_packet_id_is_not_given_away_while_its_row_has_not_come_by(self) -> None:
        inflight = (SavedInflight(9, 0, 5, 2 | DUP),)
        desk = Desk(replace(SUBSCRIBED, inflight=inflight, next_packet_id=8))
        receiver = desk.connect()
        desk.receive(1)
        assert packets(receiver) == [(b"0", 1, 10)]

    def test_what_was_saved_and_surely_not_sent_is_new_to_the_next_connection(self) -> None:
        desk = Desk(SUBSCRIBED)
        with held(desk.world.database):
            desk.connect()
            desk.receive(2)
            desk.outbox.detach()
            desk.durable.freeze()
        desk.run()
        again = desk.again()
        receiver = again.connect()
        again.receive(2)
        assert packets(receiver) == [(b"0", 2, 2)]

    def test_messages_that_are_in_no_store_are_saved_whole(self) -> None:
        desk = Desk()
        receiver = desk.connect(window=1)
        for payload in (b"sent", b"waits"):
            desk.outbox.offer(b"t", payload, 1, b"", 0.0)
        assert packets(receiver) == [(b"sent", 1, 2)]
        state = desk.away()
        assert state.extra == (
            SavedMessage(2, b"t", b"sent", 1, b"", 0),
            SavedMessage(3, b"t", b"waits", 1, b"", 0),
        )
        again = desk.again()
        receiver = again.connect()
        assert packets(receiver) == [(b"sent", 1 | DUP, 2), (b"waits", 1, 3)]
        again.outbox.acknowledge(PUBACK, [2, 3], NOW)
        assert (again.away().extra, again.saved().inflight) == ((), ())

    def test_one_that_waited_expires_meanwhile(self) -> None:
        desk = Desk()
        desk.connect(window=1)
        for payload in (b"sent", b"waits"):
            desk.outbox.offer(b"t", payload, 1, b"\2\0\0\0\x0a", NOW + 10)
        desk.away()
        again = desk.again()
        again.durable.restore({0: 0}, {}, 100, now=5.0, wall_us=WALL_US + 10_000_000)
        receiver = Receiver(again.outbox, now=5.0)
        assert packets(receiver) == [(b"sent", 1 | DUP, 2)]

    def test_what_a_share_group_lent_is_saved_with_qos_2_and_then_its_own(self) -> None:
        desk = Desk()
        receiver = desk.connect()
        lane = SessionProgress().lane(0)
        for flags in (1, 2):
            delivery = Delivery(b"t", b"p", flags, b"", 0.0)
            delivery.loan = Loan(flags, b"", b"")
            lane.come_by([flags], [])
            desk.outbox.offer_row(delivery, lane, flags)
        desk.run()
        assert packets(receiver) == [(b"p", 1, 2), (b"p", 2, 3)]
        state = desk.saved()
        assert state.inflight == (SavedInflight(3, NOT_STORED, 0, 2 | DUP),)
        assert lane.done_rows() == [2]


class TestAfterACrash:
    def test_what_may_have_been_sent_is_sent_as_such(self) -> None:
        desk = Desk(replace(SUBSCRIBED, unclean=True, inflight=(SavedInflight(9, 0, 1, 2),)))
        desk.ends = {0: 4}
        receiver = desk.connect(doubtful=3)
        desk.receive(1, 2, 2, 1)
        desk.run()
        assert packets(receiver) == [
            (b"0", 1 | DUP, 2),
            (b"1", 2 | DUP, 9),
            (b"2", 2, 3),
            (b"3", 1, 4),
        ]

    @pytest.mark.parametrize(("acknowledged", "left"), [([2], True), ([2, 3], False)])
    def test_it_stays_doubtful_until_it_was_acknowledged(
        self, acknowledged: list[int], left: bool
    ) -> None:
        desk = Desk(replace(SUBSCRIBED, unclean=True))
        desk.connect(doubtful=2)
        desk.receive(1, 1)
        desk.durable.progress.lane(0).pass_by(2)
        desk.outbox.acknowledge(PUBACK, acknowledged, NOW)
        assert desk.durable.is_doubtful() is left


class TestUnsubscribing:
    def test_what_waits_and_is_not_wanted_is_dropped(self) -> None:
        desk = Desk()
        receiver = desk.connect(window=1)
        desk.subscribe("a")
        desk.subscribe("b")
        desk.receive(1, topic="a")
        desk.receive(1, first=1, topic="a")
        desk.receive(1, first=2, topic="b")
        desk.durable.unsubscribe(TopicFilter.parse("a"))
        desk.durable.narrow()
        desk.outbox.acknowledge(PUBACK, [2], NOW)
        assert packets(receiver) == [(b"0", 1, 2), (b"2", 1, 3)]
        assert desk.saved().position.serials == {0: 2}

    def test_mqtt_3_10_4_3_what_is_in_flight_is_finished_on_the_next_connection(self) -> None:
        desk = Desk()
        desk.connect()
        desk.subscribe("t")
        desk.receive(2)
        desk.run()
        desk.durable.unsubscribe(TopicFilter.parse("t"))
        desk.durable.narrow()
        state = desk.away()
        assert (state.inflight, state.extra) == (
            (SavedInflight(2, NOT_STORED, 0, 2 | DUP),),
            (SavedMessage(2, b"t", b"0", 2, b"", 0),),
        )
        assert packets(desk.again().connect()) == [(b"0", 2 | DUP, 2)]

    def test_what_was_in_flight_and_has_not_come_by_is_waited_for(self) -> None:
        desk = Desk(replace(SUBSCRIBED, inflight=(SavedInflight(9, 0, 1, 1 | DUP),)))
        receiver = desk.connect()
        desk.durable.unsubscribe(TopicFilter.parse("#"))
        desk.durable.narrow()
        assert ([each.text for each in desk.durable.unfinished()], desk.durable.is_finished()) == (
            ["#"],
            False,
        )
        desk.receive(1, 1, 1)
        assert packets(receiver) == [(b"1", 1 | DUP, 9)]
        assert (desk.durable.is_finished(), desk.durable.unfinished()) == (True, [])


class TestCredit:
    def test_rows_that_are_on_their_way_are_not_asked_for_again(self) -> None:
        desk = Desk(replace(SUBSCRIBED, done=(SerialRange(0, 1, 2),)))
        desk.connect(window=100)
        assert desk.durable.spare_credit() == 356
        desk.receive(1, 1, 1)
        assert desk.durable.spare_credit() == 354

    def test_more_are_asked_for_when_that_is_worth_it(self) -> None:
        desk = Desk(SUBSCRIBED)
        desk.connect(window=100)
        desk.durable.progress.freed = 88
        assert desk.durable.freed() == 0
        desk.durable.progress.freed = 89
        assert (desk.durable.freed(), desk.durable.freed()) == (89, 0)


def test_rows_that_retention_took_first_are_told_to_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "siltstone.sessions"):
        Desk().durable.lost(7)
    (record,) = caplog.records
    assert record.getMessage() == "session_rows_lost"
    assert record.__dict__["facts"] == {"client_id": "c", "serials": 7}
