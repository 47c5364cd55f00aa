from __future__ import annotations

import logging
from pathlib import PurePath

import pytest

from siltstone.broker.access import Access
from siltstone.broker.acl import Acl
from siltstone.broker.storage_settings import StoreRule
from siltstone.errors import PoisonedError, UsageError
from siltstone.mqtt.packets import Disconnect, PubAck, PubComp, Publish, PubRec, PubRel
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from tests.support.broker_core import V3, V5, Core, message, over_quota


def allowing(*lines: str) -> Access:
    return Access(None, Acl.parse(lines, PurePath("/acl")), None)


def refused_ids(packets: list[object]) -> dict[int, Reason]:
    """Return the reasons of acknowledgements by packet id."""
    return {
        packet.packet_id: packet.reason for packet in packets if isinstance(packet, PubAck | PubRec)
    }


class TestAcknowledging:
    @pytest.mark.parametrize("version", [V3, V5])
    def test_a_message_is_acknowledged_after_it_was_stored_and_not_before(
        self, version: Version
    ) -> None:
        core = Core(automatic=False)
        client = core.connect("c", version=version)
        assert client.publish("a", "1", qos=1, packet_id=7) == []
        assert client.publish("a", "2", qos=2, packet_id=8) == []
        core.settle()
        assert client.take() == [PubAck(packet_id=7), PubRec(packet_id=8)]
        assert core.database.rows == [(b"a", b"1"), (b"a", b"2")]

    def test_qos_0_is_stored_and_not_acknowledged(self) -> None:
        core = Core()
        client = core.connect("c")
        assert client.publish("a", "1") == []
        assert core.database.rows == [(b"a", b"1")]

    def test_acknowledgements_leave_in_the_order_of_the_messages(self) -> None:
        core = Core(automatic=False, rules=[StoreRule(filter="w", durability="written")])
        client = core.connect("c")
        client.publish("a", "1", qos=1, packet_id=1)
        client.publish("w", "2", qos=2, packet_id=2)
        core.database.settle(index=1)
        assert client.take() == []
        core.settle()
        assert client.take() == [PubAck(packet_id=1), PubRec(packet_id=2)]

    def test_a_batch_is_one_append_and_its_acknowledgements_are_one_write(self) -> None:
        core = Core(automatic=False)
        client = core.connect("c")
        client.send(*(message("a", str(number), 1, number) for number in range(1, 4)))
        core.run()
        assert [append.values for append in core.database.pending] == [[b"1", b"2", b"3"]]
        core.settle()
        assert client.take() == [PubAck(packet_id=number) for number in range(1, 4)]

    def test_a_message_of_qos_2_is_stored_and_dispatched_once(self) -> None:
        core = Core()
        reader = core.connect("r")
        reader.subscribe("a")
        client = core.connect("c")
        assert client.publish("a", "1", qos=2, packet_id=1) == [PubRec(packet_id=1)]
        assert client.publish("a", "1", qos=2, packet_id=1, dup=True) == [PubRec(packet_id=1)]
        assert core.database.rows == [(b"a", b"1")]
        assert [type(packet) for packet in reader.take()] == [Publish]

    def test_after_pubrel_a_packet_id_is_a_new_message(self) -> None:
        core = Core()
        client = core.connect("c")
        client.publish("a", "1", qos=2, packet_id=1)
        assert client.exchange(PubRel(packet_id=1)) == [PubComp(packet_id=1)]
        assert client.publish("a", "2", qos=2, packet_id=1) == [PubRec(packet_id=1)]
        assert core.database.rows == [(b"a", b"1"), (b"a", b"2")]

    def test_pubrel_of_an_unknown_packet_id_is_told_so_by_mqtt_5(self) -> None:
        core = Core()
        not_found = PubComp(packet_id=9, reason=Reason.PACKET_IDENTIFIER_NOT_FOUND)
        assert core.connect("c").exchange(PubRel(packet_id=9)) == [not_found]
        answer = core.connect("d", version=V3).exchange(PubRel(packet_id=9))
        assert answer == [PubComp(packet_id=9)]

    def test_an_outcome_that_comes_after_the_connection_is_told_to_nobody(self) -> None:
        core = Core(automatic=False)
        client = core.connect("c", session_expiry_interval=100)
        client.publish("a", qos=1, packet_id=1)
        client.drop()
        core.settle()
        assert client.take() == []


class TestRefusals:
    """An acknowledgement means kept: what was not kept is refused."""

    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (over_quota(), Reason.QUOTA_EXCEEDED),
            (PoisonedError("a sync failed"), Reason.UNSPECIFIED_ERROR),
            (UsageError("too long"), Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        ],
    )
    def test_mqtt_5_is_told_why_a_message_was_not_kept(
        self, error: Exception, reason: Reason
    ) -> None:
        core = Core(automatic=False)
        client = core.connect("c")
        client.send(message("a", "1", 1, 1), message("a", "2", 2, 2), message("a", "3"))
        core.settle(error)
        assert client.take() == [
            PubAck(packet_id=1, reason=reason),
            PubRec(packet_id=2, reason=reason),
        ]
        assert (client.is_closed, core.database.rows) == (False, [])

    @pytest.mark.parametrize("qos", [0, 1])
    def test_what_was_not_kept_replaces_no_retained_message(self, qos: int) -> None:
        core = Core(automatic=False)
        client = core.connect("c")
        client.send(message("a", "old", 1, 1, retain=True))
        core.settle()
        client.send(message("a", "new", qos, 2 * qos, retain=True))
        client.send(message("b", "new", qos, 3 * qos, retain=True))
        core.run()
        while core.database.pending:
            core.database.settle(over_quota())
            core.run()
        core.settle()
        subscriber = core.connect("s")
        assert subscriber.subscribe("#", qos=0) == [message("a", "old", 0, retain=True)]
        assert core.retained_log.rows[-2:] == [(b"a", b"old"), (b"b", b"")]

    def test_mqtt_3_1_1_is_closed_and_gets_no_puback(self) -> None:
        core = Core(automatic=False)
        client = core.connect("c", version=V3)
        client.send(message("a", "1", 1, 1))
        core.settle(over_quota())
        assert (client.take(), client.is_closed) == ([], True)

    def test_mqtt_3_1_1_hears_of_what_was_kept_before_it_is_closed(self) -> None:
        core = Core(automatic=False)
        client = core.connect("c", version=V3)
        client.publish("a", "1", qos=1, packet_id=1)
        client.publish("a", "2", qos=1, packet_id=2)
        core.database.settle()
        core.run()
        core.database.settle(over_quota())
        assert (client.take(), client.is_closed) == ([PubAck(packet_id=1)], True)

    def test_a_message_of_qos_2_that_was_refused_leaves_its_packet_id_free(self) -> None:
        core = Core(automatic=False)
        client = core.connect("c")
        client.publish("a", "1", qos=2, packet_id=1)
        core.settle(over_quota())
        assert client.take() == [PubRec(packet_id=1, reason=Reason.QUOTA_EXCEEDED)]
        client.publish("a", "2", qos=2, packet_id=1)
        core.settle()
        assert client.take() == [PubRec(packet_id=1)]
        assert core.database.rows == [(b"a", b"2")]

    def test_a_repeated_message_is_not_refused_with_a_new_one_beside_it(self) -> None:
        core = Core(automatic=False)
        client = core.connect("c", session_expiry_interval=100)
        client.publish("a", "1", qos=2, packet_id=1)
        core.settle()
        client.drop()
        client = core.connect("c", clean_start=False, session_expiry_interval=100)
        client.send(message("a", "1", 2, 1, dup=True), message("a", "2", 2, 2))
        core.settle(over_quota())
        assert client.take() == [
            PubRec(packet_id=1),
            PubRec(packet_id=2, reason=Reason.QUOTA_EXCEEDED),
        ]
        assert client.publish("a", "1", qos=2, packet_id=1, dup=True) == [PubRec(packet_id=1)]
        assert core.database.rows == [(b"a", b"1")]

    def test_only_the_part_that_was_not_kept_is_refused(self) -> None:
        core = Core(automatic=False, rules=[StoreRule(filter="w", durability="written")])
        client = core.connect("c")
        client.send(message("a", "1", 1, 1), message("w", "2", 1, 2))
        core.run()
        synced, written = core.database.pending
        assert (synced.topics, written.topics) == ([b"a"], [b"w"])
        core.database.settle(index=1)
        core.database.settle(over_quota())
        assert client.take() == [
            PubAck(packet_id=1, reason=Reason.QUOTA_EXCEEDED),
            PubAck(packet_id=2),
        ]

    @pytest.mark.parametrize("version", [V3, V5])
    def test_who_was_not_told_sends_again_and_subscribers_get_it_once(
        self, version: Version
    ) -> None:
        core = Core(automatic=False)
        kept = {"session_expiry_interval": 100} if version is V5 else {}
        reader = core.connect("r")
        reader.subscribe("a")
        client = core.connect("c", version=version, clean_start=False, **kept)
        client.publish("a", "1", qos=2, packet_id=1)
        if version is V5:
            client.drop()
        core.settle(over_quota())
        assert client.is_closed
        client = core.connect("c", version=version, clean_start=False, **kept)
        client.publish("a", "1", qos=2, packet_id=1, dup=True)
        core.settle()
        assert client.take() == [PubRec(packet_id=1)]
        assert [packet.payload for packet in reader.take() if isinstance(packet, Publish)] == [b"1"]
        assert core.database.rows == [(b"a", b"1")]

    def test_another_message_under_that_packet_id_is_dispatched(self) -> None:
        core = Core(automatic=False)
        reader = core.connect("r")
        reader.subscribe("a", qos=0)
        client = core.connect("c", session_expiry_interval=100)
        client.publish("a", "1", qos=2, packet_id=1)
        client.drop()
        core.settle(over_quota())
        client = core.connect("c", clean_start=False, session_expiry_interval=100)
        client.publish("a", "1", qos=2, packet_id=1)
        core.settle()
        client.exchange(PubRel(packet_id=1))
        client.publish("a", "1", qos=2, packet_id=1, dup=True)
        core.settle()
        assert len(reader.take()) == 3

    def test_what_was_lost_is_counted_and_told_once_a_second(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        core = Core(automatic=False)
        client = core.connect("c")
        caplog.set_level(logging.WARNING)
        for seconds in (0.0, 0.5, 0.6):
            core.advance(seconds)
            client.send(message("a"), message("a"))
            core.settle(over_quota())
        assert core.broker.statistics.publishes_refused == 6
        assert [getattr(record, "facts", {})["count"] for record in caplog.records] == [2, 4]


class TestReceiveMaximum:
    def test_more_than_the_receive_maximum_ends_the_connection(self) -> None:
        core = Core(automatic=False, receive_max=2)
        client = core.connect("c")
        client.send(*(message("a", "x", qos, qos) for qos in (1, 2)))
        assert client.take() == []
        client.send(message("a", "x", 1, 3))
        assert client.take() == [Disconnect(reason=Reason.RECEIVE_MAXIMUM_EXCEEDED)]
        core.settle()
        assert core.database.rows == [(b"a", b"x")] * 2

    def test_qos_0_does_not_count(self) -> None:
        core = Core(automatic=False, receive_max=1)
        client = core.connect("c")
        client.send(*(message("a"),) * 10, message("a", "x", 1, 1))
        core.settle()
        assert client.take() == [PubAck(packet_id=1)]

    def test_an_acknowledged_message_counts_no_more(self) -> None:
        core = Core(receive_max=1)
        client = core.connect("c")
        for number in range(1, 5):
            assert client.publish("a", qos=1, packet_id=number) == [PubAck(packet_id=number)]

    def test_a_message_of_qos_2_counts_until_it_is_released(self) -> None:
        core = Core(receive_max=1)
        client = core.connect("c")
        client.publish("a", qos=2, packet_id=1)
        client.exchange(PubRel(packet_id=1))
        assert client.publish("a", qos=2, packet_id=2) == [PubRec(packet_id=2)]
        assert client.publish("a", qos=2, packet_id=3) == [
            Disconnect(reason=Reason.RECEIVE_MAXIMUM_EXCEEDED)
        ]

    def test_a_message_of_qos_2_that_was_refused_counts_no_more(self) -> None:
        core = Core(automatic=False, receive_max=1)
        client = core.connect("c")
        for number in (1, 2):
            client.publish("a", qos=2, packet_id=number)
            core.settle(over_quota())
            assert refused_ids(list(client.take())) == {number: Reason.QUOTA_EXCEEDED}

    def test_mqtt_3_1_1_knows_no_receive_maximum(self) -> None:
        core = Core(receive_max=1)
        client = core.connect("c", version=V3)
        client.send(message("a", "x", 1, 1), message("a", "x", 1, 2))
        assert client.take() == [PubAck(packet_id=1), PubAck(packet_id=2)]


class TestRights:
    def test_mqtt_5_is_told_what_it_may_not_publish(self) -> None:
        core = Core(access=allowing("topic write a/#"))
        client = core.connect("c")
        client.send(message("a/1", "1", 1, 1), message("b", "2", 1, 2), message("a/2", "3", 2, 3))
        assert client.take() == [
            PubAck(packet_id=1),
            PubAck(packet_id=2, reason=Reason.NOT_AUTHORIZED),
            PubRec(packet_id=3),
        ]
        assert core.database.rows == [(b"a/1", b"1"), (b"a/2", b"3")]

    def test_mqtt_3_1_1_who_publishes_what_it_may_not_is_closed(self) -> None:
        core = Core(access=allowing("topic write a/#"))
        client = core.connect("c", version=V3)
        client.send(message("a/1", "1", 1, 1), message("b", "2", 1, 2))
        assert (client.take(), client.is_closed) == ([], True)
        assert core.database.rows == []

    def test_what_was_with_a_forbidden_message_can_be_sent_again(self) -> None:
        core = Core(access=allowing("topic write a/#"))
        client = core.connect("c", version=V3, clean_start=False)
        client.send(message("a/1", "1", 2, 1), message("b", "2", 1, 2))
        client = core.connect("c", version=V3, clean_start=False)
        assert client.publish("a/1", "1", qos=2, packet_id=1, dup=True) == [PubRec(packet_id=1)]
        assert core.database.rows == [(b"a/1", b"1")]

    @pytest.mark.parametrize("version", [V3, V5])
    def test_qos_0_that_is_forbidden_is_dropped_and_counted(self, version: Version) -> None:
        core = Core(access=allowing("topic write a"))
        client = core.connect("c", version=version)
        client.send(message("b", "1"), message("a", "2", 1, 1))
        assert client.take() == [PubAck(packet_id=1)]
        assert core.database.rows == [(b"a", b"2")]
        assert core.broker.statistics.publishes_refused == 1

    def test_a_message_of_qos_2_that_is_forbidden_leaves_its_packet_id_free(self) -> None:
        core = Core(access=allowing("topic write a"))
        client = core.connect("c")
        refused = PubRec(packet_id=1, reason=Reason.NOT_AUTHORIZED)
        assert client.publish("b", qos=2, packet_id=1) == [refused]
        assert client.publish("a", qos=2, packet_id=1) == [PubRec(packet_id=1)]

    def test_rights_that_were_read_again_hold_for_topics_that_were_allowed(self) -> None:
        core = Core(access=allowing("topic write a"))
        client = core.connect("c")
        assert client.publish("a", qos=1, packet_id=1) == [PubAck(packet_id=1)]
        core.broker.use_access(allowing("topic write b"))
        refused = PubAck(packet_id=1, reason=Reason.NOT_AUTHORIZED)
        assert client.publish("a", qos=1, packet_id=1) == [refused]
        assert client.publish("b", qos=1, packet_id=1) == [PubAck(packet_id=1)]

    def test_topics_with_a_dollar_are_the_servers_own(self) -> None:
        core = Core()
        client = core.connect("c")
        client.send(message("$SYS/x", "1", 1, 1), message("$x", "2"), message("a", "3", 1, 2))
        assert client.take() == [
            PubAck(packet_id=1, reason=Reason.NOT_AUTHORIZED),
            PubAck(packet_id=2),
        ]
        assert core.database.rows == [(b"a", b"3")]

    def test_refusals_are_told_once_a_second_and_name_the_topic(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        core = Core()
        client = core.connect("c")
        caplog.set_level(logging.WARNING)
        for topic, seconds in (("$a", 0.0), ("$b", 0.9), ("$c", 0.1)):
            core.advance(seconds)
            client.publish(topic)
        told = [getattr(record, "facts", {})["topic"] for record in caplog.records]
        assert told == [b"$a", b"$c"]


class TestRetaining:
    def test_a_retained_message_is_acknowledged_when_both_logs_have_it(self) -> None:
        core = Core(automatic=False)
        client = core.connect("c")
        client.publish("a", "1", qos=1, packet_id=1, retain=True)
        core.database.settle()
        assert client.take() == []
        core.retained_log.settle()
        assert client.take() == [PubAck(packet_id=1)]

    def test_a_retained_message_that_was_not_kept_is_refused(self) -> None:
        core = Core(automatic=False)
        client = core.connect("c")
        client.send(message("a", "1", 1, 1, retain=True), message("b", "2", 1, 2))
        core.run()
        core.database.settle()
        core.retained_log.settle(over_quota())
        assert client.take() == [
            PubAck(packet_id=1, reason=Reason.QUOTA_EXCEEDED),
            PubAck(packet_id=2),
        ]

    def test_a_retained_message_beyond_the_limit_is_refused_and_goes_nowhere(self) -> None:
        core = Core(retained_messages_max=1)
        reader = core.connect("r")
        reader.subscribe("#", qos=0)
        client = core.connect("c")
        client.send(message("a", "1", 1, 1, retain=True), message("b", "2", 1, 2, retain=True))
        assert client.take() == [
            PubAck(packet_id=1),
            PubAck(packet_id=2, reason=Reason.QUOTA_EXCEEDED),
        ]
        assert core.database.rows == [(b"a", b"1")]
        assert [packet.payload for packet in reader.take() if isinstance(packet, Publish)] == [b"1"]

    def test_a_log_that_takes_nothing_is_told_with_its_reason(self) -> None:
        core = Core()
        core.retained_log.refusals.append(PoisonedError("a sync failed"))
        client = core.connect("c")
        client.send(message("a", "1", 1, 1, retain=True), message("b", "2", 1, 2))
        assert client.take() == [
            PubAck(packet_id=1, reason=Reason.UNSPECIFIED_ERROR),
            PubAck(packet_id=2),
        ]

    def test_mqtt_3_1_1_is_closed_and_can_send_the_rest_again(self) -> None:
        core = Core(retained_messages_max=0)
        client = core.connect("c", version=V3, clean_start=False)
        client.send(message("a", "1", 1, 1, retain=True), message("b", "2", 2, 2))
        assert (client.take(), client.is_closed) == ([], True)
        client = core.connect("c", version=V3, clean_start=False)
        assert client.publish("b", "2", qos=2, packet_id=2, dup=True) == [PubRec(packet_id=2)]
        assert core.database.rows == [(b"b", b"2")]

    def test_what_nobody_got_before_the_end_is_dispatched_when_it_comes_again(self) -> None:
        core = Core(automatic=False, retained_messages_max=1)
        reader = core.connect("r")
        reader.subscribe("a", qos=0)
        client = core.connect("c", version=V3, clean_start=False)
        client.send(message("a", "1", 2, 1, retain=True), message("b", "2", 1, 2, retain=True))
        core.settle(over_quota())
        assert (client.take(), client.is_closed, reader.take()) == ([], True, [])
        client = core.connect("c", version=V3, clean_start=False)
        client.publish("a", "1", qos=2, packet_id=1, dup=True, retain=True)
        core.settle()
        assert client.take() == [PubRec(packet_id=1)]
        assert reader.take() == [message("a", "1")]


class TestDurability:
    def test_what_is_never_stored_is_acknowledged_at_once(self) -> None:
        core = Core(automatic=False, rules=[StoreRule(filter="n/#", store="never")])
        client = core.connect("c")
        assert client.publish("n/1", qos=1, packet_id=1) == [PubAck(packet_id=1)]
        assert core.database.pending == []

    def test_what_may_be_lost_is_acknowledged_at_once_and_stored(self) -> None:
        core = Core(automatic=False, rules=[StoreRule(filter="n/#", durability="none")])
        client = core.connect("c")
        assert client.publish("n/1", "x", qos=1, packet_id=1) == [PubAck(packet_id=1)]
        core.advance(0.01)
        assert [append.durability for append in core.database.pending] == ["none"]
        core.settle(over_quota())
        assert core.broker.statistics.publishes_refused == 1

    def test_what_is_written_is_waited_for(self) -> None:
        core = Core(automatic=False, rules=[StoreRule(filter="w", durability="written")])
        client = core.connect("c")
        assert client.publish("w", "x", qos=1, packet_id=1) == []
        assert [append.durability for append in core.database.pending] == ["written"]
        core.settle()
        assert client.take() == [PubAck(packet_id=1)]

    def test_an_acknowledgement_at_once_waits_for_those_before_it(self) -> None:
        core = Core(automatic=False, rules=[StoreRule(filter="n", store="never")])
        client = core.connect("c")
        client.publish("a", qos=1, packet_id=1)
        assert client.publish("n", qos=1, packet_id=2) == []
        core.settle()
        assert client.take() == [PubAck(packet_id=1), PubAck(packet_id=2)]


class TestPace:
    def test_who_publishes_faster_than_allowed_is_read_more_slowly(self) -> None:
        core = Core(publish_rate_max=10)
        client = core.connect("c")
        client.send(*(message("a"),) * 10)
        assert client.reads()
        client.send(*(message("a"),) * 5)
        assert not client.reads()
        client.send(message("a", "late"))
        core.advance(0.49)
        assert (client.reads(), len(core.database.rows)) == (False, 15)
        core.advance(0.12)
        assert (client.reads(), core.database.rows[-1]) == (True, (b"a", b"late"))

    def test_no_socket_is_read_while_too_much_waits_for_the_disk(self) -> None:
        core = Core(automatic=False, pending_bytes_max=65_536)
        client, other = core.connect("c"), core.connect("d")
        client.publish("a", "x" * 70_000)
        assert (client.reads(), other.reads()) == (False, True)
        other.publish("a", "y")
        assert not other.reads()
        core.settle()
        assert (client.reads(), other.reads()) == (True, True)

    def test_who_waits_for_two_things_is_read_when_both_have_come(self) -> None:
        core = Core(automatic=False, pending_bytes_max=65_536, publish_rate_max=1)
        client = core.connect("c")
        client.send(message("a", "x" * 70_000), message("a"))
        core.run()
        core.settle()
        assert not client.reads()
        core.advance(1.0)
        assert client.reads()

    def bulk(self, core: Core, count: int = 256) -> bool:
        """Publish so many messages at once; tell whether the publisher is read."""
        client = core.connect("c")
        client.send(*(message("a", f"{number}") for number in range(count)))
        return client.reads()

    def behind(self) -> Core:
        """Make a broker with a subscriber that does not read."""
        core = Core(queued_messages_max=200)
        reader = core.connect("r")
        reader.subscribe("a", qos=1)
        reader.client.pause_writing()
        return core

    def test_bulk_waits_for_a_subscriber_that_is_far_behind(self) -> None:
        assert not self.bulk(self.behind())

    def test_a_few_messages_wait_for_nobody(self) -> None:
        assert self.bulk(self.behind(), 255)

    def test_bulk_waits_no_longer_than_a_moment(self) -> None:
        core = self.behind()
        client = core.connect("c")
        client.send(*(message("a"),) * 256)
        core.advance(0.09)
        assert not client.reads()
        core.advance(0.02)
        assert client.reads()

    def test_bulk_goes_on_when_the_subscriber_has_caught_up(self) -> None:
        core = Core(queued_messages_max=200)
        reader = core.connect("r")
        reader.subscribe("a", qos=0)
        reader.client.pause_writing()
        client = core.connect("c")
        client.send(*(message("a"),) * 256)
        assert not client.reads()
        reader.client.resume_writing()
        core.run()
        assert client.reads()
        # The moment passes, and nobody says go on a second time.
        core.advance(1.0)
        client.client.stop()
        assert not client.reads()

    def test_nobody_waits_for_a_subscriber_that_has_long_stopped_reading(self) -> None:
        core = self.behind()
        core.advance(1.1)
        assert self.bulk(core)

    def test_nobody_waits_for_a_subscriber_that_is_away(self) -> None:
        core = Core(queued_messages_max=200)
        reader = core.connect("r", session_expiry_interval=100)
        reader.subscribe("a", qos=1)
        reader.drop()
        client = core.connect("c")
        client.send(*(message("a", "x", 1, number) for number in range(1, 257)))
        assert client.reads()
