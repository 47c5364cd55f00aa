"""`siltstone pipeline tier` is killed while the store is written: the lake has each row once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import pytest
from pyspark.sql import SparkSession

from siltstone.cli.main import execute
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from tests.support.broker_process import COMMAND, clean_environment
from tests.support.lake import lake_of

# What runs is short; and Spark says nothing of it, as these come by the environment.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
START_SECONDS = 180.0
PACE_SECONDS = 0.02


@contextmanager
def written(database: Database) -> Iterator[None]:
    """Append rows all the time, of which some cannot be decoded; seal now and then."""
    ended = Event()

    def write() -> None:
        number = 0
        while not ended.wait(PACE_SECONDS):
            database.append(
                [
                    Row(f"plant/{each % 3}/x", b'{"value": %d}' % each if each % 5 else b"none")
                    for each in range(number, number + 20)
                ]
            ).wait()
            number += 20
            if number % 1000 == 0:
                database.seal()

    writer = Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


def batches_of(path: str) -> int:
    """Return how many batches are in the lake."""
    with suppress(FileNotFoundError):
        batch: int = json.loads((lake_of(path) / "ledger.json").read_bytes())["batch"]
        return batch
    return 0


def kill_while_tiering(path: str, directory: Path, rng: random.Random) -> None:
    """Run the command until it has tiered something, then kill it at a moment by chance."""
    before = batches_of(path)
    # Spark's workers are Python as well; a file here must not be their module of that name.
    (directory / "grp.py").write_text("raise RuntimeError")
    child = subprocess.Popen(
        [
            *(
                COMMAND[0],
                "-P",
                *COMMAND[1:],
                "pipeline",
                "tier",
                "--data",
                path,
                "--master",
                "local[2]",
            ),
            *("--memory", "512m", "--continuous", "--interval", "0.05"),
        ],
        # What a killed Spark leaves behind goes with the test.
        env=clean_environment() | {"TMPDIR": str(directory), "JDK_JAVA_OPTIONS": JAVA_OPTIONS},
        cwd=directory,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        waits = 0.0
        while batches_of(path) == before:
            with suppress(subprocess.TimeoutExpired):
                child.wait(PACE_SECONDS)
            waits += PACE_SECONDS
            assert child.returncode is None, child.communicate()[1]
            assert waits < START_SECONDS
        with suppress(subprocess.TimeoutExpired):
            child.wait(rng.uniform(0, 1.5))
        # The driver alone, whose tasks live on for a moment, or all at once.
        (os.kill if rng.random() < 0.5 else os.killpg)(child.pid, signal.SIGKILL)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    assert child.returncode == -signal.SIGKILL


@pytest.fixture
def kept(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Return the session of all tests, which commands take for theirs, and cannot stop."""
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    return spark


def run_rounds(
    database: Database,
    path: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    rounds: int,
) -> None:
    rng = random.Random(rounds)
    with written(database):
        for _ in range(rounds):
            kill_while_tiering(path, tmp_path, rng)
    assert execute(("pipeline", "tier", "--data", path)) == 0
    capsys.readouterr()
    status = execute(("pipeline", "audit", "--data", path, "--json"))
    report = json.loads(capsys.readouterr().out)
    told = [report[name] for name in ("sound", "missing", "duplicates", "waiting")]
    assert (status, told) == (0, [True, 0, 0, 0]), report
    assert sum(report["tables"].values()) == database.count("#")


@pytest.mark.usefixtures("kept")
@pytest.mark.timeout(600)
def test_a_command_that_is_killed_while_rows_come_leaves_each_of_them_in_the_lake_once(
    database: Database, path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_rounds(database, path, tmp_path, capsys, 2)


@pytest.mark.soak
@pytest.mark.usefixtures("kept")
@pytest.mark.timeout(3600)
def test_thirty_kills_leave_each_row_in_the_lake_once(
    database: Database, path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_rounds(database, path, tmp_path, capsys, 30)
