"""The versions of a schema: each change is kept, and a type that is wanted waits."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.clock import ManualClock
from siltstone.errors import NotFoundError, UsageError
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.pipeline.lake.fields import Field
from siltstone.pipeline.lake.rules import Rules, TableRule, load_rules
from siltstone.pipeline.lake.tables.versions import (
    VERSIONS_MAX,
    columns_by_table,
    differences,
    read_version,
    replace_rules,
    store_rules,
    version_numbers,
    want_type,
)

LAKE = PurePath("/lake")
FIELD = Field(path=("v",), column="v", kind="double")
RULE = TableRule(
    filter="a/+", table="a", levels=("a_1",), decode="json", learned=True, fields=(FIELD,)
)


def lake() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.make_directory(LAKE)
    return fs


def test_each_change_of_the_rules_is_a_version() -> None:
    fs, clock = lake(), ManualClock()
    store_rules(fs, LAKE, Rules([RULE]), clock)
    store_rules(fs, LAKE, Rules([RULE]), clock)
    more = Rules([RULE]).with_fields([("a/+", ("w",), "string")])
    store_rules(fs, LAKE, more, clock)
    assert version_numbers(fs, LAKE) == [1, 2]
    assert read_version(fs, LAKE, 1).rules.rules == (RULE,)
    assert read_version(fs, LAKE, 2).rules.to_json() == load_rules(fs, LAKE).to_json()
    with pytest.raises(NotFoundError, match=r"unknown version 3 of the schema \(found: 1 to 2\)"):
        read_version(fs, LAKE, 3)


def test_old_versions_are_removed() -> None:
    fs, clock = lake(), ManualClock()
    for _ in range(VERSIONS_MAX + 2):
        replace_rules(fs, LAKE, Rules([RULE]), clock)
    assert version_numbers(fs, LAKE) == list(range(3, VERSIONS_MAX + 3))


@pytest.mark.parametrize("operations", range(12))
def test_a_power_cut_leaves_the_rules_and_their_version(operations: int) -> None:
    fs, clock = lake(), ManualClock()
    replace_rules(fs, LAKE, Rules([RULE]), clock)
    wider = Rules([RULE]).with_fields([("a/+", ("w",), "string")])
    fs.operations_left = operations
    try:
        replace_rules(fs, LAKE, wider, clock)
    except PowerCut:
        fs = fs.crash_clone()
    rules = load_rules(fs, LAKE).to_json()
    assert rules in (Rules([RULE]).to_json(), wider.to_json())
    kept = [read_version(fs, LAKE, number).rules.to_json() for number in version_numbers(fs, LAKE)]
    assert rules in kept


def test_a_type_waits_until_its_table_is_rewritten() -> None:
    fs, clock = lake(), ManualClock()
    store_rules(fs, LAKE, Rules([RULE]), clock)
    assert want_type(fs, LAKE, clock, table="a", column="v", kind="string") == 2
    rules = load_rules(fs, LAKE)
    assert columns_by_table(rules) == {"a": {"v": "double, wanted string from v"}}
    store_rules(fs, LAKE, Rules([RULE]), clock)
    assert load_rules(fs, LAKE).to_json() == rules.to_json()
    assert rules.with_wanted(["b"]).to_json() == rules.to_json()
    assert columns_by_table(rules.with_wanted(["a"])) == {"a": {"v": "string from v"}}


@pytest.mark.parametrize(
    ("table", "column", "kind", "error", "sentence"),
    [
        ("a", "v", "int", UsageError, r"unknown type 'int' \(supported: double, "),
        ("b", "v", "string", NotFoundError, r"no rule has a table 'b' \(found: a\)"),
        ("a", "topic", "string", NotFoundError, r"table a has no column 'topic' of a field"),
    ],
)
def test_a_type_that_cannot_be_wanted_is_refused(
    table: str, column: str, kind: str, error: type[Exception], sentence: str
) -> None:
    fs, clock = lake(), ManualClock()
    store_rules(fs, LAKE, Rules([RULE]), clock)
    with pytest.raises(error, match=sentence):
        want_type(fs, LAKE, clock, table=table, column=column, kind=kind)
    assert version_numbers(fs, LAKE) == [1]


def test_differences_are_lines() -> None:
    one = {"a": {"v": "double from v", "x": "string from x"}, "old": {}}
    other = {"a": {"v": "string from v", "y": "boolean from y"}, "new": {"z": "double from z"}}
    assert differences(one, other) == [
        "- table old",
        "- a.x string from x",
        "~ a.v double from v -> string from v",
        "+ a.y boolean from y",
        "+ table new",
        "+ new.z double from z",
    ]
