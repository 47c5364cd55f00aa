from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from pathlib import PurePath

import pytest

from siltstone.broker.access.access import Access
from siltstone.broker.access.acl import Acl
from siltstone.broker.publish.observers import SettlePart
from siltstone.broker.settings.storage import StoreRule
from siltstone.errors import DiskError, PoisonedError, UsageError
from siltstone.guard import contain
from siltstone.mqtt.packets import Disconnect, Packet, PubAck, PubComp, Publish, PubRec, PubRel
from siltstone.mqtt.publish import PublishBatch
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.session.archive.records import SavedReceived
from siltstone.store.database import Durability
from siltstone.topic.grammar import TopicFilter
from tests.support.broker_core import V3, V5, Core, Wire, message, over_quota
from tests.support.durable_desk import DurableDesk, durable_desk, lose


def allowing(*lines: str) -> Access:
    return Access(None, Acl.parse(lines, PurePath("/acl")), None)


def refused_ids(packets: list[object]) -> dict[int, Reason]:
    """Return the reasons of acknowledgements by packet id."""
    return {
        packet.packet_id: packet.reason for packet in packets if isinstance(packet, PubAck | PubRec)
    }


class ListeningTap:
    """An observer that takes every message at once."""

    def refused(self, *_: object) -> list[int]:
        return []

    def take(self, *_: object) -> int:
        return 0


class TestStoringOnTheLoop:
    """The loop waits for a sync only while every message waits for it."""

    def test_a_message_that_nothing_passes_is_stored_on_the_loop(self) -> None:
        core = Core(automatic=False)
        core.database.is_handy = True
        client = core.connect("c")
        assert client.publish("a", "1", qos=1, packet_id=7) == [PubAck(packet_id=7)]
        assert core.database.stored_here == 1

    def test_a_live_subscriber_does_not_wait_for_the_disk(self) -> None:
        core = Core(automatic=False)
        core.database.is_handy = True
        reader = core.connect("r")
        reader.subscribe("other")
        client = core.connect("c")
        assert client.publish("a", "1", qos=1, packet_id=7) == []
        assert core.database.stored_here == 0
        reader.drop()
        core.settle()
        assert client.take() == [PubAck(packet_id=7)]
        assert client.publish("a", "2", qos=1, packet_id=8) == [PubAck(packet_id=8)]
        assert core.database.stored_here == 1

    @pytest.mark.parametrize(
        "rule",
        [
            StoreRule(filter="w", durability="written"),
            StoreRule(filter="w", durability="none"),
            StoreRule(filter="w", store="never"),
            StoreRule(filter="w", store="offline"),
        ],
    )
    def test_messages_of_a_weaker_rule_do_not_wait_for_the_disk(self, rule: StoreRule) -> None:
        core = Core(automatic=False, rules=[rule])
        core.database.is_handy = True
        client = core.connect("c")
        assert client.publish("a", "1", qos=1, packet_id=7) == []
        assert core.database.stored_here == 0

    def test_a_bridge_does_not_wait_for_the_disk(self) -> None:
        core = Core(automatic=False)
        core.database.is_handy = True
        core.broker.taps.add(ListeningTap())
        client = core.connect("c")
        assert client.publish("a", "1", qos=1, packet_id=7) == []
        assert core.database.stored_here == 0


class TestObjects:
    def test_the_messages_of_a_thousand_clients_begin_no_garbage_collection(self) -> None:
        """The broker collects after 15,000 new objects, see `server.py`."""
        core = Core(automatic=False)
        wires = [core.connect(f"c{number}", version=V3) for number in range(50)]
        gc.collect()
        gc.disable()
        try:
            before = len(gc.get_objects())
            for wire in wires:
                wire.send(message("a", "1", 1, 1))
            objects = len(gc.get_objects()) - before
        finally:
            gc.enable()
        assert objects / len(wires) < 15
        core.settle()
        assert [wire.take() for wire in wires] == [[PubAck(packet_id=1)]] * 50


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

    def test_mqtt_3_1_1_hears_of_what_was_kept_before_it_is_closed(self) -> None:
        core = Core(automatic=False)
        client = core.connect("c", version=V3)
        client.publish("a", "1", qos=1, packet_id=1)
        client.publish("a", "2", qos=1, packet_id=2)
        core.database.settle()
        core.run()
        core.database.settle(over_quota())
        core.run()
        core.advance(core.broker.limits.refusal_delay)
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
        other = core.connect("d")
        client.send(message("a", "1", 1, 1))
        other.send(message("w", "2", 1, 2))
        core.run()
        synced, written = core.database.pending
        assert (synced.topics, written.topics) == ([b"a"], [b"w"])
        core.database.settle(index=1)
        core.database.settle(over_quota())
        assert client.take() == [PubAck(packet_id=1, reason=Reason.QUOTA_EXCEEDED)]
        assert other.take() == [PubAck(packet_id=2)]

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
        core.advance(core.broker.limits.refusal_delay)
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
        for seconds in (0.0, 0.5, 0.6, 0.1):
            core.advance(seconds)
            client.send(message("a"), message("a"))
            core.settle(over_quota())
        told = [getattr(record, "facts", {})["count"] for record in caplog.records]
        assert (core.broker.statistics.publishes_refused, told) == (8, [2, 2])
        core.broker.tell_rest()
        told = [getattr(record, "facts", {})["count"] for record in caplog.records]
        assert told == [2, 2, 4]
        core.advance(5.0)
        assert len(caplog.records) == 3


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

    def test_mqtt_3_1_1_hears_nothing_of_what_it_may_not_publish(self) -> None:
        core = Core(access=allowing("topic write a/#"))
        client = core.connect("c", version=V3)
        client.send(message("a/1", "1", 1, 1), message("b", "2", 1, 2), message("b", "3", 2, 3))
        assert client.take() == [PubAck(packet_id=1), PubAck(packet_id=2), PubRec(packet_id=3)]
        assert (client.is_closed, core.database.rows) == (False, [(b"a/1", b"1")])
        assert core.broker.statistics.publishes_refused == 2

    def test_what_was_with_a_forbidden_message_can_be_sent_again(self) -> None:
        core = Core(access=allowing("topic write a/#"), refused_publish="close")
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

    def test_refusals_are_told_now_and_then_and_name_the_topic(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        core = Core()
        client = core.connect("c")
        caplog.set_level(logging.WARNING)
        for topic, seconds in (("$a", 0.0), ("$b", 9.9), ("$c", 0.1)):
            core.advance(seconds)
            client.publish(topic)
        core.advance(10.0)
        told = [getattr(record, "facts", {})["topic"] for record in caplog.records]
        assert told == [b"$a", b"$b", b"$c"]


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
        core = Core(retained_messages_max=0, refused_publish="close")
        client = core.connect("c", version=V3, clean_start=False)
        client.send(message("a", "1", 1, 1, retain=True), message("b", "2", 2, 2))
        core.advance(core.broker.limits.refusal_delay)
        assert (client.take(), client.is_closed) == ([], True)
        client = core.connect("c", version=V3, clean_start=False)
        assert client.publish("b", "2", qos=2, packet_id=2, dup=True) == [PubRec(packet_id=2)]
        assert core.database.rows == [(b"b", b"2")]

    def test_what_nobody_got_before_the_end_is_dispatched_when_it_comes_again(self) -> None:
        core = Core(automatic=False, retained_messages_max=1, refused_publish="close")
        reader = core.connect("r")
        reader.subscribe("a", qos=0)
        client = core.connect("c", version=V3, clean_start=False)
        client.send(message("a", "1", 2, 1, retain=True), message("b", "2", 1, 2, retain=True))
        core.settle(over_quota())
        core.advance(core.broker.limits.refusal_delay)
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


class TestUnreleased:
    """QoS 2 of a durable session that comes again beside other messages."""

    @pytest.fixture
    def desk(self) -> Iterator[DurableDesk]:
        with durable_desk() as made:
            yield made

    def test_one_beside_one_of_qos_1_is_answered_and_not_stored_again(
        self, desk: DurableDesk
    ) -> None:
        for _ in range(2):
            wire = sent_twice(desk)
            assert wire.take() == [PubRec(packet_id=2), PubAck(packet_id=3)]
            lose(wire)
        assert (desk.core.broker.is_settled, desk.core.durables.sessions) == (True, {})
        assert desk.come().accepted is not None
        assert desk.core.stored() == [b"two", b"one", b"one"]

    @pytest.mark.parametrize("sequence", [0, 1])
    def test_a_session_that_was_locked_out_by_that_is_let_in_by_the_next_run(
        self, desk: DurableDesk, sequence: int
    ) -> None:
        lose(sent_twice(desk))
        owned = desk.core.archive.take("s")
        assert owned is not None
        # As a broker has left it that could save the session no more when it was killed.
        token = 0x1234 if sequence else 0
        owned.put_received([SavedReceived(2, token, sequence)])
        owned.put_meta(connected=True, away_since_us=None)
        owned.save()
        desk.crash()
        wire = sent_twice(desk)
        assert wire.take() == [PubRec(packet_id=2), PubAck(packet_id=3)]
        assert wire.exchange(PubRel(packet_id=2)) == [PubComp(packet_id=2)]
        lose(wire)
        assert (desk.saved().received, desk.core.broker.is_settled) == ((), True)

    def test_what_a_subscriber_makes_worth_storing_while_it_is_announced_is_stored_once(
        self,
    ) -> None:
        rules = [StoreRule(filter="t", store="subscribed")]
        with durable_desk(rules=rules, automatic=False) as desk:
            wire = desk.come()
            with desk.core.held():
                wire.send(message("t", "1", 2, 1), message("u", "2", 2, 2))
                desk.core.shell.run()
                desk.core.broker.interest.come(TopicFilter.parse("t"))
            desk.core.settle()
            assert wire.take() == [PubRec(packet_id=1), PubRec(packet_id=2)]
            assert sorted(desk.core.stored()) == [b"1", b"2"]
            assert [record.sequence != 0 for record in desk.saved().received] == [True, True]
            lose(wire)
            assert desk.core.broker.is_settled

    @pytest.mark.parametrize(("qos", "splits"), [(1, 1), (2, 3)])
    def test_a_mistake_of_ours_ends_the_connection_and_the_client_gets_in_again(
        self, desk: DurableDesk, qos: int, splits: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        desk.come("other").subscribe("u")
        wire = desk.come()
        rules = desk.core.broker.rules
        split = rules.split
        left = [split] * splits

        def fail_behind_the_store(batch: PublishBatch) -> dict[Durability | None, PublishBatch]:
            return left.pop()(batch)

        with monkeypatch.context() as patched:
            # It is asked again when the message is dispatched, and the list is empty then.
            patched.setattr(rules, "leaves_out", True)
            patched.setattr(rules, "syncs_all", False)
            patched.setattr(rules, "split", fail_behind_the_store)
            # What the channel does.
            contain(lambda: wire.send(message("t", "x", qos, 1)), wire.drop)
            desk.core.run()
        assert left == []
        assert (wire.is_closed, desk.core.broker.is_settled) == (True, True)
        again = desk.come()
        assert [type(each) for each in again.publish("t", "x", qos, 1, dup=True)] == [
            {1: PubAck, 2: PubRec}[qos]
        ]
        assert desk.core.stored() == [b"x", b"x"][: 3 - qos]


class Spooling:
    """A bridge that says when told what became of messages."""

    def __init__(self) -> None:
        self.waiting: list[tuple[PublishBatch, SettlePart]] = []

    def refused(self, batch: PublishBatch, publisher: bytes) -> list[int]:
        return []

    def take(self, batch: PublishBatch, publisher: bytes, settle: SettlePart | None) -> int:
        assert settle is not None
        self.waiting.append((batch, settle))
        return 1

    def settle(self, error: Exception | None = None) -> list[bytes]:
        """Tell the outcome of what came first; return what that is."""
        batch, settle = self.waiting.pop(0)
        settle(batch, error)
        return batch.values


class TestDoubtful:
    """QoS 2 of which a crash left open whether bridges have it."""

    @pytest.fixture
    def desk(self) -> Iterator[DurableDesk]:
        with durable_desk() as made:
            assert made.come().publish("t", "x", 2, 1) == [PubRec(packet_id=1)]
            made.crash()
            yield made

    @pytest.mark.parametrize("version", [V3, V5])
    def test_one_that_a_bridge_cannot_keep_is_not_acknowledged_and_bridged_when_it_comes_again(
        self, desk: DurableDesk, version: Version
    ) -> None:
        bridge = Spooling()
        desk.core.broker.taps.add(bridge)
        wire = desk.come(version=version)
        again = message("t", "x", 2, 1, dup=True)
        wire.send(again, message("t", "y", 2, 2))
        assert bridge.settle(DiskError(PurePath("/spool"), "write", "scripted", errno=5)) == [b"x"]
        assert (wire.take(), wire.is_reading) == ([], False)
        assert desk.core.broker.statistics.publishes_refused == 1
        desk.wait(10)
        assert (wire.is_closed, desk.core.broker.is_settled) == (True, True)
        wire = desk.come(version=version)
        wire.send(again)
        assert bridge.settle() == [b"x"]
        assert (wire.take(), bridge.waiting) == ([PubRec(packet_id=1)], [])
        assert desk.core.stored() == [b"x"]

    def test_one_that_is_being_bridged_is_bridged_again_after_one_more_crash(
        self, desk: DurableDesk
    ) -> None:
        desk.core.broker.taps.add(Spooling())
        wire = desk.come()
        # What is saved for the sake of the second holds what was received too.
        wire.send(message("t", "x", 2, 1, dup=True), PubRel(packet_id=9))
        desk.core.run()
        desk.crash()
        bridge = Spooling()
        desk.core.broker.taps.add(bridge)
        wire = desk.come()
        wire.send(message("t", "x", 2, 1, dup=True))
        assert bridge.settle() == [b"x"]
        assert wire.take() == [PubRec(packet_id=1)]

    def test_one_that_comes_twice_at_once_is_bridged_once(self, desk: DurableDesk) -> None:
        bridge = Spooling()
        desk.core.broker.taps.add(bridge)
        wire = desk.come()
        wire.send(*[message("t", "x", 2, 1, dup=True)] * 2)
        assert (bridge.settle(), bridge.waiting) == ([b"x"], [])
        assert wire.take() == [PubRec(packet_id=1)] * 2

    def test_one_that_is_released_while_it_is_bridged_is_not_kept(self, desk: DurableDesk) -> None:
        bridge = Spooling()
        desk.core.broker.taps.add(bridge)
        wire = desk.come()
        wire.send(message("t", "x", 2, 1, dup=True), PubRel(packet_id=1))
        assert bridge.settle() == [b"x"]
        assert wire.take() == [PubRec(packet_id=1), PubComp(packet_id=1)]
        lose(wire)
        assert desk.saved().received == ()

    def test_hundreds_of_repeated_batches_behind_one_are_answered(self, desk: DurableDesk) -> None:
        bridge = Spooling()
        desk.core.broker.taps.add(bridge)
        wire = desk.come(version=V3)
        # PUBREL of another message makes each of them a batch of its own.
        packets: list[Packet] = [message("t", "x", 2, 1, dup=True), PubRel(packet_id=9)]
        wire.send(*packets * 1000)
        assert bridge.settle() == [b"x"]
        answers = wire.take()
        assert answers.count(PubComp(packet_id=9)) == 1000
        assert answers.count(PubRec(packet_id=1)) == 1000
        lose(wire)
        assert desk.core.broker.is_settled


def sent_twice(desk: DurableDesk) -> Wire:
    """Connect, and send messages of QoS 2 and 1 in one piece, time after time the same."""
    wire = desk.come()
    wire.send(message("t", "two", 2, 2, dup=True), message("t", "one", 1, 3))
    return wire
