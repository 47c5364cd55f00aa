from __future__ import annotations

import pytest

from siltstone.mqtt.publish import LARGE_PAYLOAD, PUBACK, PUBCOMP, PUBREC, PUBREL
from siltstone.mqtt.wire import Version
from siltstone.session.sending.delivery import NEVER, Budget, Delivery
from siltstone.session.sending.outbox import Outbox, Ready
from tests.support.packets import V3, V5, Ack, Message, Raw
from tests.support.receiver import Receiver, connected, make_outbox, reconnected

BOTH = pytest.mark.parametrize("version", [V3, V5])
DUP = 8
RETAIN = 4
EXPIRY_10 = b"\2\0\0\0\x0a"
# What one of the messages of `offer` takes while it waits.
SIZE = Delivery(b"t", b"0", 1, b"", NEVER).size()


def offer(outbox: Outbox, *payloads: bytes, qos: int = 1, topic: bytes = b"t") -> None:
    for payload in payloads:
        outbox.offer(topic, payload, qos, b"", NEVER)


def message(payload: bytes, flags: int, packet_id: int) -> Message:
    return Message(b"t", payload, flags, packet_id, b"", -1)


class TestReady:
    def test_the_first_to_have_something_wakes_and_no_other(self) -> None:
        woken: list[int] = []
        ready = Ready(lambda: woken.append(1))
        first, second = make_outbox(ready=ready), make_outbox(ready=ready)
        Receiver(first)
        Receiver(second)
        assert (woken, ready.outboxes) == ([], [])
        offer(first, b"0", b"1", qos=0)
        second.write(b"\xd0\0")
        assert (woken, ready.take()) == ([1], [first, second])
        assert ready.take() == []

    def test_who_was_asked_for_its_bytes_wakes_again(self) -> None:
        woken: list[int] = []
        ready = Ready(lambda: woken.append(1))
        outbox = make_outbox(ready=ready)
        receiver = Receiver(outbox)
        for count in (1, 2):
            offer(outbox, b"0", qos=0)
            assert ready.take() == [outbox]
            assert receiver.payloads() == [b"0"]
            assert woken == [1] * count

    def test_a_connection_that_follows_at_once_is_not_listed_twice(self) -> None:
        ready = Ready(lambda: None)
        outbox = make_outbox(ready=ready)
        Receiver(outbox)
        offer(outbox, b"0")
        receiver = reconnected(outbox)
        assert ready.take() == [outbox]
        assert receiver.messages() == [message(b"0", 1 | DUP, 1)]


class TestSending:
    @BOTH
    def test_messages_go_out_in_order_with_their_flags(self, version: Version) -> None:
        outbox, receiver = connected(version=version)
        for flags in (0, 1, 2, RETAIN, 1 | RETAIN, 2 | RETAIN):
            outbox.offer(b"t", b"%d" % flags, flags, b"", NEVER)
        assert receiver.read() == [
            message(b"0", 0, 0),
            message(b"1", 1, 1),
            message(b"2", 2, 2),
            message(b"4", 4, 0),
            message(b"5", 5, 3),
            message(b"6", 6, 4),
        ]
        assert (outbox.sent, outbox.inflight, outbox.queued) == (6, 4, 0)

    def test_other_packets_keep_their_place_between_messages(self) -> None:
        outbox, receiver = connected()
        offer(outbox, b"0", qos=0)
        outbox.write(b"\xd0\0")
        offer(outbox, b"1", qos=0)
        assert receiver.read() == [message(b"0", 0, 0), Raw(0xD0, b""), message(b"1", 0, 0)]

    def test_bytes_are_counted_when_they_are_taken(self) -> None:
        outbox, _ = connected()
        outbox.write(b"\xd0\0")
        assert outbox.sent_bytes == 0
        assert (outbox.take(), outbox.sent_bytes) == (b"\xd0\0", 2)
        assert (outbox.take(), outbox.sent_bytes) == (b"", 2)

    def test_a_large_payload_is_written_as_it_is_and_keeps_its_place(self) -> None:
        outbox, receiver = connected()
        large = bytes(LARGE_PAYLOAD)
        for payload in (b"0", large, b"1", large, b"2"):
            offer(outbox, payload, qos=0)
        head, first, middle, second = outbox.take_parts()
        assert first is large
        assert second is large
        data = b"".join((head, first, middle, second, outbox.take()))
        assert outbox.sent_bytes == len(data)
        assert (outbox.take_parts(), outbox.take()) == ([], b"")
        for payload in (b"0", large, b"1", large, b"2"):
            offer(outbox, payload, qos=0)
        assert outbox.take() == data
        assert outbox.sent_bytes == 2 * len(data)
        offer(outbox, large, qos=1)
        assert receiver.messages() == [message(large, 1, 1)]

    def test_a_large_payload_counts_for_the_buffer_and_goes_with_its_connection(self) -> None:
        large = bytes(LARGE_PAYLOAD)
        outbox, _ = connected(buffer_max=LARGE_PAYLOAD)
        for payload in (large, b"1"):
            offer(outbox, payload, qos=1)
        assert (outbox.inflight, outbox.queued) == (1, 1)
        outbox.detach()
        assert (outbox.take_parts(), outbox.take(), outbox.sent_bytes) == ([], b"", 0)
        receiver = Receiver(outbox)
        assert receiver.messages() == [message(large, 1 | DUP, 1), message(b"1", 1, 2)]

    def test_without_a_connection_nothing_is_written_and_qos_0_does_not_wait(self) -> None:
        outbox = make_outbox()
        offer(outbox, b"lost", qos=0)
        offer(outbox, b"1", qos=1)
        offer(outbox, b"2", qos=2)
        outbox.write(b"\xd0\0")
        assert (outbox.take(), outbox.queued, outbox.dropped) == (b"", 2, 0)
        assert Receiver(outbox).messages() == [message(b"1", 1, 1), message(b"2", 2, 2)]

    def test_a_packet_id_in_use_is_passed_over(self) -> None:
        outbox, _ = connected(window=65_535)
        offer(outbox, b"kept")
        for _ in range(65_534):
            outbox.offer(b"t", b"", 1, b"", NEVER)
        outbox.acknowledge(PUBACK, list(range(2, 65_535)), 0.0)
        receiver = reconnected(outbox, window=65_535)
        offer(outbox, b"next")
        assert [item.packet_id for item in receiver.messages()] == [1, 65_535, 2]


class TestWindow:
    def test_what_is_beyond_it_waits_for_acknowledgements(self) -> None:
        outbox, receiver = connected(window=2)
        offer(outbox, b"1", b"2", b"3", b"4")
        assert receiver.payloads() == [b"1", b"2"]
        assert (outbox.inflight, outbox.queued) == (2, 2)
        outbox.acknowledge(PUBACK, [1], 0.0)
        assert receiver.messages() == [message(b"3", 1, 3)]
        outbox.acknowledge(PUBACK, [2, 3], 0.0)
        assert receiver.messages() == [message(b"4", 1, 4)]
        outbox.acknowledge(PUBACK, [4], 0.0)
        assert (receiver.read(), outbox.inflight, outbox.queued) == ([], 0, 0)

    def test_qos_0_behind_a_message_that_waits_keeps_its_place(self) -> None:
        outbox, receiver = connected(window=1)
        offer(outbox, b"1", b"2")
        offer(outbox, b"3", qos=0)
        assert receiver.payloads() == [b"1"]
        outbox.acknowledge(PUBACK, [1], 0.0)
        assert receiver.messages() == [message(b"2", 1, 2), message(b"3", 0, 0)]

    def test_mqtt_4_3_3_4_a_message_of_qos_2_holds_its_place_until_pubcomp(self) -> None:
        outbox, receiver = connected(window=1)
        offer(outbox, b"1", b"2", qos=2)
        assert receiver.messages() == [message(b"1", 2, 1)]
        outbox.acknowledge(PUBREC, [1], 0.0)
        assert receiver.read() == [Ack(PUBREL, 1)]
        outbox.acknowledge(PUBREC, [1], 0.0)
        assert receiver.read() == [Ack(PUBREL, 1)]
        outbox.acknowledge(PUBCOMP, [1], 0.0)
        assert receiver.messages() == [message(b"2", 2, 2)]

    def test_an_acknowledgement_of_the_wrong_kind_ends_nothing(self) -> None:
        outbox, receiver = connected()
        offer(outbox, b"1", qos=1)
        offer(outbox, b"2", qos=2)
        receiver.read()
        outbox.acknowledge(PUBACK, [2, 9], 0.0)
        outbox.acknowledge(PUBCOMP, [1, 2, 9], 0.0)
        assert (receiver.read(), outbox.inflight) == ([], 2)

    def test_a_pubrec_that_fits_no_message_is_answered_all_the_same(self) -> None:
        for version, expected in (
            (V3, [Ack(PUBREL, 8), Ack(PUBREL, 9)]),
            (V5, [Raw(PUBREL, b"\0\x08\x92"), Raw(PUBREL, b"\0\x09\x92")]),
        ):
            outbox, receiver = connected(version=version)
            offer(outbox, b"1", qos=1)
            receiver.read()
            assert outbox.acknowledge(PUBREC, [8, 9], 0.0) == 0
            assert receiver.read() == expected
            assert outbox.inflight == 1

    @pytest.mark.parametrize("qos", [1, 2])
    def test_a_refusal_ends_a_message(self, qos: int) -> None:
        outbox, receiver = connected(window=1)
        offer(outbox, b"1", b"2", qos=qos)
        receiver.read()
        assert outbox.refuse(PUBACK if qos == 1 else PUBREC, 1, 0.0) == 0
        assert receiver.messages() == [message(b"2", qos, 2)]

    def test_a_refusal_of_what_the_client_has_or_never_had_changes_nothing(self) -> None:
        outbox, receiver = connected(window=1)
        offer(outbox, b"1", b"2", qos=2)
        outbox.acknowledge(PUBREC, [1], 0.0)
        receiver.read()
        assert outbox.refuse(PUBREC, 1, 0.0) == 0
        assert outbox.refuse(PUBREC, 2, 0.0) == 0
        assert (receiver.read(), outbox.inflight, outbox.queued) == ([], 1, 1)

    def test_without_a_connection_acknowledgements_change_nothing(self) -> None:
        outbox, _ = connected()
        offer(outbox, b"1", qos=1)
        offer(outbox, b"2", qos=2)
        outbox.detach()
        outbox.acknowledge(PUBACK, [1], 0.0)
        outbox.acknowledge(PUBREC, [2], 0.0)
        assert outbox.refuse(PUBREC, 2, 0.0) == 0
        assert (outbox.take(), outbox.inflight) == (b"", 2)

    def test_bytes_in_flight_have_a_limit_too(self) -> None:
        outbox = make_outbox(bytes_max=2 * SIZE)
        receiver = Receiver(outbox)
        offer(outbox, b"1", b"2", b"3", qos=2)
        assert receiver.payloads() == [b"1", b"2"]
        # The payload is freed, but it is so small that the rest is still too much.
        outbox.acknowledge(PUBREC, [1], 0.0)
        assert receiver.read() == [Ack(PUBREL, 1), message(b"3", 2, 3)]


class TestResuming:
    def test_mqtt_4_4_0_1_what_is_in_flight_is_sent_again_under_its_packet_id(self) -> None:
        outbox, _ = connected(window=3)
        offer(outbox, b"1", b"2", b"3", b"4", qos=2)
        outbox.acknowledge(PUBREC, [2], 0.0)
        receiver = reconnected(outbox, window=3)
        again = [Ack(PUBREL, 2), message(b"1", 2 | DUP, 1), message(b"3", 2 | DUP, 3)]
        assert receiver.read() == again
        receiver = reconnected(outbox, window=4)
        assert receiver.read() == [*again, message(b"4", 2, 4)]

    def test_mqtt_3_3_4_10_pubrel_does_not_wait_for_a_window_but_messages_wait_for_both(
        self,
    ) -> None:
        outbox, _ = connected()
        offer(outbox, b"1", b"2", b"3", qos=2)
        outbox.acknowledge(PUBREC, [3, 2], 0.0)
        receiver = reconnected(outbox, window=1)
        assert receiver.read() == [Ack(PUBREL, 2), Ack(PUBREL, 3)]
        outbox.acknowledge(PUBCOMP, [3], 0.0)
        assert receiver.read() == []
        outbox.acknowledge(PUBREC, [2], 0.0)
        assert receiver.read() == [Ack(PUBREL, 2)]
        outbox.acknowledge(PUBCOMP, [2], 0.0)
        assert receiver.messages() == [message(b"1", 2 | DUP, 1)]

    def test_a_smaller_window_holds_for_what_is_sent_again_and_nothing_overtakes_it(self) -> None:
        outbox, _ = connected(window=3)
        offer(outbox, b"1", b"2", b"3")
        receiver = reconnected(outbox, window=1)
        offer(outbox, b"4", qos=0)
        assert receiver.messages() == [message(b"1", 1 | DUP, 1)]
        outbox.acknowledge(PUBACK, [1], 0.0)
        assert receiver.messages() == [message(b"2", 1 | DUP, 2)]
        assert outbox.is_clear() is False
        assert outbox.refuse(PUBACK, 2, 0.0) == 0
        assert receiver.messages() == [message(b"3", 1 | DUP, 3), message(b"4", 0, 0)]

    def test_what_was_not_sent_again_yet_cannot_be_acknowledged(self) -> None:
        outbox, _ = connected()
        offer(outbox, b"1", qos=1)
        offer(outbox, b"2", qos=1)
        offer(outbox, b"3", qos=2)
        receiver = reconnected(outbox, window=1)
        receiver.read()
        outbox.acknowledge(PUBACK, [2], 0.0)
        assert outbox.refuse(PUBACK, 2, 0.0) == 0
        outbox.acknowledge(PUBREC, [3], 0.0)
        assert receiver.read() == [Raw(PUBREL, b"\0\3\x92")]
        outbox.acknowledge(PUBACK, [1], 0.0)
        assert receiver.messages() == [message(b"2", 1 | DUP, 2)]

    def test_what_is_in_flight_is_sent_again_even_where_it_is_all_that_may_be(self) -> None:
        outbox = make_outbox(bytes_max=2 * SIZE)
        Receiver(outbox)
        offer(outbox, b"1", b"2", b"3")
        receiver = reconnected(outbox)
        assert receiver.messages() == [message(b"1", 1 | DUP, 1), message(b"2", 1 | DUP, 2)]
        outbox.acknowledge(PUBACK, [1], 0.0)
        assert receiver.messages() == [message(b"3", 1, 3)]

    def test_what_was_written_but_not_taken_is_not_written_to_the_next_connection(self) -> None:
        outbox, _ = connected()
        outbox.write(b"\xd0\0")
        offer(outbox, b"lost", qos=0)
        offer(outbox, b"1")
        outbox.detach()
        assert outbox.take() == b""
        assert Receiver(outbox).messages() == [message(b"1", 1 | DUP, 1)]

    def test_qos_0_that_waits_goes_with_its_connection(self) -> None:
        budget = Budget(10_000)
        outbox = make_outbox(budget=budget)
        Receiver(outbox)
        outbox.paused = True
        offer(outbox, b"1", qos=0)
        offer(outbox, b"2", qos=1)
        outbox.detach()
        assert (outbox.queued, budget.used, outbox.dropped) == (1, SIZE, 0)
        assert Receiver(outbox).messages() == [message(b"2", 1, 1)]

    def test_sink_and_refill_go_with_the_connection(self) -> None:
        outbox = make_outbox()
        written: list[bytes] = []
        outbox.sink = written.append
        outbox.refill = written.clear
        Receiver(outbox)
        assert outbox.attached is True
        outbox.detach()
        ends: list[object] = [outbox.sink, outbox.refill, outbox.attached]
        assert ends == [None, None, False]


class TestPausing:
    def test_what_is_offered_meanwhile_waits(self) -> None:
        outbox, receiver = connected()
        outbox.paused = True
        offer(outbox, b"1", qos=0)
        offer(outbox, b"2", qos=1)
        outbox.pump(0.0)
        assert (receiver.read(), outbox.waits, outbox.is_clear()) == ([], False, False)
        outbox.paused = False
        assert (outbox.waits, outbox.is_clear()) == (True, False)
        outbox.pump(0.0)
        assert receiver.messages() == [message(b"1", 0, 0), message(b"2", 1, 1)]
        assert (outbox.waits, outbox.is_clear()) == (False, True)

    def test_what_is_to_be_sent_again_waits_too(self) -> None:
        outbox, _ = connected()
        offer(outbox, b"123456", b"2")
        receiver = reconnected(outbox, buffer_max=10)
        assert (receiver.payloads(), outbox.waits) == ([b"123456"], True)
        outbox.paused = True
        outbox.pump(0.0)
        assert receiver.read() == []

    def test_no_more_is_written_in_one_turn_than_the_buffer_takes(self) -> None:
        outbox, receiver = connected(buffer_max=13)
        for number in range(4):
            offer(outbox, b"%d" % number, qos=number % 2)
        # Each takes 7 or 9 bytes.
        assert (receiver.payloads(), outbox.waits) == ([b"0", b"1"], True)
        outbox.pump(0.0)
        assert (receiver.payloads(), outbox.waits) == ([b"2", b"3"], False)

    @pytest.mark.parametrize("qos", [0, 1])
    def test_clear_is_who_would_send_at_once(self, qos: int) -> None:
        outbox = make_outbox()
        assert outbox.is_clear() is False
        receiver = Receiver(outbox, window=1, buffer_max=7)
        assert outbox.is_clear() is True
        offer(outbox, b"1", qos=qos)
        assert outbox.is_clear() is False
        receiver.read()
        assert outbox.is_clear() is (qos == 0)


class TestQueue:
    @pytest.mark.parametrize(
        ("drop_old", "kept"), [(True, [b"3", b"4", b"5"]), (False, [b"1", b"2", b"3"])]
    )
    def test_the_oldest_makes_room_or_the_newest_is_not_taken(
        self, drop_old: bool, kept: list[bytes]
    ) -> None:
        outbox = make_outbox(messages_max=3, drop_old=drop_old)
        offer(outbox, b"1", b"2", b"3")
        assert outbox.dropped == 0
        offer(outbox, b"4", b"5")
        assert (outbox.dropped, outbox.queued) == (2, 3)
        assert Receiver(outbox).payloads() == kept

    @pytest.mark.parametrize(("drop_old", "kept"), [(True, [b"2", b"34"]), (False, [b"1", b"2"])])
    def test_bytes_have_a_limit(self, drop_old: bool, kept: list[bytes]) -> None:
        outbox = make_outbox(bytes_max=2 * SIZE + 1, drop_old=drop_old)
        offer(outbox, b"1", b"2", b"34")
        assert Receiver(outbox).payloads() == kept
        assert outbox.dropped == 1

    @pytest.mark.parametrize(("drop_old", "kept"), [(True, [b"2", b"34"]), (False, [b"1", b"2"])])
    def test_the_bytes_of_all_have_a_limit(self, drop_old: bool, kept: list[bytes]) -> None:
        budget = Budget(3 * SIZE + 1)
        other = make_outbox(budget=budget)
        offer(other, b"0")
        outbox = make_outbox(budget=budget, drop_old=drop_old)
        offer(outbox, b"1", b"2", b"34")
        assert Receiver(outbox).payloads() == kept
        assert (outbox.dropped, other.queued) == (1, 1)

    def test_a_message_larger_than_the_queue_pushes_nothing_out(self) -> None:
        outbox = make_outbox(bytes_max=3 * SIZE)
        offer(outbox, b"1", b"2", bytes(3 * SIZE), b"3")
        assert (outbox.dropped, outbox.queued) == (1, 3)
        assert Receiver(outbox).payloads() == [b"1", b"2", b"3"]

    def test_one_whose_predecessors_were_dropped_need_not_wait(self) -> None:
        ready = Ready(lambda: None)
        outbox = make_outbox(messages_max=2, ready=ready)
        receiver = Receiver(outbox, window=1)
        offer(outbox, b"1", b"2")
        assert (receiver.payloads(), ready.take()) == ([b"1"], [outbox])
        offer(outbox, b"3", qos=0)
        assert ready.take() == []
        offer(outbox, b"4", qos=2)
        # 2 has made room, and 3 needs no window.
        assert (ready.take(), receiver.read(), outbox.waits) == ([outbox], [], True)
        outbox.pump(0.0)
        assert (receiver.payloads(), outbox.queued, outbox.dropped) == ([b"3"], 1, 1)

    def test_where_others_hold_too_much_each_still_replaces_what_it_has(self) -> None:
        budget = Budget(10 * SIZE)
        outbox = make_outbox(budget=budget)
        offer(outbox, b"1", b"2", b"3")
        budget.used += 20 * SIZE
        offer(outbox, b"4")
        # This one would need all three places and more.
        offer(outbox, bytes(3 * SIZE))
        assert (outbox.dropped, outbox.queued) == (2, 3)
        assert Receiver(outbox).payloads() == [b"2", b"3", b"4"]

    def test_who_can_be_sent_to_needs_no_room(self) -> None:
        budget = Budget(SIZE)
        budget.used = SIZE
        outbox = make_outbox(budget=budget, messages_max=1)
        receiver = Receiver(outbox)
        offer(outbox, b"1", b"2", b"3")
        assert receiver.payloads() == [b"1", b"2", b"3"]
        assert (budget.used, outbox.dropped) == (4 * SIZE, 0)

    def test_an_outbox_is_behind_when_more_than_half_of_its_queue_is_taken(self) -> None:
        ready = Ready(lambda: None)
        by_count = make_outbox(ready=ready, messages_max=4)
        by_size = make_outbox(ready=ready, bytes_max=4 * SIZE)
        behind = []
        for outbox in (by_count, by_size):
            offer(outbox, b"1", b"2")
            behind.append(ready.behind)
            offer(outbox, b"3")
            behind.append(ready.behind)
        assert behind == [None, by_count, by_count, by_size]


class TestBudget:
    def test_a_session_that_ends_gives_all_back(self) -> None:
        budget = Budget(100 * SIZE)
        budget.used = 7
        outbox = make_outbox(budget=budget)
        Receiver(outbox, window=2)
        offer(outbox, b"1", b"2", b"3", qos=2)
        outbox.acknowledge(PUBREC, [2], 0.0)
        outbox.detach()
        outbox.discard()
        assert (budget.used, outbox.inflight, outbox.queued) == (7, 0, 0)
        assert Receiver(outbox).read() == []


class TestExpiry:
    def offer(self, outbox: Outbox, payload: bytes, qos: int) -> None:
        """Offer a message at 100 that expires at 110."""
        outbox.offer(b"t", payload, qos, EXPIRY_10, 110.0)

    @pytest.mark.parametrize("qos", [0, 1, 2])
    def test_mqtt_3_3_2_5_what_expired_before_it_could_be_sent_is_dropped(self, qos: int) -> None:
        budget = Budget(10_000)
        outbox = make_outbox(budget=budget)
        receiver = Receiver(outbox)
        outbox.paused = True
        self.offer(outbox, b"1", qos)
        outbox.paused = False
        outbox.pump(110.0)
        assert (receiver.read(), outbox.expired, outbox.dropped) == ([], 1, 0)
        assert (outbox.queued, budget.used) == (0, 0)

    @pytest.mark.parametrize("qos", [0, 1, 2])
    @pytest.mark.parametrize(("now", "left"), [(100.0, 10), (103.0, 7), (109.9, 1)])
    def test_mqtt_3_3_2_6_what_waited_says_what_is_left(
        self, qos: int, now: float, left: int
    ) -> None:
        outbox, receiver = connected()
        outbox.paused = True
        self.offer(outbox, b"1", qos)
        outbox.paused = False
        outbox.pump(now)
        properties = b"\2\0\0\0" + bytes([left])
        expected = Message(b"t", b"1", qos, 0 if qos == 0 else 1, properties, left)
        assert receiver.read() == [expected]

    @pytest.mark.parametrize(("now", "left"), [(104.0, 6), (110.0, 1), (500.0, 1)])
    def test_what_is_sent_again_says_what_is_left_and_never_expires(
        self, now: float, left: int
    ) -> None:
        outbox, _ = connected()
        self.offer(outbox, b"1", 1)
        outbox.detach()
        expected = Message(b"t", b"1", 1 | DUP, 1, b"\2\0\0\0" + bytes([left]), left)
        assert Receiver(outbox, now=now).read() == [expected]
        assert outbox.expired == 0


class TestPacketSize:
    # A packet of MQTT 5 with topic `t` and this payload has 7 bytes, and 9 with a packet id.
    @pytest.mark.parametrize(("qos", "size"), [(0, 7), (1, 9), (2, 9)])
    def test_mqtt_3_1_2_24_a_packet_beyond_the_limit_is_not_sent(self, qos: int, size: int) -> None:
        for limit, expected in ((size, [b"1"]), (size - 1, [])):
            budget = Budget(10_000)
            outbox = make_outbox(budget=budget)
            receiver = Receiver(outbox, packet_size_max=limit)
            offer(outbox, b"1", qos=qos)
            assert receiver.payloads() == expected
            assert outbox.dropped == 1 - len(expected)
            assert budget.used == (SIZE if qos and expected else 0)

    @pytest.mark.parametrize("qos", [0, 1])
    def test_one_that_waited_is_dropped_in_its_turn(self, qos: int) -> None:
        budget = Budget(10_000)
        outbox = make_outbox(budget=budget)
        receiver = Receiver(outbox, packet_size_max=10)
        outbox.paused = True
        offer(outbox, bytes(100), b"1", qos=qos)
        outbox.paused = False
        outbox.pump(0.0)
        assert (receiver.payloads(), outbox.dropped) == ([b"1"], 1)

    def test_one_that_is_too_large_for_the_next_connection_ends(self) -> None:
        budget = Budget(10_000)
        outbox = make_outbox(budget=budget)
        Receiver(outbox)
        offer(outbox, bytes(100), b"1")
        receiver = reconnected(outbox, packet_size_max=10, window=1)
        assert receiver.messages() == [message(b"1", 1 | DUP, 2)]
        assert (outbox.dropped, outbox.inflight, budget.used) == (1, 1, SIZE)

    def test_no_message_is_larger_than_mqtt_allows(self) -> None:
        outbox, receiver = connected()
        offer(outbox, bytes(268_435_455), b"1", qos=0)
        assert (receiver.payloads(), outbox.dropped) == ([b"1"], 1)

    def test_topic_aliases_begin_anew_with_each_connection(self) -> None:
        outbox = make_outbox()
        for count in (1, 2):
            receiver = Receiver(outbox, alias_max=1)
            offer(outbox, b"0", b"0", qos=0)
            first, second = b"\x30\x08\0\1t\3\x23\0\0010", b"\x30\x07\0\0\3\x23\0\0010"
            assert outbox.take() == first + second
            assert (receiver.read(), outbox.sent) == ([], 2 * count)
            outbox.detach()


class TestRelief:
    def behind(self) -> tuple[Outbox, list[str]]:
        """Return an outbox with eight messages waiting of at most eight, and who was called."""
        outbox = make_outbox(messages_max=8, bytes_max=8 * SIZE)
        Receiver(outbox, window=5)
        outbox.paused = True
        offer(outbox, *(b"%d" % number for number in range(8)))
        outbox.paused = False
        return outbox, []

    def test_who_waits_is_called_once_when_a_quarter_is_left(self) -> None:
        outbox, called = self.behind()
        outbox.when_relieved(lambda: called.append("x"))
        outbox.pump(0.0)
        assert (outbox.queued, called) == (3, [])
        outbox.acknowledge(PUBACK, [1], 0.0)
        assert (outbox.queued, called) == (2, ["x"])
        outbox.acknowledge(PUBACK, [2], 0.0)
        assert (outbox.queued, called) == (1, ["x"])

    def test_the_bytes_that_wait_count_too(self) -> None:
        outbox = make_outbox(messages_max=100, bytes_max=8 * SIZE)
        Receiver(outbox, window=1)
        called: list[str] = []
        offer(outbox, b"1", b"2", bytes(4 * SIZE), qos=2)
        outbox.when_relieved(lambda: called.append("x"))
        outbox.acknowledge(PUBREC, [1], 0.0)
        outbox.acknowledge(PUBCOMP, [1], 0.0)
        assert (outbox.queued, called) == (1, [])
        outbox.acknowledge(PUBREC, [2], 0.0)
        outbox.acknowledge(PUBCOMP, [2], 0.0)
        assert (outbox.queued, called) == (0, ["x"])

    def test_who_waits_is_called_when_the_connection_ends(self) -> None:
        outbox, called = self.behind()
        outbox.when_relieved(lambda: called.append("x"))
        outbox.detach()
        outbox.detach()
        assert called == ["x"]

    def test_those_who_wait_have_a_limit(self) -> None:
        outbox, called = self.behind()
        for _ in range(1_000):
            outbox.when_relieved(lambda: called.append("x"))
        assert called == []
        outbox.when_relieved(lambda: called.append("last"))
        assert called == ["x"] * 1_000 + ["last"]

    def test_without_a_connection_there_is_no_use_in_waiting(self) -> None:
        outbox = make_outbox()
        assert outbox.is_stuck(0.0) is True
        Receiver(outbox)
        assert outbox.is_stuck(0.0) is False
        outbox.detach()
        assert outbox.is_stuck(0.0) is True

    def test_a_peer_that_has_not_read_for_a_second_is_stuck(self) -> None:
        outbox, _ = connected()
        outbox.paused = True
        outbox.paused_at = 100.0
        assert (outbox.is_stuck(101.0), outbox.is_stuck(101.1)) == (False, True)

    def test_a_peer_that_does_not_acknowledge_for_a_second_is_stuck(self) -> None:
        outbox, _ = connected(window=1)
        offer(outbox, b"1", b"2", b"3")
        assert (outbox.is_stuck(100.0), outbox.is_stuck(101.0)) == (False, False)
        assert outbox.is_stuck(101.1) is True
        outbox.acknowledge(PUBACK, [1], 101.1)
        assert (outbox.is_stuck(101.2), outbox.is_stuck(102.0)) == (False, False)
        assert outbox.is_stuck(102.3) is True
