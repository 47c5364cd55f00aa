from __future__ import annotations

import pytest

from siltstone.errors import InvalidTopicError
from siltstone.topic.grammar import TopicFilter, check_pattern, check_topic


@pytest.mark.parametrize(
    "topic",
    [
        b"a",
        b"/",
        b"//",
        b"/finance",
        b"a//b",
        b"a/",
        b"Accounts payable",
        b"$SYS/broker/load",
        b"$share/group/a",
        "møte/会議/🚀".encode(),
        b"\xef\xbb\xbf",
        b"control\x01character",
        b"a" * 65_535,
        b"/" * 65_535,
    ],
)
def test_what_mqtt_4_7_3_allows_is_a_topic(topic: bytes) -> None:
    check_topic(topic)
    check_pattern(topic)


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        (b"", "topic must have at least one character"),
        (b"a" * 65_536, "topic is too long: size_bytes=65536 max_bytes=65535"),
        (b"a\0b", r"topic must not have the character U+0000: topic='a\x00b'"),
        (b"a/+/b", "topic must not have the wildcards + and #: topic='a/+/b'"),
        (b"a+", "topic must not have the wildcards + and #: topic='a+'"),
        (b"a/#", "topic must not have the wildcards + and #: topic='a/#'"),
        (b"a/\xff", r"topic is not valid UTF-8: topic='a/\\xff' offset=2"),
        (b"ab\xed\xa0\x80", r"topic is not valid UTF-8: topic='ab\\xed\\xa0\\x80' offset=2"),
        (b"\xc0\x80", r"topic is not valid UTF-8: topic='\\xc0\\x80' offset=0"),
        (
            b"a" * 100 + b"#",
            f"topic must not have the wildcards + and #: topic='{'a' * 80}'…",
        ),
    ],
)
def test_what_is_no_topic_is_refused_in_one_sentence(topic: bytes, message: str) -> None:
    with pytest.raises(InvalidTopicError) as caught:
        check_topic(topic)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (b"", "pattern must have at least one character"),
        (b"a/#", "the pattern of a stream must not have #: pattern='a/#'"),
        (b"a/b+", "+ must be alone in its level: pattern='a/b+'"),
    ],
)
def test_what_is_no_pattern_is_refused_in_one_sentence(pattern: bytes, message: str) -> None:
    with pytest.raises(InvalidTopicError) as caught:
        check_pattern(pattern)
    assert str(caught.value) == message


def test_plus_may_stand_for_any_level_of_a_pattern() -> None:
    check_pattern(b"+")
    check_pattern(b"+/a/+/+")


@pytest.mark.parametrize(
    ("text", "levels", "group"),
    [
        ("a", (b"a",), None),
        ("/", (b"", b""), None),
        ("#", (b"#",), None),
        ("+", (b"+",), None),
        ("+/tennis/#", (b"+", b"tennis", b"#"), None),
        ("sport/+/player1", (b"sport", b"+", b"player1"), None),
        ("møte/#", ("møte".encode(), b"#"), None),
        ("$SYS/#", (b"$SYS", b"#"), None),
        ("$share", (b"$share",), None),
        ("$shared/a", (b"$shared", b"a"), None),
        ("$share/consumer1/sport/tennis/+", (b"sport", b"tennis", b"+"), "consumer1"),
        ("$share/g//", (b"", b""), "g"),
        ("$share/gruppe ä/#", (b"#",), "gruppe ä"),
        ("$share/g/$share/h/a", (b"$share", b"h", b"a"), "g"),
    ],
)
def test_a_filter_is_parsed_into_levels_and_share_group(
    text: str, levels: tuple[bytes, ...], group: str | None
) -> None:
    expected = TopicFilter(text=text, levels=levels, group=group)
    assert TopicFilter.parse(text) == expected
    assert TopicFilter.parse(text.encode()) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "filter must have at least one character"),
        ("a" * 65_536, "filter is too long: size_bytes=65536 max_bytes=65535"),
        ("ä" * 32_768, "filter is too long: size_bytes=65536 max_bytes=65535"),
        ("a\0", r"filter must not have the character U+0000: filter='a\x00'"),
        (b"a/\xff", r"filter is not valid UTF-8: filter='a/\\xff' offset=2"),
        ("a/\ud800", r"filter must be valid Unicode: filter='a/\ud800'"),
        ("sport/tennis#", "# must be the last level, alone: filter='sport/tennis#'"),
        ("a/#/ranking", "# must be the last level, alone: filter='a/#/ranking'"),
        ("#/", "# must be the last level, alone: filter='#/'"),
        ("a/##", "# must be the last level, alone: filter='a/##'"),
        ("sport+", "+ must be alone in its level: filter='sport+'"),
        ("a/++/b", "+ must be alone in its level: filter='a/++/b'"),
        ("a/+#", "# must be the last level, alone: filter='a/+#'"),
    ],
)
def test_what_is_no_filter_is_refused_in_one_sentence(text: str | bytes, message: str) -> None:
    with pytest.raises(InvalidTopicError) as caught:
        TopicFilter.parse(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["$share/", "$share//a", "$share/g+/a", "$share/#/a", "$share/+"])
def test_mqtt_4_8_2_a_share_name_is_not_empty_and_has_no_wildcard(text: str) -> None:
    with pytest.raises(InvalidTopicError) as caught:
        TopicFilter.parse(text)
    assert str(caught.value) == (
        "shared filter needs a group name without wildcards, such as $share/group/filter: "
        f"filter={text!r}"
    )


@pytest.mark.parametrize("text", ["$share/g", "$share/g/"])
def test_mqtt_4_8_2_2_a_filter_follows_the_share_name(text: str) -> None:
    with pytest.raises(InvalidTopicError) as caught:
        TopicFilter.parse(text)
    assert str(caught.value) == (f"shared filter needs a filter after its group: filter={text!r}")


@pytest.mark.parametrize(
    ("text", "matching", "other"),
    [
        (
            "sport/tennis/player1/#",
            [
                b"sport/tennis/player1",
                b"sport/tennis/player1/ranking",
                b"sport/tennis/player1/score/wimbledon",
                b"sport/tennis/player1/",
            ],
            [b"sport/tennis", b"sport/tennis/player2", b"sport/tennis/player1x"],
        ),
        ("sport/#", [b"sport", b"sport/", b"sport/a/b"], [b"sports", b"/sport"]),
        ("#", [b"a", b"/", b"a/b/c", b"a/$b"], [b"$SYS", b"$SYS/a", b"$"]),
        (
            "sport/tennis/+",
            [b"sport/tennis/player1", b"sport/tennis/player2", b"sport/tennis/"],
            [b"sport/tennis/player1/ranking", b"sport/tennis"],
        ),
        ("sport/+", [b"sport/"], [b"sport"]),
        ("+", [b"finance"], [b"/finance", b"$SYS", b"a/b"]),
        ("/+", [b"/finance", b"/"], [b"finance", b"/a/b"]),
        ("+/+", [b"/finance", b"/", b"a/"], [b"finance", b"$SYS/a"]),
        ("+/#", [b"a", b"a/b", b"/"], [b"$SYS", b"$SYS/a"]),
        ("+/tennis/#", [b"x/tennis", b"/tennis/a/b"], [b"tennis", b"$x/tennis"]),
        ("sport/+/player1", [b"sport/tennis/player1", b"sport//player1"], [b"sport/player1"]),
        ("+/monitor/Clients", [b"x/monitor/Clients"], [b"$SYS/monitor/Clients"]),
        ("$SYS/#", [b"$SYS", b"$SYS/a/b"], [b"SYS/a", b"$SYS2/a"]),
        ("$SYS/monitor/+", [b"$SYS/monitor/Clients"], [b"$SYS/monitor", b"$SYS/x/Clients"]),
        ("$SYS/+/x", [b"$SYS/a/x"], [b"$SYS/x"]),
        ("a//b", [b"a//b"], [b"a/b", b"a///b"]),
        ("ACCOUNTS", [b"ACCOUNTS"], [b"Accounts", b"ACCOUNTS/"]),
        ("$share/g/a/+", [b"a/b"], [b"$share/g/a/b", b"a"]),
        ("$share/g/#", [b"a/b"], [b"$SYS/a"]),
    ],
)
def test_mqtt_4_7_filters_match_these_topics_and_not_those(
    text: str, matching: list[bytes], other: list[bytes]
) -> None:
    topic_filter = TopicFilter.parse(text)
    assert [topic for topic in matching + other if topic_filter.matches(topic)] == matching
