"""The files of a batch survive a power cut before the ledger says that the batch has ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import siltstone
from siltstone.clock import ManualClock
from siltstone.fs.faulty import Fault, FaultyFileSystem, Operation
from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline.lake.delta import add_files, ensure_table, last_batch
from siltstone.pipeline.lake.files import (
    MadeFile,
    partition_schema,
    rule_schema,
    write_file,
)
from siltstone.pipeline.lake.rules import Rule
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from tests.support.builders import settings_of
from tests.support.lake import DATABASE, lake_of, tier_all

Step = tuple[Operation, PurePath]


class Recorder(FaultyFileSystem):
    """Remembers every operation with its last path, in order."""

    def __init__(self) -> None:
        super().__init__(PosixFileSystem())
        self.steps: list[Step] = []

    def fault(self, operation: Operation, *paths: PurePath) -> Fault | None:
        self.steps.append((operation, paths[-1]))
        return super().fault(operation, *paths)

    def place(self, operation: Operation, path: PurePath, *, after: int) -> int:
        """Return where an operation on a path comes behind another one."""
        return self.steps.index((operation, path), after)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with siltstone.open(path) as store:
        database = store.create(DATABASE, settings_of(thresholds=(100, 0, 10)))
        database.append(
            [Row(f"a/{number}/x", b'{"v": 1}') for number in range(9)]
            + [Row("a/9/x", b"none"), Row("b/1", b'{"v": 2}')]
        ).wait()
        yield database


@pytest.mark.usefixtures("database")
def test_files_and_their_directories_are_synced_before_the_ledger_closes(path: Path) -> None:
    fs = Recorder()
    assert tier_all(path, fs) == 11
    ledgers = [
        place
        for place, (operation, named) in enumerate(fs.steps)
        if (operation, named.name) == ("rename", "ledger.json")
    ]
    closed = ledgers[-1]
    made = [
        (place, named)
        for place, (operation, named) in enumerate(fs.steps)
        if operation == "create" and named.suffix == ".parquet"
    ]
    assert sorted(named.relative_to(lake_of(path)).parts[0] for _, named in made) == [
        "a_x",
        "b",
        "dead_letter",
    ]
    for created, named in made:
        written = fs.place("write", named, after=created)
        synced = fs.place("sync", named, after=written)
        listed = fs.place("sync_directory", named.parent, after=synced)
        # The directories above it are new too.
        table = named.parents[len(named.relative_to(lake_of(path)).parts) - 2]
        above = fs.place("sync_directory", named.parent.parent, after=0)
        log = table / "_delta_log"
        committed = fs.place("sync", log / f"{1:020}.json", after=listed)
        assert max(above, fs.place("sync_directory", log, after=committed)) < closed


def made_file(table: Path, name: str, value: float) -> MadeFile:
    rows = pa.table({"v": [value]})
    place = PurePath("date=2026-01-31") / name
    size, stats = write_file(PosixFileSystem(), table / place, rows)
    return MadeFile(
        rule="a/+",
        table="t",
        path=place.as_posix(),
        size_bytes=size,
        rows=1,
        partition={"date": "2026-01-31"},
        stats=stats,
    )


def test_a_batch_that_is_added_twice_is_there_once(tmp_path: Path) -> None:
    fs, clock, table = PosixFileSystem(), ManualClock(), tmp_path / "t"
    ensure_table(fs, table, rule_schema(Rule(filter="a/+", table="t")), partition_schema("day"))

    made: dict[str, MadeFile] = {}

    def add(name: str, *, batch: int, application: str = "one") -> tuple[int, list[str]]:
        if name not in made:
            made[name] = made_file(table, name, 1.0)
        files = [made[name]]
        add_files(
            fs, clock, table, files, application=application, batch=batch, offsets={"stop": {}}
        )
        delta = DeltaTable(str(table))
        return delta.version(), sorted(Path(file).name for file in delta.file_uris())

    assert add("first", batch=1) == (1, ["first"])
    # The same batch again, with files of the same name or of others, is there already.
    assert add("first", batch=1) == (1, ["first"])
    assert add("again", batch=1) == (1, ["first"])
    assert add("second", batch=2) == (2, ["first", "second"])
    assert add("late", batch=1) == (2, ["first", "second"])
    assert add("other", batch=1, application="two") == (3, ["first", "other", "second"])
    assert (last_batch(fs, table, "one"), last_batch(fs, table, "two")) == (2, 1)
