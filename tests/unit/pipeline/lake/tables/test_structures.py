"""Which topics share a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.pipeline.lake.tables.structures import (
    MANY,
    WORDS_MAX,
    PayloadKind,
    find_structures,
    is_identifier,
)

VALUE = PayloadKind(decode="json", fields=frozenset({("value",), ("unit",)}))


def structures(*topics: str, kind: PayloadKind = VALUE) -> list[str]:
    return sorted(find_structures(dict.fromkeys(topics, kind)))


def document(*names: str) -> PayloadKind:
    return PayloadKind(decode="json", fields=frozenset((name,) for name in names))


def test_numbers_never_name_a_table() -> None:
    topics = [f"bench/{plant}/device/{number}/telemetry" for plant in range(4) for number in (1, 7)]
    assert structures(*topics) == ["bench/+/device/+/telemetry"]
    assert structures("plant/7/oven/3") == ["plant/+/oven/+"]


def test_200_first_words_with_payloads_of_their_own_have_a_structure_each() -> None:
    known = {
        f"app{word}x/{number}/state": document(f"f{word}", f"g{word}")
        for word in range(216)
        for number in range(3)
    }
    assert find_structures(known) == {
        f"app{word}x/+/state": document(f"f{word}", f"g{word}") for word in range(216)
    }


def test_many_first_words_with_the_same_below_them_vary() -> None:
    words = [f"{chr(97 + number)}lice" for number in range(MANY + 1)]
    assert structures(*(f"{word}/state" for word in words)) == ["+/state"]
    assert structures(*(f"{word}/state" for word in words[:-1])) == sorted(
        f"{word}/state" for word in words[:-1]
    )


def test_words_with_the_same_words_below_them_vary_and_the_last_words_do_not() -> None:
    rooms = [f"home/{room}/{value}" for room in ("kitchen", "bath") for value in ("heat", "light")]
    assert structures(*rooms) == ["home/+/heat", "home/+/light"]


def test_words_with_different_payloads_do_not_vary() -> None:
    known = {"app/user/new": document("name", "mail"), "app/order/new": document("price", "name")}
    assert sorted(find_structures(known)) == ["app/order/new", "app/user/new"]


def test_a_word_with_a_part_of_the_structures_below_a_level_that_varies_belongs_to_it() -> None:
    known = ["site/+/state", "site/+/alarm", "site/hall/state", "site/info/version"]
    assert structures(*known) == ["site/+/alarm", "site/+/state", "site/info/version"]


def test_words_of_one_form_vary() -> None:
    assert structures("site/line1/a", "site/line2/b") == ["site/line1/a", "site/line2/b"]
    assert structures("site/line1/a", "site/line2/a") == ["site/+/a"]
    assert structures("room/pm10", "room/pm25", "room/heat") == [
        "room/heat",
        "room/pm10",
        "room/pm25",
    ]
    assert structures("line1/a", "line2/a") == ["+/a"]


def test_too_many_words_vary_whatever_they_are() -> None:
    known = {f"{chr(97 + n % 26)}{'z' * (n // 26)}q": document(f"f{n}") for n in range(WORDS_MAX)}
    assert len(find_structures(known)) == WORDS_MAX
    assert list(find_structures(known | {"other": VALUE})) == ["+"]


def test_topics_that_begin_with_a_dollar_are_not_part_of_a_leading_wildcard() -> None:
    words = [f"{chr(97 + number)}lice/state" for number in range(MANY + 1)]
    assert structures(*words, "$SYS/1/state") == ["$SYS/+/state", "+/state"]


@pytest.mark.parametrize(
    "word",
    [
        *("7", "192.168.0.1", "2026-01-31", "a4cf12", "AA:BB:CC:00:11:22", "0x00158d0003f0a1b2"),
        *("123e4567-e89b-12d3-a456-426614174000", "XK29F8Q2L1M4"),
    ],
)
def test_words_that_are_identifiers(word: str) -> None:
    assert is_identifier(word)


@pytest.mark.parametrize("word", ["", "oven", "co2", "pm25", "facade", "v1", "temperature-2", "+"])
def test_words_that_are_not(word: str) -> None:
    assert not is_identifier(word)


WORDS = st.sampled_from(["a", "b", "c", "1", "2", "x1", "x2", "$S", ""])
TOPICS = st.lists(WORDS, min_size=1, max_size=4).map("/".join).filter(bool)
KINDS = st.sampled_from([VALUE, document("a"), PayloadKind(decode="text")])


def covers(wide: str, narrow: str) -> bool:
    above, below = wide.split("/"), narrow.split("/")
    if above[0] == "+" and below[0].startswith("$"):
        return False
    return len(above) == len(below) and all(
        level in ("+", word) for level, word in zip(above, below, strict=True)
    )


@given(st.dictionaries(TOPICS, KINDS, max_size=12), st.dictionaries(TOPICS, KINDS, max_size=12))
def test_every_topic_has_a_structure_and_structures_only_grow(
    first: dict[str, PayloadKind], second: dict[str, PayloadKind]
) -> None:
    before = find_structures(first)
    after = find_structures(before | second)
    for topic in (*before, *second):
        assert any(covers(pattern, topic) for pattern in after)
    assert find_structures(after) == after
    for pattern, kind in after.items():
        fed = [kind.fields for topic, kind in (before | second).items() if covers(pattern, topic)]
        assert kind.fields <= frozenset().union(*fed)


_KINDS = st.builds(
    lambda names, decode: PayloadKind(
        decode=decode if names else "text", fields=frozenset((name,) for name in names)
    ),
    st.sets(st.sampled_from("abcdef")),
    st.sampled_from(("json", "cbor")),
)


@given(st.lists(_KINDS, max_size=12))
def test_words_are_grouped_as_if_each_was_compared_with_each_group(
    kinds: list[PayloadKind],
) -> None:
    """Only some of the groups are looked at: those that have a rare field in common."""
    words = {f"{chr(97 + place)}x": kind for place, kind in enumerate(kinds)}
    groups: list[tuple[PayloadKind, list[str]]] = []
    for word, kind in words.items():
        for first, members in groups:
            if first.is_like(kind):
                members.append(word)
                break
        else:
            groups.append((kind, [word]))
    # Words below the first level vary from the second one on.
    found = find_structures({f"home/{word}/heat": kind for word, kind in words.items()})
    apart = {f"home/{members[0]}/heat" for _, members in groups if len(members) == 1}
    if any(len(members) > 1 for _, members in groups):
        assert "home/+/heat" in found
        assert set(found) <= {*apart, "home/+/heat"}
    else:
        assert set(found) == apart
