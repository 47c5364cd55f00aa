"""Packing of frames into partitions, and of backlogs into micro-batches.

These functions are pure, so a replayed plan is the same plan. Partitions follow the order of slabs
and serials, and have about the same size. Adjacent frames become one run. A frame that is too large
for a partition is split by its serials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

from siltstone.scan.portion import Portion
from siltstone.store.log.read.selection import Choice, FramePlace, FrameRun, Wanted, run_of
from siltstone.store.slab.manifest import SlabId

# A smaller partition is not worth a task of its own.
PARTITION_BYTES_MIN: Final = 8 * 1024 * 1024
PARTITIONS_WANTED: Final = 8
# Small frames are joined up to this size before partitions are balanced.
GRAIN_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabFrames:
    """Frames of one slab in order, the wanted rows, and the range of serials.

    `weight` is the cost of reading a byte, relative to a byte of a frame that is read whole.
    """

    slab: SlabId
    wanted: Wanted
    serials: range
    frames: Iterable[FramePlace]
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLimits:
    """The maximum size of a partition, and the wanted number; bytes are an estimate of the work.

    `part_bytes` is the size above which a frame is split, if it is less than `bytes_max`.
    """

    bytes_max: int
    rows_max: int | None = None
    partitions_min: int = 1
    part_bytes: int | None = None

    @property
    def cut_bytes(self) -> int:
        """The size above which a frame is split."""
        return self.part_bytes or self.bytes_max

    @property
    def grain_bytes(self) -> int:
        """The size up to which small frames are joined."""
        return min(GRAIN_BYTES, self.cut_bytes)

    def joined(self, choice: Choice) -> Iterator[FramePlace]:
        """Return the frames of a choice, small ones joined."""
        return choice.joined(self.grain_bytes, self.rows_max or 1 << 62)

    def finer(self, size_bytes: float) -> PartitionLimits:
        """Return limits that cut frames of this size into the wanted number of partitions."""
        # Parts of a quarter of a partition can be balanced.
        part = max(1, int(size_bytes / (4 * self.partitions_min)))
        return replace(self, part_bytes=min(self.bytes_max, part))


class _Grain(NamedTuple):
    run: FrameRun
    size_bytes: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedPartitions:
    """Partitions, the numbers of frames and bytes in them, and the estimate of the work."""

    partitions: list[Portion]
    work: float
    frames: int
    size_bytes: int


def pack(slabs: Sequence[SlabFrames], limits: PartitionLimits, directory: str) -> PackedPartitions:
    """Pack frames of the database in a directory into partitions of about the same size."""
    tally = _Tally()
    grains = [grain for slab in slabs for grain in _grains(slab, limits, tally)]
    total = sum(grain.size_bytes for grain in grains)
    count = max(
        -(-total // limits.bytes_max),
        min(PARTITIONS_WANTED, total // PARTITION_BYTES_MIN),
        limits.partitions_min,
        1,
    )
    wanted = {slab.slab: slab.wanted for slab in slabs}
    partitions = [
        _partition(directory, part, wanted)
        for part in _balanced(grains, total / count, limits.rows_max)
    ]
    return PackedPartitions(
        partitions=partitions, work=total, frames=tally.frames, size_bytes=tally.size_bytes
    )


@dataclass(slots=True)
class _Tally:
    frames: int = 0
    size_bytes: int = 0


def _grains(slab: SlabFrames, limits: PartitionLimits, tally: _Tally) -> Iterator[_Grain]:
    """Yield the frames of a slab; join small ones with their neighbours, split large ones."""
    grain_bytes = limits.grain_bytes
    rows_max = limits.rows_max or 1 << 62
    held: _Grain | None = None
    for place in slab.frames:
        tally.frames += place.frames
        tally.size_bytes += place.end - place.position
        for grain in _cut(place, slab, limits):
            if held is None:
                held = grain
            elif (
                held.size_bytes + grain.size_bytes <= grain_bytes
                and held.rows + grain.rows <= rows_max
                and _adjoin(held.run, grain.run)
            ):
                held = _join(held, grain)
            else:
                yield held
                held = grain
    if held is not None:
        yield held


def _cut(place: FramePlace, slab: SlabFrames, limits: PartitionLimits) -> Iterator[_Grain]:
    """Yield the wanted serials of a frame, in several parts if there are too many."""
    start = max(place.first_serial, slab.serials.start)
    stop = min(place.stop_serial, slab.serials.stop)
    rows = stop - start
    all_rows = place.stop_serial - place.first_serial
    size = (place.end - place.position) * slab.weight * rows / all_rows
    parts = max(1, -(-int(size) // limits.cut_bytes), -(-rows // (limits.rows_max or rows)))
    parts = min(parts, rows)
    bounds = [start + rows * number // parts for number in range(parts + 1)]
    for begin, end in pairwise(bounds):
        yield _Grain(run_of(place, range(begin, end)), size * (end - begin) / rows, end - begin)


def _adjoin(before: FrameRun, after: FrameRun) -> bool:
    """Return whether two runs can be read as one."""
    return (
        (before.slab, before.base_serial, before.complete)
        == (after.slab, after.base_serial, after.complete)
        and before.end == after.position
        and before.stop_serial == after.start_serial
    )


def _join(before: _Grain, after: _Grain) -> _Grain:
    run = replace(before.run, end=after.run.end, stop_serial=after.run.stop_serial)
    return _Grain(run, before.size_bytes + after.size_bytes, before.rows + after.rows)


def _balanced(
    grains: Sequence[_Grain], target: float, rows_max: int | None
) -> Iterator[list[_Grain]]:
    """Yield grains in groups that end where the total exceeds a multiple of the target."""
    part: list[_Grain] = []
    rows, passed = 0, 0.0
    goal = target
    for grain in grains:
        # The middle of a grain decides its group, so that rounding errors do not add up.
        full = passed + grain.size_bytes / 2 > goal
        if part and (full or (rows_max is not None and rows + grain.rows > rows_max)):
            yield part
            part, rows = [], 0
        while full and passed + grain.size_bytes / 2 > goal:
            goal += target
        part.append(grain)
        rows += grain.rows
        passed += grain.size_bytes
    if part:
        yield part


def _partition(
    directory: str, grains: Sequence[_Grain], wanted: Mapping[SlabId, Wanted]
) -> Portion:
    runs: list[FrameRun] = []
    for grain in grains:
        if runs and _adjoin(runs[-1], grain.run):
            runs[-1] = replace(runs[-1], end=grain.run.end, stop_serial=grain.run.stop_serial)
        else:
            runs.append(grain.run)
    slabs = list(dict.fromkeys(run.slab for run in runs))
    return Portion(directory, tuple(runs), tuple((slab, wanted[slab]) for slab in slabs))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryBacklog:
    """The serials of a shard from the position of a query to the end of the shard.

    `find` returns the wanted serials of a frame within a range.
    """

    serials: range
    frames: Iterator[FramePlace]
    find: Callable[[FramePlace, range], Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The end of the read in each shard, and the maximum number of rows up to there."""

    ends: dict[int, int]
    rows: int


def admit(
    backlogs: Mapping[int, QueryBacklog],
    *,
    rows_max: int | None,
    bytes_max: int | None,
    counts: bool = False,
) -> Admitted:
    """Take frames from the shards, in proportion to their backlogs, until a limit is reached.

    The number of rows never exceeds rows_max. At least one frame with wanted rows is taken, however
    large it is. Frames without wanted rows are skipped. After the first wanted row, all rows of a
    frame are assumed to be wanted, unless rows have a limit or are counted.
    """
    counts = counts or rows_max is not None
    rows_left = 1 << 62 if rows_max is None else rows_max
    bytes_left = 1 << 62 if bytes_max is None else bytes_max
    waiting = {shard: next(backlog.frames, None) for shard, backlog in backlogs.items()}
    ends = {
        shard: backlogs[shard].serials.stop if place is None else backlogs[shard].serials.start
        for shard, place in waiting.items()
    }
    rows = 0
    while rows_left:
        shard = _least_served(backlogs, waiting, ends)
        if shard is None:
            break
        place = waiting[shard]
        assert place is not None
        serials = backlogs[shard].serials
        start = max(place.first_serial, serials.start)
        stop = min(place.stop_serial, serials.stop)
        within = range(start, stop)
        found = backlogs[shard].find(place, within) if counts or not rows else within
        size = place.end - place.position if found else 0
        if rows and size > bytes_left:
            break
        taken = min(len(found), rows_left)
        rows, rows_left, bytes_left = rows + taken, rows_left - taken, bytes_left - size
        if taken < len(found):
            ends[shard] = found[taken]
        else:
            waiting[shard] = following = next(backlogs[shard].frames, None)
            # There are no wanted rows between the two frames, so these serials are skipped.
            ends[shard] = serials.stop if following is None else following.first_serial
    return Admitted(ends=ends, rows=rows)


def _least_served(
    backlogs: Mapping[int, QueryBacklog],
    waiting: Mapping[int, FramePlace | None],
    ends: Mapping[int, int],
) -> int | None:
    """Return the shard of which the smallest part was taken, among those with more frames."""
    open_shards = [shard for shard, place in waiting.items() if place is not None]
    return min(
        open_shards,
        key=lambda shard: (
            (ends[shard] - backlogs[shard].serials.start) / len(backlogs[shard].serials),
            shard,
        ),
        default=None,
    )
