from __future__ import annotations

import logging

import pytest

from siltstone.broker.control.recovered import tell_recovered
from siltstone.store.log.read.pieces import Row
from tests.support.builders import World
from tests.support.damage import CURRENT, clone, frames_of, patch, small_world


def told(world: World, caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    with caplog.at_level(logging.WARNING, "siltstone.server"), world.database() as database:
        tell_recovered(database)
    return [
        {"event": record.getMessage(), **getattr(record, "facts", {})} for record in caplog.records
    ]


def test_a_clean_start_is_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    assert told(small_world(), caplog) == []


def test_foreign_files_are_named(caplog: pytest.LogCaptureFixture) -> None:
    world = small_world()
    for number in range(12):
        world.fs.create(CURRENT.with_name(f"{number:02}.txt")).close()
    (line,) = told(world, caplog)
    assert (line["event"], str(line["slab"]), line["count"], line["names"]) == (
        "foreign_files_ignored",
        "0/2",
        12,
        ", ".join(f"{number:02}.txt" for number in range(10)),
    )


def test_a_torn_tail_is_told(caplog: pytest.LogCaptureFixture) -> None:
    world = clone(small_world())
    with world.database() as database:
        database.append([Row("t", b"v")], durability="written").wait()
        torn = clone(world)
    last = frames_of(torn.fs, CURRENT)[-1]
    patch(torn.fs, CURRENT, last.stop - 8, b"x" * 8)
    (line,) = told(torn, caplog)
    assert (line["event"], line["torn_bytes"]) == ("slab_recovered", len(last))
