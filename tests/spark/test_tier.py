"""The store as tables of the lake: what they look like, who reads them, and what `table` gives."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

import siltstone
from siltstone.errors import (
    CorruptionError,
    LockedError,
    NotFoundError,
    SlabDroppedError,
    UsageError,
)
from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline import lake_table, lake_tables, table
from siltstone.pipeline.jobs.audit import audit
from siltstone.pipeline.jobs.tier import report_of, tier
from siltstone.pipeline.jobs.upkeep import compact_lake, describe_lake, vacuum_lake
from siltstone.pipeline.lake.delta import ensure_table
from siltstone.pipeline.lake.fields import FIELDS_MAX
from siltstone.pipeline.lake.files import partition_schema
from siltstone.pipeline.lake.names import WINDOW_COLUMNS
from siltstone.pipeline.lake.rules import read_rules
from siltstone.pipeline.spark.hints import FullScanWarning
from siltstone.pipeline.sql import make_views, run
from siltstone.scan.columns.schema import COLUMNS
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from tests.support.builders import settings_of
from tests.support.lake import lake_of, read_table, tables_of, tier_all, tiered_rows, tiering
from tests.support.pipeline import by_place, plain, stored_rows

# The second and the last level of `reading` vary from the first topic on.
VARYING = (100, 0, 10, 0)


def rows_from(spark: SparkSession, path: str | Path, **asked: Any) -> list[Any]:
    """Return what `table` gives, by place."""
    found = table(spark, str(path), **asked).toArrow().select(COLUMNS).combine_chunks()
    return by_place(row for batch in found.to_batches() for row in plain(batch))


def reading(number: int, **more: Any) -> Row:
    document = {"value": number / 2, "unit": "C", "at": {"x": number}} | more
    return Row(f"plant/{number % 40}/oven/{number % 30}", json.dumps(document).encode(), "p")


def test_any_reader_of_delta_reads_the_tables(
    spark: SparkSession, database: Database, path: str
) -> None:
    database.append([reading(number) for number in range(300)]).wait()
    database.append([Row("plant/1/oven/1", b"no document"), Row("$SYS/x", b"text")]).wait()
    database.seal()
    database.append([reading(1, extra=True)]).wait()
    report = tier(spark, path)
    assert (report.rows, report.dead, report.tables) == (
        303,
        1,
        {"dead_letter": 1, "plant_oven": 301, "sys_x": 1},
    )
    place = str(lake_of(path) / "plant_oven")
    rows = DeltaTable(place).to_pyarrow_table()
    columns = ["plant", "oven", "value", "unit", "at_x", "extra", "_rescued", "date"]
    assert rows.column_names[-8:] == columns
    one = [row for row in rows.to_pylist() if row["extra"]]
    assert [{name: row[name] for name in columns[:-1]} for row in one] == [
        {
            "plant": "1",
            "oven": "1",
            "value": 0.5,
            "unit": "C",
            "at_x": 1.0,
            "extra": True,
            "_rescued": None,
        }
    ]
    assert one[0]["date"] == one[0]["timestamp"].date()
    dataset = DeltaTable(place).to_pyarrow_dataset()  # noqa: F841 - DuckDB finds it by its name
    expected = (301, sum(number / 2 for number in range(300)) + 0.5)
    asked = duckdb.sql("SELECT count(*), sum(value) FROM dataset")
    assert asked is not None
    assert asked.fetchall() == [expected]
    frame = pl.scan_delta(place).select(pl.len(), pl.col("value").sum()).collect()
    assert frame.rows() == [expected]
    (dead,) = DeltaTable(str(lake_of(path) / "dead_letter")).to_pyarrow_table().to_pylist()
    assert (dead["payload"], dead["table"]) == (b"no document", "plant_oven")
    assert dead["reason"].startswith("not json: Expecting value")
    assert [
        row.plant for row in lake_table(spark, path, "plant_oven").where("extra").collect()
    ] == ["1"]
    assert lake_tables(path) == ["dead_letter", "plant_oven", "sys_x"]
    with pytest.raises(
        NotFoundError, match=r"unknown table 'nothing' in .* .found: dead_letter, pl"
    ):
        lake_table(spark, path, "nothing")


def test_rows_come_once_from_lake_and_store_wherever_the_seam_is(
    spark: SparkSession, database: Database, path: str
) -> None:
    database.append([reading(number) for number in range(60)]).wait()
    middle = datetime.fromtimestamp(stored_rows(database, ["#"])[30]["timestamp"] / 1e6, UTC)
    with tiering(path, rows_per_batch=25) as job:
        for _ in range(3):
            job.step()
            database.append([Row("plant/1/oven/1", b"x"), Row("other", b"y")]).wait()
            assert rows_from(spark, path) == stored_rows(database, ["#"])
    filters = ["plant/1/#", "+/+/oven/2", "other"]
    assert rows_from(spark, path, filter=filters) == stored_rows(database, filters)
    middle_us = round(middle.timestamp() * 1_000_000)
    assert rows_from(spark, path, since=middle) == stored_rows(database, ["#"], since_us=middle_us)
    assert rows_from(spark, path, until=middle.isoformat()) == stored_rows(
        database, ["#"], until_us=middle_us
    )
    narrow = table(spark, path, filter="plant/2/#", columns=["levels", "serial"])
    assert narrow.columns == ["levels", "serial"]
    assert sorted(row.serial for row in narrow.collect()) == sorted(
        row["serial"] for row in stored_rows(database, ["plant/2/#"])
    )
    with pytest.raises(UsageError, match="unknown column nothing"):
        table(spark, path, columns=["nothing"])


def test_a_condition_that_an_option_would_replace_is_said(
    spark: SparkSession, database: Database, path: str
) -> None:
    database.append([reading(number) for number in range(100)]).wait()
    rows = table(spark, path)
    with pytest.warns(FullScanWarning, match="a condition on topic .*parameter filter of table"):
        one = rows.where("topic = 'plant/1/oven/1'")
    with pytest.warns(FullScanWarning, match="a condition on timestamp .*parameter since or until"):
        rows.filter(F.col("timestamp") > "2020-01-01")
    # Warnings are errors, so there are none from here on.
    limited = table(spark, path, filter="plant/1/#", since="2020-01-01")
    same = limited.where("topic = 'plant/1/oven/1'").where("timestamp > '2020-01-01'")
    assert (one.count(), same.count(), rows.where("qos = 0").count()) == (1, 1, 100)
    tier_all(path)
    assert table(spark, path).where("topic = 'plant/1/oven/1'").count() == 1


def test_files_without_levels_have_them_all_the_same(
    spark: SparkSession, database: Database, path: str
) -> None:
    database.append([reading(number) for number in range(20)]).wait()
    tier_all(path)
    database.append([reading(number) for number in range(20, 40)]).wait()
    older = list(lake_of(path).rglob("*.parquet"))
    tier_all(path)
    for file in older:
        rows = pq.ParquetFile(file).read()
        pq.write_table(rows.drop_columns(["levels"]), file)
    assert rows_from(spark, path) == stored_rows(database, ["#"])


def test_what_is_in_the_lake_may_be_dropped_and_is_read_on(
    spark: SparkSession, database: Database, path: str, tmp_path: Path
) -> None:
    database.append([reading(number) for number in range(50)]).wait()
    database.seal()
    database.append([reading(number) for number in range(50, 60)]).wait()
    before = stored_rows(database, ["#"])
    # A slab that is not in the lake is kept, however old it is, once the database is tiered.
    with tiering(path, rows_per_batch=20) as job:
        job.step()
        # A retention alone also rotates in the background, which would drop a slab under a query.
        database.configure(retain_seconds=0.000001, rotate_seconds=3600.0)
        assert database.enforce_retention() == []
    tier_all(path)
    assert {str(slab) for slab in database.enforce_retention()} == {"0/1", "1/1"}
    assert [info.state for info in database.slabs()] == ["current", "current"]
    assert rows_from(spark, path) == before
    compact_lake(path)
    database.append([reading(61)]).wait()
    assert rows_from(spark, path, filter="plant/#") == by_place(
        [*before, *stored_rows(database, ["plant/21/#"])[-1:]]
    )
    report = audit(spark, path)
    assert report.is_sound
    assert sum(slab.tiered for slab in report.slabs) == 60
    assert [(slab.stored, slab.waiting) for slab in report.slabs if slab.waiting] == [
        (report.slabs[-1].stored, 1)
    ]


def test_an_audit_finds_what_is_missing_double_and_different(
    spark: SparkSession, database: Database, path: str
) -> None:
    database.append([Row("abcdefghi"[number], b"%d" % number) for number in range(9)]).wait()
    tier_all(path, rows_per_batch=3)
    place = lake_of(path)
    names = sorted(item.name for item in place.iterdir() if (item / "_delta_log").is_dir())
    lost, doubled = DeltaTable(str(place / names[0])), DeltaTable(str(place / names[1]))
    lost.delete()
    write_deltalake(str(place / names[1]), doubled.to_pyarrow_table(), mode="append")
    report = audit(spark, path)
    assert not report.is_sound
    told = report.to_json()
    assert (told["missing"], told["duplicates"]) == (1, 1)
    assert sum(slab.differs for slab in report.slabs) >= 1


def test_files_are_put_together_and_old_ones_go(
    spark: SparkSession, database: Database, path: str
) -> None:
    database.configure(thresholds=VARYING)
    for number in range(3):
        database.append([reading(item) for item in range(number * 10, number * 10 + 10)]).wait()
        tier_all(path)
    before = rows_from(spark, path)
    assert describe_lake(path)[0].files >= 3
    (done,) = compact_lake(path)
    assert (done.table, done.files_added) == ("plant_oven", 1)
    removed = vacuum_lake(path, hours=0)
    assert len(removed["plant_oven"]) == done.files_removed
    assert rows_from(spark, path) == before == stored_rows(database, ["#"])
    with (
        tiering(path),
        pytest.raises(LockedError, match="another process runs tier or rollup on"),
        tiering(path),
    ):
        pass


def test_rows_that_were_dropped_before_they_were_tiered_are_said(
    database: Database, path: str
) -> None:
    database.append([Row("a", b"1")]).wait()
    tier_all(path)
    database.append([Row("a", b"2")]).wait()
    database.seal()
    for info in database.slabs():
        if info.state == "sealed" and info.rows:
            database.drop_slab(info.slab)
    database.append([Row("a", b"3")]).wait()
    with pytest.raises(
        SlabDroppedError, match="the query needs rows that are not in the store"
    ) as caught:
        tier_all(path)
    assert str(caught.value).endswith(
        "; tier with --ignore-loss, or fails_on_loss=False, to skip them"
    )
    assert tier_all(path, fails_on_loss=False) == 1


def test_rows_come_once_where_one_task_of_many_finds_a_new_field(
    database: Database, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siltstone.pipeline.jobs.tier.TASK_BYTES", 300)
    database.configure(thresholds=VARYING)
    database.append([reading(number) for number in range(20)]).wait()
    tier_all(path)
    database.append([Row("plant/1/oven/1", b"no document")]).wait()
    database.append([reading(n, **({"new": 1} if n == 3 else {})) for n in range(20)]).wait()
    with tiering(path) as job:
        step = job.step()
    assert step is not None
    assert (step.rows, step.tables) == (21, {"plant_oven": 20, "dead_letter": 1})
    assert tiered_rows(path) == stored_rows(database, ["#"])


def test_odd_characters_in_topics_and_names_are_tiered_run_after_run(
    database: Database, path: str
) -> None:
    odd = "\U0001f600\"\\'\x01\x7f\x85"
    rows = [
        Row(f"{odd}/{odd}", json.dumps({odd: {odd: 1, "x\0": 2}}).encode()),
        Row("half", b'{"\\ud800": 1, "a": 2}'),
    ]
    for _ in range(3):
        database.append(rows).wait()
        tier_all(path)
    assert tiered_rows(path) == stored_rows(database, ["#"])
    rules = read_rules((lake_of(path) / "rules.toml").read_text("utf-8"), "rules.toml")
    assert rules.find(f"{odd}/{odd}").filter == f"{odd}/{odd}"
    assert [field.path for field in rules.find(f"{odd}/{odd}").fields] == [
        (odd, odd),
        (odd, "x\0"),
    ]


def test_fields_that_have_no_column_are_told_and_those_that_have_one_go_on(
    database: Database, path: str
) -> None:
    names = [f"f{number}" for number in range(FIELDS_MAX + 50)]
    database.append([Row("wide", json.dumps(dict.fromkeys(names, 1)).encode())]).wait()
    with tiering(path) as job:
        first = job.step()
        database.append(
            [
                Row("wide", json.dumps({names[0]: 5, names[-1]: 6, "one": 7}).encode()),
                Row("wide", json.dumps({"two": 8}).encode()),
                Row("small", b'{"a": 1}'),
            ]
        ).wait()
        second = job.step()
    assert first is not None
    assert second is not None
    assert (first.left_out, second.left_out) == ({"wide": 50}, {"wide": 3})
    assert report_of("messages", [first, second]).left_out == {"wide": 50}
    rows = read_table(path, "wide").sort_by("serial")
    assert sum(name in names for name in rows.column_names) == FIELDS_MAX
    assert rows.column("f0").to_pylist() == [1.0, 5.0, None]
    assert [json.loads(payload) for payload in rows.column("payload").to_pylist()[1:]] == [
        {"f0": 5, names[-1]: 6, "one": 7},
        {"two": 8},
    ]


def windows_table(path: str, name: str) -> None:
    columns = pa.schema([(column, pa.int64()) for column in WINDOW_COLUMNS])
    place = PurePath(lake_of(path)) / name
    ensure_table(PosixFileSystem(), place, columns, partition_schema("day"))


def test_rows_never_go_to_a_table_of_a_rollup(database: Database, path: str) -> None:
    for name in ("a", "other"):
        windows_table(path, name)
    database.append([Row("a", b"1")]).wait()
    tier_all(path)
    assert tables_of(path) == ["a", "a_2", "other"]
    database.append([Row("a", b"2"), Row("b", b"3")]).wait()
    rules = lake_of(path) / "rules.toml"
    learned = rules.read_text("utf-8")
    rules.write_text('[[rule]]\nfilter = "b"\ntable = "a"\n' + learned, "utf-8")
    with pytest.raises(UsageError) as caught:
        tier_all(path)
    assert str(caught.value) == (
        "rules.toml: choose another table than a for 'b': it contains windows of a rollup"
    )
    rules.write_text('[[rule]]\nfilter = "b"\ntable = "other"\n' + learned, "utf-8")
    with pytest.raises(UsageError, match="than other for 'b': it contains windows of a rollup"):
        tier_all(path)
    assert [read_table(path, name).num_rows for name in tables_of(path)] == [0, 1, 0]


def test_a_table_takes_nothing_but_what_it_holds(database: Database, path: str) -> None:
    database.append([Row("a", b"1")]).wait()
    tier_all(path)
    with pytest.raises(UsageError) as caught:
        windows_table(path, "a")
    assert str(caught.value) == (
        "table a contains rows of topics and cannot contain windows of a rollup; choose another "
        "table, or move this one away"
    )


def test_a_column_of_another_type_is_told_by_plain_names(database: Database, path: str) -> None:
    database.append([Row("a", b'{"v": 1, "w": [1]}')]).wait()
    tier_all(path)
    rules = lake_of(path) / "rules.toml"
    text = rules.read_text("utf-8")
    rules.write_text(text.replace('"array<double>"', '"array<string>"'), "utf-8")
    database.append([Row("a", b'{"v": 1}')]).wait()
    with pytest.raises(UsageError) as caught:
        tier_all(path)
    assert str(caught.value) == (
        "column w of table a is array<double> and cannot become array<string>; choose another "
        "column for the field in rules.toml"
    )


def test_a_table_that_was_overwritten_is_damage_until_it_is_restored(
    spark: SparkSession, database: Database, path: str
) -> None:
    database.configure(thresholds=VARYING)
    database.append([reading(number) for number in range(20)]).wait()
    tier_all(path)
    place = str(lake_of(path) / "plant_oven")
    delta = DeltaTable(place)
    windows = pa.table({"rows": [20], "date": delta.to_pyarrow_table().column("date").slice(0, 1)})
    write_deltalake(delta, windows, mode="overwrite", schema_mode="merge")
    database.append([reading(number) for number in range(20, 30)]).wait()
    sentence = "table plant_oven of the lake was overwritten by another program"
    for job in (tier_all, compact_lake, vacuum_lake):
        with pytest.raises(CorruptionError, match=sentence):
            job(path)
    for query in (table, audit, make_views):
        with pytest.raises(CorruptionError, match=sentence):
            query(spark, path)
    DeltaTable(place).restore(delta.version() - 1)
    assert tier_all(path) == 10
    compact_lake(path)
    vacuum_lake(path, hours=0)
    assert rows_from(spark, path) == stored_rows(database, ["#"])


def test_a_table_that_is_called_like_the_database_is_not_made_and_rows_have_the_name(
    spark: SparkSession, database: Database, path: str
) -> None:
    database.append([Row("messages", b"1")]).wait()
    tier_all(path)
    assert tables_of(path) == ["messages_2"]
    rules = lake_of(path) / "rules.toml"
    rules.write_text(rules.read_text("utf-8").replace("messages_2", "Messages"), "utf-8")
    database.append([Row("messages", b"2")]).wait()
    with pytest.raises(
        UsageError, match="than Messages for 'messages': it is the name of the database"
    ):
        tier_all(path)
    # One that is there already is read on, but not by its name.
    (lake_of(path) / "messages_2").rename(lake_of(path) / "Messages")
    tier_all(path)
    assert make_views(spark, path) == ["messages"]
    answer = run(spark, "SELECT count(*), count(shard) FROM messages", rows_max=1)
    assert answer.rows == [(2, 2)]


def test_sql_knows_the_store_and_the_tables_by_name(
    spark: SparkSession, database: Database, path: str
) -> None:
    database.configure(thresholds=VARYING)
    database.append([reading(number) for number in range(20)]).wait()
    tier_all(path)
    database.append([reading(number) for number in range(20, 25)]).wait()
    assert make_views(spark, path) == ["messages", "plant_oven"]
    answer = run(
        spark,
        "SELECT (SELECT count(*) FROM messages) a, count(*) n, max(oven) o FROM plant_oven",
        rows_max=5,
    )
    assert (answer.columns, answer.rows, answer.numbers, answer.more) == (
        ["a", "n", "o"],
        [(25, 20, "9")],
        [True, True, False],
        False,
    )
    with pytest.raises(UsageError, match="with name `nothing` cannot be resolved"):
        run(spark, "SELECT nothing FROM messages", rows_max=1)


WORDS = st.sampled_from(["", "a", "ä.*", "$x", "b"])
TOPICS = st.lists(WORDS, min_size=1, max_size=3).map("/".join).filter(bool)
VALUES = st.sampled_from([b"", b"v", b"\x00\xff", b'{"a": 1}', b'{"a": {"b": [1]}}', b'{"c": "x"}'])
STEPS = st.lists(
    st.one_of(
        st.lists(st.tuples(TOPICS, VALUES).map(lambda pair: Row(*pair)), min_size=1, max_size=12),
        st.sampled_from(["seal", "tier", "part", "compact"]),
    ),
    min_size=3,
    max_size=8,
)
FILTERS = st.lists(
    st.sampled_from(["#", "+", "a", "a/#", "+/a", "a/+", "$x/#", "ä.*/#", "+/+/a", "a//a", "/#"]),
    min_size=1,
    max_size=3,
    unique=True,
)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, FILTERS)
def test_whatever_was_stored_and_tiered_table_gives_what_the_store_reads(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[Any],
    filters: list[str],
) -> None:
    path = tmp_path_factory.mktemp("any") / "store"
    with siltstone.open(path) as store:
        database = store.create("messages", settings_of(shards=2, thresholds=(1, 0)))
        for step in steps:
            match step:
                case "seal":
                    database.seal()
                case "tier":
                    tier_all(path)
                case "part":
                    with tiering(path, rows_per_batch=4) as job:
                        job.step()
                case "compact":
                    compact_lake(str(path))
                case rows:
                    database.append(rows).wait()
        assert rows_from(spark, path, filter=filters) == stored_rows(database, filters)
