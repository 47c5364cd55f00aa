from __future__ import annotations

import errno
import gzip
from collections.abc import Iterator
from pathlib import PurePath
from random import Random

import pytest

from siltstone.errors import StorageFullError, UsageError
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.snapshot.format.records import Record
from siltstone.snapshot.loader import verify_snapshot
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


def is_full(writer: SnapshotWriter) -> bool:
    """Tell whether it is full now."""
    return writer.is_full


def test_records_are_taken_for_as_long_as_it_goes_on_and_written_when_drained() -> None:
    fs = MemoryFileSystem()
    records = iter([session("a"), None, session("b")])
    with fs.create(PATH) as file:
        writer = SnapshotWriter(file, ABOUT)
        assert writer.take(records, lambda: False)
        assert writer.take(records, lambda: False)
        assert list(records) == [session("b")]
        assert not writer.take(records, lambda: True)
        assert not is_full(writer)
        assert file.size() == 0
        writer.drain()
        writer.finish()
        assert verify_snapshot(file).counts == {"SessionState": 1}


def test_no_more_is_taken_than_a_buffer() -> None:
    fs = MemoryFileSystem()
    records = iter([session(f"{number:01000d}") for number in range(100)])
    with fs.create(PATH) as file:
        writer = SnapshotWriter(file, ABOUT)
        assert writer.take(records, lambda: True)
        assert is_full(writer)
        left = list(records)
        assert 0 < len(left) < 100
        assert file.size() == 0
        writer.drain()
        assert not is_full(writer)
        assert not writer.take(iter(left), lambda: True)
        writer.finish()
        assert verify_snapshot(file).counts == {"SessionState": 100}


def test_a_large_content_is_left_to_be_drained() -> None:
    fs = MemoryFileSystem()
    large: list[Record] = [retained("a", b"x" * 16 * 1024), retained("b", b"x" * 600_000)]
    records = iter([*large, session("c")])
    with fs.create(PATH) as file:
        writer = SnapshotWriter(file, ABOUT)
        assert writer.take(records, lambda: True)
        assert is_full(writer)
        assert file.size() == 0
        writer.drain()
        assert not is_full(writer)
        assert not writer.take(records, lambda: True)
        totals = writer.finish()
        assert verify_snapshot(file).counts == {"RetainedMessage": 2, "SessionState": 1}
    assert (totals.contents, totals.content_bytes) == (2, 16 * 1024 + 600_000)


def test_too_large_a_content_is_refused_when_it_is_drained() -> None:
    fs = MemoryFileSystem()
    with fs.create(PATH) as file:
        writer = SnapshotWriter(file, ABOUT, 20_000)
        assert writer.take(iter([retained("a", bytes(20_001))]), lambda: True)
        with pytest.raises(UsageError, match="size_bytes=20001 max=20000"):
            writer.drain()


class EachAlone:
    """A pace that takes one record at a time, and counts its rests."""

    def __init__(self) -> None:
        self.rests = 0

    def fill(self, writer: SnapshotWriter, records: Iterator[Record | None]) -> bool:
        while writer.take(records, lambda: False):
            if writer.is_full:
                return True
        return False

    def rest(self) -> None:
        self.rests += 1


def test_at_any_pace_the_same_is_written_with_rests_in_between() -> None:
    fs = MemoryFileSystem()
    payload = Random(1).randbytes(300_000)
    records = [*EVERY_KIND, retained("a", payload), retained("b", payload)]
    pace = EachAlone()
    with fs.create(PATH) as file, fs.create(PATH.with_suffix(".once")) as at_once:
        totals = write_snapshot(file, ABOUT, [None, *records, None], pace=pace)
        assert totals == write_snapshot(at_once, ABOUT, records)
    assert gzip.decompress(fs.read(PATH)) == gzip.decompress(fs.read(PATH.with_suffix(".once")))
    assert pace.rests > len(payload) // 4096


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
