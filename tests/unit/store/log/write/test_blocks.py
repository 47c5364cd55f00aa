from __future__ import annotations

from siltstone.store.log.write.blocks import encode_block, frame_of_block, room_for_frame
from siltstone.store.log.write.frame_builder import Block
from siltstone.store.segment.frame import APART, PLAIN
from siltstone.store.segment.writer import Room
from tests.support.builders import World, begun
from tests.support.topiclog import offsets_of


def block(*values: bytes, room: Room | None = None) -> Block:
    data = b"" if room is not None else b"".join(values)
    return Block(b"a/b", offsets_of(values), data, room)


def test_a_block_of_a_room_refers_to_it_where_it_is_in_the_segment_that_is_written() -> None:
    committer = begun(World())
    room = committer.take_room(5, rows=1, topic=b"a/b")
    assert room is not None
    room.contents()[:] = b"hello"
    active = committer._writer.active  # noqa: SLF001 - what the committer hands in
    here = block(b"hello", room=room)
    assert encode_block(here, active, 1, b"", 1)[2] == APART
    inline = encode_block(here, None, 1, b"", 1)
    assert inline == encode_block(block(b"hello"), active, 1, b"", 1)
    assert inline[2] == PLAIN
    other = begun(World())._writer.active  # noqa: SLF001
    assert encode_block(here, other, 1, b"", 1) == inline


def test_the_room_for_a_frame_is_enough_for_one_with_edges_and_many_rows() -> None:
    committer = begun(World())
    topic = b"x/" * 50 + b"y"
    _, edges = committer._builder.place(topic)  # noqa: SLF001
    for rows in (1, 20, 3000):
        values = [b"v"] * rows
        made = Block(topic, offsets_of(values), b"".join(values), None)
        room = committer.take_room(rows, rows=rows, topic=topic)
        assert room is not None
        made.room = room
        active = committer._writer.active  # noqa: SLF001
        body, _, kind = encode_block(made, active, 1, edges, 1)
        assert kind == APART
        assert 64 + len(body) <= room_for_frame(topic, rows)


def test_who_listens_gets_a_block_as_rows() -> None:
    built = frame_of_block(block(b"1", b"22"), 9, 1000)
    (rows,) = built.streams
    assert (built.row_count, built.timestamp_us, rows.stream_id) == (2, 1000, 9)
    assert (rows.topics, rows.row_topics()) == ([b"a/b"], [b"a/b", b"a/b"])
    assert (rows.values, rows.timestamps()) == ([b"1", b"22"], [1000, 1001])
