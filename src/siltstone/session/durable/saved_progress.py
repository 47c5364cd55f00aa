"""Conversion between the progress of a session or group and its saved form."""

from __future__ import annotations

from collections.abc import Iterable

from siltstone.session.archive.records import SerialRange, ShardSerial
from siltstone.session.durable.progress import Progress


def restore_progress(
    progress: Progress, position: Iterable[ShardSerial], done: Iterable[SerialRange]
) -> None:
    """Begin every shard at its saved position."""
    rows: dict[int, list[int]] = {}
    for part in done:
        rows.setdefault(part.shard, []).extend(range(part.first, part.stop))
    for shard, serial in position:
        progress.start(shard, serial, rows.get(shard, []))


def position_of(progress: Progress) -> tuple[ShardSerial, ...]:
    """Return the first row of each shard that is not done."""
    return places(progress.position())


def places(serials: dict[int, int]) -> tuple[ShardSerial, ...]:
    """Return a place for each shard, sorted by shard."""
    return tuple(ShardSerial(shard, serial) for shard, serial in sorted(serials.items()))


def done_of(progress: Progress) -> tuple[SerialRange, ...]:
    """Return the rows after the position that are done; adjacent serials form one range."""
    ranges: list[SerialRange] = []
    for shard, serials in sorted(progress.done().items()):
        for serial in serials:
            if ranges and ranges[-1].shard == shard and ranges[-1].stop == serial:
                ranges[-1] = ranges[-1]._replace(stop=serial + 1)
            else:
                ranges.append(SerialRange(shard, serial, serial + 1))
    return tuple(ranges)
