from __future__ import annotations

import pytest

from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.segment.frame import ROOM
from siltstone.store.segment.segment import SEGMENT_HEADER_BYTES, Segment, segment_path
from siltstone.store.segment.walker import (
    CHECKSUM,
    EARLIER,
    MISSING,
    BreakKind,
    FrameWalk,
    torn_or_damaged,
    whole_frames,
)
from siltstone.store.segment.writer import SegmentWriter
from tests.support.frames import (
    NOW_US,
    SEED,
    SLAB,
    frame_bytes,
    new_segment,
    rows_frame,
    slab_fs,
    store,
)

PATH = segment_path(SLAB, 0)


def patch(fs: MemoryFileSystem, offset: int, data: bytes) -> None:
    with fs.open(PATH, writable=True) as file:
        file.write_at(offset, data)


def filled(
    fs: MemoryFileSystem, rows: int, *, sync: bool = True
) -> tuple[SegmentWriter, list[int]]:
    """Write one frame for each row; return the writer and the positions of the frames."""
    writer = new_segment(fs)
    return writer, [
        store(writer, rows_frame({1: [b"x"]}, serial=n, timestamp_us=NOW_US + n), sync=sync)
        for n in range(rows)
    ]


def walk_of(
    segment: Segment, *, start: int = SEGMENT_HEADER_BYTES, serial: int = 0, limit: int = 0
) -> FrameWalk:
    return FrameWalk(
        segment.view,
        SEED,
        position=start,
        serial=serial,
        limit=limit or len(segment.view),
    )


class TestWalk:
    def test_it_ends_where_there_are_only_zeros(self) -> None:
        writer, positions = filled(slab_fs(), 3)
        walk = walk_of(writer.segment)
        assert [step.position for step in walk] == [SEGMENT_HEADER_BYTES, *positions]
        assert (walk.position, walk.serial, walk.problem) == (writer.end_position, 3, MISSING)

    def test_it_ends_at_the_limit_without_a_problem(self) -> None:
        writer, positions = filled(slab_fs(), 3)
        walk = walk_of(writer.segment, limit=positions[2])
        assert [step.position for step in walk] == [SEGMENT_HEADER_BYTES, *positions[:2]]
        assert (walk.position, walk.problem) == (positions[2], "")

    def test_a_frame_that_reaches_over_the_limit_is_not_valid(self) -> None:
        writer, positions = filled(slab_fs(), 1)
        walk = walk_of(writer.segment, limit=writer.end_position - 8)
        assert [step.position for step in walk] == [SEGMENT_HEADER_BYTES]
        assert walk.position == positions[0]
        assert "invalid frame length" in walk.problem

    @pytest.mark.parametrize(
        ("offset", "data", "problem"),
        [
            (0, b"!", "a frame does not begin at this offset"),
            (70, b"!", CHECKSUM),
            (0, bytes(64), MISSING),
        ],
    )
    def test_it_ends_at_the_first_invalid_frame(
        self, offset: int, data: bytes, problem: str
    ) -> None:
        fs = slab_fs()
        writer, positions = filled(fs, 3)
        patch(fs, positions[1] + offset, data)
        walk = walk_of(writer.segment)
        assert [step.position for step in walk] == [SEGMENT_HEADER_BYTES, positions[0]]
        assert (walk.position, walk.problem) == (positions[1], problem)

    def test_a_frame_with_serials_of_earlier_frames_is_not_valid(self) -> None:
        fs = slab_fs()
        writer, _ = filled(fs, 2)
        patch(fs, writer.end_position, frame_bytes(rows_frame({1: [b"old"]}, serial=1)))
        walk = walk_of(writer.segment)
        assert len(list(walk)) == 3
        assert (walk.position, walk.problem) == (writer.end_position, EARLIER)

    def test_rooms_are_steps_and_do_not_use_serials(self) -> None:
        writer, positions = filled(slab_fs(), 1)
        assert writer.take_room(100, spare_bytes=1000) is not None
        behind = store(writer, rows_frame({1: [b"y"]}, serial=1, timestamp_us=NOW_US + 9))
        walk = walk_of(writer.segment)
        steps = list(walk)
        assert [step.header.kind == ROOM for step in steps] == [False, False, True, False]
        assert [step.position for step in steps][1::2] == [positions[0], behind]
        assert walk.serial == 2

    def test_before_the_trusted_position_only_heads_are_checked(self) -> None:
        fs = slab_fs()
        writer, positions = filled(fs, 3)
        # The last bytes of a frame are values, which a walk over heads does not read.
        patch(fs, positions[1] - 8, b"!")
        walk = FrameWalk(
            writer.segment.view,
            SEED,
            position=SEGMENT_HEADER_BYTES,
            serial=0,
            limit=writer.end_position,
            trusted_to=positions[1],
        )
        assert [step.checked for step in walk] == [False, False, True, True]
        assert list(walk_of(writer.segment))[-1].position == SEGMENT_HEADER_BYTES


def break_at(
    segment: Segment,
    position: int,
    *,
    serial: int,
    stands_to: int = 0,
    bound: int = 0,
    closed: bool = False,
) -> tuple[BreakKind, int | None]:
    broken = torn_or_damaged(
        segment.view,
        SEED,
        position=position,
        serial=serial,
        stands_to=stands_to,
        bound=bound or len(segment.view),
        closed=closed,
    )
    following = broken.following
    return broken.kind, None if following is None else following[0]


class TestJudgement:
    def test_a_place_that_must_stand_is_damaged(self) -> None:
        writer, _ = filled(slab_fs(), 1)
        end = writer.end_position
        assert break_at(writer.segment, end, serial=1, stands_to=end + 1) == (
            BreakKind.DAMAGED,
            None,
        )
        assert break_at(writer.segment, end, serial=1, stands_to=end) == (BreakKind.TORN, None)

    def test_a_later_frame_that_knew_of_its_sync_is_proof(self) -> None:
        writer, positions = filled(slab_fs(), 3)
        # The third frame was written when the second one was synced.
        assert break_at(writer.segment, positions[1], serial=1) == (BreakKind.DAMAGED, positions[2])

    def test_a_later_frame_of_the_same_sync_is_not(self) -> None:
        writer, positions = filled(slab_fs(), 3, sync=False)
        assert break_at(writer.segment, positions[1], serial=1) == (BreakKind.TORN, positions[2])

    def test_a_sync_up_to_the_place_says_nothing_of_what_stood_there(self) -> None:
        writer, positions = filled(slab_fs(), 2)
        # The second frame was written when the first one was synced, which ends where it begins.
        third = store(
            writer, rows_frame({1: [b"y"]}, serial=2, timestamp_us=NOW_US + 2), sync=False
        )
        place = positions[1] + 8
        assert break_at(writer.segment, place, serial=1) == (BreakKind.DAMAGED, third)
        fs = slab_fs()
        writer, positions = filled(fs, 1)
        later = [
            store(writer, rows_frame({1: [b"y"]}, serial=n, timestamp_us=NOW_US + n), sync=False)
            for n in (1, 2)
        ]
        assert break_at(writer.segment, later[0], serial=1) == (BreakKind.TORN, later[1])

    def test_a_frame_of_earlier_serials_does_not_follow_but_may_be_proof(self) -> None:
        fs = slab_fs()
        writer, positions = filled(fs, 3, sync=False)
        place = writer.end_position
        patch(fs, place + 8, frame_bytes(rows_frame({1: [b"old"]}, serial=1)))
        assert break_at(writer.segment, place, serial=3) == (BreakKind.TORN, None)
        assert break_at(writer.segment, place, serial=3, closed=True) == (BreakKind.TORN, None)
        # The next frame may begin eight bytes behind the place, which is the least.
        assert break_at(writer.segment, place, serial=1) == (BreakKind.TORN, place + 8)
        assert break_at(writer.segment, positions[0], serial=2)[1] == positions[2]

    def test_in_a_closed_segment_any_later_frame_is(self) -> None:
        writer, positions = filled(slab_fs(), 3, sync=False)
        assert break_at(writer.segment, positions[1], serial=1, closed=True) == (
            BreakKind.DAMAGED,
            positions[2],
        )
        assert break_at(writer.segment, positions[2], serial=2, closed=True) == (
            BreakKind.TORN,
            None,
        )

    def test_the_proof_may_stand_behind_the_next_frame(self) -> None:
        writer, positions = filled(slab_fs(), 3, sync=False)
        writer.sync()
        store(writer, rows_frame({1: [b"y"]}, serial=3, timestamp_us=NOW_US + 3))
        assert break_at(writer.segment, positions[1], serial=1) == (BreakKind.DAMAGED, positions[2])

    def test_a_frame_behind_the_bound_does_not_count(self) -> None:
        writer, positions = filled(slab_fs(), 3)
        assert break_at(writer.segment, positions[1], serial=1, bound=positions[2]) == (
            BreakKind.TORN,
            None,
        )


class TestWholeFrames:
    def test_they_are_found_at_any_place(self) -> None:
        fs = slab_fs()
        writer, positions = filled(fs, 4)
        patch(fs, positions[1], b"X")
        found = whole_frames(writer.segment.view, positions[0] + 8, writer.end_position, SEED)
        assert [(place, header.first_serial) for place, header in found] == [
            (positions[2], 2),
            (positions[3], 3),
        ]

    def test_those_of_another_seed_are_not(self) -> None:
        writer, _ = filled(slab_fs(), 2)
        view = writer.segment.view
        assert list(whole_frames(view, 4096, writer.end_position, SEED + 1)) == []

    def test_a_frame_that_begins_behind_the_range_is_not(self) -> None:
        writer, positions = filled(slab_fs(), 2)
        found = whole_frames(writer.segment.view, positions[0], positions[1], SEED)
        assert [place for place, _ in found] == [positions[0]]
