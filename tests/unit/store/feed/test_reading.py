from __future__ import annotations

from collections.abc import Callable

import pytest

from siltstone.errors import ClosedError, CorruptionError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.database import Database
from siltstone.store.feed.pool import ReadResult
from siltstone.store.feed.position import Position
from siltstone.store.feed.reading import StoreSource
from siltstone.store.feed.settings import FeedSettings
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.slab import Slab
from siltstone.store.segment.segment import Segment, open_segment, segment_path
from siltstone.store.segment.sift import index_path
from siltstone.store.slab.manifest import SlabId
from tests.support.builders import NAME, NOW_US, PATH, SEGMENT_BYTES, World, new_database
from tests.support.damage import flip
from tests.support.feed_builders import parsed

ALL = FeedSettings()


def append(database: Database, *topics: str, size_bytes: int = 1) -> None:
    """Append a flush."""
    database.append([Row(topic, bytes(size_bytes)) for topic in topics]).wait()


def summary(found: ReadResult) -> tuple[int, int, int, list[int]]:
    """Return what a read says of itself: start, stop, where rows begin, and their serials."""
    serials = [] if found.batch is None else found.batch.serials
    return (found.start, found.stop, found.rows_from, serials)


def read(
    source: StoreSource, start: int, *filters: str, settings: FeedSettings = ALL
) -> tuple[int, int, int, list[int]]:
    return summary(source.read(0, start, parsed(*filters), settings))


def test_a_read_accounts_for_all_serials_up_to_the_end() -> None:
    with new_database() as database:
        source = database.feed_source()
        assert read(source, 0, "#") == (0, 0, 0, [])
        append(database, "a", "b")
        append(database, "b")
        assert read(source, 0, "b") == (0, 3, 0, [0, 2])
        assert read(source, 2, "#") == (2, 3, 2, [2])
        assert read(source, 3, "#") == (3, 3, 3, [])
        assert read(source, 9, "#") == (9, 9, 9, [])
        assert read(source, 0, "none") == (0, 3, 0, [])
        assert read(source, 0) == (0, 3, 0, [])


@pytest.mark.parametrize(
    ("settings", "stops"),
    [
        (FeedSettings(read_rows=1), [2, 4, 6, 8]),
        (FeedSettings(read_rows=3), [4, 8]),
        (FeedSettings(read_frames=3), [6, 8]),
        (FeedSettings(read_bytes=1), [2, 4, 6, 8]),
        (FeedSettings(), [8]),
    ],
)
def test_a_read_ends_with_the_frame_that_fills_it(settings: FeedSettings, stops: list[int]) -> None:
    with new_database() as database:
        source = database.feed_source()
        for _ in range(4):
            append(database, "a", "a")
        place = 0
        found: list[int] = []
        while place < 8:
            _, place, _, _ = read(source, place, "a", settings=settings)
            found.append(place)
        assert found == stops


def test_generations_follow_each_other_and_one_read_has_one() -> None:
    with new_database() as database:
        source = database.feed_source()
        append(database, "a", "b")
        database.seal()
        database.seal()
        append(database, "b")
        database.seal()
        # Within a flush the rows of b stand before those of a, by the ids of their streams.
        assert read(source, 0, "a") == (0, 2, 0, [1])
        assert read(source, 0, "none") == (0, 3, 0, [])
        assert read(source, 0, "#") == (0, 2, 0, [0, 1])
        assert read(source, 2, "#") == (2, 3, 2, [2])
        found = source.read(0, 2, parsed("#"), ALL).batch
        assert found is not None
        assert found.generation == 3
        assert source.ends() == [3]


def test_many_segments_are_read_through() -> None:
    with new_database() as database:
        source = database.feed_source()
        for _ in range(12):
            append(database, "a", "b", size_bytes=9000)
        assert len(database.slabs()) == 1
        assert database.slabs()[0].segments > 2
        assert read(source, 0, "#") == (0, 24, 0, list(range(24)))
        assert read(source, 13, "#") == (13, 24, 13, list(range(13, 24)))


def test_frames_without_a_wanted_stream_are_not_opened() -> None:
    with new_database() as database:
        source = database.feed_source()
        for number in range(100):
            append(database, f"t{number % 20}/x")
        append(database, "rare")
        source.frames_read = 0
        assert read(source, 0, "rare") == (0, 101, 0, [100])
        assert source.frames_read == 1
        assert len(read(source, 0, "t1/+", "t2/+", "t3/+")[3]) == 15
        assert source.frames_read == 16


def test_a_stream_of_very_many_frames_is_listed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siltstone.store.feed.reading._LISTED_MAX", 3)
    with new_database() as database:
        source = database.feed_source()
        for number in range(40):
            append(database, f"t{number % 7}/x")
        expected = [serial for serial in range(40) if serial % 7 in (1, 4)]
        assert read(source, 0, "t1/+", "t4/x") == (0, 40, 0, expected)
        found: list[int] = []
        place = 0
        while place < 40:
            settings = FeedSettings(read_rows=2)
            _, place, _, serials = read(source, place, "t1/+", "t4/x", settings=settings)
            found += serials
        assert found == expected


def test_new_streams_of_a_known_filter_are_found() -> None:
    with new_database() as database:
        source = database.feed_source()
        append(database, "a/1")
        assert read(source, 0, "a/#") == (0, 1, 0, [0])
        append(database, "a/2/x", "b")
        append(database, "a/1")
        _, stop, _, serials = read(source, 1, "a/#")
        assert (stop, len(serials), serials[-1]) == (4, 2, 3)


def test_streams_that_were_inherited_are_found_when_they_get_rows() -> None:
    with new_database(thresholds=(0,)) as database:
        source = database.feed_source()
        append(database, "a/1", "a/2")
        database.seal()
        assert read(source, 2, "a/+") == (2, 2, 2, [])
        append(database, "a/3")
        assert read(source, 2, "a/+") == (2, 3, 2, [2])


class TestDrops:
    def test_serials_that_a_crash_took_are_not_told_as_gone(self) -> None:
        fs = MemoryFileSystem()
        with World(fs).database() as database:
            database.append([Row("a", b"")], durability="written").wait()
            crashed = World(fs.crash_clone())
        with crashed.database() as database:
            database.seal()
            append(database, "a")
            source = database.feed_source()
            (serial,) = read(source, 0, "a")[3]
            # So far ahead were readers led before the crash.
            assert serial > 1
            assert read(source, 0, "a") == (0, serial + 1, 0, [serial])

    def test_what_is_gone_is_told(self) -> None:
        with new_database() as database:
            source = database.feed_source()
            for _ in range(3):
                append(database, "a", "a")
                database.seal()
            append(database, "a")
            database.drop_slab(SlabId(0, 1))
            database.drop_slab(SlabId(0, 3))
            assert read(source, 0, "a") == (0, 4, 2, [2, 3])
            assert read(source, 1, "a") == (1, 4, 2, [2, 3])
            assert read(source, 4, "a") == (4, 7, 6, [6])
            assert read(source, 4, "none") == (4, 7, 6, [])

    def test_a_slab_that_goes_under_a_read_is_passed_over(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = World()
        with world.database() as database, world.reader() as reader:
            append(database, "a", "a")
            database.seal()
            append(database, "a")
            source = reader.feed_source()
            source.refresh()
            _before_loading(monkeypatch, lambda: database.drop_slab(SlabId(0, 1)))
            assert read(source, 0, "a") == (0, 3, 2, [2])


def _before_loading(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Do something when frames of a slab are about to be listed, once."""
    handles = Slab.handles
    acts = [act]

    def looked(self: Slab) -> object:
        while acts:
            acts.pop()()
            # As if its files had not been open before.
            raise CorruptionError("gone", path=self.chain.directory)
        return handles(self)

    monkeypatch.setattr(Slab, "handles", looked)


def test_damage_is_told() -> None:
    with new_database() as database:
        source = database.feed_source()
        append(database, "a")
        broken = CorruptionError("broken", path=PATH)
        with pytest.MonkeyPatch.context() as patch:

            def fail(self: Segment, number: int) -> None:
                raise broken

            patch.setattr(Segment, "frame", fail)
            with pytest.raises(CorruptionError, match="broken"):
                read(source, 0, "a")
        assert read(source, 0, "a") == (0, 1, 0, [0])


def test_a_closed_database_is_not_read() -> None:
    with new_database() as database:
        source = database.feed_source()
    with pytest.raises(ClosedError):
        read(source, 0, "a")


def test_a_time_is_the_place_of_the_first_frame_that_reaches_it() -> None:
    world = World()
    with world.database(shards=2, shard_by="topic") as database:
        source = database.feed_source()
        assert source.position_at(0) == Position({0: 0, 1: 0})
        for _ in range(3):
            world.clock.advance(1)
            append(database, "a", "a")
            database.seal()
        shard = next(info.slab.shard for info in database.slabs() if info.rows)
        other = 1 - shard

        def serial(since_us: int) -> int:
            position = source.position_at(since_us)
            assert position.serial(other) == 0
            return position.serial(shard)

        second = 1_000_000
        times = (0, NOW_US + second, NOW_US + second + 1, NOW_US + second + 2)
        assert [serial(time) for time in times] == [0, 0, 0, 2]
        later = (NOW_US + 2 * second, NOW_US + 3 * second + 1, NOW_US + 3 * second + 2)
        assert [serial(time) for time in later] == [2, 4, 6]


def test_a_reader_sees_what_it_has_looked_for() -> None:
    world = World()
    with world.database() as database, world.reader() as reader:
        source = reader.feed_source()
        source.refresh()
        append(database, "a")
        assert (source.ends(), read(source, 0, "a")) == ([0], (0, 0, 0, []))
        source.refresh()
        assert (source.ends(), read(source, 0, "a")) == ([1], (0, 1, 0, [0]))
        assert source.first_serial(SlabId(0, 1)) == 0


def test_a_read_between_the_manifest_and_the_last_rows_of_a_sealed_slab_loses_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    with world.database() as database, world.reader() as reader:
        source = reader.feed_source()
        append(database, "a")
        source.refresh()
        append(database, "a", "a")
        database.seal()
        append(database, "a")
        refresh = Slab.refresh
        between: list[tuple[int, int, int, list[int]]] = []

        def refreshed(slab: Slab) -> None:
            # The manifest says that the slab has ended; its last rows are not known yet.
            if slab.id == SlabId(0, 1):
                between.append(read(source, 1, "a"))
            refresh(slab)

        monkeypatch.setattr(Slab, "refresh", refreshed)
        source.refresh()
        assert between == [(1, 1, 1, [])]
        assert read(source, 1, "a") == (1, 3, 1, [1, 2])
        assert read(source, 3, "a") == (3, 4, 3, [3])


# The totals of the index are damaged, or what follows them.
@pytest.mark.parametrize("offset", [33, 80])
def test_unused_serials_at_the_end_of_a_sealed_slab_are_not_told_as_lost_without_its_index(
    offset: int,
) -> None:
    fs = MemoryFileSystem()
    place = PATH / "data" / NAME / "0" / "1"
    path = segment_path(place, 0)
    with World(fs).database(thresholds=(-1,)) as database:
        # What was learned is more than the segment has room for in the end.
        append(database, *(f"a/{number}" for number in range(100)))
        while open_segment(fs, path).visible_position < SEGMENT_BYTES - 2500:
            append(database, "a/1", size_bytes=300)
        stored = database.append([Row("a/1", b"")], durability="written").wait().first_serial()
        crashed = fs.crash_clone()
    with World(crashed).database() as database:
        database.seal()
        append(database, "a/1")
    with World(crashed).reader() as reader:
        until = reader.slabs()[0]
        whole = read_on(reader.feed_source(), stored)
    # So many serials were led ahead of what was synced, and no row has them.
    assert (until.rows, whole[1] - stored > 1) == (stored, True)
    flip(crashed, index_path(path), offset)
    with World(crashed).reader() as reader:
        assert read_on(reader.feed_source(), stored) == whole


def read_on(source: StoreSource, serial: int) -> tuple[int, int, int, list[int]]:
    source.refresh()
    return read(source, serial, "a/+")
