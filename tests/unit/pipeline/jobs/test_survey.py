"""The rules that the topics of a batch get."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa

from siltstone.pipeline.jobs.survey import RULE_SAMPLE, TOPIC_SAMPLE, Customs, survey
from siltstone.pipeline.lake.fields import Field
from siltstone.pipeline.lake.rules import Rules, TableRule

PLAIN = Customs(decode={}, partition="day")


def rows(*topics: str, **fields: Any) -> pa.RecordBatch:
    payload = json.dumps(fields).encode() if fields else b"text"
    return pa.record_batch({"topic": list(topics), "payload": pa.array([payload] * len(topics))})


def tables(rules: Rules) -> list[tuple[str, str]]:
    return [(rule.filter, rule.table) for rule in rules.rules]


def test_each_topic_gets_a_rule_with_the_fields_of_its_first_payloads() -> None:
    rules = survey([rows("plant/7/heat", v=1, at="x"), rows("note")], Rules(), PLAIN)
    assert rules.rules == (
        TableRule(filter="note", table="note", decode="text", learned=True),
        TableRule(
            filter="plant/+/heat",
            table="plant_heat",
            levels=("plant",),
            decode="json",
            learned=True,
            fields=(
                Field(path=("v",), column="v", kind="double"),
                Field(path=("at",), column="at", kind="string"),
            ),
        ),
    )


def test_topics_of_a_rule_by_hand_are_not_learned() -> None:
    mine = TableRule(filter="plant/#", table="mine")
    assert survey([rows("plant/7/heat", "plant/8")], Rules([mine]), PLAIN).rules == (mine,)


def test_a_wider_rule_takes_the_place_and_the_fields_of_those_that_it_covers() -> None:
    first = survey([rows("home/bath/heat", v=1, u="C")], Rules(), PLAIN)
    both = survey([rows("home/hall/heat", v="high", u="C", w=2)], first, PLAIN)
    assert tables(both) == [("home/+/heat", "home_heat")]
    assert [(field.column, field.kind) for field in both.rules[0].fields] == [
        ("v", "double"),
        ("u", "string"),
        ("w", "double"),
    ]


def test_a_field_with_two_types_in_joined_rules_holds_both() -> None:
    first = survey([rows("home/bath/heat", v=1, u="C")], Rules(), PLAIN)
    first = survey([rows("home/hall/light", v="high", u="C")], first, PLAIN)
    both = survey([rows("home/hall/heat", "home/bath/light", v=1, u="C")], first, PLAIN)
    assert [
        (rule.filter, [(field.column, field.kind) for field in rule.fields]) for rule in both.rules
    ] == [
        ("home/+/heat", [("v", "double"), ("u", "string")]),
        ("home/+/light", [("v", "string"), ("u", "string")]),
    ]


def test_tables_get_names_that_are_not_taken() -> None:
    customs = Customs(decode={}, partition="hour", taken=["messages", "A_1m"])
    rules = survey([rows("messages/1", "a/1m")], Rules(), customs)
    assert tables(rules) == [("a/1m", "a_n1m"), ("messages/+", "messages_2")]
    assert {rule.partition for rule in rules.rules} == {"hour"}


def test_a_decoder_of_the_user_is_taken() -> None:
    customs = Customs(decode={"plant/#": "raw"}, partition="day")
    rules = survey([rows("plant/7", "x", v=1)], Rules(), customs)
    assert [(rule.table, rule.decode) for rule in rules.rules] == [("x", "json"), ("plant", "raw")]


def test_only_the_first_payloads_are_looked_at() -> None:
    topics = [f"plant/{number}" for number in range(2 * RULE_SAMPLE)] * (TOPIC_SAMPLE + 1)
    payloads = [b'{"v": 1}'] * (len(topics) - 1) + [b'{"late": 1}']
    batch = pa.record_batch({"topic": topics, "payload": payloads})
    (rule,) = survey([batch], Rules(), PLAIN).rules
    assert [field.column for field in rule.fields] == ["v"]


def test_a_wider_rule_keeps_what_a_user_has_chosen_for_values_that_do_not_fit() -> None:
    first = survey([rows("home/bath/heat", v=1)], Rules(), PLAIN)
    evolving = Rules(replace(rule, drift="evolve") for rule in first.rules)
    (both,) = survey([rows("home/hall/heat", v=1)], evolving, PLAIN).rules
    assert (both.filter, both.drift) == ("home/+/heat", "evolve")
