"""Pieces of frames, as in a bulk read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from siltstone.store.log.read.pieces import Piece, Row
from siltstone.store.log.read.scan import Span
from siltstone.store.log.read.selection import FramePlace, FrameRun, RunReader
from tests.support.builders import NAME, PATH, World
from tests.support.rows import rows_of


def run_of(place: FramePlace, **changes: Any) -> FrameRun:
    """Return the run that reads all of a frame."""
    run = FrameRun(
        slab=place.slab,
        base_serial=place.base_serial,
        position=place.position,
        end=place.end,
        first_serial=place.first_serial,
        start_serial=place.first_serial,
        stop_serial=place.stop_serial,
        complete=place.complete,
    )
    return replace(run, **changes)


def pieces_of(
    *frames: list[Row], filters: tuple[str, ...] = ("#",), **changes: Any
) -> tuple[list[Piece], list[Row]]:
    """Store frames of rows; return a piece for each, and the stored rows."""
    world = World()
    with world.database(**changes) as database:
        for rows in frames:
            database.append(rows).wait()
        (extent,) = database.extents()
        choice = database.choose(extent.slab, filters, extent.serials)
        reader = RunReader(world.fs, PATH / "data" / NAME, choice.wanted, Span())
        # A run of one frame is read as a piece.
        pieces = [
            cast("Piece", part) for place in choice.frames for part in reader.read(run_of(place))
        ]
        stored = [row for batch in database.read("#") for row in rows_of(batch)]
    return pieces, sorted(stored, key=lambda row: row.serial)
