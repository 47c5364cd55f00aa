"""Make a replicated key-value database a local one, in a directory that no site of a cluster uses.

Settings and marks are in the engine that holds the rows, and change in one write. Rows, serials,
ids of transactions and the identity stay.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

from siltstone.errors import UsageError
from siltstone.fs.api import FileSystem
from siltstone.store.kv.api import Changes, Engine
from siltstone.store.shard.replicated.copying import copied_shards
from siltstone.store.tx import catalog


def make_map_local(fs: FileSystem, directory: PurePath, engine: Engine) -> bool:
    """Make the key-value database in a directory a local one; return whether it was replicated.

    Raises: UsageError while a copy from another site is being installed; CorruptionError.
    """
    if not catalog.is_created(engine):
        return False
    settings = catalog.read_settings(engine)
    if settings.backend == "local":
        return False
    if copied_shards(fs, directory):
        raise UsageError(
            f"{directory.name} is being replaced by a copy from another site: start the broker "
            f"once more, so that this ends"
        )
    changes = Changes()
    catalog.put_settings(changes, replace(settings, backend="local"))
    for shard in range(settings.shards):
        catalog.put_mark(changes, shard, None)
    engine.write(changes)
    return True
