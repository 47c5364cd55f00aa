"""Learn, import, replay, roll up, and the project that users begin with."""

from __future__ import annotations

import importlib.util
import json
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import siltstone
from siltstone.cli.main import execute
from siltstone.clock import ManualClock, SystemClock
from siltstone.errors import CorruptionError, NotFoundError, SlabDroppedError, UsageError
from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline import lake_table
from siltstone.pipeline.jobs.audit import audit
from siltstone.pipeline.jobs.import_files import ImportSettings, import_files
from siltstone.pipeline.jobs.learn import learn
from siltstone.pipeline.jobs.project import write_project
from siltstone.pipeline.jobs.replay import ReplaySettings, replay
from siltstone.pipeline.jobs.rollup import RollupSettings, rollup, stream_rollup
from siltstone.scan.offsets import Loss
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.manifest import SlabId
from tests.support.builders import NOW_US, settings_of
from tests.support.lake import lake_of, tables_of, tier_all
from tests.support.rows import rows_of


def stored(path: str | Path) -> list[Row]:
    with siltstone.open(path, read_only=True) as store:
        return [row for batch in store.database("messages").read() for row in rows_of(batch)]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Return a data directory that nobody has open."""
    with siltstone.open(tmp_path / "target") as store:
        store.create("messages", settings_of())
    return tmp_path / "target"


def test_structure_is_learned_from_history_and_begins_the_next_generation(
    spark: SparkSession, database: Database, path: str
) -> None:
    topics = [f"metrics/{host}/cpu/{core}" for host in range(12) for core in range(2)]
    database.append([Row(topic, b"") for topic in [*topics, "$SYS/uptime", "single"]]).wait()
    tier_all(path)
    dry = learn(spark, path, dry_run=True)
    # Each store learned the first words apart; who sees all of them knows that they vary.
    assert [(item.pattern, item.topics, item.rows) for item in dry.structures] == [
        ("metrics/+/cpu/0", 12, 12),
        ("metrics/+/cpu/1", 12, 12),
        ("single", 1, 1),
    ]
    assert (dry.topics, dry.streams_after, dry.saved) == (25, 3, dry.streams_before - 3)
    assert dry.streams_before > 20
    learn(spark, path, thresholds=(100, 10, 10, 1))
    database.seal()
    database.append([Row("metrics/new/cpu/7", b"")]).wait()
    assert [info.pattern for info in database.structure() if info.slab.generation == 2] == [
        "metrics/+/cpu/+"
    ]
    assert database.settings.thresholds == (100, 10, 10, 1)
    with pytest.raises(
        UsageError,
        match="for every level no structure is learned; set at least one threshold from 0 to",
    ):
        learn(spark, path, thresholds=(-1,))
    with pytest.raises(UsageError, match=r"the history must have a column topic .found: id"):
        learn(spark, path, history=spark.range(3))


def patterns(spark: SparkSession, path: str, topics: list[str]) -> list[str]:
    history = spark.createDataFrame([(topic,) for topic in topics], "topic STRING")
    report = learn(spark, path, history=history, dry_run=True)
    return [item.pattern for item in report.structures]


def test_words_become_one_below_the_threshold_only_where_the_same_is_below_them(
    spark: SparkSession, database: Database, path: str
) -> None:
    ovens = [f"plant/{plant}/oven/{oven}" for plant in range(40) for oven in range(20)]
    doors = [f"site/{site}/door/{door}" for site in range(40) for door in range(20)]
    others = [f"{word}/{word}/{word}" for word in map("word{}".format, range(30))]
    # Of a hundred words that the root keeps apart there are 32: plants are no sites.
    assert patterns(spark, path, [*ovens, *doors, *others]) == [
        "plant/+/oven/+",
        "site/+/door/+",
        *sorted(others),
    ]
    rooms = [f"room{room}/{name}" for room in range(30) for name in ("temp", "hum")]
    assert patterns(spark, path, rooms) == ["+/hum", "+/temp"]
    # One that has something else, or nothing below them, and nobody knows that they are alike.
    assert len(patterns(spark, path, [*rooms, "cellar/door"])) == 61
    assert len(patterns(spark, path, [f"word{number}" for number in range(30)])) == 30


def test_files_become_messages_once_however_often_they_are_imported(
    spark: SparkSession, target: Path, tmp_path: Path
) -> None:
    source = tmp_path / "files"
    source.mkdir()
    for number in range(2):
        lines = [f"north,t{item},{item}.5" for item in range(3)]
        (source / f"{number}.csv").write_text("site,sensor,value\n" + "\n".join(lines) + "\n")
    settings = ImportSettings(
        source=str(source),
        topic="plant/{site}/{sensor}",
        target={"path": str(target)},
        format="csv",
        options={"header": "true", "inferSchema": "true"},
    )
    steps = import_files(spark, settings)
    assert [(step.rows, step.waiting) for step in steps] == [(3, 1), (3, 0)]
    (source / "2.csv").write_text("site,sensor,value\nsouth,t9,1.0\n")
    import_files(spark, settings)
    assert Counter((row.topic, row.value) for row in stored(target)) == Counter(
        {(f"plant/north/t{item}", b'{"value":%d.5}' % item): 2 for item in range(3)}
        | {("plant/south/t9", b'{"value":1.0}'): 1}
    )
    with pytest.raises(UsageError, match=r"unknown column 'nothing' .found: site, sensor, va"):
        import_files(spark, ImportSettings(**_changed(settings, topic="a/{nothing}")))
    with pytest.raises(UsageError, match="PATH_NOT_FOUND"):
        import_files(spark, ImportSettings(**_changed(settings, source=str(tmp_path / "none"))))


def test_a_file_with_a_bad_row_is_refused_by_its_name_or_goes_without_it(
    spark: SparkSession, target: Path, tmp_path: Path
) -> None:
    source = tmp_path / "my files"
    source.mkdir()
    good = "site,sensor,at\nnorth,t1,2026-01-31\n"
    (source / "0.csv").write_text(good)
    settings = ImportSettings(
        source=str(source),
        topic="plant/{site}/{sensor}",
        target={"path": str(target)},
        format="csv",
        options={"header": "true"},
        timestamp="at",
    )
    for line, sentence in (
        (",t2,2026-01-31", "column site is empty, and a part of the topic"),
        ("south,a+b,", "column sensor has a wildcard or U+0000, as no topic may: a+b"),
        ("south,t2,soon", "column at must be a time, got soon"),
        (f"south,{'t' * 65536},", "topic is too long"),
    ):
        (source / "1 [b].csv").write_text(f"{good}{line}\n")
        with pytest.raises(UsageError) as caught:
            import_files(spark, settings)
        assert str(caught.value) == (
            f"{sentence}; no row of this file was stored, use --skip-bad to skip bad rows: "
            f"file={source}/1 [b].csv bad=1 rows=2"
        )
    assert [row.topic for row in stored(target)] == ["plant/north/t1"]
    steps = import_files(spark, replace(settings, skips_bad=True))
    assert [(step.rows, step.skipped) for step in steps] == [(1, 0), (1, 1)]
    assert [row.topic for row in stored(target)] == ["plant/north/t1"] * 2


def test_a_format_that_spark_does_not_know_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    settings = ImportSettings(source=str(tmp_path), topic="{a}", target={}, format="nosuch")
    with pytest.raises(UsageError, match=r"^\[DATA_SOURCE_NOT_FOUND\] Failed to find .*: nosuch"):
        import_files(spark, settings)


def _changed(settings: ImportSettings, **changes: Any) -> dict[str, Any]:
    names = ("source", "topic", "target", "format", "options")
    return {name: getattr(settings, name) for name in names} | changes


def test_rows_are_replayed_in_order_at_their_pace_and_once(
    spark: SparkSession, database: Database, path: str, target: Path
) -> None:
    database.append([Row(f"a/{number}", b"%d" % number, "p", 1) for number in range(5)]).wait()
    tier_all(path)
    database.append([Row("a/5", b"5"), Row("b", b"6")]).wait()
    settings = ReplaySettings(
        path=path,
        target={"path": str(target)},
        filter="a/#",
        speed=0.000004,
        prefix="again/",
        name="monday",
    )
    waited: list[float] = []
    # Nobody waits here, so no time passes; the rows were written by the machine's own clock.
    clock = ManualClock(SystemClock().now_us() + 1)
    steps = replay(spark, settings, waited.append, clock=clock)
    assert sum(step.rows for step in steps) == 6
    assert [step.waiting for step in steps] == list(range(len(steps)))[::-1]
    assert len(steps) > 1
    # A window is four microseconds of then and a second of now; the first one is due at once.
    assert len(waited) == len(steps) - 1
    assert waited == sorted(set(waited))
    assert [seconds for seconds in waited if seconds != pytest.approx(round(seconds))] == []
    replay(spark, settings, waited.append, clock=clock)
    found = stored(target)
    assert sorted((row.topic, row.value, row.publisher, row.qos) for row in found) == [
        *((f"again/a/{number}", b"%d" % number, "p", 1) for number in range(5)),
        ("again/a/5", b"5", "", 0),
    ]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"speed": 0.0}, "speed must be greater than 0, got 0.0"),
        ({"speed": float("nan")}, "speed must be greater than 0, got nan"),
        ({"speed": float("inf")}, "speed must be greater than 0, got inf"),
        ({"prefix": "a/+/"}, "prefix must not have the wildcards + and #, or U+0000: prefix"),
    ],
)
def test_a_replay_that_cannot_work_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        ReplaySettings(target={}, **changes)
    assert sentence in str(caught.value)


def test_rows_that_were_dropped_before_they_were_tiered_are_told_as_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "single")
    with siltstone.open(path) as store:
        database = store.create("messages", settings_of())

        def append(count: int) -> None:
            database.append([Row(f"a/{number % 3}", b"x") for number in range(count)]).wait()

        append(30)
        database.seal()
        append(10)
        tier_all(path)
        append(5)
        database.seal()
        append(5)
        database.drop_slab(SlabId(0, 2))
        with pytest.raises(SlabDroppedError, match="shard 0, serials 40 to 44"):
            tier_all(path)
        assert tier_all(path, fails_on_loss=False) == 5
        report = audit(spark, path)
        assert report.losses == [Loss(shard=0, serials=range(40, 45))]
        assert (report.is_sound, [slab.is_sound for slab in report.slabs]) == (False, [True] * 3)


def test_serials_that_a_crash_left_out_at_the_end_of_a_slab_are_no_loss(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "crashed")
    with siltstone.open(path) as store:
        database = store.create("messages", settings_of(sync_interval=3600.0))
        database.append([Row("a", b"1")]).wait()
        tier_all(path)
        database.append([Row("a", b"2")], durability="written").wait()
        # What a kill leaves: nobody has closed it.
        shutil.copytree(path, tmp_path / "left")
    path = str(tmp_path / "left")
    with siltstone.open(path) as store:
        database = store.database("messages")
        database.seal()
        database.append([Row("a", b"3")]).wait()
        assert database.extents()[-1].serials.start > 1000
        tier_all(path)
        assert audit(spark, path).is_sound
        database.drop_slab(SlabId(0, 1))
        report = audit(spark, path)
    assert (report.is_sound, report.losses) == (True, [])


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_row_that_is_twice_in_the_lake_in_place_of_another_is_found(
    spark: SparkSession, database: Database, path: str, *, is_dropped: bool
) -> None:
    database.append([Row("a/1", b"%d" % number) for number in range(5)]).wait()
    database.seal()
    tier_all(path)
    assert audit(spark, path).is_sound
    if is_dropped:
        database.drop_slab(SlabId(0, 1))
    (table,) = (lake_of(path) / name for name in tables_of(path))
    rows = DeltaTable(str(table)).to_pyarrow_table()
    write_deltalake(str(table), rows.take([0, 1, 1, 3, 4]), mode="overwrite")
    (slab,) = audit(spark, path).slabs
    assert (slab.tiered, slab.missing, slab.duplicates) == (5, 1, 1)
    assert slab.differs is not is_dropped


def test_rows_that_others_put_into_the_lake_are_damage(
    spark: SparkSession, database: Database, path: str
) -> None:
    database.append([Row("a/1", b"1")]).wait()
    tier_all(path)
    (table,) = (lake_of(path) / name for name in tables_of(path))
    strange = DeltaTable(str(table)).to_pyarrow_table().select(["topic", "serial", "date"])
    write_deltalake(str(table), strange, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(CorruptionError, match="1 rows of the lake do not name their slab"):
        audit(spark, path)


@pytest.fixture
def kept(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Return the session of all tests, which commands take for theirs, and cannot stop."""
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    return spark


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("selec x from", "[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'. "),
        ("", "[PARSE_EMPTY_STATEMENT] Syntax error, unexpected empty statement. "),
        ("select nope", "[UNRESOLVED_COLUMN.WITHOUT_SUGGESTION] A column, "),
        ("select 1 / 0", "[DIVIDE_BY_ZERO] Division by zero. "),
        ("create table t (a int) using nosuch", "[DATA_SOURCE_NOT_FOUND] Failed to find "),
    ],
)
@pytest.mark.usefixtures("kept", "database")
def test_a_statement_that_spark_refuses_is_told_in_a_sentence(
    path: str, capsys: pytest.CaptureFixture[str], statement: str, sentence: str
) -> None:
    assert execute(("sql", statement, "--data", path)) == 2
    told = capsys.readouterr()
    assert (told.out, len(told.err.splitlines())) == ("", 1)
    assert told.err.startswith(f"siltstone: {sentence}")


def reading(number: int) -> Row:
    document = {"value": number, "at": {"x": number % 2}, "unit": "C"}
    return Row(f"plant/{number % 2}/t", json.dumps(document).encode())


def test_windows_are_rolled_up_to_a_table_and_to_topics(
    spark: SparkSession, database: Database, path: str, target: Path
) -> None:
    database.configure(thresholds=(100, 0, 10))
    database.append([reading(number) for number in range(20)]).wait()
    tier_all(path)
    database.append([reading(number) for number in range(20, 30)]).wait()
    settings = RollupSettings(
        path=path,
        table="plant_t",
        window="1 day",
        fields=("value", "at_x"),
        quantiles=(0.5,),
        topics="rollup/{plant}",
        target={"path": str(target)},
    )
    report = rollup(spark, settings)
    rows = lake_table(spark, path, "plant_t_1d").orderBy("plant").collect()
    assert report.table == "plant_t_1d"
    # A test that runs over midnight sees two days.
    if report.windows == 2:
        assert [row.asDict() | {"window_start": 0, "window_end": 0, "date": 0} for row in rows] == [
            {
                "window_start": 0,
                "window_end": 0,
                "plant": str(odd),
                "rows": 15,
                "value_count": 15,
                "value_min": float(odd),
                "value_max": 28.0 + odd,
                "value_mean": 14.0 + odd,
                "value_p50": 14.0 + odd,
                "at_x_count": 15,
                "at_x_min": float(odd),
                "at_x_max": float(odd),
                "at_x_mean": float(odd),
                "at_x_p50": float(odd),
                "date": 0,
            }
            for odd in (0, 1)
        ]
    assert sum(row.rows for row in rows) == 30
    rollup(spark, settings)
    assert lake_table(spark, path, "plant_t_1d").count() == report.windows
    published = [(row.topic, json.loads(row.value)["rows"]) for row in stored(target)]
    assert {topic for topic, _ in published} == {"rollup/0", "rollup/1"}


def test_a_stream_adds_each_window_once_when_it_is_past(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, clock = tmp_path / "store", ManualClock(NOW_US)
    settings = RollupSettings(
        path=str(path), table="plant_t", window="1 second", watermark="0 seconds", to="seconds"
    )

    def windows() -> list[tuple[str, int, float]]:
        query = stream_rollup(
            spark,
            settings,
            checkpoint=str(tmp_path / "checkpoint"),
            trigger={"availableNow": True},
        )
        query.awaitTermination()
        found = lake_table(spark, str(path), "seconds").orderBy("window_start", "plant")
        return [(row["plant"], row["rows"], row["value_max"]) for row in found.collect()]

    with Store(PurePath(path), clock=clock) as store:
        database = store.create("messages", settings_of(thresholds=(100, 0, 10)))
        database.append([reading(number) for number in range(10)]).wait()
        tier_all(path)
        # The window is open as long as nothing later has come.
        assert windows() == []
        clock.advance(10)
        database.append([reading(20)]).wait()
        expected = [("0", 5, 8.0), ("1", 5, 9.0)]
        assert windows() == expected
        clock.advance(10)
        database.append([reading(21)]).wait()
        assert windows() == [*expected, ("0", 1, 20.0)]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"window": "soon"},
            "window must be a duration such as '5 minutes' or '1 hour', got 'soon'",
        ),
        ({"fields": ("unit",)}, "unknown number 'unit' (found: value, at_x"),
        (
            {"to": "no name"},
            "the name of a table must have letters, digits and _ only, got 'no name'",
        ),
        ({"quantiles": (1.5,)}, "a quantile must be between 0 and 1, got 1.5"),
        ({"topics": "x/{nothing}"}, "unknown column 'nothing'"),
        (
            {"to": "plant_t"},
            "table plant_t is for rows of topics; choose another table for the rollup",
        ),
        ({"to": "Plant_T"}, "table Plant_T is for rows of topics"),
        ({"to": "plant_t_n1h"}, "table plant_t_n1h is for rows of topics"),
        ({"to": "dead_letter"}, "table dead_letter is for rows of topics"),
        ({"to": "other"}, "table other is for rows of topics"),
        ({"to": "messages"}, "messages is the name of the database"),
        ({"to": "unruled"}, "table unruled exists and contains rows of topics"),
        ({"to": "foreign"}, "table foreign exists and contains data of another program"),
        ({"to": "Foreign"}, "choose another table than Foreign"),
    ],
)
def test_a_rollup_that_cannot_work_is_refused(
    spark: SparkSession, database: Database, path: str, changes: dict[str, Any], sentence: str
) -> None:
    database.configure(thresholds=(100, 0, 10))
    database.append([reading(1)]).wait()
    with pytest.raises(NotFoundError, match="has the table 'plant_t': run"):
        rollup(spark, RollupSettings(path=path, table="plant_t"))
    database.append([Row("plant/1/t/1h", b"{}"), Row("unruled", b"{}")]).wait()
    tier_all(path)
    rules = lake_of(path) / "rules.toml"
    rules.write_text(rules.read_text("utf-8").replace('"unruled"', '"renamed"'), "utf-8")
    write_deltalake(str(lake_of(path) / "foreign"), pa.table({"x": [1]}))
    before = files_below(lake_of(path))
    settings = RollupSettings(**({"path": path, "table": "plant_t"} | changes))
    with pytest.raises(UsageError) as caught:
        rollup(spark, settings)
    assert sentence in str(caught.value)
    with pytest.raises(UsageError) as caught:
        stream_rollup(spark, settings, checkpoint=f"{path}/no", trigger={"availableNow": True})
    assert sentence in str(caught.value)
    assert files_below(lake_of(path)) == before


def files_below(place: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


def written_project(path: str, tmp_path: Path) -> Path:
    place = tmp_path / "mine"
    write_project(
        PosixFileSystem(),
        PurePath(place),
        data=PurePath(path),
        database="messages",
        topic_filter="plant/#",
    )
    return place


def test_the_job_of_a_new_project_runs_at_once_and_goes_on(
    spark: SparkSession,
    database: Database,
    path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = written_project(path, tmp_path)
    monkeypatch.setattr(sys, "argv", ["stream_job.py", "--once"])
    for count in (3, 5):
        database.append([reading(number) for number in range(count)]).wait()
        runpy.run_path(str(place / "stream_job.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == ["3 messages in total", "8 messages in total"]


@pytest.mark.soak
@pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="no pyspark[pipelines]")
def test_the_declarative_pipeline_of_a_new_project_runs_and_goes_on(
    database: Database, path: str, tmp_path: Path
) -> None:
    place = written_project(path, tmp_path)
    for count in (3, 5):
        database.append([reading(number) for number in range(count)]).wait()
        done = subprocess.run(
            [sys.executable, str(place / "run_pipeline.py")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Run is COMPLETED" in done.stdout + done.stderr
