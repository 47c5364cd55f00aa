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

import siltstone
from siltstone.bulk.schema import COLUMNS
from siltstone.database import Database
from siltstone.store.rows import Row
from tests.support.pipeline import by_place, stored_rows

ROOT = Path(__file__).parent.parent.parent


def run_driver(path: str, directory: Path, kill_at: str | None) -> list[str]:
    """Run the query; kill it, and all that it started, as soon as it has said a line."""
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
        if kill_at is not None:
            os.killpg(child.pid, signal.SIGKILL)
        status = child.wait()
        child.stdout.close()
    assert status == (0 if kill_at is None else -signal.SIGKILL), said
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
    database: Database, path: str, tmp_path: Path
) -> None:
    directory = tmp_path / "out"
    directory.mkdir()
    append(database, 0, 500)
    # The first kill comes when a batch has begun, the second when one is written, not committed.
    said = run_driver(path, directory, "begin 2")
    assert "end 1" in said
    database.seal()
    append(database, 500, 700)
    said = run_driver(path, directory, "end 3")
    assert said[0] == "begin 2"
    append(database, 700, 750)
    said = run_driver(path, directory, None)
    assert said[0] == "begin 3"
    check(database, directory, 750)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_driver_that_is_killed_twenty_times_has_read_and_written_each_row_once(
    database: Database, path: str, tmp_path: Path
) -> None:
    directory = tmp_path / "out"
    directory.mkdir()
    rng = random.Random(20)
    batch = -1
    for number in range(20):
        append(database, number * 300, number * 300 + 300)
        batch += rng.randrange(1, 3)
        run_driver(path, directory, f"{rng.choice(('begin', 'end'))} {batch}")
    run_driver(path, directory, None)
    check(database, directory, 6000)
