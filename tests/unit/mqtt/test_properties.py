from __future__ import annotations

from dataclasses import fields

import pytest

from siltstone.errors import MalformedPacketError, ProtocolError, UsageError
from siltstone.mqtt.properties import (
    NO_PROPERTIES,
    RULES,
    Properties,
    decode_properties,
    encode_properties,
)
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Bounds, PacketReader, PacketType, Writer

# Table 2-4 of MQTT 5: identifier -> type of the value, and the packets that may have it.
TABLE = {
    0x01: ("FLAG", "PUBLISH WILL"),
    0x02: ("FOUR", "PUBLISH WILL"),
    0x03: ("STRING", "PUBLISH WILL"),
    0x08: ("STRING", "PUBLISH WILL"),
    0x09: ("BINARY", "PUBLISH WILL"),
    0x0B: ("VARIABLE", "PUBLISH SUBSCRIBE"),
    0x11: ("FOUR", "CONNACK CONNECT DISCONNECT"),
    0x12: ("STRING", "CONNACK"),
    0x13: ("TWO", "CONNACK"),
    0x15: ("STRING", "AUTH CONNACK CONNECT"),
    0x16: ("BINARY", "AUTH CONNACK CONNECT"),
    0x17: ("FLAG", "CONNECT"),
    0x18: ("FOUR", "WILL"),
    0x19: ("FLAG", "CONNECT"),
    0x1A: ("STRING", "CONNACK"),
    0x1C: ("STRING", "CONNACK DISCONNECT"),
    0x1F: ("STRING", "AUTH CONNACK DISCONNECT PUBACK PUBCOMP PUBREC PUBREL SUBACK UNSUBACK"),
    0x21: ("TWO", "CONNACK CONNECT"),
    0x22: ("TWO", "CONNACK CONNECT"),
    0x23: ("TWO", "PUBLISH"),
    0x24: ("FLAG", "CONNACK"),
    0x25: ("FLAG", "CONNACK"),
    0x26: (
        "PAIR",
        (
            "AUTH CONNACK CONNECT DISCONNECT PUBACK PUBCOMP PUBLISH PUBREC PUBREL SUBACK SUBSCRIBE"
            " UNSUBACK UNSUBSCRIBE WILL"
        ),
    ),
    0x27: ("FOUR", "CONNACK CONNECT"),
    0x28: ("FLAG", "CONNACK"),
    0x29: ("FLAG", "CONNACK"),
    0x2A: ("FLAG", "CONNACK"),
}


def decoded(packet_type: PacketType, text: str) -> Properties:
    reader = PacketReader(bytes.fromhex(text))
    properties = decode_properties(reader, packet_type)
    reader.finish()
    return properties


def encoded(packet_type: PacketType, properties: Properties) -> str:
    writer = Writer()
    encode_properties(writer, properties, packet_type)
    return writer.data.hex()


def test_the_rules_are_those_of_table_2_4() -> None:
    rules = {
        rule.id: (rule.kind.name, " ".join(sorted(place.name for place in rule.packets)))
        for rule in RULES
    }
    assert rules == TABLE


def test_each_rule_has_a_field_in_the_order_of_the_table() -> None:
    assert [rule.name for rule in RULES] == [field.name for field in fields(Properties)]


def test_mqtt_2_2_2_1_no_properties_are_a_length_of_zero() -> None:
    assert encoded(PacketType.CONNECT, NO_PROPERTIES) == "00"
    assert encoded(PacketType.CONNECT, Properties()) == "00"
    assert decoded(PacketType.CONNECT, "00") is NO_PROPERTIES


def test_every_kind_of_value_goes_to_bytes_and_back() -> None:
    properties = Properties(
        payload_format_indicator=1,
        message_expiry_interval=0xFFFF_FFFF,
        content_type="t",
        correlation_data=b"\0\xff",
        subscription_identifiers=(1, 128),
        topic_alias=2,
        user_properties=(("k", "v"),),
    )
    text = "1f 0101 02ffffffff 03000174 09000200ff 0b01 0b8001 230002 2600016b000176".replace(
        " ", ""
    )
    assert encoded(PacketType.PUBLISH, properties) == text
    assert decoded(PacketType.PUBLISH, text) == properties


def test_the_limit_of_user_properties_is_not_for_subscription_identifiers() -> None:
    bounds = Bounds(user_properties_max=2)
    properties = Properties(
        user_properties=(("a", "1"), ("b", "2")), subscription_identifiers=(1, 2, 3)
    )
    writer = Writer()
    encode_properties(writer, properties, PacketType.PUBLISH)
    reader = PacketReader(bytes(writer.data), bounds)
    assert decode_properties(reader, PacketType.PUBLISH) == properties
    writer = Writer()
    encode_properties(writer, Properties(user_properties=(("a", "1"),) * 3), PacketType.PUBLISH)
    with pytest.raises(ProtocolError, match="too many user properties: max=2") as caught:
        decode_properties(PacketReader(bytes(writer.data), bounds), PacketType.PUBLISH)
    assert caught.value.reason is Reason.QUOTA_EXCEEDED


def test_mqtt_3_3_2_18_user_properties_keep_their_order_and_may_repeat() -> None:
    properties = Properties(user_properties=(("b", "1"), ("a", "2"), ("b", "1")))
    text = encoded(PacketType.PUBLISH, properties)
    assert decoded(PacketType.PUBLISH, text).user_properties == properties.user_properties


@pytest.mark.parametrize("packet_type", PacketType)
def test_a_property_of_another_packet_is_malformed(packet_type: PacketType) -> None:
    for rule in RULES:
        if packet_type not in rule.packets:
            with pytest.raises(MalformedPacketError, match=f"id={rule.id:#04x}") as caught:
                decoded(packet_type, f"02 {rule.id:02x} 00")
            assert caught.value.reason == Reason.MALFORMED_PACKET


@pytest.mark.parametrize("identifier", ["00", "04", "2b", "7f", "8001"])
def test_a_property_that_does_not_exist_is_malformed(identifier: str) -> None:
    with pytest.raises(MalformedPacketError, match="must not have this property"):
        decoded(PacketType.PUBLISH, f"04 {identifier} 00000000")


def test_a_property_that_stands_twice_is_a_protocol_error() -> None:
    with pytest.raises(
        ProtocolError, match="must not be repeated: property=receive_maximum"
    ) as caught:
        decoded(PacketType.CONNECT, "06 210001 210001")
    assert caught.value.reason == Reason.PROTOCOL_ERROR


def test_a_subscription_identifier_may_repeat_in_publish_alone() -> None:
    assert decoded(PacketType.PUBLISH, "04 0b01 0b02").subscription_identifiers == (1, 2)
    with pytest.raises(ProtocolError, match="must not be repeated"):
        decoded(PacketType.SUBSCRIBE, "04 0b01 0b02")
    with pytest.raises(UsageError, match="must not be repeated"):
        encoded(PacketType.SUBSCRIBE, Properties(subscription_identifiers=(1, 2)))


@pytest.mark.parametrize("identifier", [i for i, (kind, _) in TABLE.items() if kind == "FLAG"])
def test_a_flag_is_0_or_1(identifier: int) -> None:
    packet_type = next(iter(rule.packets for rule in RULES if rule.id == identifier))
    with pytest.raises(ProtocolError, match=r"must be 0 or 1: property=\w+ value=2"):
        decoded(min(packet_type), f"02 {identifier:02x} 02")


@pytest.mark.parametrize(
    ("packet_type", "text", "reason"),
    [
        (PacketType.CONNECT, "03 210000", Reason.PROTOCOL_ERROR),
        (PacketType.CONNECT, "05 2700000000", Reason.PROTOCOL_ERROR),
        (PacketType.SUBSCRIBE, "02 0b00", Reason.PROTOCOL_ERROR),
        (PacketType.PUBLISH, "03 230000", Reason.TOPIC_ALIAS_INVALID),
    ],
)
def test_mqtt_3_3_2_8_a_maximum_an_identifier_and_an_alias_are_not_zero(
    packet_type: PacketType, text: str, reason: Reason
) -> None:
    with pytest.raises(ProtocolError, match="must not be 0") as caught:
        decoded(packet_type, text)
    assert caught.value.reason == reason


def test_mqtt_3_3_2_14_a_response_topic_has_no_wildcard() -> None:
    with pytest.raises(ProtocolError) as caught:
        decoded(PacketType.PUBLISH, "06 080003612f2b")
    assert caught.value.reason == Reason.TOPIC_NAME_INVALID


@pytest.mark.parametrize(
    "text", ["01", "02 01", "05 02000000", "03 030001", "04 26000161", "80", "05 030001ff"]
)
def test_properties_that_are_cut_short_or_ill_formed_are_malformed(text: str) -> None:
    with pytest.raises(MalformedPacketError):
        decoded(PacketType.PUBLISH, text)


@pytest.mark.parametrize(
    "properties",
    [
        Properties(receive_maximum=1),
        Properties(topic_alias=0),
        Properties(payload_format_indicator=2),
        Properties(response_topic="a/+"),
        Properties(message_expiry_interval=1 << 32),
        Properties(content_type="\0"),
    ],
)
def test_what_publish_may_not_have_is_not_written(properties: Properties) -> None:
    with pytest.raises(UsageError):
        encoded(PacketType.PUBLISH, properties)
