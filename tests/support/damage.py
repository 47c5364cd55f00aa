"""A small database on a disk in memory, and functions to damage it.

Shard 0 has a sealed generation of one segment and a current one; each has a few frames of three
rows. Topics are learned meanwhile, so the frames store different parts of the trie.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, Final

from siltstone.fs.api import FileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.log.check.findings import Finding
from siltstone.store.log.check.verify import VerifyReport, verify_database
from siltstone.store.log.read.pieces import Row
from siltstone.store.segment.segment import open_segment, segment_path
from tests.support.builders import NAME, PATH, World, read_rows

DATABASE: Final = PATH / "data" / NAME
QUARANTINE: Final = PATH / "quarantine"
FRAMES: Final = 4
FRAME_ROWS: Final = 3
SEALED: Final = segment_path(DATABASE / "0" / "1", 0)
CURRENT: Final = segment_path(DATABASE / "0" / "2", FRAMES * FRAME_ROWS)


def small_world(**changes: Any) -> World:
    """Return a world with a closed database: a sealed slab and a current one, FRAMES each."""
    world = World()
    with world.database(**({"thresholds": (2, 1)} | changes)) as database:
        for number in range(2 * FRAMES):
            if number == FRAMES:
                database.seal()
            database.append(rows_of_frame(number), producer=(f"p{number % 2}", number)).wait()
    return world


def rows_of_frame(number: int) -> list[Row]:
    """Return the rows of a frame: two of a stream that may be new, one of a `$` topic."""
    return [
        Row(f"a/{number % FRAMES}/x", b"%d" % number, publisher="one", qos=1),
        Row(f"a/{number % FRAMES}/x", b"", publisher="two", properties=b"p"),
        Row("$SYS/x", b"s%d" % number, retain=True),
    ]


def clone(world: World) -> World:
    """Return a copy of a world; damage to one does not change the other."""
    assert isinstance(world.fs, MemoryFileSystem)
    return World(fs=world.fs.kill_clone(), clock=world.clock)


def read_all(world: World) -> list[Row]:
    """Return all rows, as a read-only process reads them."""
    with world.reader() as database:
        return read_rows(database, "#") + read_rows(database, "$SYS/#")


def without_serials(rows: list[Row], generation: int, lost: range) -> list[Row]:
    """Return the rows without those of a generation whose serial is lost."""
    return [row for row in rows if row.generation != generation or row.serial not in lost]


def frames_of(fs: FileSystem, path: PurePath) -> list[range]:
    """Return the byte ranges of the frames of an undamaged segment, the state frame first."""
    segment = open_segment(fs, path)
    segment.follow()
    index = segment.index
    ends = [*index.positions[1:], index.end_position]
    return [range(start, end) for start, end in zip(index.positions, ends, strict=True)]


def patch(fs: FileSystem, path: PurePath, offset: int, data: bytes) -> bytes:
    """Overwrite bytes of a file durably; return the old bytes."""
    with fs.open(path, writable=True) as file:
        before = file.read_at(offset, len(data))
        file.write_at(offset, data)
        file.sync()
    return before


def flip(fs: FileSystem, path: PurePath, offset: int) -> None:
    """Flip one bit of a byte; the bit depends on the offset."""
    (byte,) = patch(fs, path, offset, b"\0")
    patch(fs, path, offset, bytes([byte ^ (1 << offset % 8)]))


@contextmanager
def flipped(fs: FileSystem, path: PurePath, offset: int) -> Iterator[None]:
    """Flip a bit in this context; faster than a new world for each bit."""
    flip(fs, path, offset)
    yield
    flip(fs, path, offset)


def verify(world: World, *, repair: bool = False) -> VerifyReport:
    """Check the database, or repair it."""
    return verify_database(world.fs, DATABASE, repair=repair, quarantine=QUARANTINE)


def damage_in(report: VerifyReport) -> list[tuple[PurePath, int]]:
    """Return the places of damage."""
    return [(found.path, found.offset) for found in report.findings if found.severity == "damage"]


def notes_in(report: VerifyReport) -> list[Finding]:
    """Return the findings that need no repair."""
    return [finding for finding in report.findings if finding.severity == "note"]


def unrepaired(report: VerifyReport) -> list[Finding]:
    """Return the damage that was not repaired."""
    return [
        finding
        for finding in report.findings
        if finding.severity == "damage" and not finding.repaired
    ]
