from __future__ import annotations

from pathlib import PurePath
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest

from siltstone.cli.pipeline import jobs as pipeline_jobs
from siltstone.pipeline.answers import plain_errors
from siltstone.pipeline.jobs.audit import AuditReport, SlabAudit
from siltstone.pipeline.jobs.import_files import ImportSettings, ImportStep
from siltstone.pipeline.jobs.learn import Learned, LearnReport, check_thresholds
from siltstone.pipeline.jobs.replay import ReplaySettings, ReplayStep
from siltstone.pipeline.jobs.rollup import RollupReport, RollupSettings
from siltstone.scan.offsets import Loss
from tests.support.command_line import CommandLine
from tests.support.fake_jobs import FakeJobs

SLAB = SlabAudit(
    slab="0/1",
    expected=10,
    stored=None,
    waiting=0,
    tiered=9,
    missing=1,
    duplicates=0,
    gaps=0,
    differs=False,
)
LEARNED = LearnReport(
    database="messages",
    thresholds=(100, 3),
    structures=[Learned(pattern="a/+", topics=4, rows=9)],
    topics=4,
    streams_before=5,
    streams_after=1,
)


@pytest.fixture
def fakes(siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch) -> FakeJobs:
    siltstone.create("messages")
    fakes = FakeJobs(monkeypatch, "siltstone.cli.pipeline.jobs")
    fakes.put("answers", plain_errors=plain_errors)
    return fakes


def test_an_audit_that_finds_something_has_status_1(
    siltstone: CommandLine, fakes: FakeJobs
) -> None:
    report = AuditReport(database="messages", slabs=[SLAB], tables={})
    fakes.put("jobs.audit", audit=lambda spark, path, database: report)
    done = siltstone("pipeline", "audit")
    assert done.status == 1
    assert done.lines[2].split() == ["0/1", "10", "dropped", "9", "0", "1", "0", "0", "same"]
    assert done.lines[-1] == "rows are missing, double or different"
    lost = AuditReport(
        database="messages", slabs=[], tables={}, losses=[Loss(shard=0, serials=range(40, 50))]
    )
    fakes.put("jobs.audit", audit=lambda spark, path, database: lost)
    done = siltstone("pipeline", "audit")
    assert (done.status, done.lines[-1]) == (
        1,
        "rows are lost: shard 0, serials 40 to 49 are in neither store nor lake",
    )
    sound = AuditReport(database="messages", slabs=[], tables={"a": 1})
    fakes.put("jobs.audit", audit=lambda spark, path, database: sound)
    done = siltstone("pipeline", "audit", "--json")
    assert (done.status, done.document) == (0, sound.to_json())


def test_what_was_learned_is_listed_or_drawn(siltstone: CommandLine, fakes: FakeJobs) -> None:
    asked: list[Any] = []

    def learn(spark: str, **given: Any) -> LearnReport:
        asked.append(given)
        return LEARNED

    fakes.put("jobs.learn", learn=learn, check_thresholds=check_thresholds)
    done = siltstone("pipeline", "learn", "--threshold", "100,3")
    assert done.lines[-2].split() == ["a/+", "4", "9"]
    assert done.lines[-1] == "4 topics in 1 structure; the store has 5 streams, 4 are saved"
    drawn = siltstone("pipeline", "learn", "--dry-run")
    assert drawn.lines[0] == "messages  9 rows"
    assert [(given["thresholds"], given["dry_run"]) for given in asked] == [
        ([100, 3], False),
        (None, True),
    ]
    told = siltstone("pipeline", "learn", "--json", "--dry-run").document
    assert (told["thresholds"], told["kept"], told["structures"]) == (
        [100, 3],
        False,
        [{"pattern": "a/+", "topics": 4, "rows": 9}],
    )
    siltstone("pipeline", "learn", "--dry-run", "--url", "grpc://h")
    assert (asked[0]["path"], asked[-1].get("path"), asked[-1]["url"]) == (
        "/data",
        None,
        "grpc://h",
    )
    assert siltstone("pipeline", "learn", "--url", "grpc://h").err == (
        "siltstone: with --url nothing can be stored; pass --dry-run, or use the data directory\n"
    )
    refused = siltstone("pipeline", "learn", "--threshold", "many")
    assert refused.err == (
        "siltstone: --threshold expects numbers with commas between them, such as 100,10, "
        "got 'many'\n"
    )
    started = len(fakes.masters)
    refused = siltstone("pipeline", "learn", "--threshold=-1")
    assert (refused.status, len(fakes.masters)) == (2, started)
    assert refused.err.startswith("siltstone: with -1 for every level no structure is learned")


def test_an_import_is_told_where_to_and_how(siltstone: CommandLine, fakes: FakeJobs) -> None:
    asked: list[ImportSettings] = []

    def import_files(spark: str, settings: ImportSettings, progress: Any) -> list[ImportStep]:
        asked.append(settings)
        progress(ImportStep(file="f", rows=3, waiting=0))
        return [ImportStep(file="f", rows=3, waiting=0)]

    fakes.put("jobs.import_files", ImportSettings=ImportSettings, import_files=import_files)
    arguments = [
        "import",
        "files",
        "--topic",
        "a/{b}",
        "--format",
        "csv",
        "--option",
        "header=true",
    ]
    done = siltstone("pipeline", *arguments, "--url", "grpc+tcp://h:1", "--database", "m")
    assert done.out == "stored 3 rows of 1 file\n"
    assert asked == [
        ImportSettings(
            source="files",
            topic="a/{b}",
            target={"url": "grpc+tcp://h:1", "database": "m"},
            format="csv",
            options={"header": "true"},
        )
    ]
    assert siltstone("pipeline", *arguments, "--json").document == {
        "rows": 3,
        "files": 1,
        "bad_rows": 0,
    }
    assert siltstone("pipeline", *arguments[:-1], "header").err == (
        "siltstone: --option expects NAME=VALUE, as in header=true, got 'header'\n"
    )


def test_bad_rows_of_an_import_are_counted(siltstone: CommandLine, fakes: FakeJobs) -> None:
    def import_files(spark: str, settings: ImportSettings, progress: Any) -> list[ImportStep]:
        return [ImportStep(file="f", rows=3, waiting=0, skipped=2 if settings.skips_bad else 0)]

    fakes.put("jobs.import_files", ImportSettings=ImportSettings, import_files=import_files)
    arguments = ("pipeline", "import", "files", "--topic", "a/{b}", "--skip-bad")
    done = siltstone(*arguments)
    assert (done.out, done.err) == (
        "stored 3 rows of 1 file\n",
        "siltstone: skipped 2 invalid rows\n",
    )
    assert siltstone(*arguments, "--json").document == {"rows": 3, "files": 1, "bad_rows": 2}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--speed", "nan"), "speed must be greater than 0, got nan"),
        (("--speed", "inf"), "speed must be greater than 0, got inf"),
        (("--speed", "0"), "speed must be greater than 0, got 0.0"),
        (("--prefix", "a/+/"), "prefix must not have the wildcards + and #, or U+0000: prefix="),
        (("--since", "soon"), "since"),
    ],
    ids=str,
)
def test_a_replay_that_cannot_work_is_refused_before_spark_starts(
    siltstone: CommandLine, fakes: FakeJobs, arguments: tuple[str, ...], sentence: str
) -> None:
    fakes.put("jobs.replay", ReplaySettings=ReplaySettings)
    done = siltstone("pipeline", "replay", *arguments)
    assert (done.status, fakes.masters) == (2, [])
    assert done.err.startswith(f"siltstone: {sentence}")


def test_a_replay_says_how_late_it_was(siltstone: CommandLine, fakes: FakeJobs) -> None:
    asked: list[Any] = []

    def replay(spark: str, settings: ReplaySettings, wait: Any, progress: Any) -> list[ReplayStep]:
        asked.append((settings, wait))
        steps = [ReplayStep(rows=2, waiting=0, late_seconds=late) for late in (0.0, 1.25)]
        for step in steps:
            progress(step)
        return steps

    fakes.put("jobs.replay", ReplaySettings=ReplaySettings, replay=replay)
    done = siltstone("pipeline", "replay", "--filter", "a/#", "--speed", "2", "--prefix", "p/")
    assert done.out == "4 rows in 2 windows, at most 1.2 s late\n"
    assert asked == [
        (
            ReplaySettings(
                path="/data", target={"path": "/data"}, filter="a/#", speed=2.0, prefix="p/"
            ),
            ANY,
        )
    ]
    siltstone("pipeline", "replay", "--from-url", "grpc://h", "--url", "grpc://g", "-u", "u")
    assert asked[-1][0] == ReplaySettings(
        node={"url": "grpc://h", "username": "u"}, target={"url": "grpc://g", "username": "u"}
    )
    siltstone("pipeline", "replay", "--from-url", "grpc://h", "--username", "u")
    assert asked[-1][0].target == {"path": "/data"}
    assert siltstone("pipeline", "replay", "--json").document == {
        "rows": 4,
        "windows": 2,
        "late_seconds": 1.25,
    }


def test_a_rollup_replaces_its_table_or_goes_on_from_a_checkpoint(
    siltstone: CommandLine, fakes: FakeJobs
) -> None:
    asked: list[Any] = []

    def rollup(spark: str, settings: RollupSettings) -> RollupReport:
        asked.append(settings)
        return RollupReport(table="a_1h", windows=4)

    def stream_rollup(spark: str, settings: RollupSettings, **given: Any) -> Any:
        asked.append(given)
        return SimpleNamespace(
            awaitTermination=lambda: None, recentProgress=[SimpleNamespace(numInputRows=3)]
        )

    fakes.put(
        "jobs.rollup", RollupSettings=RollupSettings, rollup=rollup, stream_rollup=stream_rollup
    )
    done = siltstone("pipeline", "rollup", "a", "--window", "1 hour", "--field", "v")
    assert done.out == "table: a_1h, windows: 4\n"
    settings = RollupSettings(
        path="/data", table="a", window="1 hour", fields=("v",), target={"path": "/data"}
    )
    assert asked == [settings]
    done = siltstone("pipeline", "rollup", "a", "--checkpoint", "c", "--json")
    assert done.document == {"table": "a_1m", "rows": 3}
    assert asked[1:] == [{"checkpoint": "c", "trigger": {"availableNow": True}}]
    assert siltstone("pipeline", "rollup", "a", "--continuous").err == (
        "siltstone: --continuous needs a directory for its state; name it with --checkpoint\n"
    )


def test_a_rollup_that_is_interrupted_ends_well_only_if_it_goes_on(
    siltstone: CommandLine, fakes: FakeJobs
) -> None:
    stopped: list[bool] = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    def stream_rollup(spark: str, settings: RollupSettings, **given: Any) -> Any:
        return SimpleNamespace(
            awaitTermination=interrupted, stop=lambda: stopped.append(True), recentProgress=[]
        )

    fakes.put("jobs.rollup", RollupSettings=RollupSettings, stream_rollup=stream_rollup)
    arguments = ("pipeline", "rollup", "a", "--checkpoint", "c")
    assert siltstone(*arguments, "--continuous").status == 0
    assert siltstone(*arguments).status == 130
    assert stopped == [True, True]


def test_a_project_is_written_for_the_database_there_is(
    siltstone: CommandLine, fakes: FakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    siltstone.create("metrics")
    asked: list[Any] = []

    def write_project(fs: Any, directory: PurePath, **given: Any) -> list[PurePath]:
        asked.append((fs, directory, given))
        return [directory / "README.md"]

    fakes.put("jobs.project", write_project=write_project)
    monkeypatch.setattr(pipeline_jobs, "PosixFileSystem", lambda: "fs")
    assert siltstone(
        "pipeline", "init", "/p/mine", "--filter", "a/#", "--database", "metrics"
    ).out == ("/p/mine/README.md\n")
    assert asked == [
        (
            "fs",
            PurePath("/p/mine"),
            {"data": PurePath("/data"), "database": "metrics", "topic_filter": "a/#"},
        )
    ]


def test_a_project_is_written_before_there_is_a_store(
    siltstone: CommandLine, fakes: FakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def write_project(fs: str, directory: PurePath, **facts: Any) -> list[PurePath]:
        asked.append((facts["data"], facts["database"]))
        return [directory / "README.md"]

    fakes.put("jobs.project", write_project=write_project)
    monkeypatch.setattr(pipeline_jobs, "PosixFileSystem", lambda: "fs")
    done = siltstone("pipeline", "init", "/p/mine", "--data", "/nowhere")
    assert (done.status, done.out) == (0, "/p/mine/README.md\n")
    assert asked == [(PurePath("/nowhere"), "messages")]
    assert "/nowhere has no store yet" in done.err
    assert "siltstone serve --data /nowhere" in done.err


def test_a_project_is_not_written_to_the_data_directory(
    siltstone: CommandLine, fakes: FakeJobs
) -> None:
    fakes.put("jobs.project", write_project=lambda *_, **__: [])
    done = siltstone("pipeline", "init", "/data/../data")
    assert (done.status, done.out) == (2, "")
    assert done.err == (
        "siltstone: /data/../data is the data directory; choose another one for the project\n"
    )
