from __future__ import annotations

import pytest

from siltstone.fs.api import DirectoryEntry, EntryKind
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.segment.chain import Chain, ChainWriter, SlabIdentity
from siltstone.store.segment.segment import SEGMENT_BYTES_MIN, segment_path
from siltstone.store.segment.sift import (
    UNKNOWN,
    SlabBounds,
    index_path,
    is_segment,
    list_segments,
)
from tests.support.frames import NOW_US, SEED, SEGMENT_BYTES, SLAB, rows_frame, slab_fs, store

IDENTITY = SlabIdentity(database="plant", shard=3, generation=7, seed=SEED)


def name_of(serial: int) -> str:
    return segment_path(SLAB, serial).name


def begin(writer: ChainWriter, serial: int) -> None:
    writer.start(
        serial=serial,
        timestamp_us=NOW_US - 1,
        structure=b"",
        producers=b"",
        created_us=NOW_US,
        segment_bytes=SEGMENT_BYTES,
    )


def chain(fs: MemoryFileSystem, *, sealed: int, rows: int = 2) -> ChainWriter:
    """Write so many sealed segments of some rows each, and an open one with as many."""
    writer = ChainWriter(fs, Chain(fs, SLAB), IDENTITY, sealed_bytes=0)
    for number in range(sealed + 1):
        begin(writer, number * rows)
        assert writer.active is not None
        if rows:
            frame = rows_frame({1: [b"v"] * rows}, serial=number * rows)
            store(writer.active, frame)
        if number < sealed:
            writer.seal(structure=b"", producers=b"")
    return writer


def put(fs: MemoryFileSystem, serial: int, data: bytes) -> None:
    with fs.create(segment_path(SLAB, serial)) as file:
        file.write(data)


def wipe(fs: MemoryFileSystem, serial: int, length: int) -> None:
    """Put zeros over the front of a segment."""
    with fs.open(segment_path(SLAB, serial), writable=True) as file:
        file.write_at(0, bytes(length))


def empty(fs: MemoryFileSystem, serial: int) -> None:
    fs.remove(segment_path(SLAB, serial))
    put(fs, serial, b"")


def sifted(fs: MemoryFileSystem, bounds: SlabBounds = UNKNOWN) -> tuple[list[str], list[str]]:
    segments, foreign = list_segments(fs, SLAB, fs.list(SLAB), bounds)
    return [entry.name for entry in segments], foreign


class TestNames:
    def test_the_index_stands_beside_its_segment(self) -> None:
        assert index_path(segment_path(SLAB, 0)) == SLAB / "00000000000000000000.idx"

    @pytest.mark.parametrize(
        "name",
        ["0.seg", "0" * 21 + ".seg", "0" * 20 + ".seg.tmp", "0" * 20 + ".idx", "x" * 20 + ".seg"],
    )
    def test_a_file_of_another_name_is_no_segment(self, name: str) -> None:
        entry = DirectoryEntry(name=name, kind=EntryKind.FILE, size_bytes=0, allocated_bytes=0)
        assert not is_segment(entry)

    def test_a_directory_is_no_segment_whatever_its_name(self) -> None:
        entry = DirectoryEntry(
            name=name_of(0), kind=EntryKind.DIRECTORY, size_bytes=0, allocated_bytes=0
        )
        assert not is_segment(entry)

    def test_what_is_not_ours_is_told_apart(self) -> None:
        fs = slab_fs()
        chain(fs, sealed=1)
        fs.make_directory(SLAB / name_of(9))
        for name in ("notes.txt", f"{7:020d}.idx"):
            fs.create(SLAB / name).close()
        assert sifted(fs) == (
            [name_of(0), name_of(2)],
            [f"{7:020d}.idx", name_of(9), "notes.txt"],
        )


class TestForeignFiles:
    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"sixsix",
            b"KAS",
            bytes(4096),
            b"x" * SEGMENT_BYTES_MIN,
            b"x" * (SEGMENT_BYTES_MIN + 1),
        ],
    )
    @pytest.mark.parametrize("serial", [3, 4, 5, 7777])
    def test_a_file_without_the_magic_is_foreign(self, content: bytes, serial: int) -> None:
        fs = slab_fs()
        chain(fs, sealed=1)
        put(fs, serial, content)
        segments, foreign = sifted(fs, SlabBounds(first_serial=0, seed=SEED))
        # As large as a segment, and where the next one will begin: nobody can tell.
        unclear = serial == 4 and len(content) == SEGMENT_BYTES_MIN
        assert segments == [name_of(0), name_of(2), *([name_of(4)] if unclear else [])]
        assert foreign == ([] if unclear else [name_of(serial)])

    def test_one_behind_the_end_of_a_slab_that_takes_no_more_is_foreign(self) -> None:
        fs = slab_fs()
        chain(fs, sealed=1).seal(structure=b"", producers=b"")
        put(fs, 4, b"")
        bounds = SlabBounds(first_serial=0, until_serial=4)
        assert sifted(fs, bounds) == ([name_of(0), name_of(2)], [name_of(4)])

    def test_the_magic_makes_a_segment_however_short(self) -> None:
        fs = slab_fs()
        chain(fs, sealed=0)
        put(fs, 9, b"KASK")
        assert sifted(fs) == ([name_of(0), name_of(9)], [])


class TestDamagedHeaders:
    def test_the_first_segment_of_a_slab_is_never_foreign(self) -> None:
        fs = slab_fs()
        chain(fs, sealed=0)
        wipe(fs, 0, SEGMENT_BYTES)
        assert sifted(fs, SlabBounds(first_serial=0)) == ([name_of(0)], [])
        assert sifted(fs, SlabBounds(first_serial=1)) == ([], [name_of(0)])

    def test_one_with_a_sound_index_is_never_foreign(self) -> None:
        fs = slab_fs()
        chain(fs, sealed=2)
        wipe(fs, 2, SEGMENT_BYTES)
        assert sifted(fs) == ([name_of(0), name_of(2), name_of(4)], [])

    def test_a_sound_index_is_proof_where_the_slab_needs_no_segment(self) -> None:
        fs = slab_fs()
        chain(fs, sealed=1)
        wipe(fs, 0, SEGMENT_BYTES)
        bounds = SlabBounds(first_serial=1)
        assert sifted(fs, bounds) == ([name_of(0), name_of(2)], [])
        fs.remove(SLAB / f"{0:020d}.idx")
        assert sifted(fs, bounds) == ([name_of(2)], [name_of(0)])

    def test_the_index_of_another_segment_proves_nothing(self) -> None:
        fs = slab_fs()
        chain(fs, sealed=1)
        put(fs, 9, b"foreign")
        fs.rename(SLAB / f"{0:020d}.idx", SLAB / f"{9:020d}.idx")
        assert sifted(fs) == ([name_of(0), name_of(2)], [f"{9:020d}.idx", name_of(9)])

    @pytest.mark.parametrize("bounds", [SlabBounds(seed=SEED), UNKNOWN])
    def test_one_that_holds_a_frame_of_the_slab_is_never_foreign(self, bounds: SlabBounds) -> None:
        fs = slab_fs()
        chain(fs, sealed=2)
        wipe(fs, 4, 4096)
        for serial in (0, 2, 4):
            if fs.exists(SLAB / f"{serial:020d}.idx"):
                fs.remove(SLAB / f"{serial:020d}.idx")
        assert sifted(fs, bounds) == ([name_of(0), name_of(2), name_of(4)], [])

    @pytest.mark.parametrize("seed", [SEED, None])
    def test_a_frame_of_the_slab_is_proof_where_it_needs_no_segment(self, seed: int | None) -> None:
        fs = slab_fs()
        chain(fs, sealed=1)
        wipe(fs, 0, 4096)
        fs.remove(SLAB / f"{0:020d}.idx")
        found = sifted(fs, SlabBounds(first_serial=1, seed=seed))
        assert found == ([name_of(0), name_of(2)], [])

    def test_the_one_behind_reserved_serials_is_never_foreign(self) -> None:
        fs = slab_fs()
        writer = chain(fs, sealed=0)
        assert writer.active is not None
        writer.active.reserve(50)
        for serial in (2, 50):
            put(fs, serial, bytes(SEGMENT_BYTES_MIN))
        assert sifted(fs) == ([name_of(0), name_of(50)], [name_of(2)])

    def test_frames_of_another_slab_prove_nothing(self) -> None:
        fs = slab_fs()
        chain(fs, sealed=0)
        fs.rename(segment_path(SLAB, 0), segment_path(SLAB, 9))
        wipe(fs, 9, 4096)
        assert sifted(fs, SlabBounds(seed=SEED + 1)) == ([], [name_of(9)])

    def test_the_one_behind_a_sealed_segment_is_never_foreign(self) -> None:
        fs = slab_fs()
        chain(fs, sealed=1)
        empty(fs, 2)
        assert sifted(fs) == ([name_of(0), name_of(2)], [])

    def test_nor_the_one_behind_a_sealed_segment_without_rows(self) -> None:
        fs = slab_fs()
        writer = chain(fs, sealed=0, rows=0)
        writer.seal(structure=b"", producers=b"")
        begin(writer, 1)
        empty(fs, 1)
        assert sifted(fs) == ([name_of(0), name_of(1)], [])


def test_a_new_segment_takes_its_name_without_loss_of_what_had_it() -> None:
    fs = slab_fs()
    writer = chain(fs, sealed=0)
    put(fs, 2, b"foreign")
    fs.make_directory(SLAB / f"{2:020d}.idx")
    fs.make_directory(SLAB / f"{0:020d}.idx")
    writer.seal(structure=b"", producers=b"")
    begin(writer, 2)
    writer.seal(structure=b"", producers=b"")
    assert fs.read(SLAB / f"{name_of(2)}.foreign") == b"foreign"
    assert sifted(fs) == (
        [name_of(0), name_of(2)],
        [f"{0:020d}.idx.foreign", f"{2:020d}.idx.foreign", f"{name_of(2)}.foreign"],
    )
