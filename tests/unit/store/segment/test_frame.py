from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from siltstone.store.segment.body import encode_state
from siltstone.store.segment.frame import (
    EDGES,
    HEADER_BYTES,
    PRODUCERS,
    ROOM,
    ROWS,
    SECTION_MAX,
    ZSTD,
    FrameFormatError,
    FrameHeader,
    crc_matches,
    decode_directory,
    decode_header,
    decode_sections,
    encode_frame,
    head_matches,
)
from tests.support.frames import (
    NOW_US,
    SEED,
    frame_bytes,
    header_fields,
    rows_frame,
)


def any_header() -> FrameHeader:
    return FrameHeader(
        kind=ROWS,
        compression=ZSTD,
        section_count=5,
        first_serial=2**63,
        row_count=7,
        stream_count=2,
        first_timestamp_us=-3,
        last_timestamp_us=NOW_US,
        synced_position=8192,
        body_bytes=4711,
    )


class TestHeader:
    def test_every_field_stands_where_the_format_says(self) -> None:
        header = any_header()
        head = encode_frame(header, b"eight by", SEED)
        rest = struct.pack("<IBBHQIIqqQQ", 72, ROWS, ZSTD, 5, 2**63, 7, 2, -3, NOW_US, 8192, 4711)
        crc = crc32c(rest + b"eight by", SEED)
        assert head == b"SFRM" + struct.pack("<I", crc) + rest

    def test_encoding_sets_length_and_checksum(self) -> None:
        header = any_header()
        head = encode_frame(header, b"eight by", SEED)
        assert (header.length, header.crc) == struct.unpack_from("<4xII", head)[::-1]

    def test_a_decoded_header_is_the_one_that_was_encoded(self) -> None:
        header = any_header()
        data = bytes(24) + encode_frame(header, b"eight by", SEED) + b"eight by"
        decoded = decode_header(memoryview(data), 24, len(data))
        assert decoded is not None
        assert header_fields(decoded) == header_fields(header)

    def test_zeros_are_the_clean_end(self) -> None:
        assert decode_header(memoryview(bytes(128)), 64, 128) is None

    def test_less_than_a_header_before_the_limit_is_the_clean_end(self) -> None:
        data = memoryview(frame_bytes(rows_frame({1: [b"v"]})))
        assert decode_header(data, 0, HEADER_BYTES - 1) is None

    @pytest.mark.parametrize("offset", [0, 8, 63])
    def test_one_byte_among_zeros_is_no_clean_end(self, offset: int) -> None:
        data = bytearray(64)
        data[offset] = 1
        with pytest.raises(FrameFormatError, match="a frame does not begin at this offset"):
            decode_header(memoryview(data), 0, 64)

    @pytest.mark.parametrize("length", [0, 56, 65, 2**32 - 8])
    def test_an_impossible_length_is_refused(self, length: int) -> None:
        data = bytearray(frame_bytes(rows_frame({1: [b"v"]})))
        struct.pack_into("<I", data, 8, length)
        with pytest.raises(FrameFormatError, match=f"^invalid frame length {length}$"):
            decode_header(memoryview(data), 0, len(data))

    def test_a_frame_may_reach_the_limit_and_no_further(self) -> None:
        data = memoryview(frame_bytes(rows_frame({1: [b"v"]})))
        assert decode_header(data, 0, len(data)) is not None
        with pytest.raises(FrameFormatError, match="invalid frame length"):
            decode_header(data, 0, len(data) - 1)

    @pytest.mark.parametrize("kind", [0, ROOM + 1, 255])
    def test_an_unknown_kind_is_refused(self, kind: int) -> None:
        data = bytearray(frame_bytes(rows_frame({1: [b"v"]})))
        data[12] = kind
        with pytest.raises(FrameFormatError, match=f"^unknown frame kind {kind}$"):
            decode_header(memoryview(data), 0, len(data))


class TestChecksum:
    def test_the_checksum_of_a_whole_frame_matches(self) -> None:
        frame = rows_frame({1: [b"v"]})
        data = bytes(40) + frame_bytes(frame) + bytes(40)
        assert crc_matches(memoryview(data), 40, frame.header, SEED)

    def test_a_frame_of_another_seed_does_not_match(self) -> None:
        frame = rows_frame({1: [b"v"]})
        assert not crc_matches(memoryview(frame_bytes(frame)), 0, frame.header, SEED + 1)

    def test_no_flipped_bit_goes_unnoticed(self) -> None:
        sound = frame_bytes(rows_frame({1: [b"v"]}))
        unnoticed = []
        for bit in range(len(sound) * 8):
            data = bytearray(sound)
            data[bit // 8] ^= 1 << bit % 8
            try:
                header = decode_header(memoryview(data), 0, len(data))
            except FrameFormatError:
                continue
            if header is None or crc_matches(memoryview(data), 0, header, SEED):
                unnoticed.append(bit)
        assert unnoticed == []


class TestHead:
    def test_the_checksum_of_the_head_is_of_header_table_streams_and_edges(self) -> None:
        frame = rows_frame({1: [b"a"], 2: [b"b"]}, edges=b"an edge")
        data = frame_bytes(frame)
        end = 64 + 8 * frame.header.section_count + 2 * 24 + 8
        assert frame.header.head_crc == crc32c(data[64:end], crc32c(data[8:60], SEED))
        assert struct.unpack_from("<I", data, 60) == (frame.header.head_crc,)

    def test_a_whole_head_matches_wherever_the_frame_stands(self) -> None:
        frame = rows_frame({1: [b"a"]}, edges=b"an edge")
        data = memoryview(bytes(24) + frame_bytes(frame))
        assert head_matches(data, 24, frame.header, SEED)
        assert not head_matches(data, 24, frame.header, SEED + 1)

    def test_a_compressed_frame_has_no_head(self) -> None:
        frame = rows_frame({1: [b"a"]}, compression=ZSTD)
        data = frame_bytes(frame)
        assert frame.header.head_crc == 0
        assert not head_matches(memoryview(data), 0, frame.header, SEED)

    def test_a_head_that_runs_past_its_frame_does_not_match(self) -> None:
        frame = rows_frame({1: [b"a"]})
        data = frame_bytes(frame)
        frame.header.section_count = 0xFFFF
        assert not head_matches(memoryview(data), 0, frame.header, SEED)
        assert not head_matches(memoryview(data + bytes(1 << 20)), 0, frame.header, SEED)

    def test_no_flipped_bit_of_what_an_index_believes_goes_unnoticed(self) -> None:
        frame = rows_frame({1: [b"a"]}, edges=b"an edge")
        sound = frame_bytes(frame)
        end = 64 + 8 * frame.header.section_count + 24 + 8
        unnoticed = []
        for bit in range(8 * 8, 8 * end):
            data = bytearray(sound)
            data[bit // 8] ^= 1 << bit % 8
            try:
                header = decode_header(memoryview(data), 0, len(data))
            except FrameFormatError:
                continue
            if header is None or head_matches(memoryview(data), 0, header, SEED):
                unnoticed.append(bit)
        assert unnoticed == []


class TestSections:
    def test_offsets_are_relative_to_the_view(self) -> None:
        body, count = encode_state(b"edges", b"p" * 24)
        table = decode_sections(memoryview(bytes(16) + body), 16, count)
        assert (table.offsets[EDGES], table.offsets[PRODUCERS]) == (32, 40)

    def test_an_absent_section_has_no_offset_length_or_width(self) -> None:
        table = decode_sections(memoryview(b""), 0, 0)
        absent = SECTION_MAX + 1
        assert (table.offsets, table.lengths, table.widths) == (
            [-1] * absent,
            [0] * absent,
            [0] * absent,
        )

    def test_an_unknown_section_is_refused(self) -> None:
        body = struct.pack("<HHI", SECTION_MAX + 1, 1, 0)
        with pytest.raises(FrameFormatError, match=f"^unknown section {SECTION_MAX + 1}$"):
            decode_sections(memoryview(body), 0, 1)

    def test_sections_that_run_past_the_body_are_refused(self) -> None:
        body = struct.pack("<HHI", EDGES, 1, 9) + bytes(8)
        with pytest.raises(FrameFormatError, match=r"^the sections are longer than the body$"):
            decode_sections(memoryview(body), 0, 1)

    def test_a_frame_without_streams_has_an_empty_directory(self) -> None:
        body, count = encode_state(b"edges", b"")
        view = memoryview(body)
        assert decode_directory(view, decode_sections(view, 0, count)) == []
