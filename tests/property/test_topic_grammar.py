from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from siltstone.errors import InvalidTopicError
from siltstone.topic.grammar import TopicFilter, check_topic

WORDS = st.sampled_from(["", "a", "b", "$x", "+", "#", "a+", "$share"])
TEXTS = st.lists(WORDS, min_size=1, max_size=5).map("/".join)


def is_filter(text: str) -> bool:
    """Say the grammar of 4.7.1 and 4.8.2 once more, as a regular expression."""
    plain = r"(?:[^/+#]*|\+)"
    levels = rf"(?:(?:{plain}/)*(?:{plain}|#))"
    if text.startswith("$share/"):
        return re.fullmatch(rf"\$share/[^/+#]+/(?!$){levels}", text) is not None
    return re.fullmatch(rf"(?!$){levels}", text) is not None


def as_expression(text: str) -> str:
    """Turn a filter without share prefix into a regular expression over topics."""
    words = text.split("/")
    if words == ["#"]:
        return r"[^$].*"
    guard = r"(?!\$)" if words[0] == "+" else ""
    tail = words[-1] == "#"
    fixed = words[:-1] if tail else words
    body = "/".join("[^/]*" if word == "+" else re.escape(word) for word in fixed)
    return guard + body + ("(?:/.*)?" if tail else "")


@given(TEXTS)
def test_exactly_what_the_grammar_allows_is_a_filter(text: str) -> None:
    try:
        parsed = str(TopicFilter.parse(text)) == text
    except InvalidTopicError:
        parsed = False
    assert parsed == is_filter(text)


@given(TEXTS.filter(is_filter), TEXTS.filter(lambda text: text and not re.search("[+#]", text)))
def test_matching_agrees_with_a_regular_expression(text: str, topic: str) -> None:
    shared = text.startswith("$share/")
    plain = text.split("/", 2)[2] if shared else text
    expected = re.fullmatch(as_expression(plain), topic) is not None
    assert TopicFilter.parse(text).matches(topic.encode()) == expected


@given(st.binary(min_size=1, max_size=40))
def test_a_topic_is_utf_8_without_nul_and_wildcards(topic: bytes) -> None:
    try:
        check_topic(topic)
        accepted = True
    except InvalidTopicError:
        accepted = False
    try:
        expected = not set(topic.decode("utf-8", "strict")) & {"\0", "+", "#"}
    except UnicodeDecodeError:
        expected = False
    assert accepted == expected
