from __future__ import annotations

import errno
import struct
from pathlib import PurePath
from random import Random

import pytest

from siltstone.errors import ClosedError, CorruptionError, DiskError
from siltstone.fs.faulty import Fault, FaultyFile, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.segment.recovery import Recovered, recover_segment
from siltstone.store.segment.segment import segment_path
from siltstone.store.segment.writer import SegmentWriter
from tests.support.frames import (
    NOW_US,
    SEED,
    SEGMENT_BYTES,
    SLAB,
    Frame,
    frame_bytes,
    new_segment,
    rows_frame,
    slab_fs,
    store,
    values_in,
)

PATH = segment_path(SLAB, 0)
BIG = 4 * 1024 * 1024


def patch(fs: MemoryFileSystem, offset: int, data: bytes) -> None:
    with fs.open(PATH, writable=True) as file:
        file.write_at(offset, data)


def forget_synced(fs: MemoryFileSystem, position: int) -> None:
    """Let the file know of no sync behind the position, as when the store of it was lost."""
    patch(fs, 2112, struct.pack("<Q", position))


def recover(fs: MemoryFileSystem, *, allocated: int = SEGMENT_BYTES) -> Recovered:
    return recover_segment(fs, PATH, allocated=allocated)


def row(serial: int, *, edges: bytes = b"", producers: bytes = b"") -> Frame:
    return rows_frame(
        {1: [b"row %d" % serial]},
        serial=serial,
        timestamp_us=NOW_US + serial,
        edges=edges,
        producers=producers,
    )


def filled(
    fs: MemoryFileSystem, rows: int, *, sync: bool = True
) -> tuple[SegmentWriter, list[int]]:
    """Write a frame a row; return the writer and the frames' positions."""
    writer = new_segment(fs, edges=b"state", producers=b"s" * 24)
    return writer, [store(writer, row(serial), sync=sync) for serial in range(rows)]


class TestClean:
    def test_a_clean_segment_comes_back_whole(self) -> None:
        fs = slab_fs()
        writer, _ = filled(fs, 2)
        recovered = recover(fs)
        assert values_in(recovered.writer.segment) == [b"row 0", b"row 1"]
        assert (
            recovered.edges,
            recovered.producers,
            recovered.torn_bytes,
            recovered.next_serial,
            recovered.last_timestamp_us,
        ) == ([b"state"], [b"s" * 24], 0, 2, NOW_US + 1)
        assert recovered.writer.end_position == writer.end_position

    def test_edges_and_producers_come_in_the_order_of_their_frames(self) -> None:
        fs = slab_fs()
        writer, _ = filled(fs, 0)
        store(writer, row(0, edges=b"first"))
        store(writer, row(1, producers=b"p" * 24))
        store(writer, row(2, edges=b"second", producers=b"q" * 24))
        recovered = recover(fs)
        assert (recovered.edges, recovered.producers) == (
            [b"state", b"first", b"second"],
            [b"s" * 24, b"p" * 24, b"q" * 24],
        )

    def test_a_segment_of_its_state_alone_has_the_time_of_that(self) -> None:
        fs = slab_fs()
        filled(fs, 0)
        recovered = recover(fs)
        assert (recovered.next_serial, recovered.last_timestamp_us) == (0, NOW_US - 1)

    def test_every_recovered_frame_was_checked(self) -> None:
        fs = slab_fs()
        filled(fs, 2)
        assert recover(fs).writer.segment.index.verified == b"\1\1\1"

    def test_writing_goes_on_behind_the_last_frame(self) -> None:
        fs = slab_fs()
        _, _ = filled(fs, 1)
        writer = recover(fs).writer
        store(writer, row(1))
        assert values_in(recover(fs).writer.segment) == [b"row 0", b"row 1"]

    def test_what_was_written_and_not_synced_is_kept_made_durable_and_shown(self) -> None:
        fs = slab_fs()
        writer = new_segment(fs)
        writer.write(*row(0))
        recovered = recover(fs)
        segment = recovered.writer.segment
        end = recovered.writer.end_position
        assert (segment.synced_position, segment.visible_position) == (end, end)
        assert values_in(recover(fs.crash_clone()).writer.segment) == [b"row 0"]

    def test_serials_that_readers_may_have_seen_are_not_used_again(self) -> None:
        fs = slab_fs()
        writer, _ = filled(fs, 1)
        writer.reserve(500)
        recovered = recover(fs)
        assert (recovered.next_serial, recovered.writer.segment.index.next_serial) == (500, 1)

    def test_space_is_known_up_to_where_the_file_has_it(self) -> None:
        fs = slab_fs()
        new_segment(fs, file_bytes=BIG)
        sizes = [
            recover(fs, allocated=allocated).writer.allocated_bytes
            for allocated in (0, 128 * 1024, 2 * BIG)
        ]
        assert sizes == [4096 + 64, 128 * 1024, BIG]


class TestTorn:
    def test_a_frame_cut_at_any_byte_is_cut_off(self) -> None:
        fs = slab_fs()
        writer, _ = filled(fs, 1)
        end = writer.end_position
        last = row(1)
        last.header.synced_position = end
        whole = frame_bytes(last)
        kept = []
        for cut in range(len(whole)):
            patch(fs, end, whole[:cut].ljust(len(whole), b"\0"))
            recovered = recover(fs)
            if values_in(recovered.writer.segment) != [b"row 0"]:
                kept.append(cut)
            assert not any(fs.read(PATH)[recovered.writer.end_position :])
        # Its last bytes are padding: without them the frame is whole all the same.
        assert kept == list(range(len(whole.rstrip(b"\0")), len(whole)))

    def test_torn_bytes_are_counted_up_to_the_last_one_set(self) -> None:
        fs = slab_fs()
        writer, _ = filled(fs, 1)
        patch(fs, writer.end_position, b"\0\0torn\0\0")
        assert recover(fs).torn_bytes == 6

    def test_all_that_follows_a_torn_frame_is_cut_off(self) -> None:
        fs = slab_fs()
        writer, positions = filled(fs, 3, sync=False)
        patch(fs, positions[1] + 70, b"!")
        recovered = recover(fs)
        assert values_in(recovered.writer.segment) == [b"row 0"]
        assert recovered.writer.end_position == positions[1]
        torn = len(fs.read(PATH)[positions[1] :])
        assert fs.read(PATH)[positions[1] :] == bytes(torn)
        assert 0 < recovered.torn_bytes <= writer.end_position - positions[1]

    def test_what_was_cut_off_does_not_come_back_behind_a_new_frame(self) -> None:
        fs = slab_fs()
        _, positions = filled(fs, 3, sync=False)
        patch(fs, positions[1] + 70, b"!")
        # The new frame ends just where the third of the lost ones began.
        store(recover(fs).writer, row(1))
        assert values_in(recover(fs).writer.segment) == [b"row 0", b"row 1"]

    def test_the_cut_is_durable_before_anything_new_is_written(self) -> None:
        fs = slab_fs()
        _, positions = filled(fs, 2, sync=False)
        fs.open(PATH, writable=True).sync()
        patch(fs, positions[1] + 70, b"!")
        recover(fs)
        assert not any(fs.crash_clone().read(PATH)[positions[1] :])

    def test_a_tail_of_many_chunks_is_cleared(self) -> None:
        fs = slab_fs()
        writer = new_segment(fs, file_bytes=BIG)
        with fs.open(PATH, writable=True) as file:
            file.allocate(0, BIG)
        for offset in (5000, 1 << 20, BIG - 1):
            patch(fs, offset, b"x")
        recovered = recover(fs, allocated=BIG)
        assert recovered.torn_bytes == BIG - writer.end_position
        assert not any(fs.read(PATH)[writer.end_position :])

    def test_a_frame_of_earlier_serials_is_no_continuation(self) -> None:
        fs = slab_fs()
        writer, _ = filled(fs, 2)
        patch(fs, writer.end_position, frame_bytes(row(0)))
        assert values_in(recover(fs).writer.segment) == [b"row 0", b"row 1"]

    def test_a_frame_of_another_seed_is_no_continuation(self) -> None:
        fs = slab_fs()
        writer, _ = filled(fs, 1)
        patch(fs, writer.end_position, frame_bytes(row(1), SEED + 1))
        recovered = recover(fs)
        assert values_in(recovered.writer.segment) == [b"row 0"]

    def test_recovery_after_recovery_finds_nothing_torn(self) -> None:
        fs = slab_fs()
        _, positions = filled(fs, 2, sync=False)
        patch(fs, positions[1] + 70, b"!")
        torn = [recover(fs).torn_bytes > 0, recover(fs).torn_bytes > 0]
        assert torn == [True, False]

    @pytest.mark.parametrize("seed", range(20))
    def test_synced_rows_survive_any_power_cut(self, seed: int) -> None:
        fs = slab_fs()
        writer, _ = filled(fs, 2)
        for serial in range(2, 5):
            store(writer, row(serial), sync=False)
        survived = fs.crash_clone(Random(seed))
        values = values_in(recover(survived).writer.segment)
        everything = [b"row %d" % serial for serial in range(5)]
        assert values == everything[: len(values)]
        assert len(values) >= 2


class TestDamage:
    @pytest.mark.parametrize("offset", [0, 4, 8, 12, 16, 63, 64, 100])
    def test_a_damaged_frame_that_was_synced_is_reported(self, offset: int) -> None:
        fs = slab_fs()
        _, positions = filled(fs, 2)
        position = positions[0] + offset
        patch(fs, position, bytes([fs.read(PATH)[position] ^ 0x20]))
        before = fs.read(PATH)
        with pytest.raises(CorruptionError, match="a synced frame is damaged") as caught:
            recover(fs)
        assert (caught.value.path, caught.value.offset) == (PATH, positions[0])
        assert fs.read(PATH) == before

    def test_a_segment_without_its_state_is_damaged_whatever_was_synced(self) -> None:
        fs = slab_fs()
        new_segment(fs)
        forget_synced(fs, 0)
        patch(fs, 4096, bytes(64))
        with pytest.raises(CorruptionError, match="a synced frame is damaged") as caught:
            recover(fs)
        assert caught.value.offset == 4096

    def test_a_later_frame_proves_that_a_damaged_one_was_synced(self) -> None:
        fs = slab_fs()
        _, positions = filled(fs, 3)
        forget_synced(fs, positions[0])
        patch(fs, positions[1] + 70, b"!")
        before = fs.read(PATH)
        with pytest.raises(
            CorruptionError, match="a synced frame is damaged before valid frames"
        ) as caught:
            recover(fs)
        assert (caught.value.path, caught.value.offset) == (PATH, positions[1])
        assert fs.read(PATH) == before

    def test_a_magic_number_in_a_torn_payload_proves_nothing(self) -> None:
        fs = slab_fs()
        writer, _ = filled(fs, 1)
        torn = frame_bytes(rows_frame({1: [b"SFRM" * 40 + b" SFRM"]}, serial=1))
        patch(fs, writer.end_position, torn[:-40])
        assert values_in(recover(fs).writer.segment) == [b"row 0"]

    def test_a_file_too_short_for_a_header_is_refused(self) -> None:
        fs = slab_fs()
        fs.create(PATH).close()
        with pytest.raises(CorruptionError, match="the segment is too short"):
            recover(fs)

    def test_a_failed_recovery_lets_go_of_the_file(self) -> None:
        opened: list[FaultyFile] = []

        class Watching(FaultyFileSystem):
            def open(self, path: PurePath, *, writable: bool) -> FaultyFile:
                opened.append(super().open(path, writable=writable))
                return opened[-1]

        inner = slab_fs()
        filled(inner, 1)
        with pytest.raises(DiskError):
            recover_segment(
                Watching(inner, Fault(operation="sync", errno=errno.EIO)),
                PATH,
                allocated=SEGMENT_BYTES,
            )
        (file,) = opened
        with pytest.raises(ClosedError):
            file.size()
