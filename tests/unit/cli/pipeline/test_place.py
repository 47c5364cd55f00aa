from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.cli.pipeline.place import checked_directory
from siltstone.errors import NotFoundError, UsageError
from tests.support.command_line import CommandLine
from tests.support.fake_jobs import FakeJobs


def test_a_directory_with_its_database_is_taken(siltstone: CommandLine) -> None:
    siltstone.create("messages")
    assert checked_directory(Path("/data"), "") == "/data"
    assert checked_directory(Path("/data"), "messages") == "/data"


def test_a_directory_or_a_database_that_is_not_there_is_refused(siltstone: CommandLine) -> None:
    with pytest.raises(UsageError, match="no Siltstone data directory at /data; name one"):
        checked_directory(Path("/data"), "")
    siltstone.create("messages")
    with pytest.raises(
        NotFoundError, match=r"database 'other' does not exist in /data .databases: me"
    ):
        checked_directory(Path("/data"), "other")
    siltstone.create("metrics")
    with pytest.raises(
        UsageError,
        match="several databases exist \\(messages, metrics\\); choose one with --database",
    ):
        checked_directory(Path("/data"), "")


@pytest.mark.parametrize(
    ("module", "job"),
    [
        ("siltstone.cli.pipeline.pipeline", ("pipeline", "tier")),
        ("siltstone.cli.pipeline.jobs", ("pipeline", "audit")),
        ("siltstone.cli.pipeline.jobs", ("pipeline", "learn")),
        ("siltstone.cli.pipeline.jobs", ("pipeline", "replay")),
        ("siltstone.cli.pipeline.jobs", ("pipeline", "rollup", "t")),
        ("siltstone.cli.pipeline.sql", ("sql", "SELECT 1")),
    ],
    ids=str,
)
def test_jobs_look_for_their_data_before_spark_starts(
    siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch, module: str, job: tuple[str, ...]
) -> None:
    fakes = FakeJobs(monkeypatch, module)
    for name in ("jobs.tier", "jobs.audit", "jobs.learn", "jobs.replay", "jobs.rollup"):
        settings = dict.fromkeys(("TierSettings", "ReplaySettings", "RollupSettings"), dict)
        fakes.put(name, **settings)
    for name in ("sql", "answers"):
        fakes.put(name)
    done = siltstone(*job, "--data", "/nope")
    assert (done.status, fakes.masters) == (2, [])
    assert done.err.startswith("siltstone: no Siltstone data directory at /nope; name one")
