from __future__ import annotations

import struct
from pathlib import PurePath

import pytest
from crc32c import crc32c

from siltstone.errors import CorruptionError
from siltstone.store.segment.frame import PLAIN, ROWS, STATE, FrameHeader
from siltstone.store.segment.index import (
    SUMMARY_BYTES,
    SegmentIndex,
    SegmentSummary,
    decode_index,
    decode_summary,
    encode_index,
)
from siltstone.topic.word_index import WordIndex

PATH = PurePath("/slab/00000000000000000100.idx")
A = 10
B = 2**64 - 1


def header(kind: int, serial: int, rows: int, first_us: int, last_us: int) -> FrameHeader:
    return FrameHeader(
        length=128,
        kind=kind,
        compression=PLAIN,
        section_count=0,
        first_serial=serial,
        row_count=rows,
        stream_count=0,
        first_timestamp_us=first_us,
        last_timestamp_us=last_us,
        body_bytes=64,
    )


def sample() -> SegmentIndex:
    """Return an index of a state frame and two frames of rows."""
    index = SegmentIndex(first_serial=100, end_position=4096)
    index.add(4096, header(STATE, 100, 0, 999, 999), [(A, 0, 5, 0, 1)])
    index.add(4224, header(ROWS, 100, 3, 1000, 1002), [(A, 0, 2, 0, 1), (B, 2, 1, 1, 1)])
    index.add(4352, header(ROWS, 103, 4, 2000, 2003), [(A, 0, 4, 0, 1)])
    return index


def encoded() -> bytes:
    return encode_index(sample(), structure=b"edges", producers=b"p" * 24)


def with_rows(*counts: int) -> SegmentIndex:
    """Return an index of frames with these numbers of rows, all of one stream."""
    index = SegmentIndex(first_serial=0, end_position=4096)
    serial = 0
    for number, count in enumerate(counts):
        found = header(ROWS, serial, count, 1000 + number, 1000 + number)
        index.add(4096 + 128 * number, found, [(A, 0, count, 0, 1)])
        serial += count
    return index


def unknown_words(frames: int) -> bytes:
    words = WordIndex()
    words.add_unknown(frames)
    return words.to_bytes()


def resealed(data: bytearray) -> memoryview:
    """Return a side file whose checksums match again."""
    struct.pack_into("<I", data, 64, crc32c(bytes(data[8:64])))
    struct.pack_into("<I", data, 4, crc32c(bytes(data[8:])))
    return memoryview(data)


class TestGrowing:
    def test_an_empty_index_ends_where_it_begins(self) -> None:
        index = SegmentIndex(first_serial=100, end_position=4096)
        assert index.summary() == SegmentSummary(
            first_serial=100, next_serial=100, end_position=4096, frame_count=0
        )

    def test_each_frame_adds_to_every_column(self) -> None:
        index = sample()
        assert [
            list(column)
            for column in (
                index.positions,
                index.serials,
                index.first_times,
                index.last_times,
                index.row_counts,
            )
        ] == [
            [4096, 4224, 4352],
            [100, 100, 103],
            [999, 1000, 2000],
            [999, 1002, 2003],
            [0, 3, 4],
        ]

    def test_the_summary_covers_all_frames(self) -> None:
        assert sample().summary() == SegmentSummary(
            first_serial=100, next_serial=107, end_position=4480, frame_count=3
        )

    def test_a_stream_is_found_in_the_frames_that_hold_its_rows(self) -> None:
        index = sample()
        frames = {stream: list(index.frames_of(stream)) for stream in (A, B, 99)}
        assert frames == {A: [1, 2], B: [1], 99: []}

    def test_rows_are_counted_by_stream_and_a_state_has_none(self) -> None:
        assert sample().stream_rows == {A: 6, B: 1}

    def test_no_frame_counts_as_checked_until_it_is(self) -> None:
        assert sample().verified == bytearray(3)

    @pytest.mark.parametrize(
        ("serial", "frame"), [(0, 0), (99, 0), (100, 1), (102, 1), (103, 2), (106, 2), (500, 2)]
    )
    def test_a_serial_leads_to_the_frame_that_may_hold_it(self, serial: int, frame: int) -> None:
        assert sample().frame_at_serial(serial) == frame

    @pytest.mark.parametrize(
        ("timestamp_us", "frame"), [(0, 0), (999, 0), (1000, 1), (1002, 1), (1003, 2), (2004, 3)]
    )
    def test_a_time_leads_to_the_first_frame_that_reaches_it(
        self, timestamp_us: int, frame: int
    ) -> None:
        assert sample().frame_at_time(timestamp_us) == frame

    def test_an_entry_beyond_the_frame_count_is_not_searched(self) -> None:
        index = sample()
        index.frame_count = 2
        assert (index.frame_at_serial(104), index.frame_at_time(2000)) == (1, 2)


class TestSideFile:
    def test_every_byte_stands_where_the_format_says(self) -> None:
        totals = struct.pack("<IIIIQQQQQ", 1, 3, 2, 3, 100, 107, 4480, 5, 24)
        rest = (
            totals
            + struct.pack("<II", crc32c(totals), 0)
            + struct.pack("<3Q", 4096, 4224, 4352)
            + struct.pack("<3Q", 100, 100, 103)
            + struct.pack("<3q", 999, 1000, 2000)
            + struct.pack("<3q", 999, 1002, 2003)
            + struct.pack("<QQII", A, 6, 0, 2)
            + struct.pack("<QQII", B, 1, 2, 1)
            + struct.pack("<3I", 0, 3, 4)
            + struct.pack("<3I", 1, 2, 1)
            + b"edges"
            + b"p" * 24
        )
        assert encoded() == b"KIDX" + struct.pack("<I", crc32c(rest)) + rest

    def test_a_decoded_index_answers_as_the_one_in_memory(self) -> None:
        index, decoded = sample(), decode_index(memoryview(encoded()), PATH).index
        assert decoded.summary() == index.summary()
        assert [
            list(column)
            for column in (
                decoded.positions,
                decoded.serials,
                decoded.first_times,
                decoded.last_times,
                decoded.row_counts,
            )
        ] == [
            list(column)
            for column in (
                index.positions,
                index.serials,
                index.first_times,
                index.last_times,
                index.row_counts,
            )
        ]
        assert decoded.stream_rows == index.stream_rows
        assert [list(decoded.frames_of(stream)) for stream in (A, B, 99)] == [[1, 2], [1], []]
        assert decoded.verified == bytearray(3)

    def test_structure_and_producers_come_back(self) -> None:
        sealed = decode_index(memoryview(encoded()), PATH)
        assert (bytes(sealed.structure), bytes(sealed.producers)) == (b"edges", b"p" * 24)

    def test_a_decoded_index_encodes_to_the_same_bytes(self) -> None:
        sealed = decode_index(memoryview(encoded()), PATH)
        again = encode_index(
            sealed.index, structure=bytes(sealed.structure), producers=bytes(sealed.producers)
        )
        assert again == encoded()

    def test_an_index_of_no_frames_comes_back(self) -> None:
        data = encode_index(
            SegmentIndex(first_serial=7, end_position=4096), structure=b"", producers=b""
        )
        sealed = decode_index(memoryview(data), PATH)
        assert sealed.index.summary() == SegmentSummary(
            first_serial=7, next_serial=7, end_position=4096, frame_count=0
        )

    def test_a_sealed_index_does_not_grow(self) -> None:
        index = decode_index(memoryview(encoded()), PATH).index
        with pytest.raises(AssertionError, match="a sealed index does not grow"):
            index.add(4480, header(ROWS, 107, 1, 3000, 3000), [(A, 0, 1, 0, 1)])

    def test_the_summary_needs_only_the_first_72_bytes(self) -> None:
        assert decode_summary(encoded()[:SUMMARY_BYTES], PATH) == sample().summary()
        assert SUMMARY_BYTES == 72


class TestBroken:
    def test_a_side_file_shorter_than_its_header_is_refused(self) -> None:
        with pytest.raises(CorruptionError, match="the index is too short") as caught:
            decode_summary(encoded()[:71], PATH)
        assert (caught.value.path, caught.value.offset) == (PATH, 0)

    @pytest.mark.parametrize("offset", [0, 8])
    def test_another_magic_or_version_is_refused(self, offset: int) -> None:
        data = bytearray(encoded())
        data[offset] ^= 2
        with pytest.raises(
            CorruptionError, match="the file is not an index, or has an unknown version"
        ):
            decode_index(resealed(data), PATH)

    def test_no_flipped_byte_goes_unnoticed(self) -> None:
        unnoticed = []
        for offset in range(len(encoded())):
            data = bytearray(encoded())
            data[offset] ^= 0x40
            try:
                decode_index(memoryview(data), PATH)
            except CorruptionError:
                continue
            unnoticed.append(offset)
        assert unnoticed == []

    def test_no_flipped_byte_of_the_totals_is_believed(self) -> None:
        believed = []
        # The checksum of the whole, at 4, is no part of the summary.
        for offset in (*range(4), *range(8, SUMMARY_BYTES)):
            data = bytearray(encoded()[:SUMMARY_BYTES])
            data[offset] ^= 0x40
            try:
                decode_summary(bytes(data), PATH)
            except CorruptionError:
                continue
            believed.append(offset)
        assert believed == []

    def test_a_size_that_does_not_fit_the_counts_is_refused(self) -> None:
        size = len(encoded())
        data = bytearray(encoded()[:-1])
        reason = f"the index must have {size} bytes, found {len(data)}"
        with pytest.raises(CorruptionError, match=reason):
            decode_index(resealed(data), PATH)

    @pytest.mark.parametrize(
        "extra", [b"\0\0", bytes(8), struct.pack("<II", 7, 2), struct.pack("<II", 7, 2) + b"x"]
    )
    def test_a_part_that_is_cut_short_is_refused(self, extra: bytes) -> None:
        with pytest.raises(CorruptionError, match="the last part of the index is cut short"):
            decode_index(resealed(bytearray(encoded() + extra)), PATH)

    def test_an_unknown_part_is_ignored(self) -> None:
        extra = struct.pack("<II", 7, 2) + b"xy"
        found = decode_index(resealed(bytearray(encoded() + extra)), PATH)
        assert found.index.summary() == decode_index(memoryview(encoded()), PATH).index.summary()
        assert found.index.words.count == 0

    @pytest.mark.parametrize(
        ("words", "reason"),
        [(bytes(16), "wrong lengths"), (unknown_words(4), "words of frames that do not exist")],
    )
    def test_words_that_do_not_fit_are_refused(self, words: bytes, reason: str) -> None:
        data = encoded() + struct.pack("<II", 2, len(words)) + words
        with pytest.raises(CorruptionError, match=reason):
            decode_index(resealed(bytearray(data)), PATH)


class TestRowsPerPiece:
    def test_skipped_serials_are_no_rows(self) -> None:
        index = SegmentIndex(first_serial=0, end_position=4096)
        index.add(4096, header(ROWS, 0, 2, 1000, 1000), [(A, 0, 2, 0, 1)])
        index.add(4224, header(ROWS, 1 << 32, 4, 2000, 2000), [(A, 0, 4, 0, 1)])
        assert index.rows_per_piece([A]) == 3
        data = encode_index(index, structure=b"", producers=b"")
        assert decode_index(memoryview(data), PATH).index.rows_per_piece([A]) == 3

    def test_streams_that_are_not_in_the_segment_do_not_count(self) -> None:
        index = SegmentIndex(first_serial=0, end_position=4096)
        directory = [(A, 0, 1, 0, 1), *((stream, 0, 9, 0, 1) for stream in range(A + 1, A + 5))]
        index.add(4096, header(ROWS, 0, 37, 1000, 1000), directory)
        assert index.rows_per_piece([A]) == 1
        assert index.rows_per_piece([A, *range(1000, 1010)]) == 1
        assert index.rows_per_piece(range(A, A + 5)) == 37 // 5


class TestGroups:
    def test_small_frames_beside_each_other_are_one_group_and_a_single_one_is_read_by_itself(
        self,
    ) -> None:
        index = with_rows(1000, 5000, 1000, 1000, 5000, 1000)
        groups = list(index.groups(range(6), rows_per_piece=1000))
        assert groups == [
            (range(1), False),
            (range(1, 2), False),
            (range(2, 4), True),
            (range(4, 5), False),
            (range(5, 6), False),
        ]

    def test_a_single_frame_with_few_rows_of_each_stream_is_read_as_a_table(self) -> None:
        assert list(with_rows(1000).groups(range(1), rows_per_piece=5)) == [(range(1), True)]
