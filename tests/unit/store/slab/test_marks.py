from __future__ import annotations

from pathlib import PurePath
from typing import ClassVar

import pytest

from siltstone.errors import CorruptionError, InvalidTopicError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.slab.manifest import Manifest, SlabId, SlabRecord, SlabState
from siltstone.store.slab.marks import (
    MARKS,
    Seed,
    read_seed,
    read_tiered,
    sow,
    tiered_slabs,
    with_marks,
    write_seed,
    write_tiered,
)
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.topic.structure import Structure
from tests.support.builders import World, rows_on

PLACE = PurePath("/data/data/messages")


def record(generation: int, until_serial: int | None) -> SlabRecord:
    ended = until_serial is not None
    return SlabRecord(
        shard=0,
        generation=generation,
        state=SlabState.SEALED if ended else SlabState.CURRENT,
        since_us=0,
        until_us=1 if ended else None,
        created_us=0,
        until_serial=until_serial,
    )


MANIFEST = Manifest(
    database="messages",
    salt=1,
    settings=DatabaseSettings(),
    slabs=(record(1, 10), record(2, 20), record(3, None)),
)


def test_marks_are_read_as_they_were_written() -> None:
    fs = MemoryFileSystem()
    assert (read_tiered(fs, PLACE), read_seed(fs, PLACE)) == (None, None)
    write_tiered(fs, PLACE, {0: 5, 12: 7})
    write_seed(fs, PLACE, Seed(("a/+",), (5, -1)))
    assert (read_tiered(fs, PLACE), read_seed(fs, PLACE)) == (
        {0: 5, 12: 7},
        Seed(("a/+",), (5, -1)),
    )
    write_seed(fs, PLACE, Seed(()))
    assert read_seed(fs, PLACE) == Seed((), None)


def test_a_seed_holds_structures_only() -> None:
    with pytest.raises(InvalidTopicError, match="the pattern of a stream must not have #: pattern"):
        write_seed(MemoryFileSystem(), PLACE, Seed(("a/#",)))


def test_a_damaged_mark_is_refused_and_changes_nothing() -> None:
    fs = MemoryFileSystem()
    write_tiered(fs, PLACE, {0: 50})
    data = fs.read(PLACE / MARKS / "tiered")
    fs.remove(PLACE / MARKS / "tiered")
    with fs.create(PLACE / MARKS / "tiered") as file:
        file.write(data.replace(b"50", b"51"))
    with pytest.raises(CorruptionError, match="mark does not match its checksum"):
        read_tiered(fs, PLACE)
    assert with_marks(fs, PLACE, MANIFEST) == MANIFEST


@pytest.mark.parametrize(("serial", "generations"), [(9, []), (10, [1]), (25, [1, 2])])
def test_a_sealed_slab_is_tiered_when_all_its_rows_are(serial: int, generations: list[int]) -> None:
    fs = MemoryFileSystem()
    write_tiered(fs, PLACE, {0: serial})
    found = tiered_slabs(MANIFEST, {0: serial})
    assert [(item.generation, item.state) for item in found] == [
        (generation, SlabState.TIERED) for generation in generations
    ]
    marked = with_marks(fs, PLACE, MANIFEST)
    assert [slab.generation for slab in marked.slabs if slab.state is SlabState.TIERED] == (
        generations
    )


def test_a_seed_is_known_before_its_topics_come() -> None:
    structure = Structure([1, 1])
    sow(structure, Seed(("a/+/b",)))
    assert not structure.has_pending()
    assert structure.learn(b"a/x/b").stream.pattern == b"a/+/b"


def test_the_next_generation_begins_with_the_seed() -> None:
    world = World()
    with world.database() as database:
        write_seed(world.fs, PLACE, Seed(("plant/+/x",), (7, 3)))
        database.append(rows_on("plant/1/x")).wait()
        database.seal()
        database.append(rows_on("plant/1/x")).wait()
        assert [info.pattern for info in database.structure()] == ["plant/1/x", "plant/+/x"]
        assert database.settings.thresholds == (7, 3)
    with world.database() as database:
        assert database.settings.thresholds == (7, 3)


def test_a_damaged_seed_does_not_keep_a_slab_from_its_end() -> None:
    world = World()
    with world.database() as database:
        write_seed(world.fs, PLACE, Seed(("plant/+/x",)))
        world.fs.remove(PLACE / MARKS / "seed")
        with world.fs.create(PLACE / MARKS / "seed") as file:
            file.write(b"nonsense")
        database.append(rows_on("plant/1/x")).wait()
        database.seal()
        assert [info.state for info in database.slabs()] == ["sealed", "current"]


def test_retention_of_a_tiered_database_drops_what_is_in_the_lake_only() -> None:
    world = World()
    with world.database(retain_seconds=1) as database:
        for _ in range(2):
            database.append(rows_on("a", "b")).wait()
            database.seal()
        write_tiered(world.fs, PLACE, {0: 0})
        world.clock.advance(10)
        assert database.enforce_retention() == []
        write_tiered(world.fs, PLACE, {0: 2})
        assert [str(slab) for slab in database.enforce_retention()] == ["0/1"]
        write_tiered(world.fs, PLACE, {0: 4})
        with world.reader() as reader:
            assert [info.state for info in reader.slabs()] == ["tiered", "current"]
        assert [str(slab) for slab in database.enforce_retention()] == ["0/2"]


MARKED = PurePath("/db")


class CountedRecord(SlabRecord):
    """A record that counts how often its id is looked at."""

    looks: ClassVar[int] = 0

    @property
    def id(self) -> SlabId:
        CountedRecord.looks += 1
        return SlabId(self.shard, self.generation)


def looks_to_mark(count: int) -> int:
    """Return how many ids are looked at when this number of slabs becomes tiered at once."""
    fs = MemoryFileSystem()
    fs.make_directory(MARKED)
    records = tuple(
        CountedRecord(
            shard=0,
            generation=generation,
            state=SlabState.SEALED,
            since_us=generation,
            until_us=generation + 1,
            created_us=0,
            until_serial=generation,
        )
        for generation in range(count)
    )
    manifest = Manifest(database="db", salt=1, settings=DatabaseSettings(), slabs=records)
    write_tiered(fs, MARKED, {0: count})
    CountedRecord.looks = 0
    marked = with_marks(fs, MARKED, manifest)
    assert {record.state for record in marked.slabs} == {SlabState.TIERED}
    assert [record.generation for record in marked.slabs] == list(range(count))
    return CountedRecord.looks


def test_marking_ten_times_as_many_slabs_takes_ten_times_as_long() -> None:
    assert looks_to_mark(1000) <= 10 * looks_to_mark(100)
