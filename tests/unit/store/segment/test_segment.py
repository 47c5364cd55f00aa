from __future__ import annotations

import errno
import struct
from contextlib import suppress
from pathlib import PurePath
from random import Random

import pytest
from crc32c import crc32c

from siltstone.errors import CorruptionError, DiskError, NotFoundError, StorageFullError
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.store.segment.body import encode_state
from siltstone.store.segment.chain import state_header
from siltstone.store.segment.frame import EDGES, HEADER_BYTES, PLAIN, STATE, ZSTD
from siltstone.store.segment.index import decode_index, encode_index
from siltstone.store.segment.recovery import recover_segment
from siltstone.store.segment.segment import (
    SEGMENT_HEADER_BYTES,
    Segment,
    SegmentHeader,
    open_segment,
    segment_path,
)
from siltstone.store.segment.writer import SegmentWriter, create_segment
from tests.support.frames import (
    NOW_US,
    SEED,
    SEGMENT_BYTES,
    SLAB,
    Frame,
    frame_bytes,
    new_segment,
    rows_frame,
    segment_header,
    slab_fs,
    store,
    values_in,
)

PATH = segment_path(SLAB, 0)
FIRST = SEGMENT_HEADER_BYTES + HEADER_BYTES  # behind a state frame without a body
BIG = 1 << 20


def faulty_segment(
    *faults: Fault,
) -> tuple[FaultyFileSystem, SegmentWriter]:
    """Create a segment whose writer meets these faults from now on."""
    fs = FaultyFileSystem(slab_fs())
    header = segment_header()
    body, sections = encode_state(b"", b"")
    state = state_header(body, sections, serial=0, timestamp_us=NOW_US - 1)
    writer = create_segment(fs, SLAB, header, state, body)
    for fault in faults:
        fs.add(fault)
    return fs, writer


def patch(fs: MemoryFileSystem, offset: int, data: bytes, path: PurePath = PATH) -> None:
    with fs.open(path, writable=True) as file:
        file.write_at(offset, data)


def sealed_segment(fs: MemoryFileSystem) -> Segment:
    """Open the segment as one that is known from its index, no frame of it looked at."""
    segment = open_segment(fs, PATH)
    segment.follow()
    data = encode_index(segment.index, structure=b"", producers=b"")
    segment.index = decode_index(memoryview(data), PATH).index
    return segment


def read_to_end(segment: Segment) -> None:
    values_in(segment)
    segment.check_whole()


def zeros_behind(fs: MemoryFileSystem, position: int) -> bool:
    return not any(fs.read(PATH)[position:])


class TestHeader:
    def test_every_byte_stands_where_the_format_says(self) -> None:
        fixed = struct.pack(
            "<4sIQQIIqIIH5s", b"KASK", 1, 65536, 42, 3, 7, NOW_US, SEED, 1, 5, b"plant"
        ).ljust(2044, b"\0")
        expected = bytearray(4096)
        expected[:2044] = fixed
        struct.pack_into("<I", expected, 2044, crc32c(fixed))
        struct.pack_into("<Q", expected, 2048, 5000)
        struct.pack_into("<Q", expected, 2112, 5000)
        assert segment_header(base_serial=42).encode(end=5000) == bytes(expected)

    def test_a_decoded_header_is_the_one_that_was_encoded(self) -> None:
        header = segment_header(base_serial=42)
        data = header.encode(end=4096) + bytes(SEGMENT_BYTES - 4096)
        assert SegmentHeader.decode(memoryview(data), PATH) == header

    @pytest.mark.parametrize("data", [b"KASK" + bytes(4091), b"KAFK" + bytes(4092)])
    def test_what_does_not_begin_as_a_segment_is_refused(self, data: bytes) -> None:
        with pytest.raises(CorruptionError, match="does not begin with KASK") as caught:
            SegmentHeader.decode(memoryview(data), PATH)
        assert (caught.value.path, caught.value.offset) == (PATH, 0)

    def test_no_flipped_byte_of_the_fixed_part_goes_unnoticed(self) -> None:
        sound = segment_header().encode(end=4096) + bytes(SEGMENT_BYTES - 4096)
        unnoticed = []
        for offset in range(2048):
            data = bytearray(sound)
            data[offset] ^= 0x10
            try:
                SegmentHeader.decode(memoryview(data), PATH)
            except CorruptionError:
                continue
            unnoticed.append(offset)
        assert unnoticed == []

    @pytest.mark.parametrize("offset", [4, 44])
    def test_another_version_or_layout_is_refused(self, offset: int) -> None:
        data = bytearray(segment_header().encode(end=4096) + bytes(SEGMENT_BYTES - 4096))
        data[offset] = 2
        struct.pack_into("<I", data, 2044, crc32c(bytes(data[:2044])))
        with pytest.raises(CorruptionError, match="unknown version"):
            SegmentHeader.decode(memoryview(data), PATH)

    def test_a_file_of_another_size_is_refused(self) -> None:
        data = segment_header().encode(end=4096) + bytes(SEGMENT_BYTES)
        with pytest.raises(CorruptionError, match="segment has 69632 bytes instead of 65536"):
            SegmentHeader.decode(memoryview(data), PATH)


class TestCreate:
    def test_the_name_is_the_base_serial_in_twenty_digits(self) -> None:
        assert segment_path(SLAB, 2**64 - 1) == PurePath("/slab/18446744073709551615.seg")
        assert segment_path(SLAB, 42) == PurePath("/slab/00000000000000000042.seg")

    def test_the_name_appears_when_all_is_durable(self) -> None:
        fs = slab_fs()
        fs.operations.clear()
        new_segment(fs)
        temporary = "/slab/00000000000000000000.seg.tmp"
        assert fs.operations == [
            f"create {temporary}",
            f"truncate {temporary}",
            f"allocate {temporary}",
            f"write_at {temporary}",
            f"sync {temporary}",
            f"rename {temporary} /slab/00000000000000000000.seg",
            "sync_directory /slab",
        ]

    def test_a_new_segment_holds_its_header_and_its_state_and_survives_a_power_cut(self) -> None:
        fs = slab_fs()
        body, sections = encode_state(b"edges", b"")
        state = state_header(body, sections, serial=0, timestamp_us=NOW_US - 1)
        new_segment(fs, edges=b"edges")
        expected = segment_header().encode(end=FIRST + len(body)) + frame_bytes(
            Frame(state, body, [])
        )
        assert fs.crash_clone().read(PATH) == expected.ljust(SEGMENT_BYTES, b"\0")

    def test_the_state_is_the_first_frame_and_readers_see_it(self) -> None:
        writer = new_segment(slab_fs(), base_serial=9, edges=b"edges")
        segment = writer.segment
        frame = segment.frame(0)
        assert (
            frame.header.kind,
            frame.header.first_serial,
            bytes(frame.section(EDGES) or b""),
        ) == (
            STATE,
            9,
            b"edges",
        )
        assert (segment.visible_position, segment.synced_position, segment.reserved_serial) == (
            writer.end_position,
            writer.end_position,
            0,
        )

    def test_what_a_crash_left_under_the_temporary_name_is_replaced(self) -> None:
        fs = slab_fs()
        with fs.create(PATH.with_name(f"{PATH.name}.tmp")) as file:
            file.write(b"rubbish")
        new_segment(fs)
        assert [entry.name for entry in fs.list(SLAB)] == [PATH.name]

    def test_a_full_disk_leaves_nothing_behind(self) -> None:
        fs = slab_fs(capacity_bytes=8192)
        with pytest.raises(StorageFullError):
            new_segment(fs)
        assert fs.list(SLAB) == []
        assert fs.free_bytes(SLAB) == 8192

    def test_a_name_that_could_not_be_made_durable_is_an_error(self) -> None:
        inner = slab_fs()
        fs = FaultyFileSystem(inner, Fault(operation="sync_directory", errno=errno.EIO))
        body, sections = encode_state(b"", b"")
        state = state_header(body, sections, serial=0, timestamp_us=NOW_US)
        with pytest.raises(DiskError):
            create_segment(fs, SLAB, segment_header(), state, body)
        assert [entry.name for entry in inner.list(SLAB)] == [PATH.name]

    def test_only_the_beginning_of_a_large_segment_takes_space(self) -> None:
        fs = slab_fs()
        writer = new_segment(fs, file_bytes=BIG)
        (entry,) = fs.list(SLAB)
        assert (entry.size_bytes, entry.allocated_bytes) == (BIG, 64 * 1024)
        assert writer.allocated_bytes == 64 * 1024


class TestWrite:
    def test_a_frame_goes_behind_the_last_one(self) -> None:
        fs = slab_fs()
        writer = new_segment(fs)
        first, second = rows_frame({1: [b"a"]}), rows_frame({1: [b"b"]}, serial=1)
        positions = [store(writer, first), store(writer, second)]
        assert positions == [FIRST, FIRST + first.header.length]
        stored = frame_bytes(first) + frame_bytes(second)
        assert fs.read(PATH)[FIRST:] == stored.ljust(SEGMENT_BYTES - FIRST, b"\0")
        assert writer.end_position == FIRST + len(stored)

    def test_the_header_is_written_after_the_body(self) -> None:
        fs, writer = faulty_segment(
            Fault(operation="write_at", errno=errno.EIO, nth=2, repeat=True)
        )
        frame = rows_frame({1: [b"a"]})
        with pytest.raises(DiskError):
            writer.write(*frame)
        stored = fs.inner.read(PATH)[FIRST : FIRST + frame.header.length]
        assert stored == bytes(HEADER_BYTES) + frame.body

    def test_a_frame_carries_what_was_synced_when_it_was_written(self) -> None:
        writer = new_segment(slab_fs())
        store(writer, rows_frame({1: [b"a"]}), sync=False)
        store(writer, rows_frame({1: [b"b"]}, serial=1))
        synced = writer.end_position
        store(writer, rows_frame({1: [b"c"]}, serial=2))
        positions = [writer.segment.frame(n).header.synced_position for n in range(1, 4)]
        assert positions == [FIRST, FIRST, synced]

    def test_nobody_sees_a_frame_before_it_is_published(self) -> None:
        fs = slab_fs()
        writer = new_segment(fs)
        writer.write(*rows_frame({1: [b"a"]}))
        writer.sync()
        reader = open_segment(fs, PATH)
        reader.follow()
        assert (values_in(writer.segment), values_in(reader)) == ([], [])

    def test_publishing_shows_all_frames_written_so_far(self) -> None:
        writer = new_segment(slab_fs())
        writer.write(*rows_frame({1: [b"a"]}))
        writer.write(*rows_frame({2: [b"b", b"c"]}, serial=1))
        writer.publish()
        assert values_in(writer.segment) == [b"a", b"b", b"c"]
        assert writer.segment.index.stream_rows == {1: 1, 2: 2}
        assert writer.segment.visible_position == writer.end_position

    def test_publishing_twice_adds_nothing(self) -> None:
        writer = new_segment(slab_fs())
        store(writer, rows_frame({1: [b"a"]}))
        writer.publish()
        assert writer.segment.index.stream_rows == {1: 1}

    def test_the_writer_need_not_check_its_own_frames(self) -> None:
        writer = new_segment(slab_fs())
        store(writer, rows_frame({1: [b"a"]}))
        assert writer.segment.index.verified == b"\0\1"

    def test_a_compressed_frame_is_stored_as_given(self) -> None:
        writer = new_segment(slab_fs())
        store(writer, rows_frame({1: [bytes(5000)], 2: [b"b"]}, compression=1))
        assert values_in(writer.segment) == [bytes(5000), b"b"]
        assert writer.end_position < FIRST + 1000

    def test_the_synced_position_moves_after_the_sync(self) -> None:
        fs, writer = faulty_segment(Fault(operation="sync", errno=errno.EIO))
        writer.write(*rows_frame({1: [b"a"]}))
        with pytest.raises(DiskError):
            writer.sync()
        assert writer.segment.synced_position == FIRST
        fs.clear()
        writer.sync()
        assert writer.segment.synced_position == writer.end_position

    def test_a_synced_frame_survives_a_power_cut(self) -> None:
        fs = slab_fs()
        writer = new_segment(fs)
        frame = rows_frame({1: [b"a"]})
        store(writer, frame)
        assert fs.crash_clone().read(PATH)[FIRST : writer.end_position] == frame_bytes(frame)

    def test_a_small_frame_behind_durable_ones_is_written_and_synced_at_once(self) -> None:
        fs = slab_fs()
        writer = new_segment(fs)
        store(writer, rows_frame({1: [b"a"]}))
        fs.operations.clear()
        second, third = rows_frame({1: [b"b"]}, serial=1), rows_frame({1: [b"c"]}, serial=2)
        assert [writer.write(*second, durably=True), writer.write(*third, durably=True)] == [
            True,
            True,
        ]
        assert fs.operations == [f"write_at {PATH}.tmp", f"sync {PATH}.tmp"] * 2
        assert writer.segment.synced_position == writer.end_position
        writer.publish()
        survived = fs.crash_clone()
        recovered = recover_segment(survived, PATH, allocated=SEGMENT_BYTES)
        assert values_in(recovered.writer.segment) == [b"a", b"b", b"c"]

    def test_the_header_of_the_file_is_behind_durable_frames_until_a_sync(self) -> None:
        fs = slab_fs()
        writer = new_segment(fs)
        store(writer, rows_frame({1: [b"a"]}))
        writer.write(*rows_frame({1: [b"b"]}, serial=1), durably=True)
        writer.publish()
        assert open_segment(fs.crash_clone(), PATH).synced_position == FIRST
        writer.sync()
        marks = [writer.has_old_marks]
        assert marks == [False]
        reader = open_segment(fs.crash_clone(), PATH)
        reader.follow()
        assert values_in(reader) == [b"a", b"b"]

    def test_a_frame_behind_one_that_is_not_durable_needs_a_sync(self) -> None:
        writer = new_segment(slab_fs())
        store(writer, rows_frame({1: [b"a"]}), sync=False)
        assert not writer.write(*rows_frame({1: [b"b"]}, serial=1), durably=True)
        writer.sync()
        assert writer.write(*rows_frame({1: [b"c"]}, serial=2), durably=True)

    def test_a_frame_behind_a_room_needs_a_sync(self) -> None:
        writer = new_segment(slab_fs())
        writer.sync()
        assert writer.take_room(64, spare_bytes=0) is not None
        assert not writer.write(*rows_frame({1: [b"a"]}), durably=True)

    def test_a_large_frame_is_written_in_two_steps(self) -> None:
        writer = new_segment(slab_fs(), file_bytes=BIG)
        writer.sync()
        assert not writer.write(*rows_frame({1: [bytes(1 << 17)]}), durably=True)

    def test_a_durable_frame_for_which_the_disk_is_full_leaves_zeros(self) -> None:
        fs, writer = faulty_segment()
        writer.sync()
        fs.add(Fault(operation="write_at", errno=errno.ENOSPC, keep_bytes=70))
        frame = rows_frame({1: [b"a"]})
        with pytest.raises(StorageFullError):
            writer.write(*frame, durably=True)
        assert not any(fs.inner.read(PATH)[FIRST:])
        # The zeros are not durable, so the next frame needs a sync.
        assert not writer.write(*frame, durably=True)

    def test_a_frame_that_may_be_there_is_not_refused_as_if_it_were_not(self) -> None:
        fs, writer = faulty_segment()
        writer.sync()
        fs.add(Fault(operation="sync", errno=errno.EIO))
        # The zeros cannot be written over the frame either.
        fs.add(Fault(operation="write_at", errno=errno.ENOSPC, nth=2, repeat=True))
        with pytest.raises(DiskError, match="sync failed: EIO"):
            writer.write(*rows_frame({1: [b"a"]}), durably=True)

    @pytest.mark.parametrize("operations", range(3))
    def test_a_power_cut_in_a_durable_write_leaves_the_frame_or_nothing(
        self, operations: int
    ) -> None:
        fs = slab_fs()
        writer = new_segment(fs)
        store(writer, rows_frame({1: [b"a"]}))
        fs.operations_left = operations
        with suppress(PowerCut):
            writer.write(*rows_frame({1: [b"b" * 3000]}, serial=1), durably=True)
        for seed in range(20):
            survived = fs.crash_clone(Random(seed))
            recovered = recover_segment(survived, PATH, allocated=SEGMENT_BYTES)
            values = values_in(recovered.writer.segment)
            assert values in ([b"a"], [b"a", b"b" * 3000])
            assert operations < 2 or len(values) == 2

    def test_a_frame_fits_up_to_the_last_byte(self) -> None:
        writer = new_segment(slab_fs())
        room = SEGMENT_BYTES - FIRST - HEADER_BYTES
        assert (writer.has_room(room), writer.has_room(room + 1)) == (True, False)

    def test_a_reserved_serial_is_durable_before_readers_are_led_there(self) -> None:
        fs = slab_fs()
        writer = new_segment(fs)
        writer.reserve(77)
        assert open_segment(fs.crash_clone(), PATH).reserved_serial == 77

    def test_a_release_makes_rows_durable_and_the_reservation_void(self) -> None:
        fs = slab_fs()
        writer = new_segment(fs)
        writer.reserve(77)
        store(writer, rows_frame({1: [b"a"]}), sync=False)
        writer.release()
        survived = open_segment(fs.crash_clone(), PATH)
        survived.follow()
        assert (survived.reserved_serial, values_in(survived)) == (0, [b"a"])

    @pytest.mark.parametrize("operations", range(3))
    def test_a_power_cut_in_a_release_leaves_the_rows_or_the_reservation(
        self, operations: int
    ) -> None:
        fs = slab_fs()
        writer = new_segment(fs)
        writer.reserve(77)
        # Many pages, so that the header can survive without the frame.
        store(writer, rows_frame({1: [b"x" * 20_000]}), sync=False)
        fs.operations_left = operations
        with suppress(PowerCut):
            writer.release()
        for seed in range(20):
            survived = fs.crash_clone(Random(seed))
            recovered = recover_segment(survived, PATH, allocated=SEGMENT_BYTES)
            assert recovered.next_serial >= 1

    def test_a_release_of_nothing_is_a_sync(self) -> None:
        fs = slab_fs()
        writer = new_segment(fs)
        fs.operations.clear()
        writer.release()
        assert fs.operations == [f"sync {PATH}.tmp"]

    def test_readers_keep_the_map_of_a_closed_writer(self) -> None:
        writer = new_segment(slab_fs())
        store(writer, rows_frame({1: [b"a"]}))
        writer.close()
        assert values_in(writer.segment) == [b"a"]


class TestSpace:
    def test_space_is_taken_in_steps_that_grow_with_the_segment(self) -> None:
        writer = new_segment(slab_fs(), file_bytes=BIG)
        seen = [writer.allocated_bytes]
        serial = 0
        while writer.has_room(32 * 1024 + 200):
            store(writer, rows_frame({1: [bytes(32 * 1024)]}, serial=serial))
            serial += 1
            if writer.allocated_bytes != seen[-1]:
                seen.append(writer.allocated_bytes)
        kib = [size // 1024 for size in seen]
        assert kib == [64, 128, 192, 288, 432, 648, 972, 1024]

    def test_a_frame_larger_than_a_step_gets_all_the_space_it_needs(self) -> None:
        writer = new_segment(slab_fs(), file_bytes=BIG)
        store(writer, rows_frame({1: [bytes(500_000)]}))
        assert writer.allocated_bytes == writer.end_position

    def test_a_full_disk_leaves_the_segment_as_it_was(self) -> None:
        fs = slab_fs(capacity_bytes=64 * 1024)
        writer = new_segment(fs, file_bytes=BIG)
        store(writer, rows_frame({1: [b"a"]}))
        before, end = fs.read(PATH), writer.end_position
        with pytest.raises(StorageFullError):
            writer.write(*rows_frame({1: [bytes(100_000)]}, serial=1))
        assert (fs.read(PATH), writer.end_position) == (before, end)
        assert writer.allocated_bytes == 64 * 1024

    def test_after_a_full_disk_smaller_frames_go_on(self) -> None:
        writer = new_segment(slab_fs(capacity_bytes=64 * 1024), file_bytes=BIG)
        with pytest.raises(StorageFullError):
            writer.write(*rows_frame({1: [bytes(100_000)]}))
        store(writer, rows_frame({1: [b"a"]}))
        assert values_in(writer.segment) == [b"a"]

    @pytest.mark.parametrize("nth", [1, 2])
    @pytest.mark.parametrize("keep_bytes", [0, 20])
    def test_what_a_failed_write_left_is_zeroed(self, nth: int, keep_bytes: int) -> None:
        fault = Fault(operation="write_at", errno=errno.ENOSPC, nth=nth, keep_bytes=keep_bytes)
        fs, writer = faulty_segment(fault)
        with pytest.raises(StorageFullError):
            writer.write(*rows_frame({1: [b"a" * 100]}))
        assert isinstance(fs.inner, MemoryFileSystem)
        assert zeros_behind(fs.inner, FIRST)
        assert writer.end_position == FIRST


class TestRead:
    def test_a_file_too_short_for_a_header_is_refused(self) -> None:
        fs = slab_fs()
        with fs.create(PATH) as file:
            file.write(b"KASK")
        with pytest.raises(CorruptionError, match="the segment is too short"):
            open_segment(fs, PATH)

    def test_a_missing_segment_is_not_found(self) -> None:
        with pytest.raises(NotFoundError):
            open_segment(slab_fs(), PATH)

    def test_an_opened_segment_knows_nothing_before_it_follows(self) -> None:
        fs = slab_fs()
        store(new_segment(fs), rows_frame({1: [b"a"]}))
        segment = open_segment(fs, PATH)
        assert (segment.index.frame_count, segment.header) == (0, segment_header())

    def test_a_frame_that_the_index_names_is_checked_when_it_is_first_read(self) -> None:
        fs = slab_fs()
        store(new_segment(fs), rows_frame({1: [b"a"]}))
        segment = sealed_segment(fs)
        before = bytes(segment.index.verified)
        segment.frame(1)
        assert [before, bytes(segment.index.verified)] == [b"\0\0", b"\0\1"]

    def test_a_damaged_frame_is_never_served(self) -> None:
        fs = slab_fs()
        writer = new_segment(fs)
        store(writer, rows_frame({1: [b"a"]}))
        segment = sealed_segment(fs)
        patch(fs, writer.end_position - 1, b"!")
        for _ in range(2):
            with pytest.raises(
                CorruptionError, match="the frame does not match its checksum"
            ) as caught:
                segment.frame(1)
            assert (caught.value.path, caught.value.offset) == (PATH, FIRST)

    def test_a_frame_that_became_zeros_has_vanished(self) -> None:
        fs = slab_fs()
        writer = new_segment(fs)
        store(writer, rows_frame({1: [b"a"]}))
        patch(fs, FIRST, bytes(HEADER_BYTES))
        with pytest.raises(CorruptionError, match="is missing that was read before") as caught:
            writer.segment.frame(1)
        assert caught.value.offset == FIRST

    def test_a_frame_without_its_magic_is_corrupt(self) -> None:
        fs = slab_fs()
        writer = new_segment(fs)
        store(writer, rows_frame({1: [b"a"]}))
        patch(fs, FIRST, b"X")
        with pytest.raises(CorruptionError, match="does not begin at this offset") as caught:
            writer.segment.frame(1)
        assert caught.value.offset == FIRST

    @pytest.mark.parametrize("other", [{"serial": 1}, {"rows": 2}])
    def test_a_whole_frame_that_the_index_does_not_expect_is_corrupt(
        self, other: dict[str, int]
    ) -> None:
        fs = slab_fs()
        store(new_segment(fs), rows_frame({1: [b"abcdefgh"]}))
        segment = sealed_segment(fs)
        values = [b""] * other.get("rows", 1)
        replacement = rows_frame({1: values}, serial=other.get("serial", 0))
        patch(fs, FIRST, frame_bytes(replacement))
        with pytest.raises(CorruptionError, match="the frame does not match the index"):
            segment.frame(1)

    def test_sections_that_make_no_sense_are_corrupt(self) -> None:
        writer = new_segment(slab_fs())
        frame = rows_frame({1: [b"a"]})
        position = store(writer, frame._replace(body=b"\xff" + frame.body[1:]))
        with pytest.raises(CorruptionError, match="unknown section 255") as caught:
            writer.segment.frame(1)
        assert (caught.value.path, caught.value.offset) == (PATH, position)


class TestFollow:
    def test_a_reader_sees_what_was_published_since(self) -> None:
        fs = slab_fs()
        writer = new_segment(fs)
        reader = open_segment(fs, PATH)
        seen = []
        for number in range(3):
            reader.follow()
            seen.append(values_in(reader))
            store(writer, rows_frame({1: [b"%d" % number]}, serial=number), sync=False)
        assert seen == [[], [b"0"], [b"0", b"1"]]

    def test_the_rows_of_a_followed_frame_are_checked_when_read_or_when_not_synced(self) -> None:
        fs = slab_fs()
        writer = new_segment(fs)
        store(writer, rows_frame({1: [b"a"]}))
        store(writer, rows_frame({1: [b"b"]}, serial=1), sync=False)
        reader = open_segment(fs, PATH)
        reader.follow()
        assert reader.index.verified == b"\0\0\1"
        assert values_in(reader) == [b"a", b"b"]
        assert reader.index.verified == b"\1\1\1"

    def test_a_followed_frame_whose_head_has_no_checksum_was_checked_whole(self) -> None:
        fs = slab_fs()
        frame = rows_frame({1: [b"a"]}, compression=ZSTD)
        store(new_segment(fs), frame)
        reader = open_segment(fs, PATH)
        reader.follow()
        assert (frame.header.head_crc, bytes(reader.index.verified)) == (0, b"\0\1")

    @pytest.mark.parametrize("compression", [PLAIN, ZSTD])
    def test_a_flipped_bit_in_a_followed_frame_is_never_read_over(self, compression: int) -> None:
        fs = slab_fs()
        writer = new_segment(fs)
        start = store(writer, rows_frame({1: [b"a"]}, edges=b"edge", compression=compression))
        stop = store(writer, rows_frame({2: [b"b"]}, serial=1))
        whole = fs.read(PATH)
        for position in range(start, stop):
            patch(fs, position, bytes([whole[position] ^ 0x10]))
            reader = open_segment(fs, PATH)
            reader.follow()
            with pytest.raises(CorruptionError):
                read_to_end(reader)
            patch(fs, position, whole[position : position + 1])

    def test_damage_that_was_mended_is_followed_over(self) -> None:
        fs = slab_fs()
        lost = store(new_segment(fs), rows_frame({1: [b"a"]}))
        whole = fs.read(PATH)
        patch(fs, lost, b"XXXX")
        reader = open_segment(fs, PATH)
        reader.follow()
        assert values_in(reader) == []
        patch(fs, lost, whole[lost : lost + 4])
        reader.follow()
        reader.check_whole()
        assert values_in(reader) == [b"a"]

    def test_following_returns_the_new_edges_in_order(self) -> None:
        fs = slab_fs()
        writer = new_segment(fs, edges=b"state")
        reader = open_segment(fs, PATH)
        store(writer, rows_frame({1: [b"a"]}, edges=b"first"))
        assert reader.follow() == [b"state", b"first"]
        store(writer, rows_frame({1: [b"b"]}, serial=1))
        store(writer, rows_frame({1: [b"c"]}, serial=2, edges=b"second"))
        assert reader.follow() == [b"second"]

    def test_a_visible_position_past_the_file_is_not_followed_there(self) -> None:
        fs = slab_fs()
        writer = new_segment(fs)
        store(writer, rows_frame({1: [b"a"]}))
        patch(fs, 2048, struct.pack("<Q", 2**63))
        reader = open_segment(fs, PATH)
        reader.follow()
        assert values_in(reader) == [b"a"]

    @pytest.mark.parametrize(
        "damage", [bytes(HEADER_BYTES), b"XXXX", b"SFRM!"], ids=["zeros", "no magic", "checksum"]
    )
    def test_a_frame_missing_behind_the_synced_position_ends_the_segment_for_now(
        self, damage: bytes
    ) -> None:
        fs = slab_fs()
        writer = new_segment(fs)
        store(writer, rows_frame({1: [b"a"]}))
        lost = store(writer, rows_frame({1: [b"b"]}, serial=1), sync=False)
        patch(fs, lost, damage)
        reader = open_segment(fs, PATH)
        reader.follow()
        assert (values_in(reader), reader.index.end_position) == ([b"a"], lost)

    @pytest.mark.parametrize(
        ("damage", "reason"),
        [
            (bytes(HEADER_BYTES), "a frame is missing"),
            (b"XXXX", "does not begin at this offset"),
            (bytes([*b"SFRM", 0, 0, 0, 0, 200]), "the frame does not match its checksum"),
        ],
        ids=["zeros", "no magic", "checksum"],
    )
    def test_a_frame_missing_before_the_synced_position_is_told_to_who_would_read_it(
        self, damage: bytes, reason: str
    ) -> None:
        fs = slab_fs()
        writer = new_segment(fs)
        store(writer, rows_frame({1: [b"a"]}))
        lost = store(writer, rows_frame({1: [b"b"]}, serial=1))
        store(writer, rows_frame({1: [b"c"]}, serial=2))
        patch(fs, lost, damage)
        reader = open_segment(fs, PATH)
        reader.follow()
        assert (values_in(reader), reader.index.end_position) == ([b"a"], lost)
        with pytest.raises(CorruptionError, match=reason) as caught:
            reader.check_whole()
        assert (caught.value.path, caught.value.offset) == (PATH, lost)

    def test_a_segment_that_was_mapped_for_reading_cannot_be_written_through(self) -> None:
        fs = slab_fs()
        new_segment(fs)
        segment = open_segment(fs, PATH)
        assert isinstance(segment, Segment)
        with pytest.raises(TypeError, match="read-only"):
            segment.cells[0] = 0
