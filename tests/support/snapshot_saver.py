"""A process that saves one state after the other, and prints a line after each.

python -m tests.support.snapshot_saver DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import PurePath
from random import Random

from siltstone.clock import SystemClock
from siltstone.fs.posix import PosixFileSystem
from siltstone.snapshot.directory import SnapshotDirectory
from siltstone.snapshot.format.records import Record
from tests.support.snapshots import queued, session


def numbered(number: int) -> list[Record]:
    """Return a state that consists of one number, and is several buffers long."""
    payload = Random(number).randbytes(200_000)
    return [session(str(number)), queued("a", payload), session(f"{number} end")]


def main(directory: PurePath) -> None:
    keeper = SnapshotDirectory(
        PosixFileSystem(), SystemClock(), directory / "snapshots", directory / "quarantine"
    )
    number = 0
    while True:
        number += 1
        keeper.save(numbered(number), source="broker")
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(PurePath(sys.argv[1]))
