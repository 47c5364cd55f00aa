"""Conversion between the progress of a session or group and its saved form."""

from __future__ import annotations

from collections.abc import Iterable

from siltstone.session.archive.records import SerialRange
from siltstone.session.durable.progress import SessionProgress
from siltstone.store.feed.position import Position


def restore_progress(
    progress: SessionProgress, position: Position, done: Iterable[SerialRange]
) -> None:
    """Begin every shard at its saved position."""
    rows: dict[int, list[int]] = {}
    for part in done:
        rows.setdefault(part.shard, []).extend(range(part.first, part.stop))
    for shard, serial in position.serials.items():
        progress.start(shard, serial, rows.get(shard, []))


def position_of(progress: SessionProgress) -> Position:
    """Return the first row of each shard that is not done."""
    return Position(progress.position())


def done_of(progress: SessionProgress) -> tuple[SerialRange, ...]:
    """Return the rows after the position that are done; adjacent serials form one range."""
    done = progress.done()
    if not done:
        return ()
    ranges: list[SerialRange] = []
    for shard, serials in sorted(done.items()):
        for serial in serials:
            if ranges and ranges[-1].shard == shard and ranges[-1].stop == serial:
                ranges[-1] = ranges[-1]._replace(stop=serial + 1)
            else:
                ranges.append(SerialRange(shard, serial, serial + 1))
    return tuple(ranges)
