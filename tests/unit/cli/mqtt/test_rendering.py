from __future__ import annotations

import json

import pytest

from siltstone.cli.mqtt.rendering import formatted, plain, with_topics
from siltstone.errors import UsageError
from siltstone.mqtt.encode import encode_message_properties
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.publish import PublishBatch

TIME_US = 1_700_000_000_123_456
PROPERTIES = Properties(
    content_type="text/plain",
    response_topic="r",
    correlation_data=b"\xff",
    message_expiry_interval=60,
    subscription_identifiers=(1, 300),
    user_properties=(("k", "v"), ("k", "w")),
)


def batch(payload: bytes = b"pay", *, properties: bytes = b"") -> PublishBatch:
    made = PublishBatch()
    made.topics = [b"a/b", b"c"]
    made.values = [payload, b"\x00\xff"]
    made.flags = [1 | 4, 2 | 8]
    made.packet_ids = [7, 8]
    if properties:
        made.properties = [properties, b""]
    return made


def test_payloads_are_written_as_they_are() -> None:
    assert plain(b"\n")(batch(), TIME_US) == b"pay\n\x00\xff\n"
    assert plain(b"")(batch(), TIME_US) == b"pay\x00\xff"


def test_topics_stand_before_their_payloads() -> None:
    assert with_topics(b"\n")(batch(), TIME_US) == b"a/b pay\nc \x00\xff\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%t=%p", b"a/b=pay|c=\x00\xff|"),
        ("%x %l", b"706179 3|00ff 2|"),
        ("q%qr%rd%dm%m", b"q1r1d0m7|q2r0d1m8|"),
        ("%U", b"1700000000.123456|1700000000.123456|"),
        ("%I", b"2023-11-14T22:13:20.123456Z|2023-11-14T22:13:20.123456Z|"),
        ("100%%", b"100%|100%|"),
        (r"\t\n\r\0\e\\", b"\t\n\r\0\x1b\\|\t\n\r\0\x1b\\|"),
        ("é", "é|é|".encode()),
        ("", b"||"),
    ],
)
def test_a_format_puts_fields_between_text(text: str, expected: bytes) -> None:
    assert formatted(text, b"|")(batch(), TIME_US) == expected


def test_properties_have_fields_that_are_empty_where_there_are_none() -> None:
    made = batch(properties=encode_message_properties(PROPERTIES))
    written = formatted("%C,%R,%D,%E,%P,%S", b"|")(made, TIME_US)
    assert written == b"text/plain,r,\xff,60,k:v k:w,1 300|,,,,,|"


def test_json_is_what_append_takes() -> None:
    made = batch("é\n".encode(), properties=b"\x01\x01")
    lines = formatted("%j", b"\n")(made, TIME_US).splitlines()
    assert [json.loads(line) for line in lines] == [
        {
            "timestamp": "2023-11-14T22:13:20.123456Z",
            "topic": "a/b",
            "qos": 1,
            "retain": True,
            "properties_base64": "AQE=",
            "value": "é\n",
        },
        {
            "timestamp": "2023-11-14T22:13:20.123456Z",
            "topic": "c",
            "qos": 2,
            "retain": False,
            "value_base64": "AP8=",
        },
    ]


@pytest.mark.parametrize(("text", "shown"), [("%k", "'%k'"), ("a%", "'%'"), (r"\q", r"'\\q'")])
def test_a_field_that_there_is_not_is_refused_with_those_there_are(text: str, shown: str) -> None:
    with pytest.raises(UsageError) as raised:
        formatted(text, b"")
    assert str(raised.value).startswith(f"unknown field {shown} (supported: %t %p %x ")
