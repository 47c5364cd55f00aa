"""A real disk that is really full: a clear error, nothing in part, and on it goes with space."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import siltstone
from siltstone import Database, DatabaseSettings, RetryError, Row, SlabId, StorageFullError
from tests.support.lake import tier_all, tiered_rows
from tests.support.pipeline import stored_rows
from tests.support.small_disk import mounted, take_the_rest

DISK_BYTES = 8 * 1024 * 1024
VALUE = bytes(4000)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", DISK_BYTES) as path:
        yield path


def fill(database: Database) -> list[str]:
    """Append until the disk is full; return the topics that were acknowledged."""
    acknowledged: list[str] = []
    for number in range(10_000):
        topics = [f"t/{number}/{i}" for i in range(5)]
        try:
            database.append([Row(topic, VALUE) for topic in topics]).wait()
        except StorageFullError:
            return acknowledged
        acknowledged += topics
    raise AssertionError("the disk never filled")


def topics_in(database: Database) -> list[str]:
    return [topic for batch in database.read(columns=["topic"]) for topic in batch[0].to_pylist()]


@pytest.mark.parametrize("reserve_bytes", [0, 256 * 1024])
def test_a_full_disk_refuses_rows_and_loses_none(small_disk: Path, reserve_bytes: int) -> None:
    settings = DatabaseSettings(segment_bytes=1024 * 1024, reserve_bytes=reserve_bytes)
    with siltstone.open(small_disk / "data") as store:
        database = store.create("full", settings)
        first = fill(database)
        assert len(first) > 500
        for _ in range(3):
            with pytest.raises(StorageFullError):
                database.append([Row("late", VALUE)] * 300).wait()
        assert topics_in(database) == first
    with siltstone.open(small_disk / "data") as store:
        assert topics_in(store.database("full")) == first


def test_on_a_full_disk_slabs_can_be_dropped_and_rows_go_on(small_disk: Path) -> None:
    settings = DatabaseSettings(segment_bytes=1024 * 1024, rotate_bytes=2 * 1024 * 1024)
    with siltstone.open(small_disk / "data") as store:
        database = store.create("full", settings)
        fill(database)
        hog = small_disk / "hog"
        take_the_rest(hog)
        before = topics_in(database)
        oldest = min(info.slab for info in database.slabs())
        gone = next(info.rows for info in database.slabs() if info.slab == oldest)
        database.drop_slab(oldest)
        assert topics_in(database) == before[gone:]
        hog.unlink()
        database.append([Row("again", VALUE)]).wait()
        assert topics_in(database)[-1] == "again"
    with siltstone.open(small_disk / "data") as store:
        assert topics_in(store.database("full")) == [*before[gone:], "again"]
        assert oldest == SlabId(0, 1)


def test_a_lake_that_is_full_is_said_at_whichever_file_and_the_next_run_goes_on(
    tmp_path: Path, small_disk: Path
) -> None:
    """The files of the lake, of the tables and of their logs."""
    said: list[str] = []
    with siltstone.open(tmp_path / "store") as store:
        (tmp_path / "store" / "lake").symlink_to(small_disk)
        database = store.create("messages", DatabaseSettings(thresholds=(100, 0, 10)))
        for pages in range(12):
            # A field that is new makes the table wider, which is a commit of its own.
            row = Row(f"plant/{pages}/x", b'{"value": %d, "field_%d": 1}' % (pages, pages))
            database.append([row] * 20).wait()
            take_the_rest(small_disk / "rest")
            with (small_disk / "rest").open("r+b") as file:
                file.truncate(file.seek(0, 2) - 4096 * pages)
            try:
                tier_all(tmp_path / "store", rows_per_batch=20)
            except RetryError as exc:
                said.append(str(exc))
            (small_disk / "rest").unlink()
        tier_all(tmp_path / "store")
        assert tiered_rows(tmp_path / "store") == stored_rows(database, ["#"])
    assert [text for text in said if not text.startswith("no space left on the disk: path=")] == []
    assert any("plant_x/_delta_log/" in text for text in said)
