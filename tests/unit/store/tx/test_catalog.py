from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

import pytest

from siltstone.clock import ManualClock
from siltstone.errors import CorruptionError, UsageError
from siltstone.settings.declare import encoding_of
from siltstone.store.kv.api import DEFAULT_FAMILY, Changes
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.slab.manifest import SlabId, SlabRecord, SlabState
from siltstone.store.tx import catalog
from siltstone.store.tx.catalog import RememberedId, ShardState
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.topic.structure import Structure
from tests.support.kv_suite import changes_of

SETTINGS = KeyValueSettings(shards=2, timed=False)


def created() -> MemoryEngine:
    engine = MemoryEngine()
    catalog.create(engine, ManualClock(7), SETTINGS)
    return engine


def record_of(shard: int, generation: int) -> SlabRecord:
    return SlabRecord(
        shard=shard,
        generation=generation,
        state=SlabState.CURRENT,
        since_us=7,
        until_us=None,
        created_us=7,
    )


def test_a_new_database_has_settings_and_a_slab_a_shard() -> None:
    engine = MemoryEngine()
    assert not catalog.is_created(engine)
    # Left by a crash in the middle of an earlier creation.
    engine.create_family("0.1")
    catalog.create(engine, ManualClock(7), SETTINGS)
    assert catalog.is_created(engine)
    assert catalog.read_settings(engine) == SETTINGS
    assert catalog.read_slabs(engine) == {
        SlabId(0, 1): replace(record_of(0, 1), encoding=encoding_of(SETTINGS)),
        SlabId(1, 1): replace(record_of(1, 1), encoding=encoding_of(SETTINGS)),
    }
    assert [catalog.read_state(engine, n) for n in range(2)] == [
        ShardState(term=0, serial=0, timestamp_us=0)
    ] * 2
    assert engine.families() == ["0.1", "1.1", DEFAULT_FAMILY]


def test_another_format_is_refused() -> None:
    engine = created()
    engine.write(changes_of(DEFAULT_FAMILY, {b"settings\x00": b'{"format": 2}'}))
    with pytest.raises(UsageError, match="another version of Siltstone wrote"):
        catalog.read_settings(engine)


def test_what_is_missing_is_corruption() -> None:
    for look, text in [
        (catalog.read_settings, "the settings of the key-value database are missing"),
        (lambda engine: catalog.read_state(engine, 3), "the state of shard 3 is missing"),
    ]:
        with pytest.raises(CorruptionError, match=text) as caught:
            look(MemoryEngine())
        assert caught.value.path == PurePath("catalog")


def test_slabs_come_by_shard_and_generation_however_many() -> None:
    engine = created()
    changes = Changes()
    for generation in range(300, 1, -1):
        catalog.put_slab(changes, record_of(1, generation))
    engine.write(changes)
    expected = [SlabId(0, 1), *(SlabId(1, generation) for generation in range(1, 301))]
    assert list(catalog.read_slabs(engine)) == expected


def test_a_slab_is_forgotten_with_its_structure_and_no_other() -> None:
    engine = created()
    structure = Structure([0])
    structure.learn(b"a/b")
    edges = structure.take_pending()
    changes = Changes()
    catalog.put_edges(changes, SlabId(0, 1), 0, edges)
    catalog.put_edges(changes, SlabId(1, 1), 0, edges)
    engine.write(changes)
    changes = Changes()
    catalog.remove_slab(changes, SlabId(0, 1))
    engine.write(changes)
    assert list(catalog.read_slabs(engine)) == [SlabId(1, 1)]
    sizes = [catalog.open_slab(engine, SlabId(n, 1), SETTINGS)[1] for n in range(2)]
    assert sizes == [0, 1]


def test_structure_is_read_in_the_order_in_which_it_was_learned() -> None:
    engine = created()
    structure = Structure([300])
    changes = Changes()
    for number in range(300):
        structure.learn(b"%d" % number)
        catalog.put_edges(changes, SlabId(0, 1), number, structure.take_pending())
    engine.write(changes)
    slab, following = catalog.open_slab(engine, SlabId(0, 1), SETTINGS)
    assert (slab.export(), following) == (structure.export(), 300)
    assert (slab.family, slab.timed) == ("0.1", False)


def test_damaged_structure_is_corruption() -> None:
    engine = created()
    changes = Changes()
    catalog.put_edges(changes, SlabId(0, 1), 0, b"nonsense")
    engine.write(changes)
    with pytest.raises(CorruptionError, match="learned structure is damaged"):
        catalog.open_slab(engine, SlabId(0, 1), SETTINGS)


def test_ids_are_found_by_shard_and_forgotten_oldest_first() -> None:
    engine = created()
    ids = [RememberedId(digest=bytes([n]) * 16, serial=n, at_us=1_000 - n) for n in range(5)]
    changes = Changes()
    for remembered in ids:
        catalog.put_id(changes, 1, remembered)
    catalog.put_id(changes, 0, ids[0])
    engine.write(changes)
    assert catalog.find_id(engine, 1, ids[3].digest) == 3
    assert catalog.find_id(engine, 0, ids[3].digest) is None
    oldest = catalog.oldest_ids(engine, 1, 2)
    assert [(known.digest, known.at_us) for known in oldest] == [
        (ids[4].digest, 996),
        (ids[3].digest, 997),
    ]
    changes = Changes()
    for remembered in oldest:
        catalog.remove_id(changes, 1, remembered)
    engine.write(changes)
    assert [catalog.find_id(engine, 1, known.digest) for known in ids] == [0, 1, 2, None, None]
    assert len(catalog.oldest_ids(engine, 1, 10)) == 3
    assert len(catalog.oldest_ids(engine, 0, 10)) == 1
