"""A tier job over many tables: what it opens, and what a cut leaves of commits made together."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import siltstone
from siltstone.fs.faulty import FaultyFileSystem
from siltstone.fs.memory import PowerCut
from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline.lake import delta
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from tests.support.builders import settings_of
from tests.support.lake import DATABASE, lake_of, read_table, tier_all, tiered_rows, tiering
from tests.support.pipeline import stored_rows

TABLES = 10
# More changes of the disk than a batch of all tables makes.
OPERATIONS_MAX = 150


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with siltstone.open(path) as store:
        yield store.create(DATABASE, settings_of(thresholds=(100,)))


def append(database: Database, value: int) -> None:
    database.append(
        [Row(f"t{chr(97 + number)}", b'{"v": %d}' % value) for number in range(TABLES)]
    ).wait()


def test_a_job_opens_no_table_again_however_many_batches_it_has(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []

    class Counting(DeltaTable):
        def __init__(self, *given: Any, **options: Any) -> None:
            opened.append(1)
            super().__init__(*given, **options)

    append(database, 0)
    with tiering(path) as job:
        job.step()
        monkeypatch.setattr(delta, "DeltaTable", Counting)
        for value in range(1, 3):
            append(database, value)
            job.step()
            job.tidy()
    assert opened == []
    assert tiered_rows(path) == stored_rows(database, ["#"])


def test_a_job_goes_on_with_tables_that_another_program_has_changed(
    database: Database, path: Path
) -> None:
    with tiering(path) as job:
        append(database, 1)
        job.step()
        DeltaTable(str(lake_of(path) / "tb")).optimize.compact()
        DeltaTable(str(lake_of(path) / "tc")).alter.set_table_properties(
            {"delta.appendOnly": "false"}
        )
        append(database, 2)
        job.step()
    assert tiered_rows(path) == stored_rows(database, ["#"])
    assert sorted(read_table(path, "tc").column("v").to_pylist()) == [1.0, 2.0]


def test_a_cut_while_many_tables_are_committed_together_loses_nothing(
    database: Database, path: Path
) -> None:
    rng = random.Random(1)
    append(database, 0)
    tier_all(path)
    cuts = 0
    for turn in range(12):
        append(database, turn)
        fs = FaultyFileSystem(PosixFileSystem())
        fs.operations_left = rng.randrange(OPERATIONS_MAX)
        try:
            tier_all(path, fs)
        except PowerCut:
            cuts += 1
    assert cuts > 5
    tier_all(path)
    assert tiered_rows(path) == stored_rows(database, ["#"])
