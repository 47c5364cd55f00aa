"""The power goes at every operation of staging and committing; the batch is done again, with its
rows in another order and in other files, as Spark may: they are stored exactly once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from random import Random

import pyarrow as pa

from siltstone.errors import SiltstoneError
from siltstone.flight.target import DirectoryTarget
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.scan.ingest.columns import Given, rows_of
from siltstone.scan.ingest.staging import WriteBatch
from tests.support.builders import NAME, PATH, World

ROWS = [(f"t/{number % 3}", b"%d" % number) for number in range(6)]
BATCH = WriteBatch(write="query", number=3)
# What the parts of a call raise when the disk is gone under them.
LOST = (PowerCut, SiltstoneError)


def world_of_two_shards() -> World:
    world = World(fs=MemoryFileSystem())
    with world.database(shards=2, shard_by="topic"):
        pass
    return world


def disk_of(world: World) -> MemoryFileSystem:
    assert isinstance(world.fs, MemoryFileSystem)
    return world.fs


def write(world: World, parts: Sequence[Sequence[tuple[str, bytes]]]) -> None:
    """Stage each part as a task would, a row an append, then commit."""
    target = DirectoryTarget(world.fs, PATH, NAME)
    names = []
    for part in parts:
        rows = [
            piece
            for topic, payload in part
            for piece in rows_of(
                pa.RecordBatch.from_pylist([{"topic": topic, "payload": payload}]), Given()
            )
        ]
        names.append(target.stage(BATCH, rows))
    target.commit_once(BATCH, [name for name in names if name is not None], forget=False)


def stored(world: World) -> Counter[tuple[str, bytes]]:
    # Opened for writing, which is when a store comes back from a crash.
    with world.database() as database:
        return Counter(
            (topic, value)
            for batch in database.read(columns=["topic", "value"])
            for topic, value in zip(*map(pa.Array.to_pylist, batch.columns), strict=True)
        )


def test_a_batch_that_is_done_again_is_stored_once_wherever_the_power_went() -> None:
    half = len(ROWS) // 2
    other = [*reversed(ROWS)]
    prepared = disk_of(world_of_two_shards())
    for operations in count():
        world = World(fs=prepared.kill_clone())
        disk_of(world).operations_left = operations
        finished = False
        with suppress(*LOST):
            write(world, [ROWS[:half], ROWS[half:]])
            finished = True
        # Of what was not synced nothing survives, or a random part.
        rng = Random(operations) if operations % 2 else None
        after = World(fs=disk_of(world).crash_clone(rng))
        assert not finished or stored(after) == Counter(ROWS)
        write(after, [other[:3], other[3:]])
        assert stored(after) == Counter(ROWS), operations
        staged = disk_of(after).list(PATH / "staging")
        (home,) = staged
        left = disk_of(after).list(PATH / "staging" / home.name)
        assert [entry.name for entry in left] == ["committed"]
        if finished:
            return
