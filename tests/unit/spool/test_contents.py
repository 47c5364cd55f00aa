from __future__ import annotations

import io
from pathlib import PurePath

import pytest

from siltstone.errors import CorruptionError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.spool.contents import PROOF_BYTES, EntryStream, Source, chunks_of
from siltstone.spool.drafts import write_draft

PATH = PurePath("/0.tmp")
DATA = bytes(range(256)) * 40


def written(data: bytes) -> MemoryFileSystem:
    fs = MemoryFileSystem()
    write_draft(fs, PATH, data).sync()
    return fs


def opened(fs: MemoryFileSystem) -> EntryStream:
    return EntryStream(fs.open(PATH, writable=False))


@pytest.mark.parametrize(
    "source",
    [
        b"abcdef",
        bytearray(b"abcdef"),
        memoryview(b"abcdef"),
        io.BytesIO(b"abcdef"),
        iter([b"ab", b"", b"cdef"]),
        [b"abc", b"def"],
    ],
    ids=lambda source: type(source).__name__,
)
def test_every_kind_of_source_gives_its_bytes(source: Source) -> None:
    assert b"".join(chunks_of(source)) == b"abcdef"


def test_a_stream_gives_the_data_and_not_their_proof() -> None:
    with opened(written(DATA)) as stream:
        assert stream.length == len(DATA)
        assert stream.read(10) == DATA[:10]
        assert stream.read() == DATA[10:]
        assert stream.read(10) == b""


def test_an_empty_entry_is_whole() -> None:
    with opened(written(b"")) as stream:
        assert stream.read() == b""


def test_a_buffer_of_another_type_is_filled_by_bytes() -> None:
    with opened(written(DATA)) as stream:
        assert io.BufferedReader(stream).read() == DATA


@pytest.mark.parametrize("offset", [0, 5000, len(DATA) - 1, len(DATA) + 9, len(DATA) + 13])
def test_a_flipped_bit_is_found_when_the_end_is_read(offset: int) -> None:
    fs = written(DATA)
    with fs.open(PATH, writable=True) as file:
        file.write_at(offset, bytes([file.read_at(offset, 1)[0] ^ 1]))
    with (
        opened(fs) as stream,
        pytest.raises(CorruptionError, match="the entry does not match its checksum"),
    ):
        stream.read()


@pytest.mark.parametrize("size", [0, 1, PROOF_BYTES, len(DATA), len(DATA) + PROOF_BYTES + 1])
def test_a_file_that_was_cut_or_grew_is_not_opened(size: int) -> None:
    fs = written(DATA)
    with fs.open(PATH, writable=True) as file:
        file.truncate(size)
    with pytest.raises(CorruptionError, match="the size of an entry has changed"):
        opened(fs)
