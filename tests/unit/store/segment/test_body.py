from __future__ import annotations

import struct

import pytest

from siltstone.store.segment.body import StreamRows, directory_of, encode_rows, encode_state
from siltstone.store.segment.frame import (
    EDGES,
    FLAGS,
    PRODUCERS,
    PROPERTIES,
    PROPERTY_OFFSETS,
    PUBLISHER_INDEX,
    PUBLISHER_OFFSETS,
    PUBLISHERS,
    STREAMS,
    TIMESTAMPS,
    TOPIC_INDEX,
    TOPIC_OFFSETS,
    TOPICS,
    VALUE_OFFSETS,
    VALUES,
    decode_directory,
    decode_sections,
)
from tests.support.frames import (
    NOW_US,
    stream_rows,
)


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
        first = stream_rows(1, [b"a", b"b"], [1, 2], [b"t1", b"t1/x"])
        rows = [first, stream_rows(7, [b"c"], [3])]
        body, count = encode_rows(rows, [], 0, b"", b"")
        view = memoryview(body)
        read = decode_directory(view, decode_sections(view, 0, count))
        assert read == directory_of(rows) == [(1, 0, 2, 0, 2), (7, 2, 1, 2, 1)]

    @pytest.mark.parametrize(("topics", "width"), [(128, 1), (129, 2), (32_768, 2), (32_769, 4)])
    def test_the_index_of_topics_counts_through_all_streams(self, topics: int, width: int) -> None:
        first, second = stream_rows(1, [b""], [1]), stream_rows(2, [b""], [3])
        first.topics.extend(b"t1/%d" % number for number in range(topics - 2))
        first.add(2, topics - 2, b"")
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

    def test_rows_tell_their_times_and_topics(self) -> None:
        rows = stream_rows(1, [b"", b"", b""], [NOW_US, 1 << 62, -1], [b"a", b"b", b"a"])
        rows.add(5, 1, b"")
        assert rows.timestamps() == [NOW_US, 1 << 62, -1, 5]
        assert rows.row_topics() == [b"a", b"b", b"a", b"b"]


class TestState:
    def test_a_state_holds_structure_and_producers(self) -> None:
        assert list(sections_of(*encode_state(b"edges", b"p" * 48)).items()) == [
            (EDGES, (1, b"edges")),
            (PRODUCERS, (24, b"p" * 48)),
        ]

    def test_an_empty_state_has_no_body(self) -> None:
        assert encode_state(b"", b"") == (b"", 0)
