from __future__ import annotations

import pytest

from siltstone.mqtt.encode import encode
from siltstone.mqtt.flow import (
    Receipts,
    Received,
    find_flags,
    find_reserved,
    is_reserved,
    pick,
    without,
)
from siltstone.mqtt.packets import PubAck, PubComp, PubRec
from siltstone.mqtt.publish import PUBACK, PUBCOMP, PUBREC, PublishBatch, encode_acks
from siltstone.mqtt.reason import Reason
from tests.support.packets import V3, V5, Message, messages_of

DUP = 8


def batch_of(*messages: Message, extended: bool = False) -> PublishBatch:
    """Return a batch, with the lists that may be empty only if it is `extended`."""
    batch = PublishBatch()
    for message in messages:
        batch.topics.append(message.topic)
        batch.values.append(message.payload)
        batch.flags.append(message.flags)
        batch.packet_ids.append(message.packet_id)
        if extended:
            batch.properties.append(message.properties)
            batch.expiries.append(message.expiry)
    return batch


def message(flags: int, packet_id: int = 0, *, expiry: int = -1) -> Message:
    properties = b"" if expiry < 0 else b"\2" + expiry.to_bytes(4)
    return Message(b"t", b"%d" % packet_id, flags, packet_id, properties, expiry)


class TestReceived:
    def test_mqtt_4_3_3_10_a_message_that_awaits_pubrel_is_not_taken_again(self) -> None:
        received = Received()
        batch = batch_of(message(2, 1), message(1, 2), message(2, 3), message(0))
        assert received.take_new(batch) is batch
        assert received.packet_ids == {1, 3}
        again = batch_of(message(2 | DUP, 1), message(1 | DUP, 2), message(2, 4), message(2, 4))
        assert messages_of(received.take_new(again)) == [message(1 | DUP, 2), message(2, 4)]
        assert received.packet_ids == {1, 3, 4}

    def test_a_batch_of_repetitions_has_nothing_new(self) -> None:
        received = Received()
        received.take_new(batch_of(message(2, 1)))
        fresh = received.take_new(batch_of(message(2 | DUP, 1, expiry=5), extended=True))
        assert (fresh.topics, fresh.packet_ids, fresh.properties, fresh.expiries) == (
            [],
            [],
            [],
            [],
        )

    @pytest.mark.parametrize("version", [V3, V5])
    def test_a_packet_id_is_free_after_pubrel(self, version: int) -> None:
        received = Received()
        received.take_new(batch_of(message(2, 1), message(2, 2)))
        assert received.release([2], version) == encode(V5, PubComp(packet_id=2))
        assert received.packet_ids == {1}
        batch = batch_of(message(2, 2))
        assert received.take_new(batch) is batch

    def test_a_pubrel_of_an_unknown_packet_id_is_answered_all_the_same(self) -> None:
        received = Received()
        received.take_new(batch_of(message(2, 1), message(2, 3)))
        assert received.release([9, 1], V3) == encode_acks(PUBCOMP, [9, 1], 0)
        unknown = Reason.PACKET_IDENTIFIER_NOT_FOUND
        assert received.release([1, 3, 3], V5) == (
            encode(V5, PubComp(packet_id=1, reason=unknown))
            + encode(V5, PubComp(packet_id=3))
            + encode(V5, PubComp(packet_id=3, reason=unknown))
        )
        assert received.packet_ids == set()


class TestReceipts:
    def test_a_batch_of_qos_0_wants_no_acknowledgement(self) -> None:
        receipts = Receipts()
        assert receipts.add(batch_of(message(0), message(4))) is None
        assert (len(receipts), receipts.take_settled()) == (0, [])

    def test_a_receipt_acknowledges_each_message_by_its_qos_in_order(self) -> None:
        receipt = Receipts().add(
            batch_of(message(2, 1), message(0), message(1 | DUP, 7), message(2 | 4, 2))
        )
        assert receipt is not None
        assert receipt.encode() == (
            encode_acks(PUBREC, [1], 0) + encode_acks(PUBACK, [7], 0) + encode_acks(PUBREC, [2], 0)
        )
        assert receipt.refused() == []

    def test_mqtt_4_6_0_2_acknowledgements_wait_for_those_before_them(self) -> None:
        receipts = Receipts()
        first = receipts.add(batch_of(message(1, 1)))
        second = receipts.add(batch_of(message(1, 2)))
        third = receipts.add(batch_of(message(2, 3)))
        assert first is not None
        assert second is not None
        assert third is not None
        assert receipts.take_settled() == []
        second.waits = 0
        assert receipts.take_settled() == []
        first.waits = 0
        assert receipts.take_settled() == [first, second]
        third.waits = 0
        assert receipts.take_settled() == [third]

    def test_it_counts_qos_1_until_its_puback_and_qos_2_until_its_pubcomp(self) -> None:
        receipts = Receipts()
        receipt = receipts.add(batch_of(message(1, 1), message(2, 2), message(1, 3), message(0)))
        # A repetition is the same message.
        repeated = receipts.add(batch_of(message(2 | DUP, 2)))
        assert receipt is not None
        assert repeated is not None
        assert len(receipts) == 3
        receipt.waits = repeated.waits = 0
        assert receipts.take_settled() == [receipt, repeated]
        assert len(receipts) == 1
        receipts.complete([2, 9])
        assert len(receipts) == 0

    def test_messages_that_are_refused_have_their_own_reason(self) -> None:
        receipt = Receipts().add(batch_of(message(2, 1), message(1, 2), message(0), message(2, 3)))
        assert receipt is not None
        receipt.refuse([1], Reason.NOT_AUTHORIZED)
        receipt.refuse([3], Reason.QUOTA_EXCEEDED)
        assert receipt.refused() == [3]
        assert receipt.encode() == (
            encode(V5, PubRec(packet_id=1))
            + encode(V5, PubAck(packet_id=2, reason=Reason.NOT_AUTHORIZED))
            + encode(V5, PubRec(packet_id=3, reason=Reason.QUOTA_EXCEEDED))
        )

    def test_a_failure_of_all_leaves_the_failures_of_some(self) -> None:
        receipt = Receipts().add(batch_of(message(2, 1), message(1, 2), message(0), message(2, 3)))
        assert receipt is not None
        receipt.refuse([0], Reason.NOT_AUTHORIZED)
        receipt.fail(Reason.QUOTA_EXCEEDED)
        receipt.fail(Reason.UNSPECIFIED_ERROR)
        assert receipt.refused() == [1, 3]
        assert receipt.encode() == (
            encode(V5, PubRec(packet_id=1, reason=Reason.NOT_AUTHORIZED))
            + encode(V5, PubAck(packet_id=2, reason=Reason.QUOTA_EXCEEDED))
            + encode(V5, PubRec(packet_id=3, reason=Reason.QUOTA_EXCEEDED))
        )

    def test_a_failure_of_all_is_the_answer_to_each(self) -> None:
        receipt = Receipts().add(batch_of(message(1, 1), message(0), message(2, 2)))
        assert receipt is not None
        receipt.fail(Reason.QUOTA_EXCEEDED)
        assert receipt.refused() == [2]
        assert receipt.encode() == (
            encode(V5, PubAck(packet_id=1, reason=Reason.QUOTA_EXCEEDED))
            + encode(V5, PubRec(packet_id=2, reason=Reason.QUOTA_EXCEEDED))
        )


def test_what_was_taken_before_succeeds_whatever_becomes_of_the_others() -> None:
    receipts = Receipts()
    receipt = receipts.add(batch_of(message(2, 7), message(2, 8)))
    assert receipt is not None
    receipt.repeated = {7}
    receipt.fail(0x97)
    receipt.waits = 0
    assert (receipt.refused(), receipt.encode()) == ([8], b"\x50\x02\x00\x07\x50\x03\x00\x08\x97")


class TestParts:
    MESSAGES = (message(0), message(1, 1, expiry=7), message(2, 2), message(1, 3, expiry=0))

    @pytest.mark.parametrize("extended", [False, True])
    def test_parts_of_a_batch_are_as_they_were_in_it(self, extended: bool) -> None:
        whole = batch_of(*self.MESSAGES, extended=extended)
        rows = messages_of(whole)
        assert messages_of(without(whole, [2, 0])) == [rows[1], rows[3]]
        assert messages_of(pick(whole, [0, 3])) == [rows[0], rows[3]]
        assert messages_of(whole) == rows

    @pytest.mark.parametrize("extended", [False, True])
    def test_a_part_may_be_all_or_nothing(self, extended: bool) -> None:
        whole = batch_of(*self.MESSAGES, extended=extended)
        rows = messages_of(whole)
        assert messages_of(without(whole, [])) == messages_of(pick(whole, [0, 1, 2, 3])) == rows
        for part in (without(whole, [0, 1, 2, 3]), pick(whole, [])):
            lists = (part.topics, part.values, part.flags, part.packet_ids)
            assert (*lists, part.properties, part.expiries) == ([], [], [], [], [], [])

    def test_lists_that_were_empty_stay_so(self) -> None:
        whole = batch_of(message(1, 1), message(1, 2))
        for part in (without(whole, [0]), pick(whole, [1])):
            assert (part.packet_ids, part.properties, part.expiries) == ([2], [], [])
        # One may be empty where the other is not.
        whole.expiries = [5, -1]
        for part in (without(whole, [1]), pick(whole, [0])):
            assert (part.packet_ids, part.properties, part.expiries) == ([1], [], [5])
        whole.properties, whole.expiries = [b"x", b"y"], []
        for part in (without(whole, [1]), pick(whole, [0])):
            assert (part.packet_ids, part.properties, part.expiries) == ([1], [b"x"], [])


def on_topics(*topics: bytes) -> PublishBatch:
    return batch_of(*(message(0)._replace(topic=topic) for topic in topics))


def test_flags_are_found_by_their_mask() -> None:
    batch = batch_of(*map(message, (0, 4, 1, 6, 8, 5)))
    assert find_flags(batch, 4) == [1, 3, 5]
    assert find_flags(batch, 3) == [2, 3, 5]
    assert find_flags(batch_of(), 4) == []


def test_topics_of_the_server_start_with_a_dollar() -> None:
    assert find_reserved(on_topics(b"a", b"$SYS/x", b"a/$", b"$", b"/$")) == [1, 3]


def test_the_state_of_a_bridge_is_the_one_topic_below_sys_that_clients_have() -> None:
    topics = [
        b"$SYS/broker/connection/host.site/state",
        b"$SYS/broker/connection//state",
        b"$SYS/broker/connection/a/b/state",
        b"$SYS/broker/connection/state",
        b"$SYS/broker/connection/a/status",
        b"$SYS/broker/uptime",
        b"$other/broker/connection/a/state",
    ]
    assert find_reserved(on_topics(*topics)) == [1, 2, 3, 4, 5, 6]
    assert [is_reserved(topic) for topic in topics] == [False] + [True] * 6
    assert not is_reserved(b"broker/connection/a/state")
