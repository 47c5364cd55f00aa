"""MQTT 4.7: topics, filters, and which of them match, seen through a whole broker."""

from __future__ import annotations

import pytest

from siltstone.broker.control.sys_topics import SysTopics
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from tests.conformance.versions import both_versions, in_v5, told
from tests.support.broker_core import V5, Core, Wire, message


def with_filter(wire: Wire, text: bytes) -> None:
    """Send SUBSCRIBE with a filter, right or wrong."""
    properties = b"\x00" if wire.version is V5 else b""
    body = b"\x00\x01" + properties + len(text).to_bytes(2, "big") + text + b"\x00"
    assert len(body) < 128
    wire.send_bytes(bytes([0x82, len(body)]) + body)


def with_topic(wire: Wire, topic: bytes) -> None:
    """Send PUBLISH of QoS 0 with a topic, right or wrong."""
    properties = b"\x00" if wire.version is V5 else b""
    body = len(topic).to_bytes(2, "big") + topic + properties
    assert len(body) < 128
    wire.send_bytes(bytes([0x30, len(body)]) + body)


@both_versions
@pytest.mark.parametrize("topic", [b"+", b"a/#", b"a+b"])
def test_mqtt_4_7_0_1_a_topic_with_a_wildcard_ends_the_connection(
    version: Version, topic: bytes
) -> None:
    wire = Core().connect("c", version=version)
    with_topic(wire, topic)
    assert told(wire) == in_v5(version, Reason.TOPIC_NAME_INVALID)


@both_versions
@pytest.mark.parametrize("text", [b"#/a", b"a#", b"a/#/b", b"a/b#", b"##"])
def test_mqtt_4_7_1_1_a_hash_out_of_place_ends_the_connection(
    version: Version, text: bytes
) -> None:
    wire = Core().connect("c", version=version)
    with_filter(wire, text)
    assert told(wire) == in_v5(version, Reason.TOPIC_FILTER_INVALID)


@both_versions
@pytest.mark.parametrize("text", [b"a+", b"+a", b"a/b+/c", b"++"])
def test_mqtt_4_7_1_2_a_plus_that_is_no_whole_level_ends_the_connection(
    version: Version, text: bytes
) -> None:
    wire = Core().connect("c", version=version)
    with_filter(wire, text)
    assert told(wire) == in_v5(version, Reason.TOPIC_FILTER_INVALID)


@both_versions
@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ("#", ["a", "a/b", "a/b/c", "/", "/a"]),
        ("a/#", ["a", "a/b", "a/b/c"]),
        ("+", ["a"]),
        ("a/+", ["a/b"]),
        ("+/b/#", ["a/b", "a/b/c"]),
        ("+/+", ["a/b", "/", "/a"]),
        ("/+", ["/", "/a"]),
        ("a/b", ["a/b"]),
    ],
)
def test_mqtt_4_7_1_1_and_2_wildcards_stand_for_whole_levels(
    version: Version, text: str, topics: list[str]
) -> None:
    core = Core()
    wire = core.connect("c", version=version)
    wire.subscribe(text)
    publisher = core.connect("p")
    for topic in ("a", "a/b", "a/b/c", "/", "/a"):
        publisher.publish(topic, topic)
    assert wire.take() == [message(topic, topic) for topic in topics]


@both_versions
@pytest.mark.parametrize("text", ["#", "+/broker/version", "+/#"])
def test_mqtt_4_7_2_1_a_wildcard_in_front_matches_no_topic_of_the_server(
    version: Version, text: str
) -> None:
    core = Core()
    wide, narrow = core.connect("wide", version=version), core.connect("narrow", version=version)
    wide.subscribe(text)
    narrow.subscribe("$SYS/broker/version")
    sys_topics = SysTopics(core.broker)
    sys_topics.publish(10.0)
    version_text = sys_topics.values(10.0)[b"version"]
    assert narrow.take() == [message("$SYS/broker/version", version_text)]
    assert (wide.take(), wide.subscribe(text)) == ([], [])
    assert narrow.subscribe("$SYS/broker/version") == [
        message("$SYS/broker/version", version_text, retain=True)
    ]


@both_versions
def test_mqtt_4_7_3_1_an_empty_topic_or_filter_ends_the_connection(version: Version) -> None:
    core = Core()
    publisher, subscriber = core.connect("p", version=version), core.connect("s", version=version)
    with_topic(publisher, b"")
    with_filter(subscriber, b"")
    # In MQTT 5 an empty topic stands for an alias, of which there is none here.
    assert told(publisher) == in_v5(version, Reason.PROTOCOL_ERROR)
    assert told(subscriber) == in_v5(version, Reason.TOPIC_FILTER_INVALID)


@both_versions
def test_mqtt_4_7_3_2_a_topic_or_filter_with_u_0000_ends_the_connection(version: Version) -> None:
    core = Core()
    publisher, subscriber = core.connect("p", version=version), core.connect("s", version=version)
    with_topic(publisher, b"a\x00b")
    with_filter(subscriber, b"a\x00b")
    assert told(publisher) == in_v5(version, Reason.MALFORMED_PACKET)
    assert told(subscriber) == in_v5(version, Reason.MALFORMED_PACKET)


@both_versions
def test_mqtt_4_7_3_3_the_longest_topic_and_filter_are_taken(version: Version) -> None:
    core = Core()
    longest = "t" * 65_535
    wire = core.connect("c", version=version)
    wire.subscribe(longest)
    core.connect("p").publish(longest, "m")
    assert wire.take() == [message(longest, "m")]


@both_versions
@pytest.mark.parametrize(
    ("text", "others"),
    [
        ("Topic", ["topic", "TOPIC", "Topic ", " Topic", "/Topic", "Topic/"]),
        # One letter or two, and a letter beside its like.
        ("\u00e9", ["e\u0301", "E\u0301", "\u00c9"]),
        ("\ufeffa", ["a"]),
        ("a//b", ["a/b"]),
        ("a/../b", ["b", "a/b"]),
        ("\U0001f600", ["\ufffd"]),
    ],
)
def test_mqtt_4_7_3_4_topics_are_compared_as_they_are(
    version: Version, text: str, others: list[str]
) -> None:
    core = Core()
    wire = core.connect("c", version=version)
    wire.subscribe(text)
    publisher = core.connect("p")
    for topic in (*others, text):
        publisher.publish(topic, "m")
    assert wire.take() == [message(text, "m")]


@both_versions
def test_mqtt_1_5_4_3_a_byte_order_mark_is_a_character_like_others(version: Version) -> None:
    core = Core()
    wire = core.connect("\ufeffc", version=version)
    wire.subscribe("\ufefft")
    wire.send(message("\ufefft", "m"))
    assert wire.take() == [message("\ufefft", "m")]
    assert list(core.broker.clients) == ["\ufeffc"]
