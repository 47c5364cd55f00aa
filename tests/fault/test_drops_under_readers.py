"""A slab is dropped by its writer at every moment of a reader's look at it.

Whoever asks for all there is gets what is left; only who names the dropped slab is told of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import PurePath

import pytest

from siltstone.errors import SlabDroppedError
from siltstone.fs.faulty import Fault, FaultyFileSystem, Operation
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.read.scan import Status
from siltstone.store.slab.manifest import SlabId
from tests.support.builders import NAME, PATH, World, as_given, read_rows

DOOMED, KEPT = SlabId(0, 1), SlabId(0, 2)
BIG = b"b" * 30_000


class Interrupted(FaultyFileSystem):
    """Does something else just before a chosen operation."""

    def __init__(self, inner: MemoryFileSystem) -> None:
        super().__init__(inner)
        self.left = -1
        self.act: Callable[[], object] = lambda: None

    def fault(self, operation: Operation, *paths: PurePath) -> Fault | None:
        self.left -= 1
        if self.left == -1:
            self.act()
        return super().fault(operation, *paths)


@contextmanager
def two_slabs(disk: MemoryFileSystem) -> Iterator[Database]:
    """Leave three rows in as many segments to be dropped, and one in a slab that stays."""
    with World(fs=disk).database() as writer:
        for number in range(3):
            writer.append([Row(f"a/{number}", b"%d" % number + BIG)]).wait()
        writer.seal()
        writer.append([Row("a/9", b"9")]).wait()
        yield writer


def interrupted(look: Callable[[Database], object], *, warm: bool) -> Iterator[object]:
    """Yield what a reader sees when the first slab is dropped before each of its operations."""
    for operations in count():
        disk = MemoryFileSystem()
        fs = Interrupted(disk)
        with two_slabs(disk) as writer, Store(PATH, fs=fs, read_only=True) as store:
            reader = store.database(NAME)
            if warm:
                reader.count()
            fs.act, fs.left = lambda: writer.drop_slab(DOOMED), operations
            found = look(reader)
            if fs.left >= 0:
                return
            yield found
            assert [info.slab for info in reader.slabs()] == [KEPT]
            assert as_given(read_rows(reader)) == [Row("a/9", b"9")]


LOOKS: dict[str, tuple[Callable[[Database], object], object, object]] = {
    "count": (lambda reader: reader.count("a/+"), 4, 1),
    "read": (
        lambda reader: [row.topic for row in read_rows(reader, "a/#")],
        ["a/0", "a/1", "a/2", "a/9"],
        ["a/9"],
    ),
    "streams": (
        lambda reader: [stream.pattern for stream in reader.streams()],
        ["a/0", "a/1", "a/2", "a/9"],
        ["a/9"],
    ),
    "structure": (
        lambda reader: [(info.pattern, info.rows) for info in reader.structure()],
        [("a/0", 1), ("a/1", 1), ("a/2", 1), ("a/9", 1)],
        [("a/9", 1)],
    ),
    "slabs": (
        lambda reader: [(info.slab, info.rows) for info in reader.slabs()],
        [(DOOMED, 3), (KEPT, 1)],
        [(KEPT, 1)],
    ),
}


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("name", list(LOOKS))
def test_a_look_at_everything_sees_the_slab_whole_or_not_at_all(name: str, warm: bool) -> None:
    look, before, after = LOOKS[name]
    seen = list(interrupted(lambda reader: sorted_streams(look(reader)), warm=warm))
    assert seen
    for found in seen:
        assert found in (before, after)


def sorted_streams(found: object) -> object:
    # Streams stand in the order of their ids, which says nothing to us.
    return sorted(found) if isinstance(found, list) else found


def test_who_follows_the_slab_reads_on_or_is_told() -> None:
    def follow(reader: Database) -> list[str]:
        try:
            stream = reader.streams("a/1")[0]
            if stream.slab == KEPT:
                return ["gone"]
            read = reader.next(reader.iterator(stream))
        except (SlabDroppedError, IndexError):
            return ["gone"]
        assert read.status is Status.END
        return [row.topic for row in read.batch.rows()]

    for warm in (False, True):
        for found in interrupted(follow, warm=warm):
            assert found in (["a/1"], ["gone"])
