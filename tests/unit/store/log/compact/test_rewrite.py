from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from siltstone.errors import CorruptionError, StorageFullError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.log.compact import rewrite as rewrite_module
from siltstone.store.log.compact.encode import UnfitError, encode_compacted
from siltstone.store.log.compact.rewrite import rewrite_segment
from siltstone.store.log.read.columns import SortedColumns
from siltstone.store.log.read.pieces import Row
from siltstone.store.segment.chain import SegmentHandle
from siltstone.store.segment.frame import (
    HOLE,
    PLAIN,
    PRODUCERS,
    ROWS,
    STATE,
    FrameHeader,
    encode_frame,
)
from siltstone.store.segment.segment import open_segment
from siltstone.store.segment.sift import index_path
from siltstone.store.writer.producers import ProducerTable, producer_key
from siltstone.topic.structure import Structure
from tests.support.builders import PATH, World, begun, call_of, call_on, reopened

TARGET = PATH / "work.seg"


def sealed(*calls: list[Row], world: World, gap: int = 0) -> SegmentHandle:
    """Return a sealed segment with a frame for each call, and unused serials at its end."""
    committer = begun(world, segment_bytes=4 << 20)
    for rows in calls:
        committer.commit([call_of(*rows)])
    committer.next_serial += gap
    committer.seal(*committer.state())
    return committer.slab.chain.handles[-1]


def kinds(world: World) -> list[tuple[int, int, int]]:
    """Return kind, first serial and rows of the frames of the new segment."""
    segment = open_segment(world.fs, TARGET)
    segment.index_headers()
    headers = [segment.checked_header(number) for number in range(segment.index.frame_count)]
    return [(header.kind, header.first_serial, header.row_count) for header in headers]


def test_frames_are_joined_and_the_state_is_copied() -> None:
    world = World()
    source = sealed([Row("a", b"1")], [Row("b", b"2"), Row("a", b"3")], world=world)
    made = rewrite_segment(world.fs, source.path, TARGET)
    assert (made.rows, made.frames) == (3, 2)
    assert kinds(world) == [(STATE, 0, 0), (ROWS, 0, 3)]
    before = SegmentHandle(world.fs, source.path)
    assert before.mark_sealed()
    state = before.edges(), before.producers()
    handle = SegmentHandle(world.fs, TARGET.with_name(source.path.name))
    world.fs.rename(TARGET, handle.path)
    world.fs.rename(index_path(TARGET), index_path(handle.path))
    assert handle.mark_sealed()
    assert handle.segment().header.revision == 1
    assert (handle.edges(), handle.producers()) == state
    assert handle.segment().index.stream_rows == source.segment().index.stream_rows


@pytest.mark.parametrize("gap", [1, 5])
def test_unused_serials_behind_the_last_row_are_in_a_frame(gap: int) -> None:
    world = World()
    source = sealed([Row("a", b"1")], [Row("a", b"2")], world=world, gap=gap)
    rewrite_segment(world.fs, source.path, TARGET)
    assert kinds(world) == [(STATE, 0, 0), (ROWS, 0, 2), (STATE, 2 + gap, 0)]


def test_a_last_frame_that_cannot_be_read_again_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(header: FrameHeader, body: bytes, seed: int) -> bytes:
        data = encode_frame(header, body, seed)
        is_last = (header.kind, header.first_serial) == (STATE, 7)
        return data[:-1] + bytes([data[-1] ^ 1]) if is_last else data

    monkeypatch.setattr(rewrite_module, "encode_frame", encode)
    world = World()
    source = sealed([Row("a", b"1")], [Row("a", b"2")], world=world, gap=5)
    with pytest.raises(CorruptionError) as caught:
        rewrite_segment(world.fs, source.path, TARGET)
    assert caught.value.path == TARGET


def test_a_frame_may_have_more_rows_and_topics_than_two_bytes_can_count() -> None:
    world = World()
    many = [Row(f"{number:05}", b"") for number in range(65_537)]
    # The last row stands beside another one, because it has the same topic.
    source = sealed([*many, many[500]], [Row("a", b"2")], world=world)
    # It compares the rows itself.
    made = rewrite_segment(world.fs, source.path, TARGET)
    assert made.rows == 65_539
    assert kinds(world) == [(STATE, 0, 0), (ROWS, 0, 65_538), (ROWS, 65_538, 1)]


def test_a_segment_beside_the_index_of_other_frames_stays() -> None:
    world = World()
    source = sealed([Row("a", b"1")], [Row("a", b"2")], world=world)
    rewrite_segment(world.fs, source.path, TARGET)
    # As after a power cut between the two renames of a replacement.
    world.fs.rename(index_path(TARGET), index_path(source.path))
    with pytest.raises(UnfitError, match="the index belongs to other frames"):
        rewrite_segment(world.fs, source.path, TARGET.with_name("again.seg"))


@pytest.mark.parametrize("size", [1, 70_000])
def test_a_new_frame_has_whole_old_frames_up_to_its_limit_of_rows(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(rewrite_module, "FRAME_ROWS", 4)
    world = World()
    calls = [[Row("a", bytes(size))] * rows for rows in (2, 2, 1, 5, 1, 3, 1)]
    source = sealed(*calls, world=world)
    rewrite_segment(world.fs, source.path, TARGET)
    assert kinds(world) == [
        (STATE, 0, 0),
        (ROWS, 0, 4),
        (ROWS, 4, 1),
        # One old frame may have more rows.
        (ROWS, 5, 5),
        (ROWS, 10, 4),
        (ROWS, 14, 1),
    ]


@pytest.mark.parametrize("size", [1, 70_000])
def test_a_new_frame_has_whole_old_frames_up_to_its_limit_of_bytes(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    world = World()
    large = [Row("a", bytes(4 * size + 400))]
    source = sealed(large, *[[Row("a", bytes(size))]] * 5, large, world=world)
    index = source.segment().index
    length = int(index.positions[3] - index.positions[2])
    monkeypatch.setattr(rewrite_module, "_FRAME_BYTES", 2 * length + length // 2)
    rewrite_segment(world.fs, source.path, TARGET)
    assert kinds(world) == [
        (STATE, 0, 0),
        # One old frame may have more bytes.
        (ROWS, 0, 1),
        (ROWS, 1, 2),
        (ROWS, 3, 2),
        (ROWS, 5, 1),
        (ROWS, 6, 1),
    ]


def test_rows_before_a_state_frame_stay_before_it() -> None:
    world = World()
    committer = begun(world)
    committer.commit([call_of(Row("a", b"1"))])
    committer.commit([call_on("a", sync=False)])
    assert isinstance(world.fs, MemoryFileSystem)
    world.fs = world.fs.crash_clone()
    committer, _ = reopened(world)
    serial = committer.next_serial
    assert serial > 1
    committer.commit([call_of(Row("a", b"2"))])
    committer.commit([call_of(Row("a", b"3"))])
    committer.seal(*committer.state())
    rewrite_segment(world.fs, committer.slab.chain.handles[-1].path, TARGET)
    assert kinds(world) == [(STATE, 0, 0), (ROWS, 0, 1), (STATE, serial, 0), (ROWS, serial, 2)]


@pytest.mark.parametrize(("frames_between", "syncs"), [(1, 4), (2, 2), (100, 0)])
def test_it_syncs_while_it_writes(
    monkeypatch: pytest.MonkeyPatch, frames_between: int, syncs: int
) -> None:
    monkeypatch.setattr(rewrite_module, "FRAME_ROWS", 1)
    world = World()
    rng = Random(1)
    source = sealed(*[[Row("a", rng.randbytes(9_000))] for _ in range(4)], world=world)
    # A frame has 9,000 bytes and a head, and the state has less.
    monkeypatch.setattr(rewrite_module, "_SYNC_BYTES", 9_000 * frames_between)
    assert isinstance(world.fs, MemoryFileSystem)
    before = len(world.fs.operations)
    rewrite_segment(world.fs, source.path, TARGET)
    # The last one is that of the whole file.
    assert world.fs.operations[before:].count(f"sync {TARGET}") == syncs + 1


def test_segment_and_index_survive_a_power_cut_as_soon_as_it_returns() -> None:
    world = World()
    source = sealed([Row("a", b"1")], [Row("b", b"2")], world=world)
    rewrite_segment(world.fs, source.path, TARGET)
    assert isinstance(world.fs, MemoryFileSystem)
    disk = world.fs.crash_clone()
    for path in (TARGET, index_path(TARGET)):
        assert disk.read(path) == world.fs.read(path)


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3000, 1), (1, 70_000)])
def test_its_frames_alone_tell_the_structure_and_the_producers(rows: int, size: int) -> None:
    """Recovery of a compacted segment without an index, with frames of each size."""
    world = World()
    committer = begun(world)
    for number in range(4):
        call = call_of(*[Row(f"{number}/{each % 7}", bytes(size)) for each in range(rows)])
        call.producer, call.sequence = producer_key(f"p{number}"), number
        committer.commit([call])
    committer.seal(*committer.state())
    source = committer.slab.chain.handles[-1]
    rewrite_segment(world.fs, source.path, TARGET)
    found = []
    for path in (source.path, TARGET):
        segment = open_segment(world.fs, path)
        blocks = segment.follow()
        structure, producers = Structure([100]), ProducerTable()
        for block in blocks:
            structure.apply(block)
        for number in range(segment.index.frame_count):
            producers.apply(segment.frame(number).section(PRODUCERS) or b"")
        found.append((structure.export(), producers.encode()))
    assert found[0] == found[1]
    assert len(found[0][1]) == 4 * 24


def test_a_compacted_segment_can_be_compacted_again() -> None:
    world = World()
    source = sealed([Row("a", b"1")], [Row("b", b"2")], world=world)
    first = rewrite_segment(world.fs, source.path, TARGET)
    second = rewrite_segment(world.fs, TARGET, PATH / "again.seg")
    assert second.digest == first.digest
    assert open_segment(world.fs, PATH / "again.seg").header.revision == 2


def test_a_segment_with_a_hole_stays() -> None:
    world = World()
    source = sealed([Row("a", b"1")], [Row("a", b"2")], world=world)
    index = source.segment().index
    position, length = index.positions[1], index.positions[2] - index.positions[1]
    hole = FrameHeader(
        kind=HOLE,
        compression=PLAIN,
        section_count=0,
        first_serial=0,
        row_count=1,
        stream_count=0,
        first_timestamp_us=index.first_times[1],
        last_timestamp_us=index.last_times[1],
        body_bytes=length - 64,
    )
    body = bytes(length - 64)
    with world.fs.open(source.path, writable=True) as file:
        file.write_at(position, encode_frame(hole, body, source.segment().header.seed) + body)
    with pytest.raises(UnfitError, match="rows of the segment are lost"):
        rewrite_segment(world.fs, source.path, TARGET)


def test_each_new_frame_is_paced_and_the_pace_may_end_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rewrite_module, "FRAME_ROWS", 2)
    world = World()
    source = sealed([Row("a", b"1")], [Row("b", b"2")], [Row("b", b"3")], world=world)
    paced: list[int] = []
    rewrite_segment(world.fs, source.path, TARGET, paced.append)
    # Once when it is written, with its rows, and once when it is read again.
    assert paced == [2, 1, 0, 0]
    world.fs.remove(TARGET)
    world.fs.remove(index_path(TARGET))

    def end(rows: int) -> None:
        raise StorageFullError(PATH, needed_bytes=rows)

    with pytest.raises(StorageFullError, match="needed_bytes=2"):
        rewrite_segment(world.fs, source.path, TARGET, end)


@pytest.mark.parametrize("change", ["times", "flags", "values"])
def test_rows_that_are_read_again_as_others_are_not_taken_for_those_of_the_segment(
    monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    def encode(
        columns: SortedColumns, *, edges: bytes, producers: bytes
    ) -> tuple[FrameHeader, bytes]:
        wrong = {
            "times": replace(columns, times=columns.times + 1),
            "flags": replace(columns, flags=columns.flags ^ np.uint8(4)),
            "values": replace(columns, values=columns.values[::-1]),
        }
        return encode_compacted(wrong[change], edges=edges, producers=producers)

    monkeypatch.setattr(rewrite_module, "encode_compacted", encode)
    world = World()
    source = sealed([Row("a", b"1")], [Row("a", b"2")], world=world)
    with pytest.raises(CorruptionError, match="the compacted rows are not those of the segment"):
        rewrite_segment(world.fs, source.path, TARGET)
    assert not world.fs.exists(index_path(TARGET))
