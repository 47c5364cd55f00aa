from __future__ import annotations

from itertools import count
from pathlib import PurePath

import pytest

from siltstone.errors import CorruptionError
from siltstone.fs.faulty import FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.fs.publish import replace_file
from siltstone.store.log.check.verify import verify_database
from siltstone.store.log.read.pieces import Row
from siltstone.store.segment.segment import segment_path
from siltstone.store.segment.sift import index_path
from tests.support.builders import NAME, PATH, World, read_topics

DATABASE = PATH / "data" / NAME
SLAB = DATABASE / "0" / "1"
TOPICS = [f"t/{number}" for number in range(8)]
# Which segment each name gets, by the numbers of the segments.
Moves = dict[int, int]


def rolled() -> tuple[MemoryFileSystem, list[int]]:
    """Return a slab of four segments, two rows each, and the serials with which they begin."""
    fs = MemoryFileSystem()
    with World(fs=fs).database() as database:
        for topic in TOPICS:
            database.append([Row(topic, bytes(25_000))]).wait()
    bases = [int(entry.name[:20]) for entry in fs.list(SLAB) if entry.name.endswith(".seg")]
    assert bases == [0, 2, 4, 6]
    return fs, bases


def misplace(fs: MemoryFileSystem, moves: Moves, *, with_index: bool) -> None:
    """Give segments other names; a name that nobody else takes is free then."""
    held = {}
    for base in moves:
        for path in (segment_path(SLAB, base), index_path(segment_path(SLAB, base))):
            if fs.exists(path) and (with_index or path.suffix == ".seg"):
                held[path] = fs.read(path)
                fs.remove(path)
    for path, data in held.items():
        target = segment_path(SLAB, moves[int(path.stem)]).with_suffix(path.suffix)
        with fs.create(target) as file:
            file.write(data)
            file.sync()
    fs.sync_directory(SLAB)


def repaired(fs: MemoryFileSystem | FaultyFileSystem) -> list[str]:
    report = verify_database(fs, DATABASE, repair=True, quarantine=PATH / "quarantine")
    return [finding.repaired for finding in report.findings]


def topics_now(fs: MemoryFileSystem) -> list[str]:
    with World(fs=fs).reader() as database:
        return read_topics(database)


MOVED: list[Moves] = [{2: 3}, {6: 7}, {0: 1}, {2: 4, 4: 2}, {0: 2, 2: 4, 4: 0}, {2: 5, 4: 3}]


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("moves", MOVED, ids=str)
def test_segments_get_their_own_names_back_and_no_row_is_lost(
    moves: Moves, with_index: bool
) -> None:
    fs, _ = rolled()
    misplace(fs, moves, with_index=with_index)
    with pytest.raises(CorruptionError):
        topics_now(fs)
    assert all(repaired(fs))
    assert not verify_database(fs, DATABASE, quarantine=PATH / "quarantine").damaged
    assert topics_now(fs) == TOPICS


def test_a_second_copy_goes_into_quarantine() -> None:
    fs, _ = rolled()
    with fs.create(segment_path(SLAB, 3)) as file:
        file.write(fs.read(segment_path(SLAB, 2)))
    kept = PATH / "quarantine" / segment_path(SLAB, 3).name
    assert repaired(fs) == [f"kept as {kept}"]
    assert fs.read(kept) == fs.read(segment_path(SLAB, 2))
    assert topics_now(fs) == TOPICS


def test_an_index_of_another_segment_goes_into_quarantine_and_is_made_anew() -> None:
    fs, _ = rolled()
    path = index_path(segment_path(SLAB, 2))
    own = fs.read(path)
    replace_file(fs, path, fs.read(index_path(segment_path(SLAB, 0))))
    first, second = repaired(fs)
    assert first == f"kept as {PATH / 'quarantine' / path.name}"
    assert second == "rebuilt from the segment"
    assert (fs.read(path), topics_now(fs)) == (own, TOPICS)


@pytest.mark.parametrize("moves", MOVED, ids=str)
def test_a_power_cut_at_any_step_leaves_what_the_next_repair_puts_right(moves: Moves) -> None:
    for operations in count():
        disk, _ = rolled()
        misplace(disk, moves, with_index=True)
        faults = FaultyFileSystem(disk)
        faults.operations_left = operations
        try:
            repaired(faults)
        except PowerCut:
            survivor = disk.crash_clone()
        else:
            break
        repaired(survivor)
        assert topics_now(survivor) == TOPICS, operations
    assert operations >= 2


def test_files_that_are_none_of_this_slab_are_left_to_others() -> None:
    fs, _ = rolled()
    for name in ("notes.idx", f"{9:020d}.idx"):
        with fs.create(PurePath(SLAB / name)) as file:
            file.write(b"no index")
    assert repaired(fs) == ["", ""]
    assert topics_now(fs) == TOPICS
