from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from siltstone.errors import InvalidTopicError, SlabDroppedError, UsageError
from siltstone.store.kv.api import DEFAULT_FAMILY, Changes
from siltstone.store.log.iterator import StreamRef
from siltstone.store.log.read.pieces import SCHEMA, Row
from siltstone.store.log.read.scan import Status
from siltstone.store.slab.manifest import SlabId
from siltstone.store.tx.iterator import KeyIterator, KeyRead, batch_of_rows
from siltstone.topic.grammar import TopicFilter
from tests.support.tx_builders import World

ITERATOR = KeyIterator(
    database="test",
    slab=SlabId(3, 4),
    stream_id=(1 << 64) - 1,
    since_us=5,
    filter=TopicFilter.parse("ä/+"),
    after=b"\x00\xff",
    identity="5eed",
)
OLD = replace(ITERATOR, identity="")


def test_an_iterator_outlives_the_process_as_bytes() -> None:
    data = ITERATOR.to_bytes()
    assert KeyIterator.from_bytes(data) == ITERATOR
    assert data[:3] == b"SK\x02"


def test_an_iterator_that_an_earlier_version_saved_has_no_identity() -> None:
    data = OLD.to_bytes()
    assert data[:3] == b"SK\x01"
    assert len(ITERATOR.to_bytes()) == len(data) + 8
    assert KeyIterator.from_bytes(data) == OLD


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SI" + ITERATOR.to_bytes()[2:],
        ITERATOR.to_bytes()[:-1],
        ITERATOR.to_bytes()[:30],
        ITERATOR.to_bytes() + b"x",
        ITERATOR.to_bytes()[:31] + b"\xff\xff\xff\xff",
        ITERATOR.to_bytes().replace(b"test", b"\xff\xff\xff\xff"),
        ITERATOR.to_bytes().replace(b"5eed", b"\xff\xff\xff\xff"),
        ITERATOR.to_bytes().replace(b"\x04\x00\x00\x005eed", b"\x00\x00\x00\x00"),
        b"SK\x01" + ITERATOR.to_bytes()[3:],
        b"SK\x02" + OLD.to_bytes()[3:],
    ],
)
def test_other_bytes_are_no_iterator(data: bytes) -> None:
    with pytest.raises(UsageError, match="invalid saved iterator"):
        KeyIterator.from_bytes(data)


def test_a_later_version_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown version 3"):
        KeyIterator.from_bytes(b"SK\x03" + ITERATOR.to_bytes()[3:])
    with pytest.raises(InvalidTopicError):
        KeyIterator.from_bytes(ITERATOR.to_bytes().replace("ä/+".encode(), b"####"))


class Reader:
    """Reads a stream of a world on from where it stands."""

    def __init__(self, world: World, topic_filter: str = "#", since_us: int = 0) -> None:
        self.database = world.database
        (stream,) = world.database.streams()
        self.iterator = world.database.iterator(stream, topic_filter, since_us)

    def read(self, rows_max: int = 100, until_us: int | None = None) -> KeyRead:
        # As saved and restored in between.
        self.iterator = KeyIterator.from_bytes(self.iterator.to_bytes())
        found = self.database.next(self.iterator, rows_max, until_us=until_us)
        self.iterator = found.iterator
        return found

    def rows(self, rows_max: int = 100, until_us: int | None = None) -> tuple[list[str], Status]:
        found = self.read(rows_max, until_us)
        return [f"{r.topic} {r.timestamp_us}" for r in found.batch.rows()], found.status


def filled(rows: list[tuple[str, int]]) -> World:
    world = World(thresholds=(0,))
    for topic, time_us in rows:
        world.write(topic, b"v", time_us=time_us)
    return world


def test_reading_on_gives_every_row_once_by_topic_and_then_by_time() -> None:
    with filled([("b/x", 1), ("a/x", 2), ("a/x", 1), ("a/y", 7)]) as world:
        reader = Reader(world)
        assert reader.rows(2) == (["a/x 1", "a/x 2"], Status.MORE)
        assert reader.rows(2) == (["a/y 7", "b/x 1"], Status.MORE)
        assert reader.rows(2) == ([], Status.CAUGHT_UP)
        world.write("c/x", b"v", time_us=1)
        assert reader.rows(2) == (["c/x 1"], Status.CAUGHT_UP)
        world.database.seal()
        assert reader.rows(2) == ([], Status.END)


def test_a_fresh_iterator_starts_at_its_time_inclusive_and_takes_only_its_filter() -> None:
    with filled([("a/x", 4), ("a/x", 5), ("a/y", 5), ("b/x", 6)]) as world:
        assert Reader(world, since_us=5).rows() == (["a/x 5", "a/y 5", "b/x 6"], Status.CAUGHT_UP)
        assert Reader(world, "+/x", 5).rows() == (["a/x 5", "b/x 6"], Status.CAUGHT_UP)
        assert Reader(world, "c/c/c").rows() == ([], Status.CAUGHT_UP)


def test_a_read_that_reaches_its_limit_goes_on_there_from_the_first_topic() -> None:
    with filled([("a/x", 1), ("a/x", 5), ("b/x", 2), ("b/x", 9)]) as world:
        world.database.seal()
        reader = Reader(world)
        assert reader.rows(until_us=5) == (["a/x 1", "b/x 2"], Status.LIMIT)
        assert reader.rows(until_us=5) == ([], Status.LIMIT)
        assert reader.rows(1, until_us=9) == (["a/x 5"], Status.MORE)
        # Nothing is left below the limit, and it is not the end.
        assert reader.rows(1, until_us=9) == ([], Status.LIMIT)
        assert reader.rows(until_us=10) == (["b/x 9"], Status.END)


def test_a_limit_behind_all_rows_is_caught_up() -> None:
    with filled([("a/x", 1)]) as world:
        assert Reader(world).rows(until_us=1 << 63) == (["a/x 1"], Status.CAUGHT_UP)
        assert Reader(world).rows(until_us=1) == ([], Status.LIMIT)


def test_a_batch_is_rows_and_arrow() -> None:
    with filled([("a/x", 1)]) as world:
        batch = Reader(world).read().batch
        (row,) = batch.rows()
        assert row == Row("a/x", b"v", timestamp_us=1, shard=0, generation=1, stream=row.stream)
        assert (len(batch), batch.num_rows) == (1, 1)
        assert batch.arrow().schema == SCHEMA
        assert batch.arrow().to_pylist()[0]["topic"] == "a/x"
        columns = ["value", "timestamp"]
        assert batch.arrow(columns).column(1).cast(pa.int64()).to_pylist() == [1]
        assert batch_of_rows([]).arrow().schema == SCHEMA
        with pytest.raises(UsageError):
            batch.arrow(["colour"])


def test_places_of_another_database_of_the_same_name_are_refused() -> None:
    with World() as former, World() as later:
        for world in (former, later):
            world.write("a", b"1")
        (stream,) = former.database.streams()
        moved = former.database.next(former.database.iterator(stream)).iterator
        read = KeyIterator.from_bytes(moved.to_bytes())
        assert former.reopen().next(read).batch.rows() == []
        with pytest.raises(SlabDroppedError, match="iterator belongs to an earlier database"):
            later.database.next(read)
        with pytest.raises(SlabDroppedError, match="stream belongs to an earlier database"):
            later.database.iterator(StreamRef.from_bytes(stream.to_bytes()))


def test_places_that_an_earlier_version_saved_belong_to_a_database_that_is_as_old() -> None:
    with World() as world:
        world.write("a", b"1")
        (stream,) = world.database.streams()
        old_stream = replace(stream, identity="")
        old = replace(world.database.iterator(stream), identity="")
        with pytest.raises(SlabDroppedError, match="iterator=unknown, an earlier version saved it"):
            world.database.next(old)
        # As an earlier version left it.
        changes = Changes()
        changes.put(DEFAULT_FAMILY, b"identity\x00", None)
        world.engine.write(changes)
        world.reopen()
        read = world.database.next(old)
        assert [row.value for row in read.batch.rows()] == [b"1"]
        assert read.iterator.identity
        # What it got then is its own for ever.
        assert world.reopen().next(read.iterator).batch.rows() == []
        assert world.database.iterator(old_stream).identity == read.iterator.identity
