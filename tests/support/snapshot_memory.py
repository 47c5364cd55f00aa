"""A process that writes or loads a snapshot, and prints the maximum growth of its memory.

python -m tests.support.snapshot_memory write|load FILE COUNT
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from pathlib import PurePath
from random import Random

from siltstone.fs.posix import PosixFileSystem
from siltstone.snapshot.format.contents import ContentsInFile
from siltstone.snapshot.format.records import QueuedMessage, Record
from siltstone.snapshot.loader import apply_snapshot, verify_snapshot
from siltstone.snapshot.writer import publish_snapshot
from tests.support.snapshots import ABOUT, queued, session

PAYLOAD_BYTES = 1000


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def records(count: int) -> Iterator[Record]:
    """Yield a session with this number of messages, all different."""
    rng = Random(1)
    yield session("c")
    for _ in range(count):
        yield queued("a/b", rng.randbytes(20) * (PAYLOAD_BYTES // 20))


class CountingSink:
    """Accepts messages as a store would, and keeps none."""

    def __init__(self) -> None:
        self.payload_bytes = 0

    def apply(self, record: Record) -> None:
        if isinstance(record, QueuedMessage):
            self.payload_bytes += len(record.payload)


def main(action: str, name: str, count: int) -> None:
    fs, path = PosixFileSystem(), PurePath(name)
    before = peak_bytes()
    if action == "write":
        publish_snapshot(fs, path, ABOUT, records(count))
    else:
        sink = CountingSink()
        with (
            fs.open(path, writable=False) as file,
            fs.create(path.with_name("contents")) as spill,
        ):
            apply_snapshot(file, ContentsInFile(spill), sink, verify_snapshot(file))
        assert sink.payload_bytes == count * PAYLOAD_BYTES
    sys.stdout.write(f"{peak_bytes() - before}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
