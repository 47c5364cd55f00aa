"""Slabs by their ids: opened, sorted, found."""

from __future__ import annotations

from pathlib import PurePath

from siltstone.errors import (
    ClosedError,
    NotFoundError,
    SlabDroppedError,
)
from siltstone.fs.api import EntryKind, FileSystem
from siltstone.store.log.opening import (
    slab_directory,
)
from siltstone.store.log.slab import Slab
from siltstone.store.segment.chain import Chain
from siltstone.store.slab.manifest import (
    SlabId,
    SlabRecord,
)
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.topic.structure import Structure


def holds_rows(fs: FileSystem, directory: PurePath) -> bool:
    """Return whether any slab in a database's directory has rows, independent of its manifest."""
    for shard in fs.list(directory):
        if shard.kind is not EntryKind.DIRECTORY:
            continue
        for generation in fs.list(directory / shard.name):
            if generation.kind is EntryKind.DIRECTORY:
                chain = Chain(fs, directory / shard.name / generation.name)
                chain.refresh()
                for handle in chain.handles:
                    if handle.next_serial > handle.base_serial:
                        return True
                    handle.check_whole()
    return False


def open_slab(
    fs: FileSystem, directory: PurePath, record: SlabRecord, settings: DatabaseSettings
) -> Slab:
    """Return a slab in a database's directory; its files are opened when they are needed."""
    structure = Structure(list(settings.thresholds))
    return Slab(fs, slab_directory(directory, record.id), record, structure)


def check_open(*, closed: bool) -> None:
    """Raise ClosedError if the database was closed."""
    if closed:
        raise ClosedError("the database is closed")


def ordered(slabs: dict[SlabId, Slab]) -> list[Slab]:
    """Return slabs by generation, then shard."""
    return sorted(slabs.values(), key=lambda slab: (slab.id.generation, slab.id.shard))


def find_slab(slabs: dict[SlabId, Slab], slab: SlabId) -> Slab:
    """Return a slab by its id. Raises: SlabDroppedError if it was dropped, NotFoundError."""
    found = slabs.get(slab)
    if found is not None:
        return found
    of_shard = [known for known in slabs if known.shard == slab.shard]
    # The first generation is 1: there was never an earlier slab that could have been dropped.
    if slab.generation >= 1 and any(known.generation > slab.generation for known in of_shard):
        raise SlabDroppedError(f"slab {slab} was dropped with its rows")
    raise unknown_slab(slab)


def unknown_slab(slab: SlabId) -> NotFoundError:
    """Return the error for a slab that never existed."""
    return NotFoundError(f"unknown slab {slab}; 'siltstone slabs' lists those of a database")
