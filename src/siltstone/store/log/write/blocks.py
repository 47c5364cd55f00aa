"""Encode blocks as frames, with the values in the frame or apart from it, in a room."""

from __future__ import annotations

from array import array

from crc32c import crc32c

from siltstone.store.log.write.block_body import encode_apart, encode_inline, frame_bytes_max
from siltstone.store.log.write.frame_builder import Block, BuiltFrame
from siltstone.store.segment.body import StreamRows
from siltstone.store.segment.frame import APART, PLAIN
from siltstone.store.segment.writer import SegmentWriter


def encode_block(
    block: Block, active: SegmentWriter | None, stream_id: int, edges: bytes, timestamp_us: int
) -> tuple[bytes, int, int]:
    """Return the body of a block, its number of sections, and its kind: PLAIN or APART.

    If the room of the block is in the active segment, the body refers to it. Otherwise the contents
    of the room are copied into the body.
    """
    room = block.room
    if room is None or active is None or room not in active:
        values = block.values if room is None else room.contents()
        body, sections = encode_inline(
            stream_id=stream_id,
            edges=edges,
            topic=block.topic,
            offsets=block.offsets,
            values=values,
            timestamp_us=timestamp_us,
        )
        return body, sections, PLAIN
    crc = crc32c(room.contents(), active.segment.header.seed)
    body, sections = encode_apart(
        stream_id=stream_id,
        edges=edges,
        topic=block.topic,
        offsets=block.offsets,
        place=(room.position, room.size, crc),
        timestamp_us=timestamp_us,
    )
    return body, sections, APART


def room_for_frame(topic: bytes, rows: int) -> int:
    """Return the maximum bytes of the frame that refers to a room, edges included."""
    edges_bytes = 4 + len(topic) + 11 * (topic.count(b"/") + 2)
    return frame_bytes_max(topic_bytes=len(topic), edges_bytes=edges_bytes, rows=rows)


def frame_of_block(block: Block, stream_id: int, timestamp_us: int) -> BuiltFrame:
    """Return the rows of a block in the form that `FrameBuilder.build` returns, for listeners."""
    values = block.values if block.room is None else block.room.contents()
    offsets = array("i", block.offsets)
    rows = StreamRows(stream_id)
    rows.topics = [block.topic]
    for i in range(block.count):
        rows.add(timestamp_us + i, 0, bytes(values[offsets[i] : offsets[i + 1]]))
    built = BuiltFrame(timestamp_us)
    built.row_count = block.count
    built.streams = [rows]
    return built
