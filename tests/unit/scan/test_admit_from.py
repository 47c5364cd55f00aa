"""The end of a step of a stream is counted from wanted rows, also in frames that are read whole."""

from __future__ import annotations

from typing import Any

from siltstone.scan.plan import Admitted
from siltstone.scan.survey import admit_from, opened
from siltstone.store.log.check.repair import mend_database
from tests.support.builders import World, rows_on
from tests.support.damage import (
    DATABASE,
    QUARANTINE,
    SEALED,
    flip,
    frames_of,
    read_all,
    small_world,
)
from tests.support.pipeline import options_of


def admitted(world: World, serials: range, rows_max: int | None, **changes: Any) -> Admitted:
    options = options_of(**changes)
    with opened(world.fs, options) as database:
        return admit_from(database, options, {0: serials}, rows_max=rows_max, bytes_max=None)


def world_of_one_frame() -> tuple[World, list[int]]:
    """Return a world with one frame of ten rows, and the times of its rows."""
    world = World()
    with world.database() as database:
        database.append(rows_on(*["a"] * 10)).wait()
    return world, [row.timestamp_us for row in read_all(world)]


def test_rows_before_the_time_span_do_not_use_up_the_limit() -> None:
    world, times = world_of_one_frame()
    found = admitted(world, range(10), 3, since_us=times[6])
    assert found == Admitted(ends={0: 9}, rows=3)


def test_rows_after_the_time_span_are_not_counted() -> None:
    world, times = world_of_one_frame()
    found = admitted(world, range(10), 8, until_us=times[4])
    assert found == Admitted(ends={0: 10}, rows=4)


def test_rows_that_are_waited_for_are_counted_in_the_time_span() -> None:
    world, times = world_of_one_frame()
    found = admitted(world, range(10), None, since_us=times[6], rows_to_wait_for=9)
    assert found == Admitted(ends={0: 10}, rows=4)


def test_lost_rows_of_a_repaired_frame_are_not_counted() -> None:
    world = small_world()
    lost = frames_of(world.fs, SEALED)[2]
    flip(world.fs, SEALED, lost.start + 100)
    mend_database(world.fs, DATABASE, QUARANTINE)
    # Rows 3 to 5 were lost, so the step must reach to row 8.
    found = admitted(world, range(3, 12), 3, filters=("#", "$SYS/#"))
    assert found == Admitted(ends={0: 9}, rows=3)
