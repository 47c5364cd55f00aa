from __future__ import annotations

import json
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from siltstone.pipeline.lake.fields import FIELDS_MAX, Field
from siltstone.pipeline.lake.files import (
    MadeFile,
    WriteTask,
    Written,
    by_table,
    rows_in,
    rule_schema,
    write_portion,
)
from siltstone.pipeline.lake.rules import TableRule
from siltstone.scan.survey import plan_batch
from siltstone.store.log.read.pieces import Row
from tests.support.builders import NOW_US, World
from tests.support.pipeline import options_of

LAKE = PurePath("/data/lake/messages")
RULE = TableRule(
    filter="plant/+/+",
    table="plant",
    levels=("plant", "sensor"),
    decode="json",
    fields=(Field(path=("v",), column="v", kind="double"),),
)
HOUR = 3600
# From the clock's first moment to the end of its day.
TO_MIDNIGHT = 86_400 - NOW_US // 1_000_000 % 86_400


def written(world: World, *rules: TableRule, **changes: Any) -> Written:
    options = options_of(filters=())
    with world.reader() as database:
        (portion,) = plan_batch(database, options).partitions
    task = WriteTask(portion=portion, options=options, rules=rules, lake=str(LAKE), batch=3)
    return write_portion(replace(task, **changes), world.fs)


def content(world: World, file: MadeFile) -> pa.Table:
    data = world.fs.read(LAKE / file.table / file.path)
    assert len(data) == file.size_bytes
    return pq.read_table(pa.BufferReader(data))


def a_world(*rows: Row) -> World:
    world = World()
    with world.database() as database:
        database.append(rows).wait()
    return world


def test_rows_go_to_the_tables_of_their_rules_with_columns() -> None:
    world = a_world(
        Row("plant/b/t", b'{"v": 1}'),
        Row("plant/a/t", b'{"v": 2}'),
        Row("plant/b/t", b"x"),
        Row("$SYS/x", b"y"),
    )
    found = written(world, RULE)
    assert (rows_in(found.files), found.slabs, found.found) == (4, {"0/1": 4}, ())
    tables = by_table(found.files)
    assert sorted(tables) == ["dead_letter", "other", "plant"]
    ((plant,), (dead,), (other,)) = (tables[name] for name in ("plant", "dead_letter", "other"))
    rows = content(world, plant)
    assert rows.schema == rule_schema(RULE)
    assert rows.select(["topic", "plant", "sensor", "v"]).to_pylist() == [
        {"topic": "plant/a/t", "plant": "a", "sensor": "t", "v": 2.0},
        {"topic": "plant/b/t", "plant": "b", "sensor": "t", "v": 1.0},
    ]
    assert content(world, dead).select(["payload", "table", "reason"]).to_pylist() == [
        {
            "payload": b"x",
            "table": "plant",
            "reason": "not json: Expecting value: line 1 column 1 (char 0)",
        }
    ]
    assert content(world, other).column("topic").to_pylist() == ["$SYS/x"]
    assert plant.path.startswith("date=2023-11-14/00000003-")
    assert plant.partition == {"date": "2023-11-14"}


def test_delta_is_told_what_a_file_holds() -> None:
    world = a_world(Row("plant/b/t", b'{"v": 1}'), Row("plant/a/" + "t" * 70, b'{"v": null}'))
    (file,) = written(world, RULE).files
    stats = json.loads(file.stats)
    assert stats["numRecords"] == 2
    names = ("timestamp", "serial", "v", "plant", "topic", "payload")
    assert [stats["minValues"].get(name) for name in names] == [
        "2023-11-14T22:13:20.000000Z",
        0,
        1.0,
        "a",
        None,
        None,
    ]
    assert [stats["maxValues"].get(name) for name in names] == [
        "2023-11-14T22:13:20.000001Z",
        1,
        1.0,
        "b",
        None,
        None,
    ]
    assert stats["nullCount"]["v"] == 1


def test_each_day_or_hour_has_a_directory_of_its_own() -> None:
    world = World()
    with world.database() as database:
        for seconds in (0, TO_MIDNIGHT, HOUR):
            world.clock.advance(seconds)
            database.append([Row("plant/a/t", b"{}")]).wait()
    days = written(world, RULE).files
    assert [file.partition["date"] for file in days] == ["2023-11-14", "2023-11-15"]
    assert [file.rows for file in days] == [1, 2]
    hours = written(world, replace(RULE, partition="hour")).files
    assert [file.partition for file in hours] == [
        {"date": "2023-11-14", "hour": "22"},
        {"date": "2023-11-15", "hour": "0"},
        {"date": "2023-11-15", "hour": "1"},
    ]
    assert hours[1].path.startswith("date=2023-11-15/hour=0/00000003-")


def test_fields_that_no_rule_names_are_told_before_anything_is_written() -> None:
    world = a_world(Row("plant/a/t", b'{"v": 1, "w": "x"}'), Row("other", b"y"))
    found = written(world, RULE)
    assert found.found == (("plant/+/+", ("w",), "string"),)
    assert [file.table for file in found.files] == ["other"]
    settled = written(world, RULE, settled=True)
    assert sorted(file.table for file in settled.files) == ["other", "plant"]


def test_tables_that_have_their_files_and_rules_that_are_not_meant_are_left_out() -> None:
    world = a_world(Row("plant/a/t", b"{}"), Row("plant/a/u", b"x"), Row("other", b"y"))

    def tables(**changes: Any) -> list[str]:
        return sorted(file.table for file in written(world, RULE, **changes).files)

    assert tables(skip=frozenset({"plant"})) == ["dead_letter", "other"]
    assert tables(skip=frozenset({"dead_letter", "other"})) == ["plant"]
    assert tables(only=frozenset({"#"})) == ["other"]
    assert written(world, RULE, skip=frozenset({"plant"})).slabs == {"0/1": 3}


def test_every_row_has_the_words_of_its_topic() -> None:
    topics = ["plant/b/t", "x", "plant/a/t", "/", "plant/b/t", "a//ü"]
    world = a_world(*(Row(topic, b"no document") for topic in topics))
    found = written(world, RULE)
    assert sorted(file.table for file in found.files) == ["dead_letter", "other"]
    for file in found.files:
        rows = content(world, file).select(["topic", "levels"]).to_pylist()
        assert rows == [
            {"topic": topic, "levels": topic.split("/")}
            for topic in sorted(topics)
            if topic.startswith("plant") == (file.table == "dead_letter")
        ]


def test_fields_that_a_full_rule_has_no_column_for_stay_in_the_payload_and_are_told() -> None:
    world = a_world(Row("plant/a/t", b'{"v": 1, "new": {"x": 2}, "f1": 3}'))
    more = (
        Field(path=(f"f{number}",), column=f"f{number}", kind="double")
        for number in range(FIELDS_MAX - 1)
    )
    found = written(world, replace(RULE, fields=(*RULE.fields, *more)))
    assert (found.found, found.left_out) == ((), (("plant", ("new", "x")),))
    assert content(world, found.files[0]).select(["v", "f0", "f1"]).to_pylist() == [
        {"v": 1.0, "f0": None, "f1": 3.0}
    ]


def test_the_files_of_some_rules_can_be_left_out() -> None:
    found = written(a_world(Row("plant/a/t", b"{}"), Row("plant/b/t", b"x"), Row("x", b"y")), RULE)
    assert sorted(by_table(found.files)) == ["dead_letter", "other", "plant"]
    assert sorted(by_table(found.without(frozenset({RULE.filter})).files)) == ["other"]
