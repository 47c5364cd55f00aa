from __future__ import annotations

from itertools import product

import pytest

from siltstone.errors import UsageError
from siltstone.session.archive.keys import (
    GroupKeys,
    SessionKeys,
    away_topic,
    due_time,
    due_topic,
    group_id,
    group_parts,
    word,
)


def test_words_have_no_slash_and_no_wildcard_and_keep_their_order() -> None:
    texts = ["", "!", '"', "#", "$", "*", "+", ",", ".", "/", "0", "a", "a/b", "é"]
    words = [word(text) for text in texts]
    assert words == sorted(words)
    assert not {*"/+#"} & {*"".join(words)}
    assert len({*words}) == len(texts)


def test_each_character_of_a_word_is_escaped_once() -> None:
    escapes = {'"': '"\x01', "#": '"\x02', "*": "*\x01", "+": "*\x02", ".": ".\x01", "/": ".\x02"}
    for text in map("".join, product((*escapes, "\x01", "\x02", "a"), repeat=4)):
        assert word(text) == "".join(escapes.get(each, each) for each in text)


def test_the_topics_of_a_session() -> None:
    keys = SessionKeys("a/b")
    assert [keys.state, keys.owner, keys.progress, keys.received, keys.all] == [
        "session/a.\x02b/state",
        "session/a.\x02b/owner",
        "session/a.\x02b/progress",
        "session/a.\x02b/received",
        "session/a.\x02b/#",
    ]
    assert keys.filter("x/#") == 'session/a.\x02b/filter/x.\x02"\x02'
    assert keys.message(7) == "session/a.\x02b/extra/00007"


def test_the_topics_of_a_group() -> None:
    keys = GroupKeys(group_id("g", "a"))
    assert [keys.id, keys.state, keys.owner, keys.progress, keys.all] == [
        "$share/g/a",
        "group/$share.\x02g.\x02a/state",
        "group/$share.\x02g.\x02a/owner",
        "group/$share.\x02g.\x02a/progress",
        "group/$share.\x02g.\x02a/#",
    ]


def test_timers_sort_by_time() -> None:
    times = [0, 9, 10, 255, 1 << 40, (1 << 63) - 1]
    topics = [due_topic(at_us, "will", "c") for at_us in times]
    assert topics == sorted(topics)
    assert [due_time(topic) for topic in topics] == times


def test_counts_of_a_filter_differ_by_qos() -> None:
    assert [away_topic(word("a/+"), qos) for qos in (0, 2)] == [
        "away/a.\x02*\x02/qos/0",
        "away/a.\x02*\x02/qos/2",
    ]


def test_a_group_is_known_by_the_filter_that_its_members_have() -> None:
    assert group_parts(group_id("g", "a/+/#")) == ("g", "a/+/#")


@pytest.mark.parametrize("text", ["a/#", "$share/g", "$share//a", "$share/+/a", ""])
def test_what_is_no_group_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        group_parts(text)
