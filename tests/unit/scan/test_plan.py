from __future__ import annotations

from collections.abc import Container, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.scan.plan import (
    PARTITION_BYTES_MIN,
    PARTITIONS_WANTED,
    Admitted,
    PartitionLimits,
    QueryBacklog,
    SlabFrames,
    admit,
    pack,
)
from siltstone.scan.portion import Portion
from siltstone.store.log.read.selection import FramePlace, FrameRun, Wanted
from siltstone.store.slab.manifest import SlabId

SLAB = SlabId(0, 1)
WANTED = Wanted(whole=frozenset({1}), bound=())
EVERYTHING = range(1 << 62)
MIB = 1024 * 1024


def frames(
    *sizes: tuple[int, int], slab: SlabId = SLAB, base: int = 0, gaps: Sequence[int] = ()
) -> list[FramePlace]:
    """Return frames of (rows, bytes) one behind the other; before those in gaps one is left out."""
    places: list[FramePlace] = []
    position, serial = 4096, base
    for number, (rows, size) in enumerate(sizes):
        if number in gaps:
            position, serial = position + 100, serial + 10
        end = position + size
        places.append(FramePlace(slab, base, position, end, serial, serial + rows, complete=True))
        position, serial = end, serial + rows
    return places


def slab_frames(
    places: list[FramePlace], serials: range = EVERYTHING, weight: float = 1.0
) -> SlabFrames:
    return SlabFrames(
        slab=places[0].slab if places else SLAB,
        wanted=WANTED,
        serials=serials,
        frames=places,
        weight=weight,
    )


def packed(
    *slabs: SlabFrames, bytes_max: int = 64 * MIB, rows_max: int | None = None
) -> list[Portion]:
    return pack(slabs, PartitionLimits(bytes_max=bytes_max, rows_max=rows_max), "/d").partitions


def serials_of(partition: Portion) -> list[tuple[int, int]]:
    return [(run.start_serial, run.stop_serial) for run in partition.runs]


def test_frames_beside_each_other_become_one_run() -> None:
    places = frames((10, 500), (20, 700), (5, 100))
    assert packed(slab_frames(places)) == [
        Portion(
            "/d",
            (
                FrameRun(
                    slab=SLAB,
                    base_serial=0,
                    position=4096,
                    end=5396,
                    first_serial=0,
                    start_serial=0,
                    stop_serial=35,
                    complete=True,
                ),
            ),
            ((SLAB, WANTED),),
        )
    ]


def test_a_frame_that_was_left_out_ends_a_run() -> None:
    (partition,) = packed(slab_frames(frames((10, 500), (20, 700), gaps=[1])))
    assert serials_of(partition) == [(0, 10), (20, 40)]


def test_a_segment_or_slab_ends_a_run() -> None:
    other = SlabId(1, 1)
    (partition,) = packed(
        slab_frames(frames((10, 500)) + frames((10, 500), base=10)),
        slab_frames(frames((5, 500), slab=other)),
    )
    assert [(run.slab, run.base_serial) for run in partition.runs] == [
        (SLAB, 0),
        (SLAB, 10),
        (other, 0),
    ]
    assert partition.wanted == ((SLAB, WANTED), (other, WANTED))


def test_runs_are_cut_to_the_serials_that_are_wanted() -> None:
    (partition,) = packed(slab_frames(frames((10, 500), (20, 700)), range(4, 25)))
    assert serials_of(partition) == [(4, 25)]


def test_nothing_to_read_is_no_partition() -> None:
    assert packed(slab_frames([])) == []
    assert packed() == []


def test_partitions_are_of_about_one_size() -> None:
    places = frames(*[(1000, MIB)] * 100)
    found = packed(slab_frames(places), bytes_max=11 * MIB)
    assert [run.end - run.position for part in found for run in part.runs] == [10 * MIB] * 10


def test_small_slabs_share_a_partition() -> None:
    slabs = [slab_frames(frames((10, 5000), slab=SlabId(0, number))) for number in range(1, 20)]
    (partition,) = packed(*slabs)
    assert len(partition.runs) == 19


def test_what_is_worth_it_is_spread_over_some_tasks() -> None:
    small = frames(*[(1000, 100_000)] * (3 * PARTITION_BYTES_MIN // 100_000 + 1))
    assert len(packed(slab_frames(small))) == 3
    large = frames(*[(1000, 100_000)] * 1000)
    assert len(packed(slab_frames(large))) == PARTITIONS_WANTED
    # Searching a frame is less work than reading it.
    assert len(packed(slab_frames(large, weight=0.2))) == 2


def test_a_large_frame_is_cut_by_its_serials() -> None:
    found = packed(slab_frames(frames((100, 8000))), bytes_max=2000)
    assert [serials_of(part) for part in found] == [[(0, 25)], [(25, 50)], [(50, 75)], [(75, 100)]]
    assert {(run.position, run.end) for part in found for run in part.runs} == {(4096, 12096)}


def test_a_row_is_never_cut() -> None:
    found = packed(slab_frames(frames((2, 8000))), bytes_max=1)
    assert [serials_of(part) for part in found] == [[(0, 1)], [(1, 2)]]


FRAMES = st.lists(st.tuples(st.integers(1, 50), st.integers(64, 400_000)), max_size=30)


@given(
    st.lists(FRAMES, max_size=4),
    st.sampled_from([1000, 100_000, 64 * MIB]),
    st.sampled_from([None, 1, 7, 100]),
    st.sampled_from([1.0, 0.125]),
)
def test_every_row_is_in_one_partition_and_none_has_too_many(
    sizes: list[list[tuple[int, int]]], bytes_max: int, rows_max: int | None, weight: float
) -> None:
    slabs = [
        slab_frames(frames(*some, slab=SlabId(number, 1)), weight=weight)
        for number, some in enumerate(sizes)
    ]
    found = packed(*slabs, bytes_max=bytes_max, rows_max=rows_max)
    rows = [
        (run.slab.shard, serial)
        for part in found
        for run in part.runs
        for serial in range(run.start_serial, run.stop_serial)
    ]
    assert rows == [
        (number, serial)
        for number, some in enumerate(sizes)
        for serial in range(sum(rows for rows, _ in some))
    ]
    for part in found:
        held = sum(run.stop_serial - run.start_serial for run in part.runs)
        assert rows_max is None or held <= rows_max


def test_a_plan_says_how_many_frames_and_bytes_it_covers() -> None:
    done = pack([slab_frames(frames((10, 500), (20, 700)))], PartitionLimits(bytes_max=MIB), "/d")
    assert (done.frames, done.size_bytes) == (2, 1200)


def backlog(
    places: list[FramePlace], serials: range, wanted: Container[int] = EVERYTHING
) -> QueryBacklog:
    """Return frames of which the rows with these serials are wanted."""

    def find(_: FramePlace, within: range) -> Sequence[int]:
        return [serial for serial in within if serial in wanted]

    return QueryBacklog(serials=serials, frames=iter(places), find=find)


def test_without_limits_everything_is_admitted() -> None:
    assert admit(
        {0: backlog(frames((10, 500)), range(12)), 1: backlog([], range(5, 9))},
        rows_max=None,
        bytes_max=None,
    ) == Admitted(ends={0: 12, 1: 9}, rows=10)


def test_rows_are_admitted_in_proportion_to_the_backlogs() -> None:
    admitted = admit(
        {
            0: backlog(frames(*[(10, 500)] * 30), range(300)),
            1: backlog(frames(*[(10, 500)] * 10), range(100)),
        },
        rows_max=200,
        bytes_max=None,
    )
    assert admitted == Admitted(ends={0: 150, 1: 50}, rows=200)


def test_a_frame_is_cut_where_the_rows_end() -> None:
    admitted = admit({0: backlog(frames((10, 500)), range(4, 10))}, rows_max=3, bytes_max=None)
    assert admitted == Admitted(ends={0: 7}, rows=3)


def test_frames_without_anything_wanted_are_passed_over_and_cost_nothing() -> None:
    places = frames((10, 500), (10, 500), gaps=[0, 1])
    assert [place.first_serial for place in places] == [10, 30]
    assert admit({0: backlog(places, range(60))}, rows_max=10, bytes_max=None) == Admitted(
        ends={0: 30}, rows=10
    )
    places = frames((10, 500), (10, 500), gaps=[0, 1])
    assert admit({0: backlog(places, range(60))}, rows_max=20, bytes_max=None) == Admitted(
        ends={0: 60}, rows=20
    )


def test_rows_that_are_not_wanted_are_not_counted_and_end_no_step() -> None:
    wanted = range(7, 100, 20)
    ends = []
    start = 0
    while start < 100:
        places = [place for place in frames(*[(10, 500)] * 10) if place.stop_serial > start]
        some = {0: backlog(places, range(start, 100), wanted)}
        admitted = admit(some, rows_max=2, bytes_max=None)
        start = admitted.ends[0]
        ends.append((start, admitted.rows))
    # A step ends before the next row that is wanted, or where a frame does.
    assert ends == [(30, 2), (70, 2), (100, 1)]


def test_a_step_without_a_limit_looks_for_a_first_row_and_no_further() -> None:
    looked_at: list[int] = []
    places = frames(*[(10, 500)] * 5)

    def find(place: FramePlace, within: range) -> Sequence[int]:
        looked_at.append(place.first_serial)
        return [serial for serial in within if serial == 15]

    for counts, rows in ((False, 31), (True, 1)):
        some = {0: QueryBacklog(serials=range(50), frames=iter(places), find=find)}
        admitted = admit(some, rows_max=None, bytes_max=None, counts=counts)
        assert admitted == Admitted(ends={0: 50}, rows=rows)
    assert looked_at == [0, 10, 0, 10, 20, 30, 40]


def test_frames_in_which_nothing_is_found_take_no_bytes() -> None:
    some = {0: backlog(frames(*[(10, 500)] * 5), range(50), range(30, 50))}
    assert admit(some, rows_max=None, bytes_max=500) == Admitted(ends={0: 40}, rows=10)


@pytest.mark.parametrize(("bytes_max", "end"), [(1, 10), (499, 10), (999, 10), (1000, 20)])
def test_whole_frames_are_admitted_up_to_a_size_and_one_at_least(bytes_max: int, end: int) -> None:
    places = frames(*[(10, 500)] * 5)
    admitted = admit({0: backlog(places, range(50))}, rows_max=None, bytes_max=bytes_max)
    assert admitted == Admitted(ends={0: end}, rows=end)


def test_no_shards_are_no_rows() -> None:
    assert admit({}, rows_max=5, bytes_max=5) == Admitted(ends={}, rows=0)


@given(st.lists(FRAMES.filter(bool), min_size=1, max_size=4), st.integers(1, 100))
def test_what_is_admitted_step_by_step_is_everything_and_never_too_much(
    sizes: list[list[tuple[int, int]]], rows_max: int
) -> None:
    ends = {shard: sum(rows for rows, _ in some) for shard, some in enumerate(sizes)}
    reached = dict.fromkeys(ends, 0)
    while reached != ends:
        admitted = admit(
            {
                shard: backlog(
                    [place for place in frames(*sizes[shard]) if place.stop_serial > start],
                    range(start, ends[shard]),
                )
                for shard, start in reached.items()
                if start < ends[shard]
            },
            rows_max=rows_max,
            bytes_max=None,
        )
        moved = sum(admitted.ends[shard] - reached[shard] for shard in admitted.ends)
        assert 0 < moved == admitted.rows <= rows_max
        reached |= admitted.ends
