from __future__ import annotations

import gzip
import struct
import zlib
from hashlib import blake2b
from pathlib import PurePath
from random import Random

import pytest
from crc32c import crc32c

from siltstone.errors import CorruptionError, UsageError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.snapshot.format.codec import ABOUT, END
from siltstone.snapshot.format.stream import (
    BODY_BYTES_MAX,
    HEAD,
    MAGIC,
    PART_BYTES,
    RECORD,
    VERSION,
    RecordReader,
    RecordWriter,
)
from siltstone.snapshot.format.totals import Totals
from tests.support.snapshots import opened

PATH = PurePath("/x.gz")
RECORDS = [(ABOUT, b"about"), (4, b"session"), (4, b""), (6, b"message")]


def written(records: list[tuple[int, bytes]]) -> bytes:
    fs = MemoryFileSystem()
    with fs.create(PATH) as file:
        writer = RecordWriter(file)
        for kind, body in records:
            writer.write(kind, body)
        writer.finish(contents=0, content_bytes=0)
    return fs.read(PATH)


def read(data: bytes) -> list[tuple[int, bytes]]:
    reader = RecordReader(opened(data))
    return list(iter(reader.next, None))


def plain_record(kind: int, body: bytes) -> bytes:
    return RECORD.pack(len(body), crc32c(bytes([kind]) + body), kind) + body


def end_record(before: bytes, counts: dict[int, int]) -> bytes:
    digest = blake2b(before, digest_size=32).digest()
    totals = Totals(contents=0, content_bytes=0, digest=digest, counts=counts)
    return plain_record(END, totals.encode())


def test_records_are_read_as_they_were_written() -> None:
    assert read(written(RECORDS)) == RECORDS


def test_the_file_is_one_gzip_member_with_head_records_and_end() -> None:
    body = HEAD.pack(MAGIC, VERSION) + b"".join(plain_record(*each) for each in RECORDS)
    assert gzip.decompress(written(RECORDS)) == body + end_record(body, {1: 1, 4: 2, 6: 1})


def test_equal_records_make_equal_files() -> None:
    assert written(RECORDS) == written(RECORDS)


def test_a_record_of_the_greatest_length_passes_and_a_longer_one_is_refused() -> None:
    longest = [(ABOUT, b""), (4, b"x" * BODY_BYTES_MAX)]
    assert read(written(longest)) == longest
    with pytest.raises(UsageError, match=f"size_bytes={BODY_BYTES_MAX + 1}"):
        written([(ABOUT, b""), (4, b"x" * (BODY_BYTES_MAX + 1))])


def test_a_content_is_cut_into_parts() -> None:
    fs = MemoryFileSystem()
    content = bytes(PART_BYTES) + b"rest"
    with fs.create(PATH) as file:
        writer = RecordWriter(file)
        writer.write(ABOUT, b"")
        writer.write_content(1, content)
        totals = writer.finish(contents=1, content_bytes=len(content))
    assert read(fs.read(PATH)) == [
        (ABOUT, b""),
        (2, struct.pack("<IB", 1, 0) + content[:PART_BYTES]),
        (2, struct.pack("<IB", 1, 1) + b"rest"),
    ]
    assert (totals.counts, totals.contents, totals.content_bytes) == ({1: 1, 2: 2}, 1, len(content))


def test_nothing_is_written_before_it_is_drained() -> None:
    fs = MemoryFileSystem()
    with fs.create(PATH) as file:
        writer = RecordWriter(file)
        writer.write(ABOUT, b"")
        writer.write_content(1, Random(1).randbytes(PART_BYTES))
        assert file.size() == 0
        writer.drain()
        assert file.size() > PART_BYTES // 2


def test_it_is_full_when_there_is_a_buffer_of_records() -> None:
    writer = RecordWriter(opened(b""))
    writer.write(ABOUT, bytes(65_000))
    assert not writer.is_full
    writer.write(4, bytes(1000))
    assert writer.is_full


def test_others_may_have_the_processor_behind_each_piece() -> None:
    fs, rests = MemoryFileSystem(), list[int]()
    with fs.create(PATH) as file:
        writer = RecordWriter(file, lambda: rests.append(len(rests)))
        writer.write(ABOUT, bytes(10_000))
        writer.drain()
    assert rests == [0, 1, 2]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the snapshot is cut short"),
        (bytes(5000), "invalid gzip data"),
        (b"state", "invalid gzip data"),
        (gzip.compress(b""), "the snapshot is cut short"),
        (gzip.compress(bytes(100)), "the file is not a snapshot"),
        (gzip.compress(HEAD.pack(MAGIC, 0)), "invalid version"),
        (gzip.compress(HEAD.pack(MAGIC, 1)), "the snapshot is cut short"),
        (written(RECORDS) + b"\0", "extra bytes after the end record"),
        (written(RECORDS) + bytes(100_000), "extra bytes after the end record"),
        (written(RECORDS) * 2, "extra bytes after the end record"),
        (
            gzip.compress(gzip.decompress(written(RECORDS)) + b"\0"),
            "extra bytes after the end record",
        ),
    ],
    # Compressed bytes tell the time, which differs from one test process to the other.
    ids=range(11),
)
def test_what_is_no_whole_snapshot_is_corrupt(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptionError, match=reason):
        read(data)


def test_a_newer_version_is_an_error_of_its_own() -> None:
    with pytest.raises(
        UsageError, match=r"newer version of Siltstone wrote .*: path=/x\.gz version=2 su"
    ):
        read(gzip.compress(HEAD.pack(MAGIC, 2) + b"whatever comes then"))


def test_every_cut_is_found() -> None:
    data = written(RECORDS)
    for end in range(len(data)):
        with pytest.raises(CorruptionError):
            read(data[:end])


def test_every_flipped_bit_is_found_unless_it_changes_nothing() -> None:
    data = written(RECORDS)
    found = 0
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            # Time and system in the head of gzip, and another way to say the same zeros.
            assert read(bytes(flipped)) == RECORDS
        except CorruptionError:
            found += 1
    assert found > len(data) * 8 - 80


def test_a_length_beyond_the_limit_is_refused_before_anything_is_read() -> None:
    head = HEAD.pack(MAGIC, 1) + RECORD.pack(BODY_BYTES_MAX + 1, 0, ABOUT)
    with pytest.raises(
        CorruptionError, match=f"a record is too large: length={BODY_BYTES_MAX + 1}"
    ):
        read(gzip.compress(head))


@pytest.mark.parametrize(
    "records",
    [
        [RECORDS[1], RECORDS[0]],
        [RECORDS[0], RECORDS[0]],
        [RECORDS[1]],
    ],
)
def test_the_first_record_alone_says_what_it_is(records: list[tuple[int, bytes]]) -> None:
    with pytest.raises(
        CorruptionError, match="the header record must be the first one, and only once"
    ):
        read(written(records))


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (0, 1, 2), (0, 1, 2, 3, 3)])
def test_records_that_are_missing_moved_or_repeated_do_not_match_the_digest(
    order: tuple[int, ...],
) -> None:
    plain = gzip.decompress(written(RECORDS))
    body = HEAD.pack(MAGIC, 1) + b"".join(plain_record(*each) for each in RECORDS)
    moved = body[: HEAD.size] + b"".join(plain_record(*RECORDS[number]) for number in order)
    with pytest.raises(CorruptionError, match="the records do not match their checksum"):
        read(gzip.compress(moved + plain[len(body) :]))


def test_an_end_record_that_is_cut_short_is_corrupt() -> None:
    body = HEAD.pack(MAGIC, 1) + plain_record(ABOUT, b"")
    with pytest.raises(CorruptionError, match="the end record is damaged"):
        read(gzip.compress(body + plain_record(END, b"short")))


def test_data_that_expands_without_end_is_read_a_buffer_at_a_time() -> None:
    deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
    data = deflate.compress(HEAD.pack(MAGIC, 1)) + deflate.compress(bytes(50_000_000))
    reader = RecordReader(opened(data + deflate.flush()))
    with pytest.raises(CorruptionError, match="a record is damaged"):
        reader.next()
    assert reader.plain_bytes < 100
