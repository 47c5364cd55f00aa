from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from siltstone.store.segment.body import StreamRows, encode_rows, encode_state
from siltstone.store.segment.frame import (
    BODY_BYTES_MAX,
    EDGES,
    HEADER_BYTES,
    LZ4,
    PLAIN,
    PRODUCERS,
    ROWS,
    TIMESTAMPS,
    VALUES,
    ZSTD,
    FrameFormatError,
    FrameHeader,
    encode_frame,
)
from siltstone.store.segment.view import FrameView, compress, empty_strings, open_frame
from tests.support.frames import (
    NOW_US,
    SEED,
    frame_bytes,
    rows_frame,
    stream_rows,
    view_of,
)

COMPRESSIONS = pytest.mark.parametrize("compression", [PLAIN, ZSTD, LZ4])


def frame_of(
    rows: list[StreamRows], publishers: list[bytes], flags: int, compression: int = PLAIN
) -> FrameView:
    plain, sections = encode_rows(rows, publishers, flags, b"", b"")
    body = compress(plain, compression)
    count = sum(len(stream.values) for stream in rows)
    header = FrameHeader(
        kind=ROWS,
        compression=compression,
        section_count=sections,
        first_serial=0,
        row_count=count,
        stream_count=len(rows),
        first_timestamp_us=NOW_US,
        last_timestamp_us=NOW_US,
        body_bytes=len(plain),
    )
    return view_of(encode_frame(header, body, SEED) + body)


def two_streams() -> list[StreamRows]:
    """Return three rows in which every column differs from row to row."""
    words = [f"wörd/{number}".encode() for number in range(3)]
    first = stream_rows(1, [b"v0", b""], [NOW_US, NOW_US + 2], words[:2])
    second = stream_rows(2, [b"v2"], [NOW_US + 1], words[2:])
    for stream, numbers in ((first, (0, 1)), (second, (2,))):
        stream.publishers[:] = numbers
        stream.flags[:] = [5 - number for number in numbers]
        stream.properties[:] = [bytes(number) for number in numbers]
    return [first, second]


def broken(compression: int, stored: bytes, body_bytes: int) -> None:
    """Open a frame whose stored body is what is given."""
    data = bytes(HEADER_BYTES) + stored
    header = FrameHeader(
        length=len(data),
        kind=ROWS,
        compression=compression,
        section_count=0,
        first_serial=0,
        row_count=0,
        stream_count=0,
        first_timestamp_us=NOW_US,
        last_timestamp_us=NOW_US,
        body_bytes=body_bytes,
    )
    open_frame(memoryview(data), pa.py_buffer(data), 0, header)


class TestCompress:
    def test_a_plain_body_is_stored_as_it_is(self) -> None:
        assert compress(b"eight by", PLAIN) == b"eight by"

    @pytest.mark.parametrize(("compression", "codec"), [(ZSTD, "zstd"), (LZ4, "lz4")])
    def test_a_compressed_body_is_its_length_its_bytes_and_padding(
        self, compression: int, codec: str
    ) -> None:
        stored = compress(bytes(1000), compression)
        (length,) = struct.unpack_from("<Q", stored)
        assert pa.Codec(codec).decompress(stored[8 : 8 + length], 1000, asbytes=True) == bytes(1000)
        assert stored[8 + length :] == bytes(-length % 8)

    @pytest.mark.parametrize("compression", [ZSTD, LZ4])
    @pytest.mark.parametrize("size", range(8, 17))
    def test_a_stored_body_is_a_multiple_of_eight_long(self, compression: int, size: int) -> None:
        assert len(compress(bytes(range(size)), compression)) % 8 == 0


def columns_of(frame: FrameView, start: int, stop: int) -> dict[str, pa.Array]:
    return {
        "timestamps": frame.timestamps(start, stop),
        "topic_numbers": frame.topic_numbers(start, stop),
        "values": frame.values(start, stop),
        "publisher_numbers": frame.publisher_numbers(start, stop),
        "flags": frame.flags(start, stop),
        "properties": frame.properties(start, stop),
    }


class TestColumns:
    @COMPRESSIONS
    def test_every_column_comes_back_whole(self, compression: int) -> None:
        frame = frame_of(two_streams(), [b"ann", b"bo", b"cy"], -1, compression)
        assert columns_of(frame, 0, 3) == {
            "timestamps": pa.array([NOW_US, NOW_US + 2, NOW_US + 1]),
            "topic_numbers": pa.array([0, 1, 2], pa.int8()),
            "values": pa.array([b"v0", b"", b"v2"]),
            "publisher_numbers": pa.array([0, 1, 2], pa.int8()),
            "flags": pa.array([5, 4, 3], pa.uint8()),
            "properties": pa.array([b"", b"\0", b"\0\0"]),
        }

    def test_every_column_can_be_cut(self) -> None:
        frame = frame_of(two_streams(), [b"ann", b"bo", b"cy"], -1)
        assert columns_of(frame, 1, 2) == {
            "timestamps": pa.array([NOW_US + 2]),
            "topic_numbers": pa.array([1], pa.int8()),
            "values": pa.array([b""]),
            "publisher_numbers": pa.array([1], pa.int8()),
            "flags": pa.array([4], pa.uint8()),
            "properties": pa.array([b"\0"]),
        }

    def test_absent_columns_read_as_empty(self) -> None:
        frame = frame_of([stream_rows(1, [b"", b""], [NOW_US, NOW_US + 1])], [], 0)
        assert frame.values(0, 2).equals(pa.array([b"", b""]))
        assert frame.properties(0, 2).equals(pa.array([b"", b""]))
        assert (frame.publisher(), frame.flags(0, 2), frame.has_properties()) == ("", 0, False)

    def test_properties_are_there_when_one_row_has_them(self) -> None:
        assert frame_of(two_streams(), [], 0).has_properties()

    def test_flags_that_all_rows_share_are_one_number(self) -> None:
        frame = frame_of([stream_rows(1, [b"", b""], [NOW_US, NOW_US + 1])], [], 6)
        assert frame.flags(0, 2) == 6

    @pytest.mark.parametrize("compression", [PLAIN, ZSTD, LZ4])
    def test_shared_flags_may_have_any_bit(self, compression: int) -> None:
        rows = stream_rows(1, [b"", b""], [NOW_US, NOW_US + 1])
        assert frame_of([rows], [], 255, compression).flags(0, 2) == 255

    def test_one_publisher_is_that_of_every_row(self) -> None:
        frame = frame_of([stream_rows(1, [b"", b""], [NOW_US, NOW_US + 1])], ["ä".encode()], 0)
        assert frame.publisher() == "ä"

    def test_of_many_publishers_none_is_that_of_every_row(self) -> None:
        frame = frame_of(two_streams(), [b"ann", b"bo", b"cy"], 0)
        assert frame.publisher() is None
        assert frame.publisher_words().equals(pa.array(["ann", "bo", "cy"]))

    @pytest.mark.parametrize(
        ("count", "kind"),
        [(128, pa.int8()), (129, pa.int16()), (32_768, pa.int16()), (32_769, pa.int32())],
    )
    def test_publishers_are_numbered_in_the_width_they_need(
        self, count: int, kind: pa.DataType
    ) -> None:
        names = [f"device-{number}" for number in range(count)]
        rows = stream_rows(1, [b""] * count, range(count))
        rows.publishers[:] = reversed(range(count))
        frame = frame_of([rows], [name.encode() for name in names], 0)
        assert frame.publisher_words().equals(pa.array(names))
        numbers = pa.array(list(reversed(range(count))), kind)
        assert frame.publisher_numbers(0, count).equals(numbers)

    def test_each_topic_of_a_frame_is_held_once(self) -> None:
        frame = frame_of(two_streams(), [], 0)
        assert frame.all_topics().equals(pa.array(["wörd/0", "wörd/1", "wörd/2"]))
        assert frame.topic_words(1, 3).equals(pa.array(["wörd/1", "wörd/2"]))

    def test_times_are_integers_over_the_map(self) -> None:
        assert frame_of(two_streams(), [], 0).times().tolist() == [NOW_US, NOW_US + 2, NOW_US + 1]

    def test_a_state_frame_has_no_times(self) -> None:
        body, sections = encode_state(b"edges", b"")
        header = FrameHeader(
            kind=2,
            compression=PLAIN,
            section_count=sections,
            first_serial=0,
            row_count=0,
            stream_count=0,
            first_timestamp_us=0,
            last_timestamp_us=0,
            body_bytes=len(body),
        )
        assert view_of(encode_frame(header, body, SEED) + body).times().tolist() == []

    def test_a_plain_column_is_mapped_without_a_copy(self) -> None:
        data = frame_bytes(rows_frame({1: [b"value"]}))
        buffer = pa.py_buffer(data)
        address = view_of(data).values(0, 1).buffers()[2].address
        assert buffer.address < address < buffer.address + buffer.size

    @pytest.mark.parametrize("count", [0, 1, 1 << 16, (1 << 16) + 1])
    @pytest.mark.parametrize(("kind", "empty"), [(pa.string(), ""), (pa.binary(), b"")])
    def test_empty_strings_are_as_many_as_asked(
        self, kind: pa.DataType, empty: str | bytes, count: int
    ) -> None:
        assert empty_strings(kind, count).equals(pa.array([empty] * count, kind))


class TestSomeRows:
    @COMPRESSIONS
    @pytest.mark.parametrize("rows", [[0, 1, 2], [2, 0], [1], []], ids=str)
    def test_some_rows_have_what_the_columns_have(self, rows: list[int], compression: int) -> None:
        frame = frame_of(two_streams(), [b"ann", b"bo", b"cy"], -1, compression)
        words, names = frame.all_topics(), frame.publisher_words()
        columns = {name: column.to_pylist() for name, column in columns_of(frame, 0, 3).items()}
        assert [bytes(text).decode() for text in frame.topics_at(rows)] == [
            words[columns["topic_numbers"][row]].as_py() for row in rows
        ]
        assert [bytes(text).decode() for text in frame.publishers_at(rows)] == [
            names[columns["publisher_numbers"][row]].as_py() for row in rows
        ]
        assert frame.values_at(rows) == [columns["values"][row] for row in rows]
        assert frame.properties_at(rows) == [columns["properties"][row] for row in rows]
        assert frame.times_at(rows) == [columns["timestamps"][row] for row in rows]
        assert list(frame.flags_at(rows)) == [columns["flags"][row] for row in rows]

    def test_what_is_absent_or_shared_reads_as_the_same_for_each(self) -> None:
        rows = stream_rows(1, [b"", b""], [NOW_US, NOW_US + 1])
        shared, absent = frame_of([rows], [], 6), frame_of([rows], [], 0)
        assert (shared.flags_at([1, 0]), absent.flags_at([1, 0])) == (b"\6\6", b"\0\0")
        assert absent.values_at([1]) == [b""]
        assert absent.properties_at([0, 1]) == [b"", b""]

    @pytest.mark.parametrize(("step", "width"), [(1, 1), (200, 2), (40_000, 4), (1 << 40, 8)])
    def test_times_of_any_width_come_back(self, step: int, width: int) -> None:
        times = [NOW_US + number * step for number in range(20)]
        frame = frame_of([stream_rows(1, [b""] * 20, times)], [], 0)
        assert frame.table.widths[TIMESTAMPS] == width
        assert frame.times_at([19, 0]) == [times[19], times[0]]


class TestFindTopic:
    @pytest.mark.parametrize(
        "topics",
        [
            ["a", "b", "ab", "ba", "aba"],
            ["aa", "aaa", "a", "aaaa"],
            ["s/10", "s/1", "s/11", "1", "s/1/"],
            ["xs/1", "s/1x", "s/1"],
            ["a", "b", "a", "aa", "a"],
            ["", "a", "", "", "ab", "b", ""],
        ],
        ids=str,
    )
    def test_a_topic_is_found_where_it_stands_and_nowhere_else(self, topics: list[str]) -> None:
        words = [topic.encode() for topic in topics]
        frame = frame_of([stream_rows(1, [b""] * len(words), range(len(words)), words)], [], 0)
        for first in range(len(words)):
            for last in range(first, len(words) + 1):
                found = [frame.find_topic(word, range(first, last)) for word in words]
                assert found == [
                    [number for number in range(first, last) if words[number] == word]
                    for word in words
                ]
                assert frame.find_topic(b"absent", range(first, last)) == []

    def test_a_frame_without_rows_has_no_topic(self) -> None:
        body, sections = encode_state(b"edges", b"")
        header = FrameHeader(
            kind=2,
            compression=PLAIN,
            section_count=sections,
            first_serial=0,
            row_count=0,
            stream_count=0,
            first_timestamp_us=0,
            last_timestamp_us=0,
            body_bytes=len(body),
        )
        frame = view_of(encode_frame(header, body, SEED) + body)
        assert frame.find_topic(b"a", range(0)) == []


class TestSections:
    def test_a_section_is_its_bytes_without_padding(self) -> None:
        frame = view_of(frame_bytes(rows_frame({1: [b"abc"]}, edges=b"edges")))
        sections = [bytes(frame.section(name) or b"") for name in (EDGES, VALUES)]
        assert sections == [b"edges", b"abc"]

    def test_an_absent_section_is_none(self) -> None:
        assert view_of(frame_bytes(rows_frame({1: [b"abc"]}))).section(PRODUCERS) is None

    @COMPRESSIONS
    def test_the_directory_names_the_rows_of_each_stream(self, compression: int) -> None:
        frame = view_of(
            frame_bytes(rows_frame({1: [b"a", b"b"], 2**64 - 1: [b"c"]}, compression=compression))
        )
        assert frame.directory() == [(1, 0, 2, 0, 1), (2**64 - 1, 2, 1, 1, 1)]

    @pytest.mark.parametrize(
        ("stream_id", "entry"), [(1, (1, 0, 2, 0, 1)), (5, (5, 2, 1, 1, 1)), (4, None)]
    )
    def test_a_stream_is_found_in_the_directory(
        self, stream_id: int, entry: tuple[int, ...] | None
    ) -> None:
        frame = view_of(frame_bytes(rows_frame({1: [b"a", b"b"], 5: [b"c"]})))
        assert frame.entry_of(stream_id) == entry


class TestBroken:
    def test_an_unknown_compression_is_refused(self) -> None:
        with pytest.raises(FrameFormatError, match=r"^unknown compression$"):
            broken(6, bytes(16), 16)

    @pytest.mark.parametrize("body_bytes", [0, BODY_BYTES_MAX + 1])
    def test_a_compressed_body_of_impossible_length_is_refused(self, body_bytes: int) -> None:
        with pytest.raises(FrameFormatError):
            broken(ZSTD, compress(bytes(16), ZSTD), body_bytes)

    def test_a_compressed_body_longer_than_its_frame_is_refused(self) -> None:
        stored = bytearray(compress(bytes(16), ZSTD))
        struct.pack_into("<Q", stored, 0, len(stored) - 7)
        with pytest.raises(FrameFormatError, match=r"^the compressed body is cut short$"):
            broken(ZSTD, bytes(stored), 16)

    @pytest.mark.parametrize("compression", [ZSTD, LZ4])
    def test_garbage_is_not_expanded(self, compression: int) -> None:
        with pytest.raises(FrameFormatError, match=r"^the body cannot be decompressed$"):
            broken(compression, struct.pack("<Q", 8) + b"\xa5" * 8, 16)


class TestTimes:
    @pytest.mark.parametrize("compression", [PLAIN, ZSTD])
    @pytest.mark.parametrize(
        ("span", "width"),
        [
            (15, 1),
            (255, 1),
            (256, 2),
            (32_767, 2),
            (32_768, 4),
            ((1 << 31) - 1, 4),
            (1 << 31, 8),
        ],
    )
    def test_offsets_are_as_wide_as_the_span_asks_and_give_the_times_back(
        self, span: int, width: int, compression: int
    ) -> None:
        first = [NOW_US + number for number in range(15)]
        second = [NOW_US + 1, NOW_US + span]
        rows = [stream_rows(1, [b""] * 15, first), stream_rows(2, [b"", b""], second)]
        frame = frame_of(rows, [], 0, compression)
        assert frame.table.widths[TIMESTAMPS] == width
        assert frame.times().tolist() == first + second
        assert frame.timestamps(14, 17).to_pylist() == [first[-1], *second]

    @pytest.mark.parametrize(("count", "width"), [(15, 8), (16, 1)])
    def test_small_frames_keep_whole_times(self, count: int, width: int) -> None:
        times = [NOW_US + number for number in range(count)]
        frame = frame_of([stream_rows(1, [b""] * count, times)], [], 0)
        assert (frame.table.widths[TIMESTAMPS], frame.times().tolist()) == (width, times)
