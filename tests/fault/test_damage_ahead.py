"""Damage fails the read that meets it: what stands before it is read, what may stand behind it is
never taken for nothing.
"""

from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.errors import CorruptionError
from siltstone.store.database import Database
from siltstone.store.log.iterator import Read, StreamIterator
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.read.scan import Status
from tests.support.builders import World, read_rows
from tests.support.damage import CURRENT, DATABASE, SEALED, flip, frames_of

LAST_BYTE = -1
FRAME_ROWS = 3
# Of the frames of a segment, of which the first is its state.
DAMAGED = 3
WHOLE = 2 * FRAME_ROWS


def sound_world(path: PurePath) -> tuple[World, list[Row]]:
    """Return a world with four frames in a sealed slab and four in a current one, and the rows that
    were written to the slab of this segment.
    """
    world = World()
    with world.database(thresholds=(100, 100)) as database:
        for number in range(8):
            if number == 4:
                database.seal()
            topic = "a/x" if number % 4 < 3 else "late/x"
            values = [b"%d-%d" % (number, each) for each in range(FRAME_ROWS)]
            database.append([Row(topic, value) for value in values]).wait()
        generation = 1 if path == SEALED else 2
        rows = [row for row in read_rows(database, "#") if row.generation == generation]
    return world, rows


def damaged_world(path: PurePath, offset: int) -> tuple[World, list[Row]]:
    """Return a sound world with one damaged frame, and the rows that were written to its slab."""
    world, rows = sound_world(path)
    frame = frames_of(world.fs, path)[DAMAGED]
    flip(world.fs, path, frame.start + offset if offset >= 0 else frame.stop + offset)
    return world, rows


def position(database: Database, path: PurePath, topic_filter: str = "a/#") -> StreamIterator:
    """Return the start of the stream of the damaged slab."""
    generation = 1 if path == SEALED else 2
    (stream,) = (each for each in database.streams("a/#") if each.slab.generation == generation)
    return database.iterator(stream, topic_filter)


def values_up_to_damage(database: Database, since_us: int = 0) -> list[bytes]:
    """Return what a read of everything gives before it fails, as it must."""
    found: list[bytes] = []
    try:
        for batch in database.read("#", since_us=since_us, columns=["value"]):
            found += batch.column("value").to_pylist()
    except CorruptionError:
        return found
    pytest.fail("the damage was read over")


PLACES = pytest.mark.parametrize("path", [SEALED, CURRENT], ids=["sealed", "current"])
DAMAGES = pytest.mark.parametrize(
    "offset", [0, 8, 16, LAST_BYTE], ids=["magic", "length", "serial", "row"]
)


@PLACES
@DAMAGES
class TestOneStream:
    def test_a_read_that_stops_before_the_damage_gets_its_rows(
        self, path: PurePath, offset: int
    ) -> None:
        world, rows = damaged_world(path, offset)
        with world.reader() as database:
            read = database.next(position(database, path), WHOLE - 1)
            assert (read.batch.rows(), read.status) == (rows[: WHOLE - 1], Status.MORE)

    def test_a_read_that_meets_the_damage_gets_what_stands_before_it_and_the_next_is_told(
        self, path: PurePath, offset: int
    ) -> None:
        world, rows = damaged_world(path, offset)
        with world.reader() as database:
            read = database.next(position(database, path), 1000)
            assert (read.batch.rows(), read.status) == (rows[:WHOLE], Status.MORE)
            with pytest.raises(CorruptionError) as caught:
                database.next(read.iterator, 1000)
            sound, _ = sound_world(path)
            damaged = frames_of(sound.fs, path)[DAMAGED].start
            assert (caught.value.path, caught.value.offset) == (path, damaged)

    def test_a_read_up_to_a_time_before_the_damage_ends_there(
        self, path: PurePath, offset: int
    ) -> None:
        world, rows = damaged_world(path, offset)
        until_us = rows[WHOLE - 1].timestamp_us
        with world.reader() as database:
            read: Read = database.next(position(database, path), 1000, until_us=until_us)
            assert (read.batch.rows(), read.status) == (rows[: WHOLE - 1], Status.LIMIT)


@PLACES
@DAMAGES
class TestInTimeOrder:
    def test_rows_before_the_damage_come_before_its_error(
        self, path: PurePath, offset: int
    ) -> None:
        world, rows = damaged_world(path, offset)
        with world.reader() as database:
            found = values_up_to_damage(database, since_us=rows[0].timestamp_us)
        assert found == [row.value for row in rows[:WHOLE]]

    @pytest.mark.parametrize("rows_max", [1, WHOLE])
    def test_as_many_rows_as_stand_before_the_damage_are_read(
        self, path: PurePath, offset: int, rows_max: int
    ) -> None:
        world, rows = damaged_world(path, offset)
        with world.reader() as database:
            batches = database.read(
                "#", since_us=rows[0].timestamp_us, columns=["value"], rows_max=rows_max
            )
            found = [value for batch in batches for value in batch.column("value").to_pylist()]
        assert found == [row.value for row in rows[:rows_max]]

    def test_a_time_before_the_damage_ends_a_read_and_a_count(
        self, path: PurePath, offset: int
    ) -> None:
        world, rows = damaged_world(path, offset)
        since_us, until_us = rows[0].timestamp_us, rows[WHOLE - 1].timestamp_us
        with world.reader() as database:
            batches = database.read("#", since_us=since_us, until_us=until_us)
            count = database.count("#", since_us=since_us, until_us=until_us)
            assert (sum(batch.num_rows for batch in batches), count) == (WHOLE - 1, WHOLE - 1)

    def test_rows_of_another_shard_come_up_to_the_damage(self, path: PurePath, offset: int) -> None:
        world = World()
        with world.database(shards=2, shard_by="topic") as database:
            for number in range(8):
                if number == 4:
                    database.seal()
                rows = [Row(topic, b"%d" % number) for topic in ("a", "b", "c", "d")]
                database.append(rows).wait()
                world.clock.advance(1.0)
            before = read_rows(database, "#")
        generation = 1 if path == SEALED else 2
        place = DATABASE / "0" / str(generation)
        (found,) = (
            place / entry.name for entry in world.fs.list(place) if entry.name.endswith(".seg")
        )
        frame = frames_of(world.fs, found)[DAMAGED]
        flip(world.fs, found, frame.start + offset if offset >= 0 else frame.stop + offset)
        with world.reader() as database:
            served = values_up_to_damage(database)
        whole = [row.value for row in before]
        assert served == whole[: len(served)]
        damaged_second = 4 * (generation - 1) + DAMAGED - 1
        assert set(served) >= {b"%d" % number for number in range(damaged_second)}


class TestWhatMayStandBehind:
    """Of a current slab nothing but its frames tells what is behind the damage."""

    @pytest.mark.parametrize("offset", [0, 8, 16])
    def test_a_stream_that_begins_behind_the_damage_is_not_taken_for_none(
        self, offset: int
    ) -> None:
        world, _ = damaged_world(CURRENT, offset)
        with world.reader() as database, pytest.raises(CorruptionError):
            database.streams("late/#")
        with world.reader() as database, pytest.raises(CorruptionError):
            list(database.read("late/#"))

    @pytest.mark.parametrize("offset", [0, 8, 16])
    def test_totals_are_not_those_of_the_rows_before_the_damage(self, offset: int) -> None:
        world, _ = damaged_world(CURRENT, offset)
        with world.reader() as database:
            with pytest.raises(CorruptionError):
                database.count()
            with pytest.raises(CorruptionError):
                database.slabs()
            with pytest.raises(CorruptionError):
                database.structure()
            with pytest.raises(CorruptionError):
                database.extents()

    @PLACES
    @DAMAGES
    def test_a_feed_gives_the_rows_before_the_damage_and_then_its_error(
        self, path: PurePath, offset: int
    ) -> None:
        world, rows = damaged_world(path, offset)
        with (
            world.reader() as database,
            database.feed("#", since_us=rows[0].timestamp_us) as feed,
        ):
            read = feed.next(10)
            assert read is not None
            assert read.rows() == rows[:WHOLE]
            with pytest.raises(CorruptionError):
                feed.next(10)
