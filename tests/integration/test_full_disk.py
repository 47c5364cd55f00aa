"""A real disk that is really full: a clear error, nothing in part, and on it goes with space."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import siltstone
from siltstone import Database, DatabaseSettings, Row, SlabId, StorageFullError

DISK_BYTES = 8 * 1024 * 1024
VALUE = bytes(4000)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 8 MiB; where that is not allowed the test cannot be had."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "siltstone-test", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command: the real full disk is not tested")
    if done.returncode:
        pytest.skip("mounting is not allowed here: the real full disk is not tested")
    try:
        yield path
    finally:
        # Lazily: a map that Python has not collected yet keeps the disk busy.
        subprocess.run(["umount", "--lazy", str(path)], check=True)  # noqa: S607 - where mount was


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


def take_the_rest(path: Path) -> None:
    """Write a file until not a page is left."""
    with path.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                return


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
