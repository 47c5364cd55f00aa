"""What both layouts promise: rows by filter and time, streams, iterators, generations.

One suite, run over the log and over the key-value layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Any

import pytest

from siltstone.clock import ManualClock
from siltstone.errors import NotFoundError, SlabDroppedError, UsageError
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.keyvalue import KeyValueDatabase
from siltstone.store.log.iterator import StreamIterator, StreamRef
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.read.scan import Status
from siltstone.store.slab.manifest import SlabId
from siltstone.store.tx.iterator import KeyIterator
from siltstone.store.tx.settings import KeyValueSettings
from tests.support.builders import settings_of

NOW_US = 1_700_000_000_000_000
NAME = "both"
# Every level but the first varies.
THRESHOLDS = (-1, 0)


class LogLayout:
    """Rows are appended; the store gives them their times."""

    def __init__(self, store: Store) -> None:
        self.database: Database = store.ensure(NAME, settings_of(thresholds=THRESHOLDS))

    def write(self, topic: str, value: bytes) -> None:
        self.database.append([Row(topic, value)]).wait()

    def read(self, topic_filter: str, since_us: int, until_us: int | None) -> list[Row]:
        rows: list[Row] = []
        for stream in self.database.streams(topic_filter):
            iterator = self.database.iterator(stream, topic_filter, since_us)
            rows += self.database.next(iterator, 1_000, until_us=until_us).batch.rows()
        return rows

    def restored(self, data: bytes) -> StreamIterator:
        return StreamIterator.from_bytes(data)

    def bounds(self) -> list[tuple[SlabId, int, int | None]]:
        return [(slab.slab, slab.since_us, slab.until_us) for slab in self.database.slabs()]


class KeyValueLayout:
    """Each row is written by a transaction of its own, which gives it the next time."""

    def __init__(self, store: Store) -> None:
        settings = KeyValueSettings(thresholds=THRESHOLDS)
        self.database: KeyValueDatabase = store.keyvalue(NAME, settings)

    def write(self, topic: str, value: bytes) -> None:
        with self.database.transaction() as tx:
            tx.write(topic, value)

    def read(self, topic_filter: str, since_us: int, until_us: int | None) -> list[Row]:
        return list(self.database.read(topic_filter, since_us, until_us))

    def restored(self, data: bytes) -> KeyIterator:
        return KeyIterator.from_bytes(data)

    def bounds(self) -> list[tuple[SlabId, int, int | None]]:
        return [(slab.id, slab.since_us, slab.until_us) for slab in self.database.slabs()]


class World:
    """A directory, a clock that moves when told, and one layout over them."""

    def __init__(self, path: PurePath, layout: Any) -> None:
        self._path = path
        self._layout = layout
        self.clock = ManualClock(NOW_US)
        self.open()

    def open(self) -> None:
        self._store = Store(self._path, clock=self.clock)
        self.layout = self._layout(self._store)
        self.database: Any = self.layout.database

    def close(self) -> None:
        self._store.close()

    def reopen(self) -> None:
        self.close()
        self.open()

    def write(self, *topics: str) -> None:
        for topic in topics:
            self.layout.write(topic, topic.encode())

    def read(self, topic_filter: str, since: int = 0, until: int | None = None) -> list[str]:
        """Return topics and times since the start, in order of time."""
        end = None if until is None else NOW_US + until
        rows: list[Row] = self.layout.read(topic_filter, NOW_US + since, end)
        assert all(row.value == row.topic.encode() for row in rows)
        found = sorted(rows, key=lambda row: row.timestamp_us)
        return [f"{row.topic} {row.timestamp_us - NOW_US}" for row in found]

    def stream(self, topic_filter: str = "#") -> StreamRef:
        (stream,) = self.database.streams(topic_filter)
        assert isinstance(stream, StreamRef)
        return stream

    def next(self, iterator: Any, rows_max: int = 100, until: int | None = None) -> Any:
        """Read on; return the rows, the status, and the position as it comes back from bytes."""
        end = None if until is None else NOW_US + until
        found = self.database.next(iterator, rows_max, until_us=end)
        rows = [f"{row.topic} {row.timestamp_us - NOW_US}" for row in found.batch.rows()]
        restored = self.layout.restored(found.iterator.to_bytes())
        assert restored == found.iterator
        return rows, found.status, restored


@pytest.fixture(params=[LogLayout, KeyValueLayout])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "data", request.param)
    yield world
    world.close()


def test_rows_are_read_by_filter_and_half_open_time(world: World) -> None:
    world.write("a/x", "a/y", "b/x", "$s/x", "a/x")
    assert world.read("#") == ["a/x 0", "a/y 1", "b/x 2", "a/x 4"]
    assert world.read("a/+") == ["a/x 0", "a/y 1", "a/x 4"]
    assert world.read("+/x", 1, 4) == ["b/x 2"]
    assert world.read("$s/#") == ["$s/x 3"]
    assert world.read("a/x", 4, 5) == ["a/x 4"]
    assert world.read("a/x", 5) == []
    assert world.read("c/#") == []


def test_times_are_microseconds_that_rise_by_one_and_across_restarts(world: World) -> None:
    world.write("a/x")
    world.clock.jump(-1)
    world.reopen()
    world.write("a/x")
    world.clock.jump(2)
    world.write("a/x")
    assert world.read("a/x") == ["a/x 0", "a/x 1", "a/x 1000000"]


def test_a_stream_and_an_iterator_outlive_the_process(world: World) -> None:
    world.write("a/x", "a/x", "a/x")
    stream = StreamRef.from_bytes(world.stream().to_bytes())
    assert stream.pattern == "a/+"
    rows, status, iterator = world.next(world.database.iterator(stream), 2)
    assert (rows, status) == (["a/x 0", "a/x 1"], Status.MORE)
    world.reopen()
    rows, status, iterator = world.next(iterator)
    assert (rows, status) == (["a/x 2"], Status.CAUGHT_UP)
    world.write("a/x")
    rows, status, iterator = world.next(iterator)
    assert (rows, status) == (["a/x 3"], Status.CAUGHT_UP)


def test_a_fresh_iterator_is_inclusive_and_an_advanced_one_goes_on(world: World) -> None:
    world.write("a/x", "a/x", "a/x")
    stream = world.stream()
    rows, _, iterator = world.next(world.database.iterator(stream, "#", NOW_US + 1), 1)
    assert rows == ["a/x 1"]
    assert world.next(iterator)[0] == ["a/x 2"]


def test_an_iterator_takes_only_its_filter(world: World) -> None:
    world.write("a/x", "a/y", "a/x")
    stream = world.stream()
    assert world.next(world.database.iterator(stream, "a/y"))[0] == ["a/y 1"]
    assert world.next(world.database.iterator(stream, "+/x"))[0] == ["a/x 0", "a/x 2"]


def test_a_limit_of_time_is_exclusive_and_no_end(world: World) -> None:
    world.write("a/x", "a/x", "a/x")
    world.database.seal()
    iterator = world.database.iterator(world.stream())
    rows, status, iterator = world.next(iterator, until=1)
    assert (rows, status) == (["a/x 0"], Status.LIMIT)
    rows, status, iterator = world.next(iterator, until=1)
    assert (rows, status) == ([], Status.LIMIT)
    rows, status, iterator = world.next(iterator, until=2)
    assert (rows, status) == (["a/x 1"], Status.LIMIT)
    rows, status, iterator = world.next(iterator)
    assert (rows, status) == (["a/x 2"], Status.END)


def test_generations_adjoin_and_a_sealed_one_ends(world: World) -> None:
    world.write("a/x")
    world.clock.advance(1)
    world.database.seal()
    world.write("a/x")
    (first, since, until), (second, later, end) = world.layout.bounds()
    assert (first, second) == (SlabId(0, 1), SlabId(0, 2))
    assert (since, until, later, end) == (NOW_US, later, NOW_US + 1_000_000, None)
    streams = world.database.streams("a/x")
    found = [world.next(world.database.iterator(stream))[:2] for stream in streams]
    assert [(len(rows), status) for rows, status in found] == [
        (1, Status.END),
        (1, Status.CAUGHT_UP),
    ]


def test_a_dropped_slab_is_gone_for_its_streams_and_iterators_and_after_a_restart(
    world: World,
) -> None:
    world.write("a/x")
    stream = world.stream()
    fresh = world.database.iterator(stream)
    used = world.next(fresh)[2]
    world.database.seal()
    world.write("a/x")
    with pytest.raises(UsageError):
        world.database.drop_slab(SlabId(0, 2))
    with pytest.raises(NotFoundError):
        world.database.drop_slab(SlabId(0, 3))
    world.database.drop_slab(SlabId(0, 1))
    for _ in range(2):
        calls: list[Callable[[], object]] = [
            lambda: world.database.next(fresh),
            lambda: world.database.next(used),
            lambda: world.database.iterator(stream),
        ]
        for call in calls:
            with pytest.raises(SlabDroppedError):
                call()
        assert len(world.read("#")) == 1
        world.reopen()


def test_settings_change_and_hold_from_the_next_generation_on(world: World) -> None:
    world.write("a/x", "b/x")
    world.database.configure(thresholds=[0])
    world.database.seal()
    world.reopen()
    world.write("c/x")
    assert world.read("#") == ["a/x 0", "b/x 1", f"c/x {_last(world)}"]
    patterns = {(ref.slab.generation, ref.pattern) for ref in world.database.streams()}
    assert patterns == {(1, "a/+"), (1, "b/+"), (2, "+/+")}


def _last(world: World) -> int:
    rows: list[Row] = world.layout.read("c/x", 0, None)
    return rows[-1].timestamp_us - NOW_US


def test_structure_of_special_topics_is_inherited(world: World) -> None:
    world.write("$s/x", "a/x")
    world.database.seal()
    world.write("$s/y", "a/y")
    patterns = [ref.pattern for ref in world.database.streams("$s/#")]
    assert patterns == ["$s/+", "$s/+"]
    assert [ref.pattern for ref in world.database.streams("#")] == ["a/+", "a/+"]
