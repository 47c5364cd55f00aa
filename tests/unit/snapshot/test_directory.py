from __future__ import annotations

import errno
import gzip
from pathlib import PurePath

import pytest

from siltstone.clock import ManualClock
from siltstone.errors import (
    CorruptionError,
    DiskError,
    LockedError,
    OverloadedError,
    StorageFullError,
    UsageError,
)
from siltstone.fs.faulty import Fault, FaultyFileSystem, Operation
from siltstone.fs.memory import MemoryFileSystem
from siltstone.snapshot.directory import Saved, link_target, list_snapshots, name_of
from siltstone.snapshot.format.contents import ContentsInMemory
from siltstone.snapshot.format.records import Record
from siltstone.snapshot.format.stream import HEAD, MAGIC, VERSION
from siltstone.snapshot.loader import verify_snapshot
from tests.support.snapshots import (
    DIRECTORY,
    QUARANTINE,
    ListSink,
    keeper_on,
    loaded,
    names_in,
    session,
)

FIRST, SECOND, THIRD = (name_of(serial) for serial in (1, 2, 3))


def state(number: int) -> list[Record]:
    return [session(f"c{number}")]


def save(fs: MemoryFileSystem | FaultyFileSystem, *numbers: int, keep: int = 2) -> Saved:
    """Save states as one process does; return what the last one was answered."""
    keeper = keeper_on(fs, keep=keep)
    try:
        return [keeper.save(state(number), source="broker") for number in numbers][-1]
    finally:
        keeper.close()


def damage(fs: MemoryFileSystem, name: str) -> None:
    with fs.open(DIRECTORY / name, writable=True) as file:
        file.write_at(file.size() // 2, b"\xff\xff\xff\xff")


def test_a_saved_state_is_loaded() -> None:
    fs = MemoryFileSystem()
    saved = save(fs, 1)
    assert (saved.path, saved.serial, saved.pruned) == (DIRECTORY / FIRST, 1, [])
    records, result = loaded(fs)
    assert (records, result.path, result.bad) == (state(1), DIRECTORY / FIRST, [])
    assert result.summary is not None
    assert result.summary.about.serial == 1


def test_where_there_never_was_a_snapshot_nothing_is_loaded() -> None:
    records, result = loaded(MemoryFileSystem())
    assert (records, result.path, result.summary, result.bad) == ([], None, None, [])


def test_the_link_is_relative_and_leads_to_the_newest() -> None:
    fs = MemoryFileSystem()
    save(fs, 1, 2)
    assert fs.readlink(DIRECTORY / "state") == PurePath(SECOND)
    assert link_target(fs, DIRECTORY) == SECOND


def test_a_save_syncs_the_file_before_its_name_and_the_name_before_the_link() -> None:
    fs = MemoryFileSystem()
    keeper = keeper_on(fs, keep=1)
    keeper.save(state(1), source="broker")
    fs.operations.clear()
    keeper.save(state(2), source="broker")
    new = f"{DIRECTORY}/{SECOND}"
    assert fs.operations == [
        f"create {new}.tmp",
        f"write_at {new}.tmp",
        f"write_at {new}.tmp",
        f"sync {new}.tmp",
        f"rename {new}.tmp {new}",
        f"sync_directory {DIRECTORY}",
        f"symlink {DIRECTORY}/state.tmp",
        f"rename {DIRECTORY}/state.tmp {DIRECTORY}/state",
        f"sync_directory {DIRECTORY}",
        f"remove {DIRECTORY}/{FIRST}",
        f"sync_directory {DIRECTORY}",
    ]


@pytest.mark.parametrize(
    ("keep", "kept"),
    [(0, [THIRD]), (1, [THIRD]), (2, [SECOND, THIRD]), (3, [FIRST, SECOND, THIRD])],
)
def test_as_many_snapshots_are_kept_as_asked_for_and_one_at_least(
    keep: int, kept: list[str]
) -> None:
    fs = MemoryFileSystem()
    save(fs, 1, 2, 3, keep=keep)
    assert names_in(fs) == ["LOCK", "state", *kept]


def test_foreign_files_are_never_touched() -> None:
    fs = MemoryFileSystem()
    fs.make_directory(DIRECTORY)
    foreign = ["state_notes.txt", "state.gz", "state.5.gz", "state.0000000000001.gz", "x.tmp"]
    for name in foreign:
        fs.create(DIRECTORY / name).close()
    fs.make_directory(DIRECTORY / name_of(9))
    save(fs, 1, 2, 3, keep=1)
    assert set(names_in(fs)) == {"LOCK", "state", name_of(3), name_of(9), *foreign}


def test_a_clock_that_goes_back_changes_nothing() -> None:
    fs, clock = MemoryFileSystem(), ManualClock()
    keeper = keeper_on(fs, keep=1, clock=clock)
    keeper.save(state(1), source="broker")
    clock.jump(-1e6)
    keeper.save(state(2), source="broker")
    keeper.close()
    assert loaded(fs)[0] == state(2)
    assert names_in(fs) == ["LOCK", "state", SECOND]


def test_serials_go_on_behind_the_newest_file_and_behind_what_the_link_names() -> None:
    fs = MemoryFileSystem()
    save(fs, 1, 2)
    fs.remove(DIRECTORY / SECOND)
    assert save(fs, 3).serial == 3


def test_a_second_process_is_refused() -> None:
    fs = MemoryFileSystem()
    keeper = keeper_on(fs)
    with pytest.raises(LockedError):
        keeper_on(fs)
    keeper.close()
    keeper_on(fs).close()


def test_a_keeper_that_cannot_look_lets_go_of_the_lock() -> None:
    memory = MemoryFileSystem()
    save(memory, 1)
    fs = FaultyFileSystem(memory, Fault(operation="list", errno=errno.EIO))
    with pytest.raises(DiskError):
        keeper_on(fs)
    keeper_on(fs).close()


def test_what_a_crash_left_unfinished_is_swept() -> None:
    fs = MemoryFileSystem()
    save(fs, 1)
    fs.create(DIRECTORY / f"{SECOND}.tmp").close()
    fs.symlink(PurePath(SECOND), DIRECTORY / "state.tmp")
    keeper_on(fs).close()
    assert names_in(fs) == ["LOCK", "state", FIRST]


FAILURES: list[tuple[Operation, str]] = [
    ("create", ""),
    ("write_at", ""),
    ("sync", ""),
    ("rename", f"{SECOND}.tmp"),
    ("sync_directory", ""),
    ("symlink", ""),
    ("rename", "state"),
]


@pytest.mark.parametrize(("operation", "suffix"), FAILURES)
def test_a_save_that_fails_leaves_everything_as_it_was_and_the_next_one_succeeds(
    operation: Operation, suffix: str
) -> None:
    memory = MemoryFileSystem()
    save(memory, 1)
    fs = FaultyFileSystem(memory)
    keeper = keeper_on(fs)
    fs.add(Fault(operation=operation, errno=errno.ENOSPC, path_suffix=suffix))
    with pytest.raises((StorageFullError, DiskError)):
        keeper.save(state(2), source="broker")
    fs.clear()
    left = [name for name in names_in(memory) if name != "state.tmp"]
    assert (left, link_target(memory, DIRECTORY)) == (["LOCK", "state", FIRST], FIRST)
    keeper.save(state(3), source="broker")
    keeper.close()
    assert loaded(memory)[0] == state(3)


def test_a_link_that_was_moved_and_not_synced_keeps_its_snapshot() -> None:
    memory = MemoryFileSystem()
    save(memory, 1)
    fs = FaultyFileSystem(memory, Fault(operation="sync_directory", errno=errno.EIO, nth=3))
    with pytest.raises(DiskError, match="sync_directory failed"):
        save(fs, 2, keep=1)
    assert names_in(memory) == ["LOCK", "state", FIRST, SECOND]
    assert loaded(memory)[0] == state(2)
    assert loaded(memory.crash_clone())[0] == state(1)


def test_what_cannot_be_pruned_is_told_and_the_snapshot_stands() -> None:
    memory = MemoryFileSystem()
    save(memory, 1)
    fs = FaultyFileSystem(memory, Fault(operation="remove", errno=errno.EIO, path_suffix=FIRST))
    saved = save(fs, 2, keep=1)
    assert (str(saved.prune_error).partition(":")[0], saved.pruned) == ("remove failed", [])
    assert loaded(memory)[0] == state(2)
    assert save(memory, 3, keep=1).pruned == [SECOND, FIRST]


def test_a_damaged_snapshot_goes_to_quarantine_and_an_older_one_stands_in() -> None:
    fs = MemoryFileSystem()
    save(fs, 1, 2)
    damage(fs, SECOND)
    records, result = loaded(fs)
    assert (records, result.path) == (state(1), DIRECTORY / FIRST)
    assert [bad.path for bad in result.bad] == [QUARANTINE / SECOND]
    assert names_in(fs, QUARANTINE) == [SECOND, f"{SECOND}.reason.txt"]
    assert fs.read(QUARANTINE / f"{SECOND}.reason.txt").decode() == f"{result.bad[0].error}\n"
    assert link_target(fs, DIRECTORY) == FIRST
    assert save(fs, 3, keep=1).serial == 2


def test_a_snapshot_that_the_medium_cannot_read_is_passed_over() -> None:
    memory = MemoryFileSystem()
    save(memory, 1, 2)
    fs = FaultyFileSystem(memory, Fault(operation="read_at", errno=errno.EIO, path_suffix=SECOND))
    records, result = loaded(fs)
    assert (records, [bad.path for bad in result.bad]) == (state(1), [QUARANTINE / SECOND])


def test_an_error_that_may_pass_is_raised_and_nothing_moves() -> None:
    memory = MemoryFileSystem()
    save(memory, 1, 2)
    fs = FaultyFileSystem(memory, Fault(operation="open", errno=errno.EMFILE, path_suffix=SECOND))
    with pytest.raises(OverloadedError, match="too many open files"):
        loaded(fs)
    assert names_in(memory) == ["LOCK", "state", FIRST, SECOND]


@pytest.mark.parametrize("target", [name_of(7), "elsewhere", "/etc/passwd", "../x"])
def test_a_link_that_leads_nowhere_lets_the_newest_stand_in(target: str) -> None:
    fs = MemoryFileSystem()
    save(fs, 1, 2)
    fs.remove(DIRECTORY / "state")
    fs.symlink(PurePath(target), DIRECTORY / "state")
    assert loaded(fs)[0] == state(2)
    assert link_target(fs, DIRECTORY) == SECOND


def test_a_link_to_a_directory_lets_the_newest_file_stand_in() -> None:
    fs = MemoryFileSystem()
    save(fs, 1)
    fs.make_directory(DIRECTORY / name_of(5))
    fs.remove(DIRECTORY / "state")
    fs.symlink(PurePath(name_of(5)), DIRECTORY / "state")
    assert loaded(fs)[0] == state(1)
    assert save(fs, 2).serial == 2


def test_a_snapshot_without_a_link_is_loaded() -> None:
    fs = MemoryFileSystem()
    save(fs, 1)
    fs.remove(DIRECTORY / "state")
    assert loaded(fs)[0] == state(1)


def test_the_link_decides_and_not_the_greatest_serial() -> None:
    fs = MemoryFileSystem()
    save(fs, 1, 2)
    fs.remove(DIRECTORY / "state")
    fs.symlink(PurePath(FIRST), DIRECTORY / "state")
    assert loaded(fs)[0] == state(1)


def test_a_state_that_is_no_link_is_told() -> None:
    fs = MemoryFileSystem()
    fs.make_directory(DIRECTORY)
    fs.make_directory(DIRECTORY / "state")
    with pytest.raises(
        UsageError, match="/snapshots/state must be a symbolic link: move the file away"
    ):
        keeper_on(fs)


@pytest.mark.parametrize("left", ["damaged", "dangling"])
def test_without_a_valid_snapshot_nothing_starts_empty_unless_that_is_allowed(left: str) -> None:
    fs = MemoryFileSystem()
    save(fs, 1)
    if left == "damaged":
        damage(fs, FIRST)
    else:
        fs.remove(DIRECTORY / FIRST)
    before = names_in(fs)
    with pytest.raises(CorruptionError, match=r"no snapshot is valid; .*--allow-empty"):
        loaded(fs)
    assert names_in(fs) == before
    records, result = loaded(fs, allow_empty=True)
    assert (records, result.path) == ([], None)
    assert [bad.path.name for bad in result.bad] == ([FIRST] if left == "damaged" else [])
    save(fs, 2)
    assert loaded(fs)[0] == state(2)


def test_where_the_link_leads_nowhere_the_newest_other_one_is_loaded_and_that_is_told() -> None:
    fs = MemoryFileSystem()
    save(fs, 1, 2)
    fs.remove(DIRECTORY / SECOND)
    records, result = loaded(fs)
    assert (records, result.missing, result.bad) == (state(1), SECOND, [])
    assert fs.readlink(DIRECTORY / "state") == PurePath(FIRST)
    assert loaded(fs)[1].missing == ""


def test_a_snapshot_of_a_newer_version_is_neither_passed_over_nor_moved() -> None:
    fs = MemoryFileSystem()
    save(fs, 1, 2)
    with fs.open(DIRECTORY / SECOND, writable=True) as file:
        file.truncate(0)
        file.write_at(0, gzip.compress(HEAD.pack(MAGIC, VERSION + 1)))
    with pytest.raises(UsageError, match="newer version"):
        loaded(fs)
    assert names_in(fs) == ["LOCK", "state", FIRST, SECOND]


def test_snapshots_are_listed_with_their_sizes() -> None:
    fs = MemoryFileSystem()
    saved = save(fs, 1, 2)
    sizes = {entry.name: entry.size_bytes for entry in fs.list(DIRECTORY)}
    assert list_snapshots(fs, DIRECTORY) == [(1, sizes[FIRST]), (2, sizes[SECOND])]
    assert saved.size_bytes == sizes[SECOND]
    with fs.open(saved.path, writable=False) as file:
        assert verify_snapshot(file).digest == saved.totals.digest


def test_a_sink_sees_nothing_of_a_snapshot_that_is_passed_over() -> None:
    fs = MemoryFileSystem()
    save(fs, 1, 2)
    damage(fs, SECOND)
    keeper, sink = keeper_on(fs), ListSink()
    keeper.load(sink, ContentsInMemory())
    assert sink.records == state(1)
