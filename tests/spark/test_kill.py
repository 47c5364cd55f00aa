"""Streaming queries whose driver is killed read each row exactly once, and write it once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import siltstone
from siltstone.scan.columns.schema import COLUMNS
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from tests.support.pipeline import by_place, stored_rows
from tests.support.stream_driver import run_queries

ROOT = Path(__file__).parent.parent.parent


def kill_driver(path: str, directory: Path, kill_at: str) -> list[str]:
    """Run the queries; kill them, and all that they started, as soon as they have said a line."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.support.stream_driver", path, str(directory)],
        cwd=ROOT,
        # What a killed Spark leaves behind goes with the test.
        env=os.environ | {"TMPDIR": str(directory)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    said: list[str] = []
    try:
        for line in child.stdout:
            said.append(line.strip())
            if said[-1] == kill_at:
                break
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        status = child.wait()
        child.stdout.close()
    assert (status, said[-1:]) == (-signal.SIGKILL, [kill_at]), said
    return said


def append(database: Database, start: int, stop: int) -> None:
    database.append(
        [
            Row(f"plant/{number % 7}/x", b"%d" % number, f"p{number % 3}")
            for number in range(start, stop)
        ]
    ).wait()


def check(database: Database, directory: Path, rows: int) -> None:
    """Check that files and copy have all that the store has, and nothing twice."""
    tables = [pq.read_table(file) for file in directory.glob("*.parquet")]
    found = pa.concat_tables(tables).select(COLUMNS).to_pylist()
    for row in found:
        row["timestamp"] = round(row["timestamp"].timestamp() * 1_000_000)
        row["properties"] = dict(row["properties"])
    expected = stored_rows(database, ["#"])
    assert len(expected) == rows
    assert by_place(found) == expected
    with siltstone.open(directory / "copy", read_only=True) as copy:
        copied = stored_rows(copy.database("messages"), ["#"])
    assert Counter((row["topic"], row["payload"]) for row in copied) == Counter(
        (row["topic"], row["payload"]) for row in expected
    )


@pytest.mark.timeout(600)
def test_a_driver_that_is_killed_twice_has_read_and_written_each_row_once(
    spark: SparkSession, database: Database, path: str, tmp_path: Path
) -> None:
    directory = tmp_path / "out"
    directory.mkdir()
    append(database, 0, 250)
    # The first kill comes when a batch has begun, the second when one is written, not committed.
    said = kill_driver(path, directory, "begin 2")
    assert said == ["begin 0", "end 0", "begin 1", "end 1", "begin 2"]
    database.seal()
    append(database, 250, 350)
    said = kill_driver(path, directory, "end 3")
    assert said == ["begin 2", "end 2", "begin 3", "end 3"]
    append(database, 350, 400)
    said = []
    run_queries(spark, path, directory, said.append)
    assert said == ["begin 3", "end 3", "begin 4", "end 4"]
    check(database, directory, 400)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_driver_that_is_killed_twenty_times_has_read_and_written_each_row_once(
    spark: SparkSession, database: Database, path: str, tmp_path: Path
) -> None:
    directory = tmp_path / "out"
    directory.mkdir()
    rng = random.Random(20)
    batch = -1
    for number in range(20):
        append(database, number * 300, number * 300 + 300)
        batch += rng.randrange(1, 3)
        kill_driver(path, directory, f"{rng.choice(('begin', 'end'))} {batch}")
    run_queries(spark, path, directory, lambda _: None)
    check(database, directory, 6000)
