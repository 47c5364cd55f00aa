from __future__ import annotations

import pyarrow as pa
import pytest
from crc32c import crc32c

from siltstone.store.log.write.block_body import encode_apart, encode_inline, frame_bytes_max
from siltstone.store.segment.frame import (
    APART,
    EDGES,
    HEADER_BYTES,
    PLAIN,
    ROWS,
    TIMESTAMPS,
    VALUES,
    VALUES_AT,
    FrameFormatError,
    FrameHeader,
    crc_matches,
    encode_frame,
)
from siltstone.store.segment.view import FrameView, open_frame
from tests.support.topiclog import offsets_of

SEED = 7
NOW_US = 1_700_000_000_000_000


def header_of(body: bytes, sections: int, rows: int, compression: int) -> FrameHeader:
    last = NOW_US + rows - 1
    return FrameHeader(
        kind=ROWS,
        compression=compression,
        section_count=sections,
        first_serial=5,
        row_count=rows,
        stream_count=1,
        first_timestamp_us=NOW_US,
        last_timestamp_us=last,
        body_bytes=len(body),
    )


def opened(data: bytes, position: int, header: FrameHeader) -> FrameView:
    view = memoryview(data)
    assert crc_matches(view, position, header, SEED)
    return open_frame(view, pa.py_buffer(data), position, header)


def read(frame: FrameView) -> tuple[list[bytes], list[int], list[str]]:
    rows = frame.header.row_count
    return (
        frame.values(0, rows).to_pylist(),
        frame.timestamps(0, rows).to_pylist(),
        frame.all_topics().to_pylist(),
    )


@pytest.mark.parametrize(
    ("rows", "width"), [(1, 8), (15, 8), (16, 1), (256, 1), (257, 2), (32_768, 2), (32_769, 4)]
)
@pytest.mark.parametrize("edges", [b"", b"12345"])
def test_a_block_is_a_frame_like_any_other(rows: int, width: int, edges: bytes) -> None:
    values = [b"%d" % number for number in range(rows)]
    body, sections = encode_inline(
        stream_id=9,
        edges=edges,
        topic=b"a/b",
        offsets=offsets_of(values),
        values=b"".join(values),
        timestamp_us=NOW_US,
    )
    header = header_of(body, sections, rows, PLAIN)
    frame = opened(encode_frame(header, body, SEED) + body, 0, header)
    assert read(frame) == (values, list(range(NOW_US, NOW_US + rows)), ["a/b"])
    assert frame.directory() == [(9, 0, rows, 0, 1)]
    assert frame.table.widths[TIMESTAMPS] == width
    assert bytes(frame.section(EDGES) or b"") == edges
    assert len(body) % 8 == 0


def test_values_may_stand_apart_from_their_frame() -> None:
    values = [b"one", b"three"]
    place = bytes(64) + b"onethree"
    body, sections = encode_apart(
        stream_id=9,
        edges=b"",
        topic=b"t",
        offsets=offsets_of(values),
        place=(64, 8, crc32c(b"onethree", SEED)),
        timestamp_us=NOW_US,
    )
    header = header_of(body, sections, 2, APART)
    data = place + encode_frame(header, body, SEED) + body
    frame = opened(data, len(place), header)
    assert read(frame) == (values, [NOW_US, NOW_US + 1], ["t"])
    assert bytes(frame.section(VALUES) or b"") == b"onethree"
    assert frame.table.lengths[VALUES_AT] == 24
    room = frame_bytes_max(topic_bytes=1, edges_bytes=0, rows=2)
    assert HEADER_BYTES + len(body) <= room
    changed = data[:66] + b"X" + data[67:]
    assert not crc_matches(memoryview(changed), len(place), header, SEED)


@pytest.mark.parametrize("place", [(0, 8, 0), (60, 8, 0), (64, 0, 0), (64, 1 << 40, 0)])
def test_a_place_that_cannot_be_is_refused(place: tuple[int, int, int]) -> None:
    body, sections = encode_apart(
        stream_id=9,
        edges=b"",
        topic=b"t",
        offsets=offsets_of([b"12345678"]),
        place=place,
        timestamp_us=NOW_US,
    )
    header = header_of(body, sections, 1, APART)
    data = bytes(72) + encode_frame(header, body, SEED) + body
    assert not crc_matches(memoryview(data), 72, header, SEED)
    with pytest.raises(FrameFormatError, match="the values are missing"):
        open_frame(memoryview(data), pa.py_buffer(data), 72, header)


def test_a_frame_too_short_for_a_place_says_nothing() -> None:
    header = header_of(b"", 0, 1, APART)
    data = bytes(64) + encode_frame(header, b"", SEED)
    assert not crc_matches(memoryview(data), 64, header, SEED)
    with pytest.raises(FrameFormatError):
        open_frame(memoryview(data), pa.py_buffer(data), 64, header)
