"""MQTT 3.12, 3.14, 3.15, 4.12 and 4.13: how connections end, and what ends them."""

from __future__ import annotations

import pytest

from siltstone.mqtt.packets import (
    Auth,
    ConnAck,
    Disconnect,
    PingReq,
    PingResp,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
)
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.topic.grammar import TopicFilter
from tests.conformance.versions import both_versions, in_v5, told
from tests.support.broker_core import V3, V5, Core, message


def end_all(core: Core, reason: Reason) -> None:
    for client in list(core.broker.clients.values()):
        client.end(reason)


@both_versions
def test_mqtt_3_12_4_1_pingreq_is_answered(version: Version) -> None:
    wire = Core().connect("c", version=version)
    assert wire.exchange(PingReq(), PingReq()) == [PingResp(), PingResp()]


@both_versions
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        # Reserved flags of each packet that a client may send.
        ("41 02 0001", Reason.MALFORMED_PACKET),
        ("52 02 0001", Reason.MALFORMED_PACKET),
        ("60 02 0001", Reason.MALFORMED_PACKET),
        ("63 02 0001", Reason.MALFORMED_PACKET),
        ("71 02 0001", Reason.MALFORMED_PACKET),
        ("c1 00", Reason.MALFORMED_PACKET),
        ("e1 00", Reason.MALFORMED_PACKET),
        # Reserved types, a length without end, bytes too many, a packet id of 0.
        ("00 00", Reason.MALFORMED_PACKET),
        ("c0 ffffffff 01", Reason.MALFORMED_PACKET),
        ("c0 01 00", Reason.MALFORMED_PACKET),
        ("40 02 0000", Reason.PROTOCOL_ERROR),
        # What only a server sends.
        ("d0 00", Reason.PROTOCOL_ERROR),
    ],
)
def test_mqtt_4_13_1_1_a_packet_against_the_rules_ends_the_connection(
    version: Version, data: str, reason: Reason
) -> None:
    core = Core()
    wire, other = core.connect("c", version=version), core.connect("other", version=version)
    wire.send_bytes(bytes.fromhex(data))
    assert told(wire) == in_v5(version, reason)
    assert other.exchange(PingReq()) == [PingResp()]


@pytest.mark.parametrize(
    "packet",
    [
        ConnAck(),
        SubAck(packet_id=1, reasons=(Reason.SUCCESS,)),
        UnsubAck(packet_id=1, reasons=(Reason.SUCCESS,)),
        PingResp(),
    ],
)
@both_versions
def test_mqtt_4_13_1_1_a_packet_of_a_server_ends_the_connection(
    version: Version, packet: ConnAck | SubAck | UnsubAck | PingResp
) -> None:
    wire = Core().connect("c", version=version)
    wire.send(packet)
    assert told(wire) == in_v5(version, Reason.PROTOCOL_ERROR)


def test_mqtt_1_5_5_1_a_longer_length_than_needed_ends_the_connection() -> None:
    wire = Core().connect("c")
    wire.send_bytes(b"\xc0\x80\x00")
    assert told(wire) == [Reason.MALFORMED_PACKET]


@pytest.mark.parametrize("pair", ["0001 61 0001 ff", "0001 ff 0001 61", "0001 00 0001 61"])
def test_mqtt_1_5_7_1_both_strings_of_a_pair_are_strings(pair: str) -> None:
    wire = Core().connect("c")
    user_property = b"\x26" + bytes.fromhex(pair)
    body = b"\x00\x01" + bytes([len(user_property)]) + user_property + b"\x00\x01t\x00"
    wire.send_bytes(b"\x82" + bytes([len(body)]) + body)
    assert told(wire) == [Reason.MALFORMED_PACKET]


@both_versions
@pytest.mark.parametrize("first", [0x60, 0x61, 0x63, 0x6A])
def test_mqtt_3_6_1_1_other_flags_of_pubrel_end_the_connection(
    version: Version, first: int
) -> None:
    wire = Core().connect("c", version=version)
    wire.publish("t", "m", 2, 1)
    wire.send_bytes(bytes([first]) + b"\x02\x00\x01")
    assert told(wire) == in_v5(version, Reason.MALFORMED_PACKET)


@both_versions
def test_mqtt_3_14_1_1_other_flags_of_disconnect_end_the_connection(version: Version) -> None:
    wire = Core().connect("c", version=version)
    wire.send_bytes(b"\xe2\x00")
    assert told(wire) == in_v5(version, Reason.MALFORMED_PACKET)


@both_versions
def test_mqtt_3_14_0_1_nothing_but_connack_is_said_before_success(version: Version) -> None:
    core = Core(client_id_size_max=30)
    for data in (b"\xc0\x00", b"\x10\x05\x00\x04MQ\xff"):
        wire = core.wire(version)
        wire.send_bytes(data)
        assert (wire.take(), wire.is_closed) == ([], True)
    refused = core.wire(version)
    assert [type(packet) for packet in refused.connect("i" * 31)] == [ConnAck]


def test_mqtt_3_14_2_2_disconnect_of_the_server_has_no_session_expiry() -> None:
    core = Core()
    wire = core.connect("c", clean_start=False, session_expiry_interval=60)
    end_all(core, Reason.SERVER_SHUTTING_DOWN)
    assert wire.take() == [Disconnect(reason=Reason.SERVER_SHUTTING_DOWN)]


def test_mqtt_3_14_2_3_a_reason_string_is_left_out_where_it_does_not_fit() -> None:
    core = Core()
    wide, narrow = core.connect("wide"), core.connect("narrow", maximum_packet_size=20)
    for wire in (wide, narrow):
        wire.send(ConnAck())
    explained = Properties(reason_string="unexpected ConnAck while CONNECTED")
    assert wide.take() == [Disconnect(reason=Reason.PROTOCOL_ERROR, properties=explained)]
    assert narrow.take() == [Disconnect(reason=Reason.PROTOCOL_ERROR)]


def test_mqtt_3_14_2_4_disconnect_of_the_server_has_no_user_properties() -> None:
    wire = Core().connect("c", user_properties=(("a", "b"),))
    wire.send(ConnAck())
    (answer,) = wire.take()
    assert isinstance(answer, Disconnect)
    assert answer.properties.user_properties == ()


@both_versions
def test_mqtt_3_14_4_1_and_2_behind_the_servers_last_packet_nothing_follows(
    version: Version,
) -> None:
    core = Core()
    wire = core.connect("c", version=version)
    wire.subscribe("t")
    end_all(core, Reason.SERVER_SHUTTING_DOWN)
    core.connect("p").publish("t", "too late")
    # The desk refuses writes behind the end.
    wire.client.receive(b"\xc0\x00")
    assert told(wire) == in_v5(version, Reason.SERVER_SHUTTING_DOWN)


@both_versions
def test_what_follows_disconnect_is_not_read(version: Version) -> None:
    core = Core()
    wire = core.connect("c", version=version)
    wire.send(Disconnect(), message("t", "m", 1, 1))
    assert (wire.take(), wire.is_closed, core.database.rows) == ([], True, [])


@both_versions
def test_what_came_before_an_error_is_processed(version: Version) -> None:
    core = Core()
    wire = core.connect("c", version=version)
    wanted = Subscription(filter=TopicFilter.parse("u"))
    wire.send(message("t", "m"), Subscribe(packet_id=1, subscriptions=(wanted,)))
    wire.send_bytes(b"\x00\x00")
    kinds = [SubAck, Disconnect] if version is V5 else [SubAck]
    assert [type(packet) for packet in wire.take()] == kinds
    assert core.database.rows == [(b"t", b"m")]


def test_mqtt_4_12_0_1_an_authentication_method_is_refused_and_closed() -> None:
    wire = Core().wire()
    assert wire.connect("c", authentication_method="SCRAM-SHA-1", authentication_data=b"x") == [
        ConnAck(reason=Reason.BAD_AUTHENTICATION_METHOD)
    ]
    assert wire.is_closed


def test_mqtt_4_12_0_6_without_a_method_no_auth_is_sent_and_none_is_told() -> None:
    wire = Core().connect("c")
    assert wire.accepted is not None
    assert wire.accepted.properties.authentication_method is None
    assert wire.exchange(PingReq()) == [PingResp()]


@pytest.mark.parametrize(
    "packet",
    [
        Auth(),
        Auth(
            reason=Reason.REAUTHENTICATE, properties=Properties(authentication_method="SCRAM-SHA-1")
        ),
    ],
)
def test_mqtt_4_12_0_7_and_4_12_1_2_auth_ends_the_connection(packet: Auth) -> None:
    wire = Core().connect("c")
    wire.send(packet)
    assert told(wire) == [Reason.PROTOCOL_ERROR]


@pytest.mark.parametrize("first", [0xF1, 0xF2, 0xF8])
def test_mqtt_3_15_1_1_other_flags_of_auth_end_the_connection(first: int) -> None:
    wire = Core().connect("c")
    wire.send_bytes(bytes([first, 0]))
    assert told(wire) == [Reason.MALFORMED_PACKET]


def test_packet_type_15_is_reserved_in_3_1_1() -> None:
    wire = Core().connect("c", version=V3)
    wire.send_bytes(b"\xf0\x00")
    assert told(wire) == []


@both_versions
def test_mqtt_4_13_2_1_a_reason_of_failure_closes_the_connection(version: Version) -> None:
    core = Core()
    wire = core.connect("c", version=version)
    end_all(core, Reason.ADMINISTRATIVE_ACTION)
    assert told(wire) == in_v5(version, Reason.ADMINISTRATIVE_ACTION)
    assert core.broker.clients == {}


@both_versions
def test_a_packet_beyond_the_limit_ends_the_connection(version: Version) -> None:
    core = Core(packet_size_max=128)
    wire = core.connect("c", version=version)
    wire.send(message("t", "x" * 200, 1, 1))
    assert told(wire) == in_v5(version, Reason.PACKET_TOO_LARGE)
    assert core.database.rows == []


def test_mqtt311_4_8_0_2_what_could_not_be_kept_closes_the_connection() -> None:
    core = Core(automatic=False)
    wire, other = core.connect("c", version=V3), core.connect("other", version=V3)
    wire.send(message("t", "m", 1, 1))
    core.settle(OSError("the disk is gone"))
    core.advance(core.broker.limits.refusal_delay)
    assert (wire.take(), wire.is_closed) == ([], True)
    assert other.exchange(PingReq()) == [PingResp()]
