from __future__ import annotations

import pyarrow as pa
import pytest

from siltstone.errors import UsageError
from siltstone.mqtt.encode import encode_message_properties
from siltstone.mqtt.properties import Properties
from siltstone.scan.columns.properties import decode, empty_maps, encode, property_maps

KIND = pa.map_(pa.string(), pa.string())


def test_mqtts_own_properties_have_names_of_their_own() -> None:
    properties = Properties(
        payload_format_indicator=1,
        message_expiry_interval=60,
        content_type="text/plain",
        response_topic="answers/1",
        correlation_data=b"\x00\xff",
        subscription_identifiers=(3, 7),
        user_properties=(("unit", "C"),),
    )
    assert dict(decode(encode_message_properties(properties))) == {
        "mqtt.payload_format_indicator": "1",
        "mqtt.message_expiry_interval": "60",
        "mqtt.content_type": "text/plain",
        "mqtt.response_topic": "answers/1",
        "mqtt.correlation_data": "AP8=",
        "mqtt.subscription_identifiers": "3,7",
        "unit": "C",
    }


def test_a_user_property_that_stands_twice_has_a_line_for_each_value() -> None:
    properties = Properties(user_properties=(("k", "1"), ("j", "2"), ("k", "3")))
    assert decode(encode_message_properties(properties)) == (("k", "1\n3"), ("j", "2"))


def test_a_user_property_named_like_one_of_mqtts_own_is_another() -> None:
    given = (("mqtt.content_type", "mine"), ("mqtt.user.a", "1"), ("mqtt.", "2"), ("a", "3"))
    encoded = encode_message_properties(Properties(content_type="real", user_properties=given))
    named = decode(encoded)
    assert dict(named) == {
        "mqtt.content_type": "real",
        "mqtt.user.mqtt.content_type": "mine",
        "mqtt.user.mqtt.user.a": "1",
        "mqtt.user.mqtt.": "2",
        "a": "3",
    }
    assert encode(named) == encoded


@pytest.mark.parametrize("encoded", [b"x", b"\x03\x00\x09t", b"\x01\x05"], ids=repr)
def test_what_is_no_properties_is_kept_as_it_is(encoded: bytes) -> None:
    ((name, _),) = decode(encoded)
    assert name == "mqtt.undecoded"


def test_a_column_is_decoded_row_by_row_whatever_repeats() -> None:
    content = b"\x03\x00\x01t"
    column = pa.array([b"", content, b"", content, b"x"], pa.binary())
    found = property_maps(column.slice(1), KIND)
    assert found.type == KIND
    assert [dict(row) for row in found.to_pylist()] == [
        {"mqtt.content_type": "t"},
        {},
        {"mqtt.content_type": "t"},
        {"mqtt.undecoded": "eA=="},
    ]


@pytest.mark.parametrize("count", [0, 1, 1 << 16, (1 << 16) + 1])
def test_rows_without_properties_have_empty_maps(count: int) -> None:
    found = empty_maps(count, KIND)
    assert (len(found), found.type, len(found.keys), found.null_count) == (count, KIND, 0, 0)


def test_names_and_values_go_back_to_what_they_were() -> None:
    named = (
        ("mqtt.payload_format_indicator", "1"),
        ("mqtt.message_expiry_interval", "60"),
        ("mqtt.content_type", "text"),
        ("mqtt.response_topic", "a/b"),
        ("mqtt.correlation_data", "AP8="),
        ("k", "v"),
        ("ä", ""),
    )
    assert dict(decode(encode(named))) == dict(named)
    assert encode(()) == b""


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("mqtt.colour", "red", "unknown property mqtt.colour .supported: mqtt.payload"),
        ("mqtt.message_expiry_interval", "soon", "mqtt.message_expiry_interval must be a number"),
        ("mqtt.correlation_data", "?", "mqtt.correlation_data must be valid base64"),
        ("mqtt.payload_format_indicator", "2", "property must be 0 or 1"),
        ("k", "\0", "string has the character U"),
    ],
)
def test_what_mqtt_cannot_send_is_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        encode(((name, value),))
