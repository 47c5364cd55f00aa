from __future__ import annotations

from siltstone.fs.publish import create_directories
from siltstone.store.log.first_slab import begin_in_place, create_slabs, first_slab
from siltstone.store.log.opening import slab_directory
from siltstone.store.slab.manifest import Manifest, SlabId, SlabState
from siltstone.topic.structure import Structure
from tests.support.builders import NOW_US, PATH, World, settings_of


def manifest_of(shards: int) -> Manifest:
    return Manifest(database="d", salt=1, settings=settings_of(shards=shards), slabs=())


def test_every_shard_gets_its_first_slab() -> None:
    world = World()
    create_directories(world.fs, PATH)
    manifest = create_slabs(world.fs, world.clock, PATH, manifest_of(2))
    assert [record.id for record in manifest.slabs] == [SlabId(0, 1), SlabId(1, 1)]
    for record in manifest.slabs:
        assert (record.state, record.since_us, record.until_us) == (SlabState.CURRENT, NOW_US, None)
        names = [entry.name for entry in world.fs.list(slab_directory(PATH, record.id))]
        assert names == [f"{0:020d}.seg"]


def test_what_a_crash_left_in_the_place_of_a_slab_is_removed() -> None:
    world = World()
    left = slab_directory(PATH, SlabId(3, 1))
    create_directories(world.fs, left)
    world.fs.create(left / "left").close()
    record, committer = first_slab(world.fs, world.clock, PATH, manifest_of(3), 3)
    committer.close()
    assert record.id == SlabId(3, 1)
    assert [entry.name for entry in world.fs.list(left)] == [f"{0:020d}.seg"]


def test_a_later_slab_begins_at_its_serial() -> None:
    world = World()
    record, committer = first_slab(world.fs, world.clock, PATH, manifest_of(1), 0)
    committer.close()
    later = begin_in_place(
        world.fs,
        world.clock,
        PATH,
        manifest_of(1),
        record,
        structure=Structure([100]).export(),
        producers=b"",
        serial=7,
    )
    later.close()
    names = [entry.name for entry in world.fs.list(slab_directory(PATH, record.id))]
    assert names == [f"{7:020d}.seg"]
