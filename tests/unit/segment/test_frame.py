from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from siltstone.segment.frame import (
    EDGES,
    FLAGS,
    HEADER_BYTES,
    HOLE,
    PRODUCERS,
    PROPERTIES,
    PROPERTY_OFFSETS,
    PUBLISHER_INDEX,
    PUBLISHER_OFFSETS,
    PUBLISHERS,
    ROWS,
    SECTION_MAX,
    STREAMS,
    TIMESTAMPS,
    TOPIC_INDEX,
    TOPIC_OFFSETS,
    TOPICS,
    VALUE_OFFSETS,
    VALUES,
    ZSTD,
    FrameFormatError,
    FrameHeader,
    StreamRows,
    crc_matches,
    decode_directory,
    decode_header,
    decode_sections,
    directory_of,
    encode_frame,
    encode_rows,
    encode_state,
)
from tests.support.frames import (
    NOW_US,
    SEED,
    frame_bytes,
    header_fields,
    rows_frame,
    stream_rows,
)


def any_header() -> FrameHeader:
    return FrameHeader(0, 0, ROWS, ZSTD, 5, 2**63, 7, 2, -3, NOW_US, 8192, 4711)


def sections_of(body: bytes, count: int) -> dict[int, tuple[int, bytes]]:
    """Return width and bytes of each section, by id, in the order of the table."""
    table = decode_sections(memoryview(body), 0, count)
    found: dict[int, tuple[int, bytes]] = {}
    for number in range(count):
        section_id = struct.unpack_from("<H", body, number * 8)[0]
        offset, length = table.offsets[section_id], table.lengths[section_id]
        found[section_id] = (table.widths[section_id], body[offset : offset + length])
    return found


def full_row(stream_id: int, publisher: int) -> StreamRows:
    rows = stream_rows(stream_id, [b"value"], [NOW_US])
    rows.topics[0] = b"home/kitchen"
    rows.publishers.append(publisher)
    rows.flags.append(publisher + 1)
    rows.properties.append(b"\x01\x00")
    return rows


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
        with pytest.raises(FrameFormatError, match="no frame starts here"):
            decode_header(memoryview(data), 0, 64)

    @pytest.mark.parametrize("length", [0, 56, 65, 2**32 - 8])
    def test_an_impossible_length_is_refused(self, length: int) -> None:
        data = bytearray(frame_bytes(rows_frame({1: [b"v"]})))
        struct.pack_into("<I", data, 8, length)
        with pytest.raises(FrameFormatError, match=f"^impossible frame length {length}$"):
            decode_header(memoryview(data), 0, len(data))

    def test_a_frame_may_reach_the_limit_and_no_further(self) -> None:
        data = memoryview(frame_bytes(rows_frame({1: [b"v"]})))
        assert decode_header(data, 0, len(data)) is not None
        with pytest.raises(FrameFormatError, match="impossible frame length"):
            decode_header(data, 0, len(data) - 1)

    @pytest.mark.parametrize("kind", [0, HOLE + 1, 255])
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


class TestRows:
    def test_a_row_with_no_value_has_five_sections(self) -> None:
        body, count = encode_rows([stream_rows(9, [b""], [NOW_US])], [], 0, b"", b"")
        assert list(sections_of(body, count).items()) == [
            (STREAMS, (24, struct.pack("<QIIII", 9, 0, 1, 0, 1))),
            (TIMESTAMPS, (8, struct.pack("<q", NOW_US))),
            (TOPIC_OFFSETS, (4, struct.pack("<2i", 0, 2))),
            (TOPICS, (1, b"t9")),
            (TOPIC_INDEX, (1, b"\0")),
        ]

    def test_all_columns_come_in_one_order(self) -> None:
        rows = [full_row(4, 0), full_row(5, 1)]
        body, count = encode_rows(rows, [b"ann", b"bo"], -1, b"edges", b"p" * 24)
        offsets = struct.Struct("<3i").pack
        assert list(sections_of(body, count).items()) == [
            (STREAMS, (24, struct.pack("<QIIIIQIIII", 4, 0, 1, 0, 1, 5, 1, 1, 1, 1))),
            (EDGES, (1, b"edges")),
            (PRODUCERS, (24, b"p" * 24)),
            (TIMESTAMPS, (8, struct.pack("<2q", NOW_US, NOW_US))),
            (TOPIC_OFFSETS, (4, offsets(0, 12, 24))),
            (TOPICS, (1, b"home/kitchenhome/kitchen")),
            (TOPIC_INDEX, (1, b"\0\1")),
            (VALUE_OFFSETS, (4, offsets(0, 5, 10))),
            (VALUES, (1, b"valuevalue")),
            (PUBLISHER_OFFSETS, (4, offsets(0, 3, 5))),
            (PUBLISHERS, (1, b"annbo")),
            (PUBLISHER_INDEX, (1, b"\0\1")),
            (FLAGS, (1, b"\1\2")),
            (PROPERTY_OFFSETS, (4, offsets(0, 2, 4))),
            (PROPERTIES, (1, b"\1\0\1\0")),
        ]

    def test_the_table_and_each_section_are_padded_with_zeros_to_multiples_of_eight(self) -> None:
        body, _ = encode_rows([stream_rows(1, [b"abc"], [NOW_US])], [], 0, b"", b"")
        assert body == (
            struct.pack("<HHIHHIHHI", STREAMS, 24, 24, TIMESTAMPS, 8, 8, TOPIC_OFFSETS, 4, 8)
            + struct.pack("<HHIHHI", TOPICS, 1, 2, TOPIC_INDEX, 1, 1)
            + struct.pack("<HHIHHI", VALUE_OFFSETS, 4, 8, VALUES, 1, 3)
            + struct.pack("<QIIII", 1, 0, 1, 0, 1)
            + struct.pack("<q", NOW_US)
            + struct.pack("<2i", 0, 2)
            + b"t1\0\0\0\0\0\0"
            + b"\0\0\0\0\0\0\0\0"
            + struct.pack("<2i", 0, 3)
            + b"abc\0\0\0\0\0"
        )

    def test_the_directory_written_is_the_one_read(self) -> None:
        rows = [stream_rows(1, [b"a", b"b"], [1, 2]), stream_rows(7, [b"c"], [3])]
        rows[0].topics.append(b"t1/x")
        rows[0].topic_index[1] = 1
        body, count = encode_rows(rows, [], 0, b"", b"")
        view = memoryview(body)
        read = decode_directory(view, decode_sections(view, 0, count))
        assert read == directory_of(rows) == [(1, 0, 2, 0, 2), (7, 2, 1, 2, 1)]

    @pytest.mark.parametrize(("topics", "width"), [(128, 1), (129, 2), (32_768, 2), (32_769, 4)])
    def test_the_index_of_topics_counts_through_all_streams(self, topics: int, width: int) -> None:
        first, second = stream_rows(1, [b"", b""], [1, 2]), stream_rows(2, [b""], [3])
        first.topics.extend(b"t1/%d" % number for number in range(topics - 2))
        first.topic_index[1] = topics - 2
        sections = sections_of(*encode_rows([first, second], [], 0, b"", b""))
        numbers = [number.to_bytes(width, "little") for number in (0, topics - 2, topics - 1)]
        assert sections[TOPIC_INDEX] == (width, b"".join(numbers))

    def test_a_stream_id_uses_all_64_bits(self) -> None:
        body, count = encode_rows([stream_rows(2**64 - 1, [b""], [NOW_US])], [], 0, b"", b"")
        table = decode_sections(memoryview(body), 0, count)
        assert decode_directory(memoryview(body), table) == [(2**64 - 1, 0, 1, 0, 1)]

    def test_a_time_before_1970_is_kept(self) -> None:
        body, count = encode_rows([stream_rows(1, [b""], [-1])], [], 0, b"", b"")
        assert sections_of(body, count)[TIMESTAMPS] == (8, struct.pack("<q", -1))

    def test_one_publisher_is_named_once_and_has_no_index(self) -> None:
        rows = stream_rows(1, [b"", b""], [NOW_US, NOW_US + 1])
        sections = sections_of(*encode_rows([rows], [b"ann"], 0, b"", b""))
        found = {
            name: sections.get(name) for name in (PUBLISHER_OFFSETS, PUBLISHERS, PUBLISHER_INDEX)
        }
        assert found == {
            PUBLISHER_OFFSETS: None,
            PUBLISHERS: (1, b"ann"),
            PUBLISHER_INDEX: None,
        }

    @pytest.mark.parametrize(("names", "width"), [(2, 1), (128, 1), (129, 2)])
    def test_the_index_of_publishers_is_as_wide_as_their_number_asks(
        self, names: int, width: int
    ) -> None:
        rows = stream_rows(1, [b""] * names, range(names))
        rows.publishers.extend(range(names))
        publishers = [b"%03d" % number for number in range(names)]
        sections = sections_of(*encode_rows([rows], publishers, 0, b"", b""))
        numbers = b"".join(number.to_bytes(width, "little") for number in range(names))
        assert sections[PUBLISHER_INDEX] == (width, numbers)

    @pytest.mark.parametrize(
        ("flags", "section"), [(0, None), (1, (1, b"\1")), (255, (1, b"\xff"))]
    )
    def test_flags_that_all_rows_share_take_a_byte_a_frame_or_none(
        self, flags: int, section: tuple[int, bytes] | None
    ) -> None:
        rows = stream_rows(1, [b"", b""], [NOW_US, NOW_US + 1])
        assert sections_of(*encode_rows([rows], [], flags, b"", b"")).get(FLAGS) == section

    def test_properties_that_are_all_empty_take_nothing(self) -> None:
        rows = stream_rows(1, [b"v"], [NOW_US])
        rows.properties.append(b"")
        sections = sections_of(*encode_rows([rows], [], 0, b"", b""))
        assert {PROPERTY_OFFSETS, PROPERTIES} & set(sections) == set()

    def test_cleared_rows_keep_their_stream_and_nothing_else(self) -> None:
        rows = full_row(4, 0)
        rows.clear()
        assert rows.stream_id == 4
        columns = (rows.timestamps, rows.topics, rows.topic_index, rows.values)
        assert (*columns, rows.publishers, rows.flags, rows.properties) == ([],) * 7


class TestState:
    def test_a_state_holds_structure_and_producers(self) -> None:
        assert list(sections_of(*encode_state(b"edges", b"p" * 48)).items()) == [
            (EDGES, (1, b"edges")),
            (PRODUCERS, (24, b"p" * 48)),
        ]

    def test_an_empty_state_has_no_body(self) -> None:
        assert encode_state(b"", b"") == (b"", 0)


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
        with pytest.raises(FrameFormatError, match=f"^section {SECTION_MAX + 1} is unknown$"):
            decode_sections(memoryview(body), 0, 1)

    def test_sections_that_run_past_the_body_are_refused(self) -> None:
        body = struct.pack("<HHI", EDGES, 1, 9) + bytes(8)
        with pytest.raises(FrameFormatError, match=r"^sections run past the body$"):
            decode_sections(memoryview(body), 0, 1)

    def test_a_frame_without_streams_has_an_empty_directory(self) -> None:
        body, count = encode_state(b"edges", b"")
        view = memoryview(body)
        assert decode_directory(view, decode_sections(view, 0, count)) == []
