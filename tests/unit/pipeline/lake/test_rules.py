from __future__ import annotations

from typing import Any

import pytest

from siltstone.errors import UsageError
from siltstone.pipeline.lake.fields import Field
from siltstone.pipeline.lake.rules import Rule, Rules, read_rules, rules_from_json

OVEN = Rule(
    filter="plant/+/oven/+",
    table="plant_oven",
    levels=("plant", "oven"),
    decode="json",
    partition="hour",
    learned=True,
    fields=(Field(path=("a", 'b"'), column="a_b", kind="array<double>"),),
)
MINE = Rule(filter="plant/7/#", table="mine", decode="text")


def tables(rules: Rules) -> list[tuple[str, str]]:
    return [(rule.filter, rule.table) for rule in rules.rules]


def test_the_first_rule_that_matches_holds_and_users_come_first() -> None:
    rules = Rules([OVEN, MINE])
    assert [rules.find(topic).table for topic in ("plant/1/oven/2", "plant/7/oven/2", "x")] == [
        "plant_oven",
        "mine",
        "other",
    ]


def test_a_topic_that_begins_with_a_dollar_is_not_meant_by_a_wildcard() -> None:
    assert Rules([Rule(filter="#", table="all")]).find("$SYS/x").table == "other"


def test_learned_structures_get_rules_wide_ones_before_what_they_cover() -> None:
    rules = Rules([MINE]).with_patterns(["plant/1/temp"], "day")
    rules = rules.with_patterns(["plant/+/temp", "plant/2/temp", "plant/7/temp", "$S/+"], "day")
    assert tables(rules) == [
        ("plant/7/#", "mine"),
        ("plant/+/temp", "plant_temp"),
        ("plant/1/temp", "plant_n1_temp"),
        ("$S/+", "s"),
    ]
    assert rules.covers("plant/3/temp")
    assert not rules.covers("plant/+/+")
    assert rules.with_patterns(["plant/9/temp"], "day").to_json() == rules.to_json()


def test_the_file_says_what_the_rules_are() -> None:
    rules = Rules([MINE, OVEN])
    assert read_rules(rules.to_toml(), "rules.toml").to_json() == rules.to_json()
    assert rules_from_json(rules.to_json(), "ledger").to_json() == rules.to_json()


def test_levels_and_columns_need_not_be_written() -> None:
    text = """
        [[rule]]
        filter = "a/+"
        table = "a"
        fields = [{ path = "x", type = "double" }]
    """
    (rule,) = read_rules(text, "rules.toml").rules
    assert rule == Rule(
        filter="a/+",
        table="a",
        levels=("a",),
        fields=(Field(path=("x",), column="x", kind="double"),),
    )


def test_what_users_wrote_stays_and_what_was_learned_is_added() -> None:
    edited = Rules([Rule(filter="plant/+/oven/+", table="mine", levels=("site", "oven"))])
    merged = edited.merged(Rules([OVEN, Rule(filter="x", table="x", learned=True)]))
    assert merged.to_json() == [
        edited.rules[0].to_json() | {"fields": OVEN.to_json()["fields"]},
        Rule(filter="x", table="x", learned=True).to_json(),
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rule = 1", "holds [[rule]] tables and nothing else"),
        ("[rule", "is no TOML"),
        ("other = 1", "nothing else"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_rules(text, "rules.toml")
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("rules.toml")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"colour": 1}, "rule 1 has 'colour'; there are decode, fields"),
        ({"filter": "a/#/b"}, "# must be the whole of the last level"),
        ({"table": "no name"}, "a table's name has letters, digits and _: table='no name'"),
        ({"table": "dead_letter"}, "table='dead_letter'"),
        ({"decode": "xml"}, "decode must be one of json, cbor, msgpack, text, raw: 'xml'"),
        ({"partition": "week"}, "partition must be one of day, hour: 'week'"),
        ({"levels": []}, "levels must have a name for each + of 'a/+'"),
        ({"levels": ["topic"]}, "the name of a column is taken: column='topic'"),
        ({"levels": ["a b"]}, "a column has letters, digits and _: column='a b'"),
        ({"fields": [{"path": []}]}, "a field has a path"),
        ({"fields": [{"path": "x", "type": "blob"}]}, "the type of a field must be one of double"),
        (
            {"decode": "text", "fields": [{"path": "x", "column": "TEXT", "type": "string"}]},
            "the name of a column is taken: column='text'",
        ),
    ],
)
def test_a_rule_that_cannot_work_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        rules_from_json([{"filter": "a/+", "table": "a"} | changes], "rules.toml")
    assert sentence in str(caught.value)


def test_two_rules_for_one_filter_are_refused() -> None:
    with pytest.raises(UsageError, match="has two rules for one filter: filter='x'"):
        rules_from_json([{"filter": "x", "table": "a"}, {"filter": "x", "table": "b"}], "f")


@pytest.mark.parametrize(
    ("wide", "narrow", "covered"),
    [
        ("a/#", "a", True),
        ("a/#", "a/+/b", True),
        ("a/b/#", "a", False),
        ("+/x", "$s/x", False),
        ("a/+", "a/b/c", False),
        ("a/b", "a/+", False),
    ],
)
def test_a_filter_covers_a_structure_when_it_matches_all_its_topics(
    wide: str, narrow: str, covered: bool
) -> None:
    levels = tuple(f"c{number}" for number in range(wide.split("/").count("+")))
    assert Rules([Rule(filter=wide, table="t", levels=levels)]).covers(narrow) is covered


def test_a_rule_is_changed_by_its_filter() -> None:
    changed = Rules([MINE, OVEN]).changed(Rule(filter="plant/7/#", table="other_name"))
    assert tables(changed) == [("plant/7/#", "other_name"), ("plant/+/oven/+", "plant_oven")]
