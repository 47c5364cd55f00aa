"""A streaming query whose driver is killed in the middle still reads each row exactly once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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


@pytest.mark.timeout(600)
def test_a_driver_that_is_killed_twice_has_read_each_row_once(
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
    tables = [pq.read_table(file) for file in directory.glob("*.parquet")]
    found = pa.concat_tables(tables).select(COLUMNS).to_pylist()
    for row in found:
        row["timestamp"] = round(row["timestamp"].timestamp() * 1_000_000)
        row["properties"] = dict(row["properties"])
    expected = stored_rows(database, ["#"])
    assert len(expected) == 750
    assert by_place(found) == expected
