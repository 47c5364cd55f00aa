from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from siltstone.rows.batch import DUP
from siltstone.rows.stored import StoredBatch
from siltstone.session.archive.records import SavedInflight
from siltstone.session.durable.progress import SessionProgress
from siltstone.session.durable.reader import Reader
from siltstone.session.durable.wanted import WantedFilter
from siltstone.topic.grammar import TopicFilter
from tests.support.feed_rows import WALL_US, rows
from tests.support.packets import Ack, Message
from tests.support.receiver import Receiver, make_outbox

US = 1_000_000
NOW = 50.0
RETAIN = 4
PUBREL = 0x62


class Desk:
    """A reader with an outbox, and the client at its other end."""

    def __init__(self, *, window: int = 100) -> None:
        self.outbox = make_outbox()
        self.progress = SessionProgress()
        self.lane = self.progress.start(0, 0, [])
        self.reader = Reader(b"me", self.outbox, self.progress)
        self.receiver = Receiver(self.outbox, window=window)
        self.saves = 0

    def want(
        self,
        text: str = "#",
        qos: int = 2,
        *,
        no_local: bool = False,
        keeps_retain: bool = False,
        identifier: bytes = b"",
        since: int = 0,
        guard: Callable[[bytes], bool] | None = None,
    ) -> None:
        wish = WantedFilter(qos, no_local, keeps_retain, identifier, {0: since}, guard)
        self.reader.put(text, TopicFilter.parse(text).levels, wish)

    def unwant(self, text: str) -> None:
        self.reader.remove(text, TopicFilter.parse(text).levels)

    def sent_before(self, serial: int, packet_id: int, flags: int) -> None:
        self.lane.sent_before[serial] = SavedInflight(packet_id, 0, serial, flags)
        self.outbox.restore(0, [packet_id], [])

    def receive(self, batch: StoredBatch, which: list[int] | None = None) -> list[Any]:
        """Let rows come by; return what the client is sent."""
        self.reader.receive(batch, which, NOW, WALL_US)
        return self.receiver.read()

    def values(self, batch: StoredBatch, which: list[int] | None = None) -> list[tuple[bytes, int]]:
        """Let rows come by; return values and flags of what the client is sent."""
        found = []
        for message in self.receive(batch, which):
            assert isinstance(message, Message)
            found.append((message.payload, message.flags))
        return found


class TestWanting:
    @pytest.mark.parametrize("granted", [0, 1, 2])
    def test_the_lower_qos_holds(self, granted: int) -> None:
        desk = Desk()
        desk.want(qos=granted)
        assert desk.values(rows(0, 1, 2)) == [
            (b"0", 0),
            (b"1", min(1, granted)),
            (b"2", min(2, granted)),
        ]

    def test_rows_that_no_filter_matches_pass_by(self) -> None:
        desk = Desk()
        desk.want("a/+")
        assert desk.values(rows(1, topic="b")) == []
        assert desk.values(rows(1, first=1, topic="$SYS/a")) == []
        assert (desk.progress.position(), desk.progress.freed) == ({0: 0}, 2)

    def test_only_the_rows_that_are_meant_are_taken(self) -> None:
        desk = Desk()
        desk.want()
        assert desk.values(rows(1, 1, 1), [0, 2]) == [(b"0", 1), (b"2", 1)]

    def test_overlapping_subscriptions_are_one_message_with_the_highest_qos(self) -> None:
        desk = Desk()
        desk.want("a/+", 1, identifier=b"\x0b\1")
        desk.want("a/#", 2, identifier=b"\x0b\2")
        desk.want("b", 2, identifier=b"\x0b\3")
        [message] = desk.receive(rows(2, topic="a/b"))
        assert (message.flags, sorted([message.properties[:2], message.properties[2:]])) == (
            2,
            [b"\x0b\1", b"\x0b\2"],
        )

    def test_what_came_before_a_subscription_is_not_for_it(self) -> None:
        desk = Desk()
        desk.want("a", 1)
        desk.want("#", 2, since=2)
        assert desk.values(rows(2, 2, 2, topic="a")) == [(b"0", 1), (b"1", 1), (b"2", 2)]
        assert desk.values(rows(2, first=1, topic="b")) == []
        assert desk.values(rows(2, first=3, topic="b")) == [(b"3", 2)]

    def test_mqtt_3_8_3_3_own_messages_are_not_for_who_does_not_want_them(self) -> None:
        desk = Desk()
        desk.want("a", 2, no_local=True)
        assert desk.values(rows(2, topic="a", publisher=b"me")) == []
        assert desk.values(rows(2, first=1, topic="a")) == [(b"1", 2)]
        desk.want("#", 1)
        assert desk.values(rows(2, first=2, topic="a", publisher=b"me")) == [(b"2", 1)]

    def test_the_retain_flag_is_kept_for_who_wants_it(self) -> None:
        desk = Desk()
        desk.want("a")
        desk.want("b", keeps_retain=True)
        assert desk.values(rows(1 | RETAIN, topic="a")) == [(b"0", 1)]
        assert desk.values(rows(1 | RETAIN, first=1, topic="b")) == [(b"1", 1 | RETAIN)]

    def test_what_may_not_be_read_is_left_out_until_the_rights_change(self) -> None:
        desk = Desk()
        allowed = {b"open"}
        desk.want(guard=lambda topic: topic in allowed)
        assert desk.values(rows(1, topic="secret")) == []
        allowed.add(b"secret")
        assert desk.values(rows(1, first=1, topic="secret")) == []
        desk.reader.forget_rights()
        assert desk.values(rows(1, first=2, topic="secret")) == [(b"2", 1)]

    def test_a_filter_that_is_wanted_no_more_brings_nothing(self) -> None:
        desk = Desk()
        desk.want("a")
        desk.want("#", 0)
        assert desk.reader.wants(b"a")
        desk.unwant("#")
        assert (desk.reader.wants(b"a"), desk.reader.wants(b"b")) == (True, False)
        assert desk.values(rows(2, topic="b")) == []


def test_sessions_share_what_was_made_of_the_properties_of_a_row() -> None:
    batch = rows(1, 1)
    # A topic alias that version 0.1.0 has stored, before a content type.
    batch.properties = [b"\x23\x00\x01\x03\x00\x01t", b"\x23\x00\x01\x03\x00\x01" + b"t"]
    found: list[bytes] = []
    for _ in range(2):
        desk = Desk()
        desk.want()
        desk.reader.receive(batch, None, NOW, WALL_US)
        found += [delivery.properties for delivery in desk.outbox.deliveries()]
    assert found == [b"\x03\x00\x01t"] * 4
    assert len({id(properties) for properties in found}) == 1


class TestLost:
    def test_all_that_was_lost_is_told_with_the_next_message_that_is_acknowledged(self) -> None:
        desk = Desk()
        desk.want("#", 1)
        desk.reader.lost(3)
        desk.reader.lost(4)
        unacknowledged, first, second = desk.receive(rows(0, 1, 1))
        told = b"\x26\x00\x13siltstone-lost-rows\x00\x017"
        assert [each.properties for each in (unacknowledged, first, second)] == [b"", told, b""]
        assert desk.reader.dropped == 7


class TestAway:
    def test_qos_0_that_came_while_the_client_was_away_is_lost(self) -> None:
        desk = Desk()
        desk.want(qos=1)
        desk.lane.missed_until = 2
        assert desk.values(rows(0, 1, 0)) == [(b"1", 1), (b"2", 0)]

    def test_what_is_done_is_left_out(self) -> None:
        desk = Desk()
        desk.want()
        desk.lane.done = {1}
        assert desk.values(rows(1, 1, 1)) == [(b"0", 1), (b"2", 1)]
        desk.outbox.acknowledge(0x40, [1], NOW)
        assert (desk.progress.position(), desk.progress.done()) == ({0: 2}, {})

    def test_mqtt_3_3_1_1_what_may_have_been_sent_is_sent_again(self) -> None:
        desk = Desk()
        desk.want()
        desk.lane.doubtful_until = 2
        assert desk.values(rows(1, 2, 1)) == [(b"0", 1 | DUP), (b"1", 2), (b"2", 1)]


class TestExpiry:
    def test_mqtt_3_3_2_6_the_time_in_the_store_counts(self) -> None:
        desk = Desk()
        desk.want()
        batch = rows(1, properties=b"\2\0\0\0\x0a", at_us=WALL_US - 4 * US)
        assert [message.expiry for message in desk.receive(batch)] == [6]

    def test_what_has_expired_is_left_out_and_counted(self) -> None:
        desk = Desk()
        desk.want()
        assert desk.values(rows(1, properties=b"\2\0\0\0\x0a", at_us=WALL_US - 10 * US)) == []
        assert (desk.reader.expired, desk.progress.freed) == (1, 1)

    def test_what_was_sent_before_is_finished_all_the_same(self) -> None:
        desk = Desk()
        desk.want()
        desk.sent_before(0, 7, 1 | DUP)
        batch = rows(1, properties=b"\2\0\0\0\x0a", at_us=WALL_US - 10 * US)
        assert [(each.packet_id, each.flags) for each in desk.receive(batch)] == [(7, 1 | DUP)]

    def test_rows_that_are_too_old_are_dropped_and_counted(self) -> None:
        desk = Desk()
        desk.want()
        desk.reader.age_max_us = 5 * US
        assert desk.values(rows(1, at_us=WALL_US - 6 * US)) == []
        assert desk.values(rows(1, first=1, at_us=WALL_US - 5 * US)) == [(b"1", 1)]
        assert desk.reader.dropped == 1


class TestSentBefore:
    def test_it_comes_again_under_its_packet_id_as_it_was(self) -> None:
        desk = Desk()
        desk.want(qos=1)
        desk.sent_before(1, 9, 2 | RETAIN | DUP)
        found = desk.receive(rows(2, 2))
        assert [(each.payload, each.packet_id, each.flags) for each in found] == [
            (b"0", 1, 1),
            (b"1", 9, 2 | RETAIN | DUP),
        ]

    def test_with_a_packet_id_but_never_sent_it_is_new(self) -> None:
        desk = Desk()
        desk.want()
        desk.sent_before(0, 9, 2)
        [found] = desk.receive(rows(2))
        assert (found.packet_id, found.flags) == (9, 2)

    def test_mqtt_3_10_4_3_it_is_finished_without_a_subscription(self) -> None:
        desk = Desk()
        desk.sent_before(0, 9, 1 | DUP)
        [found] = desk.receive(rows(1))
        assert (found.packet_id, found.flags) == (9, 1 | DUP)

    def test_what_may_not_be_read_any_more_is_not(self) -> None:
        desk = Desk()
        desk.want(guard=lambda topic: False)
        desk.sent_before(0, 9, 1 | DUP)
        assert desk.receive(rows(1)) == []

    def test_where_its_row_is_gone_the_packet_id_is_free_again(self) -> None:
        desk = Desk()
        desk.want()
        desk.sent_before(0, 1, 1 | DUP)
        desk.reader.passed(0, 5)
        assert (desk.lane.sent_before, desk.progress.position()) == ({}, {0: 5})
        [found] = desk.receive(rows(1, first=5))
        assert found.packet_id == 1

    def test_one_of_qos_2_must_be_released_first(self) -> None:
        desk = Desk()
        desk.want()
        desk.sent_before(0, 1, 2 | DUP)
        desk.reader.passed(0, 5)
        assert [delivery.released for delivery in desk.outbox.deliveries()] == [True]
        desk.outbox.send_saved(*desk.outbox.take_unsaved())
        assert desk.receiver.read() == [Ack(PUBREL, 1)]
        [found] = desk.receive(rows(1, first=5))
        assert found.packet_id == 2
