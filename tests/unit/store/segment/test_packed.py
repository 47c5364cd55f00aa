"""Packed frames: which rows fit in one, what of one is refused, and tables of both kinds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pytest

from siltstone.store.log.read.frame_rows import all_rows
from siltstone.store.log.write.frame_builder import BuiltFrame, Call, FrameBuilder
from siltstone.store.segment.body import pack_rows, unpack_rows
from siltstone.store.segment.frame import (
    EDGES,
    PACKED,
    PACKED_BYTES_MAX,
    PACKED_ROWS_MAX,
    PRODUCERS,
    FrameFormatError,
    crc_matches,
    decode_header,
    encode_frame,
    find_frames,
    head_matches,
)
from siltstone.store.segment.table import FrameTable
from siltstone.store.slab.manifest import SlabId
from siltstone.topic.structure import Structure
from tests.support.frames import (
    NOW_US,
    SEED,
    Frame,
    StoredRow,
    built_frame,
    frame_bytes,
    packed_frame,
    packed_rows,
    rows_frame,
    rows_in,
    stream_rows,
    view_of,
)
from tests.support.row_batches import row_batch

SLAB = SlabId(0, 1)


def built(
    topics: list[bytes],
    values: list[bytes],
    *,
    threshold: int = 100,
    publishers: list[bytes] | None = None,
    flags: list[int] | None = None,
    properties: list[bytes] | None = None,
    edges: bytes = b"",
    producers: bytes = b"",
) -> BuiltFrame:
    call = Call(row_batch(topics, values, b"p"))
    if publishers is not None:
        call.batch.publishers = publishers
    if flags is not None:
        call.batch.flags, call.batch.shared_flags = flags, -1
    if properties is not None:
        call.batch.properties = properties
    found = FrameBuilder(Structure([threshold]), 10).build([call], NOW_US)
    found.edges, found.producers = edges, producers
    return found


def one_stream(values: list[bytes], times: list[int]) -> bytes | None:
    return pack_rows([stream_rows(7, values, times)], [], 0, b"", b"", NOW_US)


class TestFit:
    def test_at_most_127_rows_fit(self) -> None:
        times = list(range(NOW_US, NOW_US + PACKED_ROWS_MAX + 1))
        values = [b"v"] * len(times)
        assert one_stream(values[:-1], times[:-1]) is not None
        assert one_stream(values, times) is None

    @pytest.mark.parametrize("column", ["topics", "values", "publishers", "properties"])
    def test_a_column_of_more_bytes_does_not_fit(self, column: str) -> None:
        for size, fits in ((PACKED_BYTES_MAX, True), (PACKED_BYTES_MAX + 1, False)):
            topics, values, publishers, properties = [b"t"], [b"v"], [b"p"], [b"q"]
            columns = {
                "topics": topics,
                "values": values,
                "publishers": publishers,
                "properties": properties,
            }
            columns[column][0] = b"x" * size
            rows = stream_rows(7, values, [NOW_US], topics)
            rows.properties = properties
            assert (pack_rows([rows], publishers, 0, b"", b"", NOW_US) is not None) == fits

    def test_times_that_do_not_follow_one_another_do_not_fit(self) -> None:
        assert one_stream([b"", b""], [NOW_US, NOW_US + 1]) is not None
        assert one_stream([b"", b""], [NOW_US, NOW_US + 2]) is None
        for late in (2, -1):
            streams = [stream_rows(n, [b""], [NOW_US + late * n]) for n in range(2)]
            assert pack_rows(streams, [], 0, b"", b"", NOW_US) is None

    def test_rows_with_a_topic_each_in_another_order_do_not_fit(self) -> None:
        rows = stream_rows(7, [b"", b""], [NOW_US, NOW_US + 1], [b"a", b"b"])
        assert pack_rows([rows], [], 0, b"", b"", NOW_US) is not None
        swapped = stream_rows(7, [], [])
        swapped.topics = [b"a", b"b"]
        swapped.add(NOW_US, 1, b"")
        swapped.add(NOW_US + 1, 0, b"")
        assert pack_rows([swapped], [], 0, b"", b"", NOW_US) is None


class TestSize:
    @pytest.mark.parametrize("value", [0, 50, 100, 255])
    def test_a_row_alone_costs_51_bytes_besides_its_texts_and_the_padding(self, value: int) -> None:
        frame = packed_frame(built([b"plant/line-1/sensor/2"], [b"x" * value]))
        used = 51 + len(b"plant/line-1/sensor/2") + value + len(b"p")
        assert len(frame_bytes(frame)) == max(64, -(-used // 8) * 8)

    def test_the_shortest_frame_has_the_bytes_of_a_header(self) -> None:
        assert len(frame_bytes(packed_frame(built([b"t"], [b""])))) == 64


class TestHeader:
    def sound(self) -> bytearray:
        return bytearray(frame_bytes(packed_rows({1: [b"value"], 2: [b"other"]}, serial=9)))

    def test_no_flipped_bit_goes_unnoticed(self) -> None:
        sound = self.sound()
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

    @pytest.mark.parametrize("rows", [0, PACKED_ROWS_MAX + 1])
    def test_an_impossible_number_of_rows_is_refused(self, rows: int) -> None:
        data = self.sound()
        data[14] = rows
        with pytest.raises(FrameFormatError, match=f"^a packed frame cannot have {rows} rows$"):
            decode_header(memoryview(data), 0, len(data))

    @pytest.mark.parametrize("length", [56, 65, 2**32 - 8])
    def test_an_impossible_length_is_refused(self, length: int) -> None:
        data = self.sound()
        data[8:12] = length.to_bytes(4, "little")
        with pytest.raises(FrameFormatError, match=f"^invalid frame length {length}$"):
            decode_header(memoryview(data), 0, len(data))

    @pytest.mark.parametrize(("synced", "stored"), [(0, 0), (4160, 4160), (1 << 35, 0)])
    def test_a_synced_position_that_is_too_large_counts_as_unknown(
        self, synced: int, stored: int
    ) -> None:
        frame = packed_rows({1: [b"value"]})
        frame.header.synced_position = synced
        data = memoryview(frame_bytes(frame))
        header = decode_header(data, 0, len(data))
        assert header is not None
        assert header.synced_position == stored

    def test_it_has_no_checksum_of_its_head(self) -> None:
        data = memoryview(self.sound())
        header = decode_header(data, 0, len(data))
        assert header is not None
        assert not head_matches(data, 0, header, SEED)


def put(offset: int, value: int) -> Callable[[bytearray], None]:
    def change(body: bytearray) -> None:
        body[offset] = value

    return change


# Of a frame with two streams and one row each: form, flags, topics, publishers, two ids, ends.
BROKEN: dict[str, tuple[Callable[[bytearray], None], str]] = {
    "form": (put(0, 16), "form of the packed frame is unknown"),
    "no topics": (put(2, 0), "form of the packed frame is unknown"),
    "more topics than rows": (put(2, 3), "form of the packed frame is unknown"),
    "ends that fall": (put(20, 9), "ends in a packed frame must not decrease"),
    "texts that are too long": (put(23, 255), "sections are longer than the packed frame"),
    "publishers behind the end": (put(3, 255), "sections are longer|must not decrease"),
    "bytes in the padding": (lambda body: put(len(body) - 1, 1)(body), "bytes follow"),
    "a shorter text": (put(23, 9), "bytes follow"),
}


class TestUnpack:
    @pytest.mark.parametrize("kind", BROKEN)
    def test_a_body_of_another_form_is_refused(self, kind: str) -> None:
        change, problem = BROKEN[kind]
        frame = packed_rows({1: [b"value"], 2: [b"others"]})
        body = bytearray(frame.body)
        change(body)
        data = encode_frame(frame.header, bytes(body), SEED) + bytes(body)
        header = decode_header(memoryview(data), 0, len(data))
        assert header is not None
        with pytest.raises(FrameFormatError, match=problem):
            unpack_rows(memoryview(data), 0, header)

    def test_a_frame_that_is_longer_than_its_rows_is_refused(self) -> None:
        frame = packed_rows({1: [b"value"]})
        body = frame.body + bytes(8)
        data = encode_frame(frame.header, body, SEED) + body
        header = decode_header(memoryview(data), 0, len(data))
        assert header is not None
        with pytest.raises(FrameFormatError, match="bytes follow the last section"):
            unpack_rows(memoryview(data), 0, header)


def forms() -> list[Frame]:
    """Return frames that differ in every section, of consecutive serials and times."""
    made: list[Callable[[BuiltFrame, int], Frame]] = [
        lambda rows, serial: packed_frame(rows, serial=serial),
        lambda rows, serial: built_frame(rows, serial=serial),
    ]
    a, b, wide = b"a/b", b"a/c", b"x" * 300
    frames: list[Frame] = []
    serial = 5
    for pack in (0, 0, 1, 0):
        for rows in (
            built([a], [b"1"]),
            built([a], [wide], properties=[b"p"]),
            built([a, b], [b"1", b""]),
            built([a, b], [b"", b"2"], threshold=0),
            built([a, b, a], [b"1", b"2", wide], threshold=0, publishers=[b"", b"x", b"y"]),
            built([a, b, a], [b"1", b"2", b"3"], flags=[0, 1, 6], properties=[b"", b"q", b""]),
            built([a], [b""], publishers=[b""], flags=[5]),
            built([b] * 20, [b"v"] * 20),
            built([a], [b"1"], edges=b"edges"),
            built([a, b], [b"1", b"2"], edges=b"more", producers=bytes(24), threshold=0),
            built([a], [b"1"], producers=bytes(48), properties=[b"q"]),
        ):
            rows.timestamp_us += serial
            for stream in rows.streams:
                moved = stream_rows(stream.stream_id, [], [])
                numbers = np.frombuffer(stream.topic_numbers.getvalue(), np.int32).tolist()
                for time, number, value in zip(
                    stream.timestamps(), numbers, stream.values, strict=True
                ):
                    moved.add(time + serial, number, value)
                stream.times = moved.times
            frame = made[pack](rows, serial)
            frames.append(frame)
            serial += rows.row_count
    return frames


def rows_of(data: bytes, position: int) -> list[StoredRow]:
    return rows_in(view_of(data, position))


@pytest.mark.parametrize("chosen", ["packed", "both"])
def test_a_table_of_packed_frames_gives_the_rows_of_each(chosen: str) -> None:
    frames = forms()
    if chosen == "packed":
        frames = [frame for frame in frames if frame.header.compression == PACKED]
    stored = [frame_bytes(frame) for frame in frames]
    positions = [0, *accumulate(map(len, stored))][: len(stored)]
    data = b"".join(stored)
    view = memoryview(data)
    assert find_frames(view, 0, len(data), 1000, small=True) == positions
    table = FrameTable(view, pa.py_buffer(data), np.array(positions, np.int64), len(data))
    assert len(table) == len(frames)
    table.keep_checked(SEED)
    table.keep_trusted(SEED)
    assert len(table) == len(frames)
    expected = [row for position in positions for row in rows_of(data, position)]
    rows = all_rows(SLAB, table)
    found = [
        StoredRow(*fields)
        for fields in zip(
            rows.stream_ids().to_pylist(),
            rows.serials().tolist(),
            rows.times().tolist(),
            rows.topics().to_pylist(),
            rows.column("value").to_pylist(),
            rows.publishers().to_pylist(),
            rows.flags().tolist(),
            rows.column("properties").to_pylist(),
            strict=True,
        )
    ]
    assert found == expected
    for section_id in (EDGES, PRODUCERS):
        sections = [view_of(data, position).section(section_id) for position in positions]
        assert table.sections(section_id) == [bytes(each) for each in sections if each is not None]
    assert table.last_times.tolist() == [frame.header.last_timestamp_us for frame in frames]


DAMAGE: dict[str, Callable[[bytearray], None]] = {
    "rows": put(14, 0),
    "too many rows": put(14, PACKED_ROWS_MAX + 1),
    "streams": put(15, 0),
    "more streams than topics": put(15, 2),
    "form": put(36, 16),
    "more topics than rows": put(38, 2),
    "a value behind the end": put(49, 255),
    "compression": put(13, 6),
    "length": put(8, 56),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_table_ends_before_a_packed_frame_whose_head_is_not_sound(
    kind: str, *, is_mixed: bool
) -> None:
    parts = [bytearray(frame_bytes(packed_rows({1: [b"value"]}, serial=n))) for n in range(3)]
    if is_mixed:
        parts[0] = bytearray(frame_bytes(rows_frame({1: [b"value"]})))
    DAMAGE[kind](parts[1])
    data = b"".join(map(bytes, parts))
    positions = np.array([0, *accumulate(map(len, parts))][:3], np.int64)
    table = FrameTable(memoryview(data), pa.py_buffer(data), positions, len(data))
    assert len(table) == 1
