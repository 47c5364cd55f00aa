"""A process that saves without end, killed at any time: what it told of is there, and whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path, PurePath
from random import Random

import pytest

from siltstone.clock import SystemClock
from siltstone.errors import LockedError
from siltstone.fs.posix import PosixFileSystem
from siltstone.snapshot.directory import SnapshotDirectory
from siltstone.snapshot.format.contents import ContentsInMemory
from siltstone.snapshot.format.records import SessionState
from tests.support.broker_process import clean_environment
from tests.support.snapshot_saver import numbered
from tests.support.snapshots import ListSink


def keeper_in(directory: Path) -> SnapshotDirectory:
    root = PurePath(directory)
    return SnapshotDirectory(
        PosixFileSystem(), SystemClock(), root / "snapshots", root / "quarantine"
    )


def saver(directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.snapshot_saver", str(directory)],
        stdout=subprocess.PIPE,
        env=clean_environment(),
    )


def read_state(directory: Path) -> int:
    """Load as a start does; return the number of the state, all of which must be of that number."""
    keeper, sink = keeper_in(directory), ListSink()
    loaded = keeper.load(sink, ContentsInMemory())
    keeper.close()
    assert loaded.bad == []
    first = sink.records[0]
    assert isinstance(first, SessionState)
    assert sink.records == numbered(int(first.client_id))
    return int(first.client_id)


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_saver_leaves_what_it_told_of_or_what_came_after(
    tmp_path: Path, seed: int
) -> None:
    rng = Random(seed)
    process = saver(tmp_path)
    assert process.stdout is not None
    with process:
        told = [int(process.stdout.readline()) for _ in range(rng.randint(1, 6))]
        with pytest.raises(LockedError):
            keeper_in(tmp_path)
        process.kill()
        told += map(int, process.stdout.read().split())
    assert read_state(tmp_path) in (told[-1], told[-1] + 1)
    left = sorted(entry.name for entry in (tmp_path / "snapshots").iterdir())
    assert left[:2] == ["LOCK", "state"]
    assert [name for name in left if name.endswith(".tmp")] == []


def test_a_reader_that_follows_the_link_never_misses_a_whole_snapshot(tmp_path: Path) -> None:
    process = saver(tmp_path)
    assert process.stdout is not None
    link = tmp_path / "snapshots" / "state"
    with process:
        process.stdout.readline()
        try:
            for _ in range(300):
                data = link.read_bytes()
                assert data[:3] == b"\x1f\x8b\x08"
                assert len(data) > 200_000
        finally:
            process.kill()
