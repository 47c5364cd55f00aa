from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.errors import UsageError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.pipeline.lake.fields import FIELDS_MAX, KINDS, Field, extended
from siltstone.pipeline.lake.names import Content, level_columns
from siltstone.pipeline.lake.payloads import DECODERS
from siltstone.pipeline.lake.rules import (
    PARTITIONS,
    RULES,
    Rules,
    TableRule,
    load_rules,
    read_rules,
    rules_from_json,
)

OVEN = TableRule(
    filter="plant/+/oven/+",
    table="plant_oven",
    levels=("plant", "oven"),
    decode="json",
    partition="hour",
    learned=True,
    fields=(Field(path=("a", 'b"'), column="a_b", kind="array<double>"),),
)
MINE = TableRule(filter="plant/7/#", table="mine", decode="text")
LAKE = PurePath("/")
ODD = "\x00\x01\t\n\r\x1f\"'\\/u[]{}=.\x7f\x80\x85\u2028\ufeff\uffff\U0001f600\U0010ffff"
CHARACTERS = st.one_of(st.sampled_from(ODD), st.characters(exclude_categories=["Cs"]))
LEVELS = st.text(CHARACTERS.filter(lambda character: character not in "+#/\0"), min_size=1)
FILTERS = st.lists(st.one_of(st.just("+"), LEVELS), min_size=1, max_size=4).map("/".join)
PATHS = st.lists(st.text(CHARACTERS), min_size=1, max_size=3).map(tuple)


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
    assert Rules([TableRule(filter="#", table="all")]).find("$SYS/x").table == "other"


def test_learned_rules_are_tried_words_first_and_wider_ones_replace_them() -> None:
    def rule(text: str) -> TableRule:
        levels = tuple(level_columns(text.split("/")))
        return TableRule(filter=text, table=text.replace("/", "_"), levels=levels, learned=True)

    there = Rules([rule("plant/a/temp"), rule("plant/b/temp"), rule("old/+"), MINE])
    later = Rules([MINE, rule("plant/+/temp"), rule("plant/c/temp"), rule("$S/+")])
    assert [rule.filter for rule in there.merged(later).rules] == [
        "plant/7/#",
        "plant/c/temp",
        "$S/+",
        "old/+",
        "plant/+/temp",
    ]
    assert [rule.filter for rule in there.kept().merged(later).rules] == [
        *("plant/7/#", "plant/a/temp", "plant/b/temp", "old/+"),
        *("plant/c/temp", "$S/+", "plant/+/temp"),
    ]


def test_the_file_says_what_the_rules_are() -> None:
    rules = Rules([MINE, OVEN])
    assert read_rules(rules.to_toml(), "rules.toml").to_json() == rules.to_json()
    assert rules_from_json(rules.to_json(), "ledger").to_json() == rules.to_json()


@st.composite
def any_rules(draw: st.DrawFn) -> Rules:
    rules: list[TableRule] = []
    for number, text in enumerate(draw(st.lists(FILTERS, max_size=3, unique=True))):
        rule = TableRule(
            filter=text,
            table=f"t{number}",
            levels=tuple(level_columns(text.split("/"))),
            decode=draw(st.sampled_from(DECODERS)),
            partition=draw(st.sampled_from(PARTITIONS)),
            learned=draw(st.booleans()),
        )
        found = draw(st.lists(st.tuples(PATHS, st.sampled_from(sorted(KINDS))), max_size=3))
        rules.append(replace(rule, fields=extended((), found, rule.taken())))
    return Rules(rules)


def lake_with(data: bytes) -> MemoryFileSystem:
    fs = MemoryFileSystem()
    with fs.create(LAKE / RULES) as file:
        file.write(data)
    return fs


@given(any_rules())
def test_any_rules_survive_a_write_and_a_read(rules: Rules) -> None:
    text = rules.to_toml()
    assert [value["filter"] for value in tomllib.loads(text).get("rule", [])] == [
        rule.filter for rule in rules.rules
    ]
    assert load_rules(lake_with(text.encode()), LAKE).to_json() == rules.to_json()


def test_a_lake_has_no_rules_before_its_first_batch() -> None:
    assert load_rules(MemoryFileSystem(), LAKE).rules == ()


def test_a_file_that_is_no_text_is_refused() -> None:
    with pytest.raises(UsageError, match=r"invalid TOML in /rules.toml: .*can't decode byte 0xff"):
        load_rules(lake_with(b"\xff"), LAKE)


def test_a_file_that_has_characters_in_halves_is_read_as_it_was_meant() -> None:
    path = ("\U0001f600", r"a\ud83d\ude00", "\\\U0010ffff", "\u00e4")
    rule = TableRule(
        filter="\U0001f600/x",
        table="t",
        decode="json",
        fields=(Field(path=path, column="c", kind="double"),),
    )
    # As it was once written: every string as JSON has it.
    halves = f"""
        [[rule]]
        filter = {json.dumps(rule.filter)}
        table = "t"
        decode = "json"
        fields = [{{ path = {json.dumps(path)}, column = "c", type = "double" }}]
    """
    assert r"\ud83d\ude00" in halves
    assert read_rules(halves, "rules.toml").rules == (rule,)


def test_levels_and_columns_need_not_be_written() -> None:
    text = """
        [[rule]]
        filter = "a/+"
        table = "a"
        fields = [{ path = "x", type = "double" }]
    """
    (rule,) = read_rules(text, "rules.toml").rules
    assert rule == TableRule(
        filter="a/+",
        table="a",
        levels=("a",),
        fields=(Field(path=("x",), column="x", kind="double"),),
    )


def test_what_users_wrote_stays_and_what_was_learned_is_added() -> None:
    edited = Rules([TableRule(filter="plant/+/oven/+", table="mine", levels=("site", "oven"))])
    merged = edited.merged(Rules([OVEN, TableRule(filter="x", table="x", learned=True)]))
    assert merged.to_json() == [
        edited.rules[0].to_json() | {"fields": OVEN.to_json()["fields"]},
        TableRule(filter="x", table="x", learned=True).to_json(),
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rule = 1", "must have [[rule]] and [[lake.table]] tables only"),
        ("[rule", "invalid TOML in"),
        ("other = 1", "tables only"),
        (r'x = ["\ud83d\ude00", "\ud83d"]', "invalid TOML in"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_rules(text, "rules.toml")
    assert sentence in str(caught.value)
    assert "rules.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"colour": 1}, "rule 1: unknown key 'colour' (supported: decode, drift, fields"),
        ({"filter": "a/#/b"}, "# must be the last level, alone"),
        (
            {"table": "no name"},
            "the name of a table must have letters, digits and _ only: table='no name'",
        ),
        ({"table": "dead_letter"}, "table='dead_letter'"),
        ({"table": "Dead_Letter"}, "table='Dead_Letter'"),
        ({"decode": "xml"}, "decode must be one of json, cbor, msgpack, text, raw, auto: 'xml'"),
        ({"partition": "week"}, "partition must be one of day, hour: 'week'"),
        ({"levels": []}, "levels must have one name for each + of 'a/+'"),
        ({"levels": ["topic"]}, "the name of the column is in use already: column='topic'"),
        (
            {"levels": ["a b"]},
            "the name of a column must have letters, digits and _ only: column='a b'",
        ),
        ({"fields": [{"path": []}]}, 'a field must have a path such as path = ["a", "b"], got'),
        ({"fields": [{"path": "x", "type": "blob"}]}, "the type of a field must be one of double"),
        (
            {"decode": "text", "fields": [{"path": "x", "column": "TEXT", "type": "string"}]},
            "the name of the column is in use already: column='text'",
        ),
    ],
)
def test_a_rule_that_cannot_work_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        rules_from_json([{"filter": "a/+", "table": "a"} | changes], "rules.toml")
    assert sentence in str(caught.value)


def test_two_rules_for_one_filter_are_refused() -> None:
    with pytest.raises(UsageError, match="must not have two rules for one filter: filter='x'"):
        rules_from_json([{"filter": "x", "table": "a"}, {"filter": "x", "table": "b"}], "f")


def test_a_rule_that_users_wrote_stands_for_the_learned_one_of_its_filter() -> None:
    mine: dict[str, Any] = {"filter": "a/+", "table": "mine", "levels": ["site"]}
    learned: dict[str, Any] = {"filter": "a/+", "table": "a", "learned": True}
    for values in ([mine, learned], [learned, mine]):
        (rule,) = rules_from_json(values, "rules.toml").rules
        assert rule == TableRule(filter="a/+", table="mine", levels=("site",))
    with pytest.raises(UsageError, match=r"must not have two rules for one filter: filter='a/\+'"):
        rules_from_json([learned, learned], "rules.toml")


def test_tables_that_differ_by_case_alone_are_refused() -> None:
    rules = Rules([TableRule(filter="a", table="Oven"), TableRule(filter="b", table="oven")])
    with pytest.raises(UsageError, match=r"upper and lower case; .* 'Oven' and 'oven'"):
        read_rules(rules.to_toml(), "rules.toml")
    with pytest.raises(UsageError, match=r"upper and lower case; .* 'other' and 'Other'"):
        read_rules(Rules([TableRule(filter="a", table="Other")]).to_toml(), "rules.toml")


@pytest.mark.parametrize(
    ("there", "sentence"),
    [
        (
            {"plant_oven": "windows"},
            "than plant_oven for 'plant/+/oven/+': it contains windows of a rollup",
        ),
        (
            {"plant_oven": "other"},
            "than plant_oven for 'plant/+/oven/+': it contains data of another program",
        ),
        (
            {"Plant_Oven": "rows"},
            "than plant_oven for 'plant/+/oven/+': a table is called Plant_Oven",
        ),
    ],
)
def test_a_rule_needs_a_table_for_rows(there: dict[str, Content], sentence: str) -> None:
    Rules([OVEN]).refuse_tables({"plant_oven": "rows", "x": "windows"}, "messages")
    with pytest.raises(UsageError) as caught:
        Rules([OVEN]).refuse_tables(there, "messages")
    assert str(caught.value) == (f"rules.toml: choose another table {sentence}")


def test_a_new_table_is_not_called_like_the_database_and_one_that_is_goes_on() -> None:
    rules = Rules([TableRule(filter="m", table="Messages")])
    with pytest.raises(UsageError, match="than Messages for 'm': it is the name of the database"):
        rules.refuse_tables({}, "messages")
    rules.refuse_tables({"Messages": "rows"}, "messages")


def test_found_fields_are_added_until_a_rule_is_full() -> None:
    rules = Rules([MINE, OVEN])
    found = [(OVEN.filter, (f"f{number}",), "double") for number in range(FIELDS_MAX)]
    few, full = rules.with_fields(found[:1]), rules.with_fields(found)
    new = Field(path=("f0",), column="f0", kind="double")
    assert few.rules == (MINE, replace(OVEN, fields=(*OVEN.fields, new)))
    assert [(len(rule.fields), rule.is_full) for rule in few.rules] == [(0, False), (2, False)]
    assert [(len(rule.fields), rule.is_full) for rule in full.rules] == [
        (0, False),
        (FIELDS_MAX, True),
    ]
    assert full.with_fields([(OVEN.filter, ("one", "more"), "double")]).rules == full.rules


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
    assert Rules([TableRule(filter=wide, table="t", levels=levels)]).has(narrow) is covered


def test_a_rule_is_changed_by_its_filter() -> None:
    changed = Rules([MINE, OVEN]).changed(TableRule(filter="plant/7/#", table="other_name"))
    assert tables(changed) == [("plant/7/#", "other_name"), ("plant/+/oven/+", "plant_oven")]


def test_a_table_by_hand_is_a_rule_and_is_checked() -> None:
    text = '[[lake.table]]\nfilter = "a/+/#"\nname = "a"\n'
    rule = TableRule(filter="a/+/#", table="a", levels=("a",), decode="auto")
    assert read_rules(text, "rules.toml").rules == (rule,)
    for wrong in ("lake = 1", "[lake]\nother = 1", text.replace("a/+/#", "a/#/b")):
        with pytest.raises(UsageError, match=r"rules\.toml"):
            read_rules(wrong, "rules.toml")
