from __future__ import annotations

import pytest

from siltstone.errors import NotFoundError
from siltstone.store.kv.keys import TIME_END
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.tx.reading import KeyValueReader, ReadableSlab, rows_of
from siltstone.topic.grammar import TopicFilter
from tests.support.tx_builders import World


def test_a_reader_sees_what_the_database_does_and_changes_nothing() -> None:
    with World(shards=2) as world:
        for shard in (1, 0):
            with world.database.transaction(shard=shard) as tx:
                tx.write(f"a/{shard}", b"old", 1)
        world.database.seal()
        with world.database.transaction(shard=0) as tx:
            tx.write("b", b"new", 5)
        writes = world.engine.writes
        reader = KeyValueReader(world.memory.reopened())
        assert [*reader.read()] == [*world.database.read()]
        assert [row.topic for row in reader.read("a/+", 0, 2)] == ["a/0", "a/1"]
        assert [*reader.read("#", 2, 5)] == []
        assert (reader.settings, reader.size_bytes()) == (
            world.database.settings,
            world.database.size_bytes(),
        )
        assert sorted(record.id for record in reader.slabs()) == sorted(
            record.id for record in world.database.slabs()
        )
        reader.close()
        assert world.engine.writes == writes


def test_an_empty_engine_has_no_database_and_is_let_go_of() -> None:
    engine = MemoryEngine()
    with pytest.raises(NotFoundError):
        KeyValueReader(engine)
    assert engine.closed


def test_each_slab_is_seen_as_it_is_when_its_turn_comes() -> None:
    with World() as world:
        world.write("a", b"", time_us=1)
        slabs = [
            ReadableSlab(record, world.database._find(record.id).slab)  # noqa: SLF001
            for record in world.database.slabs()
        ]
        reading = rows_of([*slabs, *slabs], TopicFilter.parse("#"), 0, TIME_END)
        assert next(reading).topic == "a"
        world.write("b", b"", time_us=1)
        assert sorted(row.topic for row in reading) == ["a", "b"]
