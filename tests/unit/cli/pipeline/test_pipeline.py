from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from siltstone.cli.pipeline.stopping import StopRequest
from siltstone.pipeline.jobs.rewriting import GivenUp
from siltstone.pipeline.jobs.rollup import RollupSettings
from siltstone.pipeline.jobs.tier import TierReport, TierSettings, TierStep
from siltstone.pipeline.jobs.upkeep import TableInfo
from siltstone.pipeline.lake.delta import TableCompaction
from tests.support.command_line import CommandLine
from tests.support.fake_jobs import FakeJobs

STEP = TierStep(
    batch=1, rows=7, dead=1, files=3, size_bytes=2048, tables={"a": 6, "dead_letter": 1}, waiting=0
)


class FakeTierJob:
    """Does two steps, then is interrupted."""

    def __init__(self, settings: TierSettings, run: str, *, steps: list[TierStep | None]) -> None:
        self.database = SimpleNamespace(name="messages")
        self.settings, self.run, self.closed, self.tidied = settings, run, False, 0
        self._steps = iter(steps)

    def step(self) -> TierStep | None:
        try:
            return next(self._steps)
        except StopIteration:
            raise KeyboardInterrupt from None

    def tidy(self) -> list[TableCompaction]:
        self.tidied += 1
        return []

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def fakes(siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch) -> FakeJobs:
    siltstone.create("messages")
    return FakeJobs(monkeypatch, "siltstone.cli.pipeline.pipeline")


def tiering(fakes: FakeJobs, *steps: TierStep | None) -> list[FakeTierJob]:
    jobs: list[FakeTierJob] = []

    def make(settings: TierSettings, run: str) -> FakeTierJob:
        jobs.append(FakeTierJob(settings, run, steps=list(steps)))
        return jobs[0]

    fakes.put(
        "jobs.tier",
        TierSettings=TierSettings,
        TierJob=make,
        on_spark=lambda spark: f"on {spark}",
        TierReport=TierReport,
    )
    return jobs


def test_what_was_tiered_is_a_table_and_a_sentence(siltstone: CommandLine, fakes: FakeJobs) -> None:
    jobs = tiering(fakes, STEP, STEP, None)
    done = siltstone("pipeline", "tier", "--decode", "a/#=cbor", "--partition", "hour")
    assert [line.split() for line in done.lines if "─" not in line] == [
        ["table", "rows"],
        ["a", "12"],
        ["dead_letter", "2"],
        [
            "14",
            "rows",
            "in",
            "6",
            "files",
            "of",
            "4",
            "KiB,",
            "2",
            "of",
            "them",
            "in",
            "dead_letter",
        ],
    ]
    assert (jobs[0].closed, jobs[0].run, fakes.masters) == (True, "on spark", [("local[*]", "1g")])
    assert jobs[0].settings == TierSettings(
        path="/data", partition="hour", decode={"a/#": "cbor"}, fails_on_loss=True
    )


def test_a_run_that_goes_on_commits_when_it_is_due_and_holds_back_no_backlog(
    siltstone: CommandLine, fakes: FakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few rows always arrive during a batch; they are no backlog."""
    backlog, busy = replace(STEP, waiting=8), replace(STEP, waiting=7)
    waits: list[int] = []
    jobs = tiering(fakes, backlog, backlog, busy, STEP)
    monkeypatch.setattr(StopRequest, "wait", lambda _, _seconds: waits.append(jobs[0].tidied))
    assert siltstone("pipeline", "tier", "--continuous", "--freshness", "500ms").status == 0
    assert waits == [3, 4]


def test_a_run_that_goes_on_ends_in_good_order_when_it_is_interrupted(
    siltstone: CommandLine, fakes: FakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = tiering(fakes, STEP, None, STEP)
    waits: list[float] = []
    monkeypatch.setattr(StopRequest, "wait", lambda _, seconds: waits.append(seconds))
    done = siltstone("pipeline", "tier", "--continuous", "--freshness", "500ms", "--json")
    assert (done.status, jobs[0].closed, jobs[0].tidied) == (0, True, 3)
    assert len(waits) == 3
    assert all(0 < seconds <= 0.5 for seconds in waits)
    assert done.document == {
        "database": "messages",
        "batches": 2,
        "rows": 14,
        "dead": 2,
        "files": 6,
        "size_bytes": 4096,
        "tables": {"a": 12, "dead_letter": 2},
        "left_out": {},
    }


def test_fields_that_a_full_table_has_no_column_for_are_told(
    siltstone: CommandLine, fakes: FakeJobs
) -> None:
    tiering(fakes, replace(STEP, left_out={"a": 50}), None)
    done = siltstone("pipeline", "tier")
    assert done.out.endswith("table a has too many columns: 50 fields stay in the payload only\n")


def test_a_run_that_goes_on_and_finds_nothing_says_that_it_ended(
    siltstone: CommandLine, fakes: FakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiering(fakes, None)
    monkeypatch.setattr(StopRequest, "wait", lambda _, seconds: None)
    done = siltstone("pipeline", "tier", "--continuous")
    assert (done.status, done.out) == (
        0,
        "stopped; no new rows arrived: all rows of database messages are in Delta tables\n",
    )


def test_a_single_run_that_is_interrupted_says_so(siltstone: CommandLine, fakes: FakeJobs) -> None:
    jobs = tiering(fakes, STEP)
    assert siltstone("pipeline", "tier").status == 130
    assert jobs[0].closed


def test_nothing_to_tier_is_said(siltstone: CommandLine, fakes: FakeJobs) -> None:
    tiering(fakes, None)
    assert siltstone("pipeline", "tier").out == (
        "no new rows: all rows of database messages are in Delta tables\n"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--decode", "json"], "--decode expects FILTER=HOW, as in 'plant/#=json', got 'json'"),
        (
            ["--decode", "a=xml"],
            "--decode must be one of json, cbor, msgpack, text, raw, got 'xml'",
        ),
        (["--partition", "week"], "--partition must be one of day, hour, got 'week'"),
    ],
)
def test_wrong_options_are_refused_before_spark_starts(
    siltstone: CommandLine, fakes: FakeJobs, arguments: list[str], sentence: str
) -> None:
    tiering(fakes)
    done = siltstone("pipeline", "tier", *arguments)
    assert (done.status, done.err, fakes.masters) == (2, f"siltstone: {sentence}\n", [])


@pytest.mark.parametrize(
    "job", [("tier",), ("audit",), ("compact",), ("vacuum",), ("tables",), ("rollup", "t")], ids=str
)
def test_jobs_that_work_on_files_are_not_done_by_url(
    siltstone: CommandLine, fakes: FakeJobs, monkeypatch: pytest.MonkeyPatch, job: tuple[str, ...]
) -> None:
    for module in ("tier", "audit", "upkeep", "rollup"):
        fakes.put(
            f"jobs.{module}",
            **dict.fromkeys(("compact_lake", "vacuum_lake", "describe_lake")),
            TierSettings=TierSettings,
            RollupSettings=RollupSettings,
        )
    FakeJobs(monkeypatch, "siltstone.cli.pipeline.jobs")
    monkeypatch.setattr("siltstone.cli.pipeline.jobs.pipeline", fakes.modules.__getitem__)
    told = siltstone("pipeline", *job, "--data", "grpc+tcp://h:1")
    assert told.err == (
        "siltstone: --data must be a directory, got grpc+tcp:/h:1; this command works on its "
        "files, so run it on the machine of the broker\n"
    )


def test_the_tables_of_the_lake_are_looked_after_and_listed(
    siltstone: CommandLine, fakes: FakeJobs
) -> None:
    asked: list[Any] = []

    def answering(answer: Any) -> Any:
        def answered(path: str, **given: Any) -> Any:
            given.pop("progress", lambda *_: None)(0, 1)
            asked.append((path, given))
            return answer

        return answered

    info = TableInfo(
        table="a",
        rows=1200,
        files=2,
        size_bytes=2048,
        columns=(("topic", "string"), ("plant", "string"), ("v", "double"), ("date", "date")),
    )
    fakes.put(
        "jobs.upkeep",
        compact_lake=answering([TableCompaction(table="a", files_removed=3, files_added=1)]),
        vacuum_lake=answering({"a": ["x", "y"]}),
        describe_lake=answering([info]),
    )

    def shown(*arguments: str) -> list[str]:
        return siltstone("pipeline", *arguments).lines[-1].split()

    assert shown("compact") == ["a", "3", "1"]
    assert shown("vacuum", "--hours", "3", "--dry-run") == ["a", "2"]
    assert shown("tables", "--database", "m") == [
        "a",
        "1,200",
        "2",
        "2",
        "KiB",
        "plant",
        "string,",
        "v",
        "double",
    ]
    assert asked == [
        ("/data", {"database": ""}),
        ("/data", {"database": "", "hours": 3, "dry_run": True}),
        ("/data", {"database": "m"}),
    ]
    assert siltstone("pipeline", "compact", "--json").document == [
        {"table": "a", "files_removed": 3, "files_added": 1}
    ]
    assert siltstone("pipeline", "vacuum", "--json").document == {"a": ["x", "y"]}
    assert siltstone("pipeline", "tables", "--json").document == [
        {
            "table": "a",
            "rows": 1200,
            "files": 2,
            "size_bytes": 2048,
            "columns": {"topic": "string", "plant": "string", "v": "double", "date": "date"},
        }
    ]


def test_a_lake_without_tables_says_what_writes_them(
    siltstone: CommandLine, fakes: FakeJobs
) -> None:
    fakes.put("jobs.upkeep", describe_lake=lambda *_, **__: [])
    shown = "no Delta tables in /data; 'siltstone pipeline tier' writes them\n"
    assert siltstone("pipeline", "tables").out == shown
    assert siltstone("pipeline", "tables", "--json").document == []


def test_a_run_that_goes_on_finishes_its_batch_when_it_is_asked_to_stop(
    siltstone: CommandLine, fakes: FakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = tiering(fakes, STEP, STEP)

    def asked(_stop: StopRequest, _seconds: float) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(StopRequest, "wait", asked)
    done = siltstone("pipeline", "tier", "--continuous", "--json")
    assert (done.status, done.document["batches"], jobs[0].closed) == (0, 1, True)


def test_a_run_that_goes_on_may_be_stopped_before_spark_has_started(
    siltstone: CommandLine, fakes: FakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiering(fakes, STEP)

    @contextmanager
    def interrupted(master: str, memory: str) -> Iterator[str]:
        os.kill(os.getpid(), signal.SIGINT)
        yield "spark"

    monkeypatch.setattr("siltstone.cli.pipeline.pipeline.session", interrupted)
    done = siltstone("pipeline", "tier", "--continuous")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("stopped; no new rows arrived")


def test_a_rewrite_that_cannot_be_completed_is_given_up_without_spark(
    siltstone: CommandLine, fakes: FakeJobs
) -> None:
    for kept, more in (
        (None, []),
        (7, ["version 7 of the schema keeps rules.toml as you changed it"]),
    ):
        fakes.put(
            "jobs.rewriting",
            give_up=lambda path, database, kept=kept: GivenUp(
                tables=(f"plant of {path}", database), kept_rules=kept
            ),
        )
        assert siltstone("pipeline", "retier", "--give-up").lines == [
            "undid the interrupted rewrite; restored tables: plant of /data, ",
            *more,
        ]
        assert siltstone("pipeline", "retier", "--give-up", "--json").document == {
            "tables": ["plant of /data", ""],
            "kept_rules": kept,
        }
    assert fakes.masters == []


@pytest.mark.parametrize("given", [(), ("--give-up", "--table", "plant")])
def test_retier_takes_tables_or_gives_up(
    siltstone: CommandLine, fakes: FakeJobs, given: tuple[str, ...]
) -> None:
    done = siltstone("pipeline", "retier", *given)
    assert "retier needs --table, or --give-up alone" in done.err
    assert fakes.masters == []
