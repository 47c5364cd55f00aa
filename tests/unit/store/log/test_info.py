from __future__ import annotations

import pytest

from siltstone.store.log.info import Hole, StreamInfo, lost_rows
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.manifest import SlabId
from tests.support.builders import NOW_US, World
from tests.support.damage import (
    CURRENT,
    FRAME_ROWS,
    FRAMES,
    SEALED,
    flip,
    frames_of,
    read_all,
    small_world,
    verify,
)

FIRST = SlabId(0, 1)


def repaired(*frames: int) -> World:
    """Return a world in which these frames of the sealed segment became holes."""
    world = small_world()
    places = frames_of(world.fs, SEALED)
    for number in frames:
        flip(world.fs, SEALED, places[number].start + 100)
    verify(world, repair=True)
    return world


def hole(frame: int) -> Hole:
    """Return the hole in the place of a frame, which counts from 1 behind the state."""
    first = (frame - 1) * FRAME_ROWS
    return Hole(slab=FIRST, first_serial=first, rows=FRAME_ROWS, timestamp_us=NOW_US + first - 1)


def test_of_a_whole_database_nothing_is_lost() -> None:
    with small_world().reader() as database:
        assert database.holes() == []
        assert [slab.lost_rows for slab in database.slabs()] == [0, 0]


def test_holes_are_told_with_their_serials_and_the_time_before_them() -> None:
    with repaired(2, 4).reader() as database:
        assert database.holes() == [hole(2), hole(4)]
        assert [(slab.rows, slab.lost_rows) for slab in database.slabs()] == [(6, 6), (12, 0)]


def test_only_holes_that_a_span_may_cross_are_told() -> None:
    third = NOW_US + 2 * FRAME_ROWS
    with repaired(2, 4).reader() as database:
        assert database.holes(since_us=third + FRAME_ROWS) == [hole(4)]
        assert database.holes(until_us=third) == [hole(2)]
        assert database.holes(since_us=third, until_us=third + 1) == [hole(2)]


def test_a_slab_that_has_lost_its_only_segment_has_lost_nobody_can_tell_how_much() -> None:
    world = small_world()
    world.fs.remove(CURRENT)
    (finding,) = (found for found in verify(world, repair=True).findings if found.repaired)
    start = FRAMES * FRAME_ROWS
    assert finding.problem == (
        "the slab does not have a segment; an unknown number of rows is lost; the next serial is "
        f"{start + (1 << 40)}"
    )
    (note,) = verify(world).findings
    assert (note.path, note.severity, note.problem) == (
        CURRENT,
        "note",
        "hole: an unknown number of rows is lost",
    )
    with world.reader() as database:
        (lost,) = database.holes()
        assert (lost.slab, lost.first_serial, lost.rows) == (SlabId(0, 2), start, None)
        assert [slab.lost_rows for slab in database.slabs()] == [0, None]
    assert len(read_all(world)) == start


def test_serials_go_on_behind_all_that_may_have_been() -> None:
    world = small_world()
    world.fs.remove(CURRENT)
    verify(world, repair=True)
    with world.database() as database:
        (serial,) = database.append([Row("a", b"")]).wait().serials()
    assert serial == FRAMES * FRAME_ROWS + (1 << 40)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (3, "3 rows, from serial 7 of slab 0/1"),
        (None, "an unknown number of rows, from serial 7 of slab 0/1"),
    ],
)
def test_a_hole_says_what_is_lost(rows: int | None, text: str) -> None:
    assert str(Hole(slab=FIRST, first_serial=7, rows=rows, timestamp_us=0)) == text


def test_one_hole_that_nobody_can_count_leaves_the_sum_open() -> None:
    some = Hole(slab=FIRST, first_serial=0, rows=2, timestamp_us=0)
    unknown = Hole(slab=FIRST, first_serial=9, rows=None, timestamp_us=0)
    assert (lost_rows([]), lost_rows([some, some]), lost_rows([some, unknown])) == (0, 4, None)


def test_the_structure_names_each_stream_with_its_rows() -> None:
    with small_world(thresholds=(0,)).reader() as database:
        found = [info for info in database.structure() if info.slab == FIRST]
        ids = {stream.pattern: stream.stream_id for stream in database.streams("+/#")}
        ids |= {stream.pattern: stream.stream_id for stream in database.streams("$SYS/#")}
    rows = {"+/+/+": 2 * FRAMES, "+/+": FRAMES}
    assert sorted(found, key=lambda info: info.rows) == [
        StreamInfo(slab=FIRST, stream_id=ids[pattern], pattern=pattern, rows=rows[pattern])
        for pattern in sorted(rows, key=rows.__getitem__)
    ]
