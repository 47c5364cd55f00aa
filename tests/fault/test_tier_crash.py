"""A tier job that is cut off at any step loses no row and doubles none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import siltstone
from siltstone.errors import DiskError, RetryError, SiltstoneError, UsageError
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import PowerCut
from siltstone.fs.posix import PosixFileSystem
from siltstone.store.database import Database
from siltstone.store.log.check.verify import verify_database
from siltstone.store.log.read.pieces import Row
from tests.support.builders import settings_of
from tests.support.lake import DATABASE, tier_all, tiered_rows, tiering
from tests.support.pipeline import stored_rows

ROOT = Path(__file__).parent.parent.parent
NO_SPACE = 28
# More changes of the disk than a run of the small store below makes.
OPERATIONS_MAX = 400


def rows_of(start: int, stop: int) -> list[Row]:
    """Return rows of which some cannot be decoded, and some have a field that comes late."""
    documents = [
        {"value": number} | ({"late": True} if number > 15 else {}) for number in range(stop)
    ]
    return [
        Row(f"plant/{number % 3}/x", json.dumps(documents[number]).encode())
        if number % 5
        else Row("plant/9/x", b"no document")
        for number in range(start, stop)
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    settings = settings_of(shards=2, shard_by="topic", thresholds=(100, 0, 10))
    with siltstone.open(path) as store:
        database = store.create(DATABASE, settings)
        database.append([Row("plant/1/x", b'{"value": 1}')]).wait()
        database.append(rows_of(1, 20)).wait()
        yield database


def test_a_cut_at_any_step_is_made_good_by_the_next_run(database: Database, path: Path) -> None:
    cuts = 0
    for operations in range(OPERATIONS_MAX):
        fs = FaultyFileSystem(PosixFileSystem())
        fs.operations_left = operations
        try:
            # One batch after the other: each run goes on where the one before was cut.
            tier_all(path, fs, rows_per_batch=3)
        except PowerCut:
            cuts += 1
            database.append(rows_of(operations, operations + 1)).wait()
            if operations % 7 == 0:
                database.seal()
            continue
        break
    assert cuts > 40
    tier_all(path)
    assert tiered_rows(path) == stored_rows(database, ["#"])


@pytest.mark.parametrize("suffix", [".parquet", "ledger.json.tmp", "rules.toml.tmp", "tiered.tmp"])
def test_a_full_disk_is_said_and_nothing_is_lost(
    database: Database, path: Path, suffix: str
) -> None:
    full = Fault(operation="write", errno=NO_SPACE, path_suffix=suffix, repeat=True)
    with pytest.raises(RetryError, match="no space left on the disk"):
        tier_all(path, FaultyFileSystem(PosixFileSystem(), full))
    assert tier_all(path) == database.count("#")
    assert tiered_rows(path) == stored_rows(database, ["#"])


def test_a_batch_that_was_cut_off_is_finished_as_it_was_begun(
    database: Database, path: Path
) -> None:
    """The rules that users change meanwhile hold for the rows behind it."""
    fs = FaultyFileSystem(
        PosixFileSystem(),
        Fault(operation="link", errno=5, path_suffix=f"dead_letter/_delta_log/{1:020}.json"),
    )
    with pytest.raises(DiskError, match="errno=5"):
        tier_all(path, fs)
    rules = path / "lake" / DATABASE / "rules.toml"
    rules.write_text(rules.read_text().replace('table = "plant_x"', 'table = "renamed"'))
    database.append([Row("plant/7/x", b'{"value": 7}')]).wait()
    with tiering(path) as job:
        steps = [job.step(), job.step(), job.step()]
    assert [set(step.tables) if step else None for step in steps] == [
        {"dead_letter"},
        {"renamed"},
        None,
    ]
    assert tiered_rows(path) == stored_rows(database, ["#"])


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ('type = "double"', 'type = "string"', "column value of table plant_x is"),
        ('partition = "day"', 'partition = "hour"', "table plant_x is partitioned by date, which"),
    ],
)
def test_a_rule_that_does_not_fit_its_table_is_refused_and_put_right(
    database: Database, path: Path, before: str, after: str, sentence: str
) -> None:
    tier_all(path)
    rules = path / "lake" / DATABASE / "rules.toml"
    right = rules.read_text()
    rules.write_text(right.replace(before, after))
    database.append([Row("plant/7/x", b'{"value": "7"}'), Row("plant/8/x", b"{}")]).wait()
    with pytest.raises(UsageError, match=sentence):
        tier_all(path)
    rules.write_text(right)
    tier_all(path)
    assert tiered_rows(path) == stored_rows(database, ["#"])


def test_a_damaged_frame_is_said_and_the_batches_before_it_stay(
    database: Database, path: Path
) -> None:
    tier_all(path)
    before = tiered_rows(path)
    marker = b'{"value": 4711}'
    database.append([Row("plant/7/x", marker)]).wait()
    (segment,) = (file for file in path.rglob("*.seg") if marker in file.read_bytes())
    whole = segment.read_bytes()
    segment.write_bytes(whole.replace(marker, marker.replace(b"7", b"8")))
    with pytest.raises(SiltstoneError, match="the frame does not match its checksum"):
        tier_all(path)
    assert tiered_rows(path) == before
    segment.write_bytes(whole)
    tier_all(path)
    assert tiered_rows(path) == stored_rows(database, ["#"])


def test_rows_that_a_repair_could_not_save_do_not_hold_up_the_others(
    database: Database, path: Path
) -> None:
    marker = b'{"value": 4711}'
    database.append([Row("plant/7/x", marker)]).wait()
    database.append([Row("plant/7/x", b'{"value": 4712}')]).wait()
    database.seal()
    (segment,) = (file for file in path.rglob("*.seg") if marker in file.read_bytes())
    segment.write_bytes(segment.read_bytes().replace(marker, marker.replace(b"7", b"8")))
    with pytest.raises(SiltstoneError, match="the frame does not match its checksum"):
        tier_all(path)
    database.close()
    place = path / "data" / DATABASE
    verify_database(PosixFileSystem(), place, repair=True, quarantine=path / "quarantine")
    with siltstone.open(path, read_only=True) as store:
        left = store.database(DATABASE)
        assert tier_all(path) == 21
        assert tiered_rows(path) == stored_rows(left, ["#"])


def killed_after(path: Path, lines: int) -> None:
    """Run a tier job in a process, and kill it when it has said so many lines."""
    command = [sys.executable, "-m", "tests.support.tier_process", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for _ in range(lines):
            process.stdout.readline()
        process.kill()


def run_rounds(database: Database, path: Path, rounds: int) -> None:
    for number in range(rounds):
        database.append(rows_of(20, 120)).wait()
        killed_after(path, 1 + number * 7 % 30)
    tier_all(path)
    assert tiered_rows(path) == stored_rows(database, ["#"])


@pytest.mark.timeout(120)
def test_kills_at_any_moment_leave_each_row_in_the_lake_once(
    database: Database, path: Path
) -> None:
    run_rounds(database, path, 4)


@pytest.mark.soak
def test_a_hundred_kills_leave_each_row_in_the_lake_once(database: Database, path: Path) -> None:
    run_rounds(database, path, 100)
