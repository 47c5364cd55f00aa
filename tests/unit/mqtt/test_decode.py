from __future__ import annotations

import pytest

from siltstone.errors import MalformedPacketError, PeerError, ProtocolError
from siltstone.mqtt.decode import decode, protocol_version
from siltstone.mqtt.packets import Connect, PubAck
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import PacketType, Version
from tests.support.packets import EXAMPLES, V3, V5, Example, decode_whole

BOTH = pytest.mark.parametrize("version", [V3, V5])


def refused(version: Version, first: int, text: str) -> PeerError:
    """Decode what must not decode; return the error."""
    with pytest.raises(PeerError) as caught:
        decode(version, first, bytes.fromhex(text))
    return caught.value


def assert_malformed(version: Version, first: int, text: str, match: str) -> None:
    error = refused(version, first, text)
    assert isinstance(error, MalformedPacketError)
    assert (error.reason, match in str(error)) == (Reason.MALFORMED_PACKET, True), error


def assert_protocol_error(
    version: Version, first: int, text: str, match: str, reason: Reason = Reason.PROTOCOL_ERROR
) -> None:
    error = refused(version, first, text)
    assert isinstance(error, ProtocolError)
    assert (error.reason, match in str(error)) == (reason, True), error


def connect_text(version: Version, flags: int, payload: str = "0000") -> str:
    """Return the body of CONNECT with these flags, in hexadecimal."""
    properties = "00" if version is V5 else ""
    return f"0004 4d515454 {version:02x} {flags:02x} 0000 {properties} {payload}"


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_packet_reads_as_the_specification_shows_it(example: Example) -> None:
    assert decode_whole(example.version, example.data) == example.packet


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_packet_that_is_cut_anywhere_is_refused_or_another_packet(example: Example) -> None:
    first, body = example.data[0], example.data[2:]
    for size in range(len(body)):
        try:
            packet = decode(example.version, first, body[:size])
        except PeerError:
            continue
        assert packet != example.packet


# PUBLISH ends with its payload, SUBACK and UNSUBACK with as many reasons as there are.
@pytest.mark.parametrize(
    "example", [e for e in EXAMPLES if e.data[0] >> 4 not in {3, 9, 11} or e.data[0] == 0xB0]
)
def test_bytes_after_the_end_are_refused(example: Example) -> None:
    with pytest.raises(PeerError):
        decode(example.version, example.data[0], example.data[2:] + b"\xff")


@BOTH
@pytest.mark.parametrize("packet_type", set(PacketType) - {PacketType.PUBLISH, PacketType.WILL})
def test_mqtt_2_1_3_1_reserved_flags_must_be_as_listed(
    version: Version, packet_type: PacketType
) -> None:
    right = 2 if packet_type.name in {"PUBREL", "SUBSCRIBE", "UNSUBSCRIBE"} else 0
    for flags in set(range(16)) - {right}:
        error = refused(version, packet_type << 4 | flags, "0001")
        assert error.reason == Reason.MALFORMED_PACKET


@BOTH
def test_packet_type_0_is_reserved(version: Version) -> None:
    assert_malformed(version, 0x00, "", "packet type is reserved: first_byte=0x00")


def test_mqtt311_2_2_1_packet_type_15_is_reserved() -> None:
    assert_malformed(V3, 0xF0, "", "packet type is reserved: first_byte=0xf0")


@pytest.mark.parametrize("name", ["0004 4d515458", "0006 4d5149736470", "0000"])
def test_mqtt_3_1_2_1_the_protocol_name_is_mqtt(name: str) -> None:
    assert_protocol_error(
        V5,
        0x10,
        f"{name} 05 02 0000 00 0000",
        "protocol name must be MQTT",
        Reason.UNSUPPORTED_PROTOCOL_VERSION,
    )


@pytest.mark.parametrize("level", [0, 3, 6, 0x80, 0x83, 0x85])
def test_mqtt_3_1_2_2_a_level_that_is_not_supported_has_its_reason(level: int) -> None:
    assert_protocol_error(
        V5,
        0x10,
        f"0004 4d515454 {level:02x} 02 0000 00 0000",
        f"unsupported protocol level {level} ",
        Reason.UNSUPPORTED_PROTOCOL_VERSION,
    )


@BOTH
def test_the_version_can_be_read_from_a_connect_that_is_wrong_otherwise(version: Version) -> None:
    body = bytes.fromhex(connect_text(version, 0x01))
    assert protocol_version(body) is version
    with pytest.raises(MalformedPacketError):
        decode(version, 0x10, body)


def test_connect_says_its_version_itself() -> None:
    packet = decode(V5, 0x10, bytes.fromhex(connect_text(V3, 0x02)))
    assert packet == Connect(version=V3, client_id="")


@BOTH
def test_mqtt_3_1_2_3_the_reserved_connect_flag_is_0(version: Version) -> None:
    assert_malformed(version, 0x10, connect_text(version, 0x03), "reserved connect flag")


@BOTH
@pytest.mark.parametrize("flags", [0x0A, 0x12])
def test_mqtt_3_1_2_11_no_will_qos_without_a_will(version: Version, flags: int) -> None:
    assert_malformed(version, 0x10, connect_text(version, flags), "is set without a will")


@BOTH
def test_mqtt_3_1_2_12_the_will_has_no_qos_3(version: Version) -> None:
    assert_malformed(version, 0x10, connect_text(version, 0x1E), "will has QoS 3")


@BOTH
def test_mqtt_3_1_2_13_no_will_retain_without_a_will(version: Version) -> None:
    assert_malformed(version, 0x10, connect_text(version, 0x22), "is set without a will")


@BOTH
@pytest.mark.parametrize(
    ("flags", "payload"),
    [(0x06, "0000"), (0x82, "0000"), (0xC2, "0000 0001 75"), (0x02, "0000 0001 75"), (0x02, "")],
)
def test_mqtt_3_1_3_1_the_payload_has_the_fields_that_the_flags_say(
    version: Version, flags: int, payload: str
) -> None:
    error = refused(version, 0x10, connect_text(version, flags, payload))
    assert error.reason == Reason.MALFORMED_PACKET


def test_mqtt311_3_1_2_22_no_password_without_a_user_name() -> None:
    text = connect_text(V3, 0x42, "0000 0001 70")
    assert_malformed(V3, 0x10, text, "password without a user name")
    packet = decode(V5, 0x10, bytes.fromhex(connect_text(V5, 0x42, "0000 0001 70")))
    assert packet == Connect(version=V5, client_id="", password=b"p")


def test_mqtt311_3_1_3_8_an_empty_client_id_keeps_no_session() -> None:
    assert_protocol_error(
        V3,
        0x10,
        connect_text(V3, 0x00),
        "an empty client id needs clean session = 1",
        Reason.CLIENT_IDENTIFIER_NOT_VALID,
    )


@BOTH
@pytest.mark.parametrize("payload", ["0001 ff", "0001 00"])
def test_mqtt_3_1_3_4_the_client_id_is_a_string(version: Version, payload: str) -> None:
    assert_malformed(version, 0x10, connect_text(version, 0x02, payload), "string")


@BOTH
def test_mqtt_3_1_3_11_the_will_topic_is_a_topic(version: Version) -> None:
    properties = "00" if version is V5 else ""
    for topic, reason in (("ff", 0x81), ("23", 0x90)):
        text = connect_text(version, 0x06, f"0000 {properties} 0001 {topic} 0000")
        assert refused(version, 0x10, text).reason == reason


def test_mqtt_3_1_3_12_the_user_name_is_a_string() -> None:
    assert_malformed(V5, 0x10, connect_text(V5, 0x82, "0000 0001 ff"), "not valid UTF-8")


@pytest.mark.parametrize(
    ("first", "text"),
    [
        (0x10, "0004 4d515454 05 02 0000 04 16 0001 00 0000"),
        (0x20, "00 00 04 16 0001 00"),
        (0xF0, "18 04 16 0001 00"),
    ],
)
def test_authentication_data_needs_a_method(first: int, text: str) -> None:
    assert_protocol_error(V5, first, text, "authentication data needs an authentication method")


@BOTH
def test_mqtt_3_2_2_1_acknowledge_flags_are_reserved(version: Version) -> None:
    assert_malformed(version, 0x20, "02 00 00", "reserved flags of CONNACK")


@BOTH
def test_mqtt_3_2_2_6_what_is_refused_has_no_session(version: Version) -> None:
    assert_protocol_error(version, 0x20, "01 05", "must not have session present: code=5")


def test_mqtt_3_2_2_8_connack_has_a_reason_of_its_own() -> None:
    assert_protocol_error(V5, 0x20, "00 8b 00", "CONNACK must not have this reason code: code=0x8b")
    assert_protocol_error(V3, 0x20, "00 06", "return code is reserved: code=6")


@BOTH
def test_mqtt_3_3_1_2_dup_is_not_for_qos_0(version: Version) -> None:
    assert_malformed(
        version, 0x38, "0001 61 00", "message with QoS 0 must not have DUP: first_byte"
    )


@BOTH
@pytest.mark.parametrize("first", [0x36, 0x37, 0x3E, 0x3F])
def test_mqtt_3_3_1_4_a_message_has_no_qos_3(version: Version, first: int) -> None:
    assert_malformed(version, first, "0001 61 0001 00", "QoS 3")


@BOTH
def test_mqtt_3_3_2_2_a_topic_has_no_wildcard(version: Version) -> None:
    assert_protocol_error(version, 0x30, "0001 2b 00", "wildcard", reason=Reason.TOPIC_NAME_INVALID)


def test_an_empty_topic_needs_an_alias() -> None:
    assert_protocol_error(V5, 0x30, "0000 00", "neither a topic nor a topic alias")
    assert_protocol_error(
        V3, 0x30, "0000", "topic must have at least one character", Reason.TOPIC_NAME_INVALID
    )


@BOTH
@pytest.mark.parametrize(
    ("first", "text"),
    [
        (0x32, "0001 61 0000 00"),
        (0x34, "0001 61 0000 00"),
        (0x40, "0000"),
        (0x50, "0000"),
        (0x62, "0000"),
        (0x70, "0000"),
        (0x82, "0000 00 0001 61 00"),
        (0x90, "0000 00 00"),
        (0xA2, "0000 00 0001 61"),
        (0xB0, "0000 00 00"),
    ],
)
def test_mqtt_2_2_1_3_a_packet_id_is_not_zero(version: Version, first: int, text: str) -> None:
    assert_protocol_error(version, first, text, "packet id must not be 0")


@pytest.mark.parametrize("first", [0x40, 0x50, 0x62, 0x70])
def test_mqtt_3_4_2_1_an_acknowledgement_has_a_reason_of_its_own(first: int) -> None:
    assert_protocol_error(V5, first, "0001 81", "must not have this reason code: code=0x81")
    assert_malformed(V3, first, "0001 00", "bytes follow the end")


def test_an_acknowledgement_may_end_after_its_reason() -> None:
    whole = PubAck(packet_id=1, reason=Reason.NOT_AUTHORIZED)
    assert decode(V5, 0x40, bytes.fromhex("0001 87")) == whole
    assert decode(V5, 0x40, bytes.fromhex("0001 87 00")) == whole


def test_mqtt_3_8_3_2_subscribe_has_a_filter() -> None:
    assert_protocol_error(V3, 0x82, "0001", "SUBSCRIBE needs at least one filter: packet_id=1")
    assert_protocol_error(V5, 0x82, "0001 00", "SUBSCRIBE needs at least one filter: packet_id=1")


def test_mqtt_3_8_3_4_a_shared_subscription_has_no_no_local() -> None:
    name = b"$share/g/a".hex()
    assert_protocol_error(V5, 0x82, f"0001 00 000a {name} 04", "must not have the option no local")


def test_mqtt_3_8_3_5_reserved_options_are_0() -> None:
    for options in (0x40, 0x80):
        text = f"0001 00 0001 61 {options:02x}"
        assert_malformed(V5, 0x82, text, f"options={options:#04x}")
    for options in (0x04, 0x08, 0x10, 0x20, 0x40, 0x80):
        text = f"0001 0001 61 {options:02x}"
        assert_malformed(V3, 0x82, text, f"options={options:#04x}")


def test_a_subscription_has_neither_qos_3_nor_retain_handling_3() -> None:
    assert_protocol_error(V3, 0x82, "0001 0001 61 03", "QoS 3")
    assert_protocol_error(V5, 0x82, "0001 00 0001 61 03", "QoS 3")
    assert_protocol_error(V5, 0x82, "0001 00 0001 61 30", "retain handling 3")


@pytest.mark.parametrize("first", [0x82, 0xA2])
def test_mqtt_4_7_1_1_a_filter_out_of_order_is_invalid(first: int) -> None:
    options = "00" if first == 0x82 else ""
    assert_protocol_error(
        V5, first, f"0001 00 0002 2361 {options}", "#", reason=Reason.TOPIC_FILTER_INVALID
    )


def test_mqtt_3_9_3_2_suback_has_a_reason_of_its_own_for_each_filter() -> None:
    assert_protocol_error(
        V5, 0x90, "0001 00 11", "SUBACK must not have this reason code: code=0x11"
    )
    assert_protocol_error(V5, 0x90, "0001 00", "SUBACK needs at least one reason code: packet_id=1")
    assert_protocol_error(V3, 0x90, "0001 8f", "return code is reserved: packet_id=1")


def test_mqtt_3_10_3_2_unsubscribe_has_a_filter() -> None:
    assert_protocol_error(V3, 0xA2, "0001", "UNSUBSCRIBE needs at least one filter: packet_id=1")
    assert_protocol_error(V5, 0xA2, "0001 00", "UNSUBSCRIBE needs at least one filter: packet_id=1")


def test_mqtt_3_11_3_2_unsuback_has_a_reason_of_its_own_for_each_filter() -> None:
    assert_protocol_error(
        V5, 0xB0, "0001 00 01", "UNSUBACK must not have this reason code: code=0x01"
    )
    assert_protocol_error(
        V5, 0xB0, "0001 00", "UNSUBACK needs at least one reason code: packet_id=1"
    )


def test_mqtt_3_14_2_1_disconnect_has_a_reason_of_its_own() -> None:
    assert_protocol_error(V5, 0xE0, "84", "DISCONNECT must not have this reason code: code=0x84")
    assert_malformed(V3, 0xE0, "00", "bytes follow the end")


def test_mqtt_3_15_2_1_auth_has_a_reason_of_its_own() -> None:
    assert_protocol_error(V5, 0xF0, "80 00", "AUTH must not have this reason code: code=0x80")
    assert_malformed(V5, 0xF0, "18", "cut short")
