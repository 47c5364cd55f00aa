from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any

import pytest

from siltstone.errors import (
    SlabDroppedError,
)
from siltstone.fs.publish import create_directories, replace_file
from siltstone.store.birth import create_slabs
from siltstone.store.manifest import (
    MANIFEST,
    Manifest,
    SlabId,
)
from siltstone.store.outcome import Ticket
from siltstone.store.readable_slabs import ReadableSlabs
from siltstone.store.slabs import WritableSlabs
from tests.support.builders import NAME, World, call_on, settings_of

HOME = PurePath("/data/db")


def created(world: World, **changes: Any) -> Manifest:
    """Lay out a database without opening it."""
    create_directories(world.fs, HOME)
    empty = Manifest(database=NAME, salt=1, settings=settings_of(**changes), slabs=())
    manifest = create_slabs(world.fs, world.clock, HOME, empty)
    replace_file(world.fs, HOME / MANIFEST, manifest.encode())
    return manifest


@contextmanager
def opened(world: World, **changes: Any) -> Iterator[WritableSlabs]:
    """Open the slabs for writing, laying them out first where there are none."""
    if not world.fs.exists(HOME / MANIFEST):
        created(world, **changes)
    slabs = WritableSlabs(world.fs, world.clock, HOME)
    try:
        yield slabs
    finally:
        slabs.close()


def append(slabs: WritableSlabs, *topics: str, shard: int = 0, size_bytes: int = 1) -> None:
    ticket = Ticket(len(topics), 1, waits=True)
    call = call_on(*topics)
    call.values = [bytes(size_bytes)] * len(topics)
    slabs.shard(shard).submit(call, ticket, None, None)
    ticket.wait()
    # Housekeeping follows the flush; an order waits for it.
    slabs.shard(shard).sync()


def ids(slabs: WritableSlabs | ReadableSlabs) -> list[tuple[int, int]]:
    return [(slab.id.shard, slab.id.generation) for slab in slabs.all()]


def test_a_reader_finds_the_slabs_of_the_manifest() -> None:
    world = World()
    with opened(world, shards=2) as slabs:
        append(slabs, "a")
        slabs.seal()
        reader = ReadableSlabs(world.fs, HOME)
        assert reader.manifest == slabs.manifest
        assert ids(reader) == [(0, 1), (1, 1), (0, 2), (1, 2)]
        assert [slab.row_count() for slab in reader.all()] == [1, 0, 0, 0]
        reader.refresh()
        assert [reader.ended(slab.id) for slab in reader.all()] == [True, True, False, False]


def test_a_reader_sees_rows_turns_settings_and_drops_when_it_looks_again() -> None:
    world = World()
    with opened(world) as slabs:
        reader = ReadableSlabs(world.fs, HOME)
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
        reader = ReadableSlabs(world.fs, HOME)
        reader.refresh()
        append(slabs, "late")
        slabs.seal()
        assert reader.ended(SlabId(0, 1)) is False
        reader.refresh()
        assert reader.ended(SlabId(0, 1)) is True
        assert reader.slab(SlabId(0, 1)).row_count() == 1
