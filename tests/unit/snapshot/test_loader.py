from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import PurePath

import pytest

from siltstone.errors import CorruptionError
from siltstone.fs.memory import MemoryFile, MemoryFileSystem
from siltstone.snapshot.format.codec import CONTENT, KINDS, encode_record
from siltstone.snapshot.format.contents import ContentsInFile, ContentsInMemory, NoContents
from siltstone.snapshot.format.records import (
    KeyValueFamily,
    KeyValuePair,
    QueuedMessage,
    Record,
    RetainedMessage,
)
from siltstone.snapshot.format.stream import PART, RecordWriter
from siltstone.snapshot.format.totals import Summary
from siltstone.snapshot.loader import (
    SnapshotReader,
    apply_snapshot,
    verify_snapshot,
)
from tests.support.snapshots import (
    ABOUT,
    EVERY_KIND,
    ListSink,
    bytes_of,
    opened,
    queued,
    records_in,
    retained,
    session,
    written,
)

PATH = PurePath("/x.gz")


def crafted(write: Callable[[RecordWriter], object], *, contents: int = 0) -> MemoryFile:
    """Return a file whose records are what a writer of ours would not write."""
    fs = MemoryFileSystem()
    with fs.create(PATH) as file:
        writer = RecordWriter(file)
        writer.write(*encode_record(ABOUT, lambda _: 0))
        write(writer)
        writer.finish(contents=contents, content_bytes=0)
    return fs.open(PATH, writable=False)


def test_a_snapshot_without_records_is_whole() -> None:
    assert records_in(opened(bytes_of([]))) == []


def test_the_summary_says_what_there_is() -> None:
    data = bytes_of(EVERY_KIND)
    summary = verify_snapshot(opened(data))
    assert summary == Summary(
        about=ABOUT,
        contents=4,
        content_bytes=len(b"hot" + b"\x01\x01" + b"\0\xff" + b"frames"),
        size_bytes=len(data),
        plain_bytes=summary.plain_bytes,
        digest=summary.digest,
        counts={type(record).__name__: 1 for record in EVERY_KIND},
    )


def test_loaded_messages_share_one_buffer_for_each_payload() -> None:
    records: list[Record] = [retained("a", b"payload"), session("c"), queued("a", b"payload")]
    found = records_in(opened(bytes_of(records)))
    assert found == records
    first, _, second = found
    assert isinstance(first, RetainedMessage)
    assert isinstance(second, QueuedMessage)
    assert first.payload is second.payload


def test_contents_may_wait_in_a_file() -> None:
    fs, path = written(EVERY_KIND)
    sink = ListSink()
    with fs.open(path, writable=False) as file, fs.create(PurePath("/contents")) as spill:
        apply_snapshot(file, ContentsInFile(spill), sink, verify_snapshot(file))
    assert sink.records == [*EVERY_KIND]


def test_a_snapshot_that_is_damaged_at_its_very_end_does_not_pass_the_check() -> None:
    data = bytearray(bytes_of(EVERY_KIND))
    data[-1] ^= 1
    with pytest.raises(CorruptionError):
        verify_snapshot(opened(bytes(data)))


def test_a_reference_to_a_content_that_did_not_come_is_corrupt() -> None:
    body = struct.pack("<I", 0) + struct.pack("<I", 5)
    family = KeyValueFamily(database="kv/s", family="default")

    def write(writer: RecordWriter) -> None:
        writer.write(*encode_record(family, len))
        writer.write(KINDS[KeyValuePair], body)

    with pytest.raises(CorruptionError, match="refers to a payload that is missing: number=5"):
        verify_snapshot(crafted(write))


def test_a_record_without_its_owner_is_corrupt() -> None:
    kind, body = encode_record(queued("a", b""), len)
    with pytest.raises(
        CorruptionError, match="a QueuedMessage record comes before the first SessionState record"
    ):
        verify_snapshot(crafted(lambda writer: writer.write(kind, body)))


def test_an_unknown_kind_is_corrupt() -> None:
    with pytest.raises(CorruptionError, match="unknown kind of record 99"):
        verify_snapshot(crafted(lambda writer: writer.write(99, b"")))


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([(1, 1, b"")], "a part of a payload is empty"),
        ([(2, 1, b"x")], "a payload is out of order: number=2 expected=1"),
        ([(1, 1, b"x"), (1, 1, b"y")], "a payload is out of order: number=1 expected=2"),
        ([(1, 2, b"x")], "a part of a payload has an invalid flag: number=1 flag=2"),
        ([(1, 0, b"x")], "the last payload is cut short: number=1"),
        (
            [(1, 1, b"x")],
            "the end record counts other payloads .* counted=0 found=1 .*=0 found_bytes=1",
        ),
    ],
)
def test_contents_come_whole_and_in_order(parts: list[tuple[int, int, bytes]], reason: str) -> None:
    def write(writer: RecordWriter) -> None:
        for number, is_last, data in parts:
            writer.write(CONTENT, PART.pack(number, is_last) + data)

    with pytest.raises(CorruptionError, match=reason):
        verify_snapshot(crafted(write))


def test_a_content_beyond_the_limit_is_corrupt() -> None:
    data = bytes_of([retained("a", bytes(20))])
    SnapshotReader(opened(data), NoContents(), 20).check()
    with pytest.raises(CorruptionError, match="a payload is too large: number=1 max=19"):
        SnapshotReader(opened(data), NoContents(), 19).check()


def test_a_file_without_its_first_record_is_corrupt() -> None:
    fs = MemoryFileSystem()
    with fs.create(PATH) as file:
        RecordWriter(file).finish(contents=0, content_bytes=0)
        with pytest.raises(CorruptionError, match="the first record is missing"):
            verify_snapshot(file)


def test_a_file_that_changes_between_the_two_looks_is_noticed() -> None:
    fs, path = written([session("c")])
    other, _ = written([session("d")])

    with fs.open(path, writable=True) as file:
        checked = verify_snapshot(file)
        file.truncate(0)
        file.write_at(0, other.read(path))
        with pytest.raises(CorruptionError, match="changed while it was loaded"):
            apply_snapshot(file, ContentsInMemory(), ListSink(), checked)
