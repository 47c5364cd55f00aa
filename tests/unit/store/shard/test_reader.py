from __future__ import annotations

import pytest

from siltstone.errors import NotFoundError, SlabDroppedError
from siltstone.store.shard.shard import READING
from siltstone.store.shard.shards import Shards
from siltstone.store.slab.manifest import (
    SlabId,
)
from tests.support.builders import NAME, World, rows_on, settings_of
from tests.support.slabs import HOME, append, opened


def ids(slabs: Shards) -> list[tuple[int, int]]:
    return [(slab.id.shard, slab.id.generation) for slab in slabs.all()]


def test_a_reader_finds_the_slabs_of_the_manifest() -> None:
    world = World()
    with opened(world, shards=2) as slabs:
        append(slabs, "a")
        slabs.seal()
        reader = Shards(world.fs, world.clock, HOME, READING)
        assert reader.manifest == slabs.manifest
        assert ids(reader) == [(0, 1), (1, 1), (0, 2), (1, 2)]
        assert [slab.row_count() for slab in reader.all()] == [1, 0, 0, 0]
        assert [reader.ended(slab.id) for slab in reader.all()] == [True, True, False, False]
        reader.refresh()
        assert [reader.ended(slab.id) for slab in reader.all()] == [True, True, False, False]


def test_a_reader_sees_rows_turns_settings_and_drops_when_it_looks_again() -> None:
    world = World()
    with opened(world) as slabs:
        reader = Shards(world.fs, world.clock, HOME, READING)
        append(slabs, "a")
        slabs.seal()
        append(slabs, "b")
        slabs.configure({"max_items": 7})
        assert reader.refresh() is True
        assert [(slab.record, slab.row_count()) for slab in reader.all()] == [
            (slab.record, slab.row_count()) for slab in slabs.all()
        ]
        assert reader.manifest.settings.max_items == 7
        slabs.drop(SlabId(0, 1))
        reader.refresh()
        assert ids(reader) == [(0, 2)]
        with pytest.raises(SlabDroppedError):
            reader.slab(SlabId(0, 1))


def test_a_reader_is_told_the_end_of_a_slab_with_its_last_rows() -> None:
    world = World()
    with opened(world) as slabs:
        reader = Shards(world.fs, world.clock, HOME, READING)
        reader.refresh()
        append(slabs, "late")
        slabs.seal()
        assert reader.ended(SlabId(0, 1)) is False
        reader.refresh()
        assert reader.ended(SlabId(0, 1)) is True
        assert reader.slab(SlabId(0, 1)).row_count() == 1


def test_a_reader_is_told_of_a_later_database_of_the_name_of_its_own() -> None:
    world = World()
    with world.store() as store:
        store.create(NAME, settings_of()).append(rows_on("old")).wait()
        with world.reader() as reader:
            assert reader.count() == 1
            store.drop(NAME)
            store.create(NAME, settings_of()).append(rows_on("new", "new")).wait()
            for _ in range(2):
                with pytest.raises(
                    NotFoundError, match="was dropped and created again: open the new one"
                ):
                    reader.count()
