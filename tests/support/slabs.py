"""The slabs of one database: create, open and append."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any

from siltstone.fs.publish import create_directories, replace_file
from siltstone.store.log.first_slab import create_slabs
from siltstone.store.shard.shard import LEADING
from siltstone.store.shard.shards import Shards
from siltstone.store.slab.manifest import MANIFEST, Manifest
from siltstone.store.writer.ticket import Ticket
from tests.support.builders import NAME, World, call_on, settings_of

HOME = PurePath("/data/db")


def created(world: World, **changes: Any) -> Manifest:
    """Create a database without opening it."""
    create_directories(world.fs, HOME)
    empty = Manifest(database=NAME, salt=1, settings=settings_of(**changes), slabs=())
    manifest = create_slabs(world.fs, world.clock, HOME, empty)
    replace_file(world.fs, HOME / MANIFEST, manifest.encode())
    return manifest


@contextmanager
def opened(world: World, **changes: Any) -> Iterator[Shards]:
    """Open the slabs for writing; create them first if there are none."""
    if not world.fs.exists(HOME / MANIFEST):
        created(world, **changes)
    slabs = Shards(world.fs, world.clock, HOME, LEADING)
    try:
        yield slabs
    finally:
        slabs.close()


def append(slabs: Shards, *topics: str, shard: int = 0, size_bytes: int = 1) -> None:
    """Append a row to each of these topics, and wait for everything that follows from it."""
    ticket = Ticket(len(topics), 1, waits=True)
    call = call_on(*topics)
    call.batch.values = [bytes(size_bytes)] * len(topics)
    slabs.leader(shard).append(call, ticket, None)
    ticket.wait()
    # Housekeeping follows the flush; sync waits for it.
    slabs.leader(shard).queue().sync()
