from __future__ import annotations

from contextlib import closing

import pytest

from siltstone.clock import ManualClock
from siltstone.errors import NotFoundError, UsageError
from siltstone.store.keyvalue import KeyValueDatabase
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.slab.manifest import SlabId
from siltstone.store.tx.catalog import family_of
from siltstone.store.tx.settings import KeyValueSettings
from tests.support.tx_builders import World


def test_a_plain_map_has_one_generation_and_is_not_sealed() -> None:
    with World(timed=False) as world:
        world.write("a", b"1")
        with pytest.raises(
            UsageError, match="is a plain map with one generation, which cannot be sealed"
        ):
            world.database.seal()
        assert world.database.get("a") == b"1"
        assert [(row.topic, row.value) for row in world.database.read("#")] == [("a", b"1")]
        assert len(world.database.slabs()) == 1


class Hurried(MemoryEngine):
    """An engine of which another thread drops a family just before its size is asked for."""

    gone: str = ""

    def size_bytes(self, family: str | None = None) -> int:
        if family == self.gone:
            raise NotFoundError(f"unknown column family: name={family}")
        return super().size_bytes(family)


def test_a_slab_that_another_shard_drops_meanwhile_is_no_trouble() -> None:
    engine = Hurried()
    settings = KeyValueSettings(shards=2, retain_bytes=1)
    with closing(KeyValueDatabase(engine, ManualClock(1), "m", settings)) as database:
        database.seal()
        engine.gone = family_of(SlabId(1, 1))
        assert database.enforce_retention() == [SlabId(0, 1), SlabId(1, 1)]
        engine.gone = ""
