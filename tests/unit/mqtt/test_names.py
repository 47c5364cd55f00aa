from __future__ import annotations

import pytest

from siltstone.errors import MalformedPacketError, ProtocolError
from siltstone.mqtt.names import check_topic_name, parse_filter
from siltstone.mqtt.reason import Reason
from siltstone.topic.grammar import TopicFilter


@pytest.mark.parametrize("topic", [b"/", b"a/b", b"$SYS/x", "ä".encode(), b"\xef\xbb\xbf"])
def test_a_topic_name_is_taken(topic: bytes) -> None:
    check_topic_name(topic)


@pytest.mark.parametrize("topic", [b"a/+", b"#", b"a+b", b""])
def test_mqtt_3_3_2_2_a_topic_with_a_wildcard_is_an_invalid_name(topic: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        check_topic_name(topic)
    assert caught.value.reason == Reason.TOPIC_NAME_INVALID


@pytest.mark.parametrize("data", [b"a\0", b"\xff", b"+\xff", b"#\0"])
def test_mqtt_3_3_2_1_a_topic_or_filter_that_is_no_string_is_malformed(data: bytes) -> None:
    for check in (check_topic_name, parse_filter):
        with pytest.raises(MalformedPacketError) as caught:
            check(data)
        assert caught.value.reason == Reason.MALFORMED_PACKET


def test_a_filter_is_parsed() -> None:
    assert parse_filter(b"$share/g/a/+") == TopicFilter.parse("$share/g/a/+")


@pytest.mark.parametrize("text", [b"", b"a/#/b", b"a#", b"+a"])
def test_mqtt_4_7_1_1_a_filter_with_a_wildcard_out_of_place_is_invalid(text: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_filter(text)
    assert caught.value.reason == Reason.TOPIC_FILTER_INVALID


@pytest.mark.parametrize("text", [b"$share//a", b"$share/g", b"$share/g/", b"$share/+/a"])
def test_mqtt_4_8_2_1_a_shared_filter_without_group_or_filter_is_invalid(text: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_filter(text)
    assert caught.value.reason == Reason.TOPIC_FILTER_INVALID
