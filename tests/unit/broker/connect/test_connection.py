from __future__ import annotations

import logging
from typing import Any

import pytest

from siltstone.broker.access.access import Access, Credentials, Hook
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.topic.grammar import TopicFilter
from tests.support.broker_core import V3, V5, Core, FailingTap, Wire, message

VERSIONS = pytest.mark.parametrize("version", [V3, V5])
KEPT: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 100}


def ended(reason: Reason, text: str | None = None) -> Disconnect:
    return Disconnect(reason=reason, properties=Properties(reason_string=text))


class Door:
    def authenticate(self, credentials: Credentials) -> bool:
        return credentials.password == b"right"


def payloads(packets: list[Packet]) -> list[bytes]:
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


class TestConnecting:
    def test_mqtt_5_is_told_the_limits(self) -> None:
        core = Core(receive_max=5, topic_alias_max=3, packet_size_max=1000)
        assert core.wire().connect("c") == [
            ConnAck(
                properties=Properties(
                    receive_maximum=5, topic_alias_maximum=3, maximum_packet_size=1000
                )
            )
        ]

    def test_mqtt_3_1_1_is_told_that_it_is_connected(self) -> None:
        assert Core().wire(V3).connect("c") == [ConnAck()]

    def test_who_brings_no_client_id_is_told_the_one_that_it_gets(self) -> None:
        core = Core()
        wires = [core.connect("", version=version) for version in (V5, V3, V5)]
        assert [wire.client.client_id for wire in wires] == list(core.broker.clients)
        assert len(core.broker.clients) == 3
        told = [wire.accepted and wire.accepted.properties for wire in wires]
        assert [each and each.assigned_client_identifier for each in told] == [
            wires[0].client.client_id,
            None,
            wires[2].client.client_id,
        ]

    def test_the_keep_alive_of_the_server_holds(self) -> None:
        core = Core(keep_alive_max=20)
        wire = core.connect("c", keep_alive_seconds=100)
        assert wire.accepted is not None
        assert wire.accepted.properties.server_keep_alive == 20
        core.advance(29.9)
        assert wire.take() == []
        core.advance(0.1)
        assert wire.take() == [ended(Reason.KEEP_ALIVE_TIMEOUT)]

    def test_what_is_sent_behind_connect_is_read_when_it_was_accepted(self) -> None:
        core = Core()
        wire = core.wire()
        wire.send(Connect(version=V5, client_id="c"), PingReq(), message("a", "x", 1, 1), PingReq())
        assert [type(packet) for packet in wire.take()] == [ConnAck, PingResp, PingResp, PubAck]

    @VERSIONS
    def test_a_second_connect_ends_the_connection(self, version: Version) -> None:
        wire = Core().connect("c", version=version)
        answer = wire.exchange(Connect(version=version, client_id="c"))
        text = "a client must send CONNECT once, got a second one"
        assert answer == ([] if version is V3 else [ended(Reason.PROTOCOL_ERROR, text)])
        assert wire.is_closed

    def test_auth_ends_the_connection(self) -> None:
        wire = Core().connect("c")
        text = "AUTH without an authentication method"
        assert wire.exchange(Auth()) == [ended(Reason.PROTOCOL_ERROR, text)]

    def test_who_sends_no_whole_connect_in_time_is_closed_without_a_word(self) -> None:
        core = Core(connect_timeout=10)
        wire = core.wire()
        data = encode(V5, Connect(version=V5, client_id="slow"))
        for byte in data[:-1]:
            wire.send_bytes(bytes([byte]))
            core.advance(9.9 / len(data))
        assert not wire.client.ended
        core.advance(1)
        assert (wire.take(), wire.is_closed) == ([], True)
        assert core.broker.clients == {}

    def test_who_was_accepted_has_no_time_limit(self) -> None:
        core = Core(connect_timeout=10)
        wire = core.connect("c")
        core.advance(1000)
        assert wire.exchange(PingReq()) == [PingResp()]

    @pytest.mark.parametrize(
        "data",
        [b"\xc0\x00", b"\x10\xff\xff\xff\x7f\x00\x04MQTT\x04", b"\x10\xff\xff\xff\x7f" + bytes(7)],
    )
    def test_no_connect_or_a_large_one_ends_the_connection_without_a_word(
        self, data: bytes
    ) -> None:
        wire = Core().wire()
        wire.send_bytes(data)
        assert (wire.take(), wire.is_closed) == ([], True)

    def test_a_large_connect_of_mqtt_5_is_refused_as_soon_as_its_version_is_known(self) -> None:
        core = Core(connect_timeout=10)
        data = b"\x10\xff\xff\xff\x7f\x00\x04MQTT\x05"
        wire, slow = core.wire(), core.wire()
        wire.send_bytes(data[:-1])
        slow.send_bytes(data[:-1])
        assert not wire.is_closed
        wire.send_bytes(data[-1:])
        (answer,) = wire.take()
        assert isinstance(answer, ConnAck)
        assert (answer.reason, wire.is_closed) == (Reason.PACKET_TOO_LARGE, True)
        core.advance(10)
        assert (slow.take(), slow.is_closed) == ([], True)

    def test_a_reason_is_left_out_where_the_client_takes_no_such_packet(self) -> None:
        wire = Core().connect("c", maximum_packet_size=30)
        assert wire.exchange(Auth()) == [ended(Reason.PROTOCOL_ERROR)]

    def test_who_stopped_before_it_was_accepted_is_not_read(self) -> None:
        wire = Core().wire()
        wire.client.stop()
        wire.client.receive(encode(V5, Connect(version=V5, client_id="c")))
        assert not wire.reads()
        wire.client.go_on()
        assert wire.reads()

    def test_who_waits_for_its_login_is_not_too_late(self) -> None:
        core = Core(connect_timeout=1, access=Access(None, None, Hook(Door())))
        wire = core.wire()
        assert wire.connect("c", username="u", password=b"right") == []
        core.advance(100)
        core.shell.finish_works()
        assert [type(packet).__name__ for packet in wire.take()] == ["ConnAck"]


class TestSessions:
    @VERSIONS
    def test_a_session_that_is_kept_is_there_again_with_what_waited_for_it(
        self, version: Version
    ) -> None:
        core = Core()
        kept = KEPT if version is V5 else {"clean_start": False}
        wire = core.connect("c", version=version, **kept)
        wire.subscribe("a", qos=1)
        wire.drop()
        core.connect("p").send(message("a", "1", 1, 1), message("a", "2"), message("a", "3", 2, 2))
        wire = core.connect("c", version=version, **kept)
        assert wire.accepted is not None
        assert wire.accepted.session_present is True
        assert wire.take() == [message("a", "1", 1, 1), message("a", "3", 1, 2)]

    def test_a_message_that_was_not_acknowledged_is_sent_again_under_its_packet_id(self) -> None:
        core = Core()
        wire = core.connect("c", **KEPT)
        wire.subscribe("a")
        core.connect("p").send(*(message("a", "x", qos, qos) for qos in (1, 2)))
        assert wire.take() == [message("a", "x", 1, 1), message("a", "x", 2, 2)]
        wire.drop()
        wire = core.connect("c", **KEPT)
        assert wire.take() == [
            message("a", "x", 1, 1, dup=True),
            message("a", "x", 2, 2, dup=True),
        ]

    def test_a_clean_start_begins_a_new_session(self) -> None:
        core = Core()
        wire = core.connect("c", **KEPT)
        wire.subscribe("a")
        wire.drop()
        wire = core.connect("c", session_expiry_interval=100)
        assert wire.accepted is not None
        assert wire.accepted.session_present is False
        core.connect("p").publish("a")
        assert wire.take() == []

    def test_a_session_ends_when_its_expiry_has_passed_and_not_before(self) -> None:
        core = Core()
        for seconds, is_present in ((99.9, True), (100.0, False)):
            core.connect("c", session_expiry_interval=100).drop()
            core.advance(seconds)
            wire = core.connect("c", **KEPT)
            assert wire.accepted is not None
            assert wire.accepted.session_present is is_present

    def test_an_expiry_beyond_the_limit_is_cut_and_told(self) -> None:
        core = Core(session_expiry_max=50)
        wire = core.connect("c", session_expiry_interval=100)
        assert wire.accepted is not None
        assert wire.accepted.properties.session_expiry_interval == 50
        wire.drop()
        core.advance(50)
        assert core.broker.registry.sessions == {}

    def test_disconnect_changes_the_expiry_within_the_limit(self) -> None:
        core = Core(session_expiry_max=50)
        for expiry, ends_after in ((10, 10), (100, 50), (0, 0)):
            wire = core.connect("c", session_expiry_interval=20)
            wire.send(Disconnect(properties=Properties(session_expiry_interval=expiry)))
            assert wire.is_closed
            if ends_after:
                core.advance(ends_after - 0.1)
                assert list(core.broker.registry.sessions) == ["c"]
                core.advance(0.1)
            assert core.broker.registry.sessions == {}

    def test_disconnect_cannot_keep_a_session_that_was_not_to_be_kept(self) -> None:
        core = Core()
        wire = core.connect("c")
        goodbye = Disconnect(properties=Properties(session_expiry_interval=10))
        text = "session expiry cannot be set at DISCONNECT if it was 0 at CONNECT"
        assert wire.exchange(goodbye) == [ended(Reason.PROTOCOL_ERROR, text)]
        assert core.broker.registry.sessions == {}

    def test_an_expiry_that_the_server_has_cut_to_0_may_be_named_again(self) -> None:
        core = Core(session_expiry_max=0)
        wire = core.connect("c", session_expiry_interval=10)
        goodbye = Disconnect(properties=Properties(session_expiry_interval=10))
        assert (wire.exchange(goodbye), wire.is_closed) == ([], True)
        assert core.broker.registry.sessions == {}

    @VERSIONS
    def test_the_same_client_id_again_takes_the_session_over(self, version: Version) -> None:
        core = Core()
        kept = KEPT if version is V5 else {"clean_start": False}
        first = core.connect("c", version=version, **kept)
        first.subscribe("a", qos=0)
        second = core.connect("c", version=version, **kept)
        assert first.take() == ([] if version is V3 else [ended(Reason.SESSION_TAKEN_OVER)])
        assert first.is_closed
        first.client.lost()
        core.connect("p").publish("a", "x")
        assert payloads(second.take()) == [b"x"]
        assert set(core.broker.clients) == {"c", "p"}

    def test_who_comes_back_waits_until_the_outcome_of_its_publishes_is_known(self) -> None:
        core = Core(automatic=False)
        wire = core.connect("c", **KEPT)
        wire.publish("a", "1", qos=2, packet_id=1)
        again = core.wire()
        assert again.connect("c", **KEPT) == []
        core.settle()
        answers = again.exchange(message("a", "1", 2, 1, dup=True))
        assert [type(packet).__name__ for packet in answers] == ["ConnAck", "PubRec"]
        assert core.database.rows == [(b"a", b"1")]


WILL = [message("gone", "c", 1, 1, content_type="t")]


class TestWills:
    def watched(self, **fields: Any) -> tuple[Core, Wire, Wire]:
        """Return a broker, a subscriber of the will, and the client that has it."""
        core = Core()
        watcher = core.connect("w")
        watcher.subscribe("gone")
        delay = fields.pop("delay", None)
        will = Will(
            topic=b"gone",
            payload=b"c",
            qos=1,
            properties=Properties(will_delay_interval=delay, content_type="t"),
        )
        return core, watcher, core.connect("c", will=will, **fields)

    def test_a_connection_that_is_lost_has_its_will_published_and_stored(self) -> None:
        core, watcher, wire = self.watched()
        wire.drop()
        assert watcher.take() == WILL
        assert core.database.rows == [(b"gone", b"c")]

    def test_a_client_that_says_goodbye_takes_its_will_with_it(self) -> None:
        core, watcher, wire = self.watched(session_expiry_interval=10)
        wire.send(Disconnect())
        core.advance(100)
        assert (watcher.take(), core.database.rows) == ([], [])

    @pytest.mark.parametrize(
        "packet", [Disconnect(reason=Reason.DISCONNECT_WITH_WILL_MESSAGE), Auth()]
    )
    def test_who_leaves_its_will_or_breaks_the_rules_has_it_published(self, packet: Packet) -> None:
        _, watcher, wire = self.watched()
        wire.send(packet)
        assert watcher.take() == WILL

    def test_a_client_that_is_silent_has_its_will_published(self) -> None:
        core, watcher, _ = self.watched(keep_alive_seconds=10)
        core.advance(15)
        assert watcher.take() == WILL

    @pytest.mark.parametrize(("delay", "waits"), [(5, 5), (50, 10)])
    def test_a_will_waits_for_its_delay_or_the_end_of_the_session(
        self, delay: int, waits: int
    ) -> None:
        core, watcher, wire = self.watched(delay=delay, session_expiry_interval=10)
        wire.drop()
        core.advance(waits - 0.1)
        assert watcher.take() == []
        core.advance(0.1)
        assert watcher.take() == WILL
        core.advance(100)
        assert watcher.take() == []

    def test_a_delay_is_none_where_the_session_ends_at_once(self) -> None:
        _, watcher, wire = self.watched(delay=50)
        wire.drop()
        assert watcher.take() == WILL

    def test_who_comes_back_in_time_has_its_will_forgotten(self) -> None:
        core, watcher, wire = self.watched(delay=5, session_expiry_interval=10)
        wire.drop()
        core.advance(4)
        core.connect("c", **KEPT)
        core.advance(1000)
        assert watcher.take() == []

    def test_a_clean_start_ends_the_session_and_sends_its_will(self) -> None:
        core, watcher, wire = self.watched(delay=50, session_expiry_interval=100)
        wire.drop()
        core.connect("c")
        assert watcher.take() == WILL

    @pytest.mark.parametrize(
        ("delay", "clean_start", "is_sent"), [(0, False, True), (9, False, False), (9, True, True)]
    )
    def test_a_connection_that_is_taken_over_leaves_its_will_unless_it_has_a_delay(
        self, delay: int, clean_start: bool, is_sent: bool
    ) -> None:
        core, watcher, _ = self.watched(delay=delay, session_expiry_interval=100)
        core.connect("c", clean_start=clean_start, session_expiry_interval=100)
        core.advance(1000)
        assert watcher.take() == (WILL if is_sent else [])

    def test_a_will_may_be_retained(self) -> None:
        core = Core()
        will = Will(topic=b"gone", payload=b"c", retain=True)
        core.connect("c", will=will).drop()
        assert core.connect("w").subscribe("gone") == [message("gone", "c", retain=True)]

    def test_a_will_below_a_dollar_is_refused(self) -> None:
        will = Will(topic=b"$SYS/x", payload=b"")
        assert Core().wire().connect("c", will=will) == [ConnAck(reason=Reason.TOPIC_NAME_INVALID)]

    def test_a_will_that_cannot_be_published_does_not_keep_its_session(self) -> None:
        core, _, wire = self.watched(session_expiry_interval=10)
        core.broker.taps.add(FailingTap())
        with pytest.raises(RuntimeError, match="on purpose"):
            wire.drop()
        assert (set(core.broker.clients), set(core.broker.registry.sessions)) == ({"w"}, {"w", "c"})
        core.advance(10)
        assert set(core.broker.registry.sessions) == {"w"}


class TestKeepAlive:
    def test_every_packet_is_a_sign_of_life_and_who_shows_none_is_told_and_closed(self) -> None:
        core = Core()
        wire = core.connect("c", keep_alive_seconds=10)
        for packet in (PingReq(), message("a"), PubRel(packet_id=1)):
            core.advance(14)
            wire.exchange(packet)
        core.advance(14.9)
        assert wire.take() == []
        core.advance(0.1)
        assert (wire.take(), wire.is_closed) == ([ended(Reason.KEEP_ALIVE_TIMEOUT)], True)

    def test_a_client_that_is_not_read_is_not_silent(self) -> None:
        core = Core(automatic=False, pending_bytes_max=65_536)
        wire = core.connect("c", keep_alive_seconds=10)
        wire.publish("a", "x" * 70_000)
        core.advance(15)
        core.advance(14)
        core.settle()
        core.advance(1)
        core.advance(13.9)
        assert wire.take() == []
        core.advance(0.1)
        assert wire.take() == [ended(Reason.KEEP_ALIVE_TIMEOUT)]

    def test_a_client_that_reads_no_answers_is_silent_by_its_own_fault(self) -> None:
        core = Core()
        wire = core.connect("c", keep_alive_seconds=10)
        wire.client.choke()
        wire.send(PingReq())
        core.advance(14.9)
        assert (wire.take(), wire.reads()) == ([], False)
        core.advance(0.1)
        assert wire.take() == [ended(Reason.KEEP_ALIVE_TIMEOUT)]

    def test_a_client_is_read_again_when_neither_it_nor_we_are_behind(self) -> None:
        wire = Core().connect("c")
        wire.client.choke()
        wire.client.stop()
        wire.client.unchoke()
        assert not wire.reads()
        wire.client.go_on()
        assert wire.reads()


class TestUnfinishedPackets:
    DATA = encode(V5, message("a", "x" * 700_000))

    def test_they_are_counted_until_they_are_whole_or_their_client_is_gone(self) -> None:
        core = Core()
        first, second = core.connect("c"), core.connect("d")
        counts = []
        for wire, data in ((first, self.DATA[:50]), (second, self.DATA[:30]), (first, b"x" * 10)):
            wire.send_bytes(data)
            counts.append(core.broker.partial_bytes)
        first.send_bytes(self.DATA[60:])
        counts.append(core.broker.partial_bytes)
        second.drop()
        assert [*counts, core.broker.partial_bytes] == [50, 80, 90, 30, 0]

    def test_what_is_sent_behind_connect_is_counted_until_it_is_read(self) -> None:
        core = Core(access=Access(None, None, Hook(Door())))
        wire = core.wire()
        connect = Connect(version=V5, client_id="c", username="u", password=b"right")
        wire.send_bytes(encode(V5, connect) + encode(V5, PingReq()) + self.DATA[:9])
        before = core.broker.partial_bytes
        core.shell.finish_works()
        assert (before, core.broker.partial_bytes) == (2 + 9, 9)

    def test_who_brings_too_much_of_them_is_told_to_come_back_and_no_other(self) -> None:
        core = Core(partial_bytes_max=1024 * 1024)
        first, second = core.connect("a"), core.connect("b")
        first.send_bytes(self.DATA[:700_000])
        second.send_bytes(self.DATA[: 1024 * 1024 - 700_000])
        assert not second.is_closed
        second.send_bytes(b"x")
        text = "too many bytes wait in incomplete packets: limits.partial_bytes_max is reached"
        assert second.take() == [ended(Reason.SERVER_BUSY, text)]
        assert (second.is_closed, core.broker.partial_bytes) == (True, 700_000)
        first.send_bytes(self.DATA[700_000:])
        core.run()
        assert [len(value) for _, value in core.database.rows] == [700_000]
        assert (set(core.broker.clients), core.broker.partial_bytes) == ({"a"}, 0)


class TestEnding:
    def test_it_ends_once_behind_what_was_written(self) -> None:
        core = Core()
        wire = core.connect("c")
        wire.send(PingReq())
        wire.client.end(Reason.SERVER_SHUTTING_DOWN)
        wire.client.end(Reason.PROTOCOL_ERROR)
        wire.client.lost()
        assert wire.take() == [PingResp(), ended(Reason.SERVER_SHUTTING_DOWN)]
        assert core.broker.clients == {}

    def test_behind_what_ends_it_nothing_is_read(self) -> None:
        core = Core(receive_max=1)
        wire = core.connect("c")
        answer = wire.exchange(message("a", "x", 1, 1), message("a", "x", 1, 2), PingReq())
        assert answer == [ended(Reason.RECEIVE_MAXIMUM_EXCEEDED)]

    @pytest.mark.parametrize("packet", [Disconnect(), Auth()])
    def test_behind_disconnect_or_an_error_nothing_is_read(self, packet: Packet) -> None:
        core = Core()
        core.connect("c").send(message("a", "1"), packet, message("a", "2"))
        core.run()
        assert core.database.rows == [(b"a", b"1")]

    def test_nothing_is_left_of_a_session_that_is_not_kept(self) -> None:
        core = Core()
        wire = core.connect("c", keep_alive_seconds=10)
        wire.subscribe("a", "b/#", "$share/g/c")
        wire.drop()
        broker = core.broker
        assert (broker.clients, broker.registry.sessions) == ({}, {})
        assert (len(broker.router), broker.registry.subscription_count) == (0, 0)
        assert (len(broker.timers), broker.registry.budget.used) == (0, 0)


class TestAnswers:
    def test_subscribe_is_answered_filter_by_filter(self) -> None:
        core = Core(topic_levels_max=2)
        packet = Subscribe(
            packet_id=7,
            subscriptions=(
                Subscription(filter=TopicFilter.parse("a/b/c"), qos=1),
                Subscription(filter=TopicFilter.parse("a/#"), qos=2),
            ),
        )
        assert core.connect("c").exchange(packet) == [
            SubAck(packet_id=7, reasons=(Reason.TOPIC_FILTER_INVALID, Reason.GRANTED_QOS_2))
        ]
        assert core.connect("d", version=V3).exchange(packet) == [
            SubAck(packet_id=7, reasons=(Reason.UNSPECIFIED_ERROR, Reason.GRANTED_QOS_2))
        ]

    def test_unsubscribe_is_answered_filter_by_filter(self) -> None:
        core = Core()
        packet = Unsubscribe(packet_id=7, filters=(TopicFilter.parse("a"), TopicFilter.parse("b")))
        wire = core.connect("c")
        wire.subscribe("a")
        assert wire.exchange(packet) == [
            UnsubAck(packet_id=7, reasons=(Reason.SUCCESS, Reason.NO_SUBSCRIPTION_EXISTED))
        ]
        assert core.connect("d", version=V3).exchange(packet) == [UnsubAck(packet_id=7)]

    def test_an_answer_that_the_client_does_not_take_ends_the_connection(self) -> None:
        wire = Core().connect("c", maximum_packet_size=30)
        subscription = Subscription(filter=TopicFilter.parse("a"))
        answer = wire.exchange(Subscribe(packet_id=1, subscriptions=(subscription,) * 30))
        assert answer == [ended(Reason.PACKET_TOO_LARGE)]

    @pytest.mark.parametrize("qos", [1, 2])
    def test_a_message_that_the_client_refuses_makes_room_for_the_next(self, qos: int) -> None:
        core = Core()
        wire = core.connect("c", receive_maximum=1)
        wire.subscribe("a")
        core.connect("p").send(*(message("a", str(each), qos, each) for each in (1, 2)))
        assert payloads(wire.take()) == [b"1"]
        refuse = PubAck if qos == 1 else PubRec
        wire.send(refuse(packet_id=1, reason=Reason.QUOTA_EXCEEDED))
        assert payloads(wire.take()) == [b"2"]

    def test_acknowledgements_with_a_success_to_tell_are_acknowledgements(self) -> None:
        core = Core()
        wire = core.connect("c", receive_maximum=1)
        wire.subscribe("a")
        core.connect("p").send(message("a", "1", 2, 1), message("a", "2", 1, 2))
        told = Properties(user_properties=(("k", "v"),))
        wire.take()
        assert wire.exchange(PubRec(packet_id=1, properties=told)) == [PubRel(packet_id=1)]
        assert payloads(wire.exchange(PubComp(packet_id=1, properties=told))) == [b"2"]
        publisher = core.connect("q")
        publisher.publish("b", qos=2, packet_id=1)
        answer = publisher.exchange(PubRel(packet_id=1, properties=told))
        assert answer == [PubComp(packet_id=1)]


class TestWriting:
    def test_a_client_that_does_not_read_is_sent_nothing_until_it_does(self) -> None:
        core = Core()
        wire = core.connect("c")
        wire.subscribe("a", qos=0)
        wire.client.pause_writing()
        publisher = core.connect("p")
        publisher.send(message("a", "1"), message("a", "2"))
        assert wire.take() == []
        wire.client.resume_writing()
        assert payloads(wire.take()) == [b"1", b"2"]

    def test_pausing_means_nothing_before_and_behind_the_connection(self) -> None:
        wire = Core().wire()
        for _ in range(2):
            wire.client.pause_writing()
            wire.client.resume_writing()
            wire.client.lost()
        assert wire.client.ended


def test_the_log_tells_who_came_and_why_it_went(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    core = Core()
    core.connect("c").send(Auth())
    events = [(record.message, getattr(record, "facts", {})) for record in caplog.records]
    assert events == [
        ("client_connected", {"client_id": "c", "address": "10.0.0.1"}),
        (
            "client_closed",
            {
                "client_id": "c",
                "address": "10.0.0.1",
                "reason": "protocol_error",
                "text": "AUTH without an authentication method",
            },
        ),
    ]


def test_what_nobody_wants_to_hear_is_not_put_together(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    Core().connect("c").drop()
    assert caplog.records == []


@VERSIONS
def test_many_refusals_of_one_address_leave_few_lines_with_their_number(
    version: Version, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    core = Core(connections_max=1)
    core.connect("first")
    for number in range(500):
        core.wire(version, "10.0.0.1").connect(f"c{number}")
    core.wire(version, "10.0.0.2").connect("other")
    core.advance(20.0)
    core.advance(20.0)
    told = [
        record.__dict__["facts"] for record in caplog.records if record.message == "client_refused"
    ]
    by_address = [(facts["address"], facts.get("unlogged", 0)) for facts in told]
    assert by_address.count(("10.0.0.1", 0)) == 10
    assert by_address.count(("10.0.0.2", 0)) == 1
    assert sum(1 + unlogged for _, unlogged in by_address) == 501
    assert len(by_address) == 12


@pytest.mark.parametrize("first", [b"", b"\x10\x80\x80\x80\x7f", b"\xc0\x00"])
def test_who_sends_no_valid_connect_is_logged_by_address(
    first: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    core = Core(connect_timeout=1)
    for number in (1, 2):
        core.wire(Version.V5, f"10.0.0.{number}").send_bytes(first)
    core.advance(2.0)
    told = [record.__dict__["facts"]["address"] for record in caplog.records]
    assert told == ["10.0.0.1", "10.0.0.2"]
