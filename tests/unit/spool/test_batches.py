from __future__ import annotations

import errno
from pathlib import PurePath

import pytest

from siltstone.fs.faulty import Fault, FaultyFileSystem, Operation
from siltstone.fs.memory import MemoryFileSystem
from siltstone.spool.batches import (
    Planned,
    finish_batches,
    forget,
    read_record,
    undo,
    write_record,
)
from siltstone.spool.drafts import Draft, write_draft
from siltstone.spool.layout import SpoolPaths

LAYOUT = SpoolPaths(PurePath("/s"))
RECORD = LAYOUT.temporary / "0.batch"
NAMES = ("7", "8-m")
PATHS = [LAYOUT.entries / name for name in NAMES]


@pytest.fixture
def fs() -> MemoryFileSystem:
    made = MemoryFileSystem()
    made.make_directory(LAYOUT.root)
    LAYOUT.lay_out(made)
    return made


def drafted(fs: MemoryFileSystem) -> list[Draft]:
    """Write two drafts and the record of them."""
    drafts = [write_draft(fs, LAYOUT.temporary / f"{n}.tmp", b"%d" % n) for n in range(2)]
    for draft in drafts:
        draft.sync()
    write_record(fs, RECORD, drafts, NAMES)
    return drafts


def found(fs: MemoryFileSystem) -> tuple[list[str], list[str]]:
    """Return the names of entries, and of what is temporary."""
    return tuple(  # type: ignore[return-value]
        [entry.name for entry in fs.list(place)] for place in (LAYOUT.entries, LAYOUT.temporary)
    )


def test_a_record_is_read_as_it_was_written(fs: MemoryFileSystem) -> None:
    drafted(fs)
    data = fs.read(RECORD)
    assert read_record(data) == [Planned("0.tmp", "7"), Planned("1.tmp", "8-m")]
    assert data.startswith(b"siltstone batch 1\n0.tmp 7\n1.tmp 8-m\n")
    for damaged in (b"", data[:-1], data[1:], data.replace(b"7", b"6")):
        assert read_record(damaged) is None


def test_a_batch_that_was_decided_is_finished(fs: MemoryFileSystem) -> None:
    drafted(fs)
    fs.link(LAYOUT.temporary / "1.tmp", PATHS[1])
    finish_batches(fs, LAYOUT)
    assert found(fs) == ([*NAMES], [])
    assert [fs.read(path)[:1] for path in PATHS] == [b"0", b"1"]


def test_a_batch_is_finished_where_names_are_given_by_renames(fs: MemoryFileSystem) -> None:
    drafted(fs)
    fs.rename(LAYOUT.temporary / "0.tmp", PATHS[0])
    faulty = FaultyFileSystem(fs, Fault(operation="link", errno=errno.EPERM, repeat=True))
    finish_batches(faulty, LAYOUT)
    assert found(fs) == ([*NAMES], [])


def test_a_batch_of_which_a_draft_is_gone_was_never_linked(fs: MemoryFileSystem) -> None:
    drafted(fs)
    fs.remove(LAYOUT.temporary / "0.tmp")
    finish_batches(fs, LAYOUT)
    assert found(fs) == ([], [])


def test_what_is_no_record_is_left_alone(fs: MemoryFileSystem) -> None:
    drafted(fs)
    with fs.open(RECORD, writable=True) as file:
        file.write_at(0, b"X")
    finish_batches(fs, LAYOUT)
    assert found(fs) == ([], ["0.batch", "0.tmp", "1.tmp"])


def test_what_is_undone_leaves_the_drafts_and_no_record(fs: MemoryFileSystem) -> None:
    drafts = drafted(fs)
    fs.link(drafts[0].path, PATHS[0])
    assert undo(fs, RECORD, drafts, PATHS[:1]) is None
    assert found(fs) == ([], ["0.tmp", "1.tmp"])
    assert undo(fs, None, drafts, []) is None


def test_what_is_stored_is_forgotten(fs: MemoryFileSystem) -> None:
    drafts = drafted(fs)
    assert forget(fs, RECORD, drafts) is None
    assert found(fs) == ([], [])
    assert forget(fs, None, [write_draft(fs, LAYOUT.temporary / "5.tmp", b"")]) is None
    assert found(fs) == ([], [])


@pytest.mark.parametrize("operation", ["remove", "sync_directory"])
def test_a_record_that_does_not_go_for_good_is_told(
    fs: MemoryFileSystem, operation: Operation
) -> None:
    drafts = drafted(fs)
    faulty = FaultyFileSystem(fs, Fault(operation=operation, errno=errno.EIO))
    assert forget(faulty, RECORD, drafts) is not None
    fresh = drafted(fs) if not fs.exists(RECORD) else drafts
    faulty = FaultyFileSystem(fs, Fault(operation=operation, errno=errno.EIO))
    assert undo(faulty, RECORD, fresh, []) is not None
