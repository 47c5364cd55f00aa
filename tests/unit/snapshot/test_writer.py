from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import PurePath

import pytest

from siltstone.errors import StorageFullError, UsageError
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.snapshot.loader import verify_snapshot
from siltstone.snapshot.records import Record
from siltstone.snapshot.writer import SnapshotWriter, publish_snapshot, write_snapshot
from tests.support.snapshots import (
    ABOUT,
    EVERY_KIND,
    bytes_of,
    opened,
    queued,
    records_in,
    retained,
    session,
)

PATH = PurePath("/x.gz")


def test_equal_payloads_are_written_once_across_sessions_and_retained_messages() -> None:
    payload = bytes(range(256)) * 400
    records: list[Record] = [retained("a", payload)]
    for number in range(1000):
        records += [session(f"c{number}"), queued("a", payload)]
    data = bytes_of(records)
    summary = verify_snapshot(opened(data))
    assert (summary.contents, summary.content_bytes) == (1, len(payload))
    assert len(data) < len(payload)


def test_an_empty_payload_needs_no_content() -> None:
    assert verify_snapshot(opened(bytes_of([retained("a", b"")]))).contents == 0


def test_small_payloads_are_written_once_however_many_come_between() -> None:
    payloads = [b"%d" % number for number in range(10_000)] * 2
    summary = verify_snapshot(opened(bytes_of([retained("a", each) for each in payloads])))
    assert (summary.contents, summary.content_bytes) == (10_000, 38_890)


def test_a_content_above_the_limit_is_refused() -> None:
    with MemoryFileSystem().create(PATH) as file:
        writer = SnapshotWriter(file, ABOUT, 10)
        writer.add(retained("a", bytes(10)))
        with pytest.raises(UsageError, match="size_bytes=11 max=10"):
            writer.add(retained("a", bytes(11)))


def test_others_may_get_their_turn_behind_each_record() -> None:
    fs = MemoryFileSystem()
    turns: list[None] = []
    with fs.create(PATH) as file:
        write_snapshot(file, ABOUT, EVERY_KIND, pause=lambda: turns.append(None))
    assert len(turns) == len(EVERY_KIND)


def test_a_published_snapshot_is_synced_before_it_has_its_name() -> None:
    fs = MemoryFileSystem()
    totals, size_bytes = publish_snapshot(fs, PATH, ABOUT, EVERY_KIND)
    assert fs.operations == [
        "create /x.gz.tmp",
        "write_at /x.gz.tmp",
        "write_at /x.gz.tmp",
        "sync /x.gz.tmp",
        "rename /x.gz.tmp /x.gz",
        "sync_directory /",
    ]
    file = fs.crash_clone().open(PATH, writable=False)
    assert (records_in(file), file.size()) == ([*EVERY_KIND], size_bytes)
    assert verify_snapshot(file).digest == totals.digest


@pytest.mark.parametrize("operation", ["write_at", "sync", "rename"])
def test_what_cannot_be_published_leaves_nothing(operation: str) -> None:
    memory = MemoryFileSystem()
    fs = FaultyFileSystem(memory, Fault(operation=operation, errno=errno.ENOSPC))  # type: ignore[arg-type]
    with pytest.raises(StorageFullError):
        publish_snapshot(fs, PATH, ABOUT, EVERY_KIND)
    assert memory.list(PurePath("/")) == []


def test_records_that_raise_leave_nothing() -> None:
    def records() -> Iterator[Record]:
        yield session("c")
        raise KeyError("a mistake of the source")

    fs = MemoryFileSystem()
    with pytest.raises(KeyError):
        publish_snapshot(fs, PATH, ABOUT, records())
    assert fs.list(PurePath("/")) == []
