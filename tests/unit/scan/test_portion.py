from __future__ import annotations

import pytest

from siltstone.errors import SlabDroppedError
from siltstone.scan.portion import Portion
from siltstone.store.log.read.scan import Span
from siltstone.store.slab.manifest import SlabId
from tests.support.builders import World, rows_on
from tests.support.pipeline import reader_of, through_pickle


def world_of_two_generations() -> World:
    world = World()
    with world.database() as database:
        database.append(rows_on("a", "b")).wait()
        database.seal()
        database.append(rows_on("c")).wait()
    return world


def partition_of(world: World) -> Portion:
    (partition,) = reader_of(world).plan().partitions
    assert isinstance(partition, Portion)
    return partition


def test_a_partition_travels_as_a_value() -> None:
    partition = partition_of(world_of_two_generations())
    assert through_pickle(partition) == partition


def test_the_slabs_of_a_partition_are_read_one_after_the_other() -> None:
    world = world_of_two_generations()
    pieces = list(partition_of(world).parts(world.fs, Span(), fails_on_loss=True))
    assert [(piece.slab, sorted(piece.column("topic").to_pylist())) for piece in pieces] == [
        (SlabId(0, 1), ["a", "b"]),
        (SlabId(0, 2), ["c"]),
    ]


def test_a_slab_that_was_dropped_meanwhile_is_told_of() -> None:
    world = world_of_two_generations()
    partition = partition_of(world)
    with world.database() as database:
        database.drop_slab(SlabId(0, 1))
    with pytest.raises(SlabDroppedError, match="slab 0/1 was dropped after the query was planned"):
        list(partition.parts(world.fs, Span(), fails_on_loss=True))


def test_a_slab_that_was_dropped_meanwhile_may_be_gone_without() -> None:
    world = world_of_two_generations()
    partition = partition_of(world)
    with world.database() as database:
        database.drop_slab(SlabId(0, 1))
    pieces = list(partition.parts(world.fs, Span(), fails_on_loss=False))
    assert [piece.slab for piece in pieces] == [SlabId(0, 2)]
