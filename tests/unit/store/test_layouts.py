"""One kind of database over both layouts: what each can do, and what it says it cannot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from siltstone.errors import InvalidTopicError, NotFoundError, UsageError
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.keyvalue import KeyValueDatabase
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.log.iterator import StreamIterator
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.read.scan import Status
from siltstone.store.log.write.partition import Columns
from siltstone.store.tx.settings import KeyValueSettings
from tests.support.builders import NAME, World, settings_of
from tests.support.tx_builders import START_US
from tests.support.tx_builders import World as KeyWorld


@pytest.fixture
def store() -> Iterator[Store]:
    world = World()
    with world.store() as store:
        yield store


@pytest.fixture(params=["log", "keyvalue"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """Return a database of either layout, with the same interface."""
    if request.param == "log":
        with World().store() as store:
            yield store.create(NAME, settings_of())
    else:
        keyed = KeyWorld(feed_bytes=1 << 20).database
        yield Database(keyed)
        keyed.close()


def test_rows_are_appended_read_counted_and_followed_in_the_same_way(database: Database) -> None:
    database.append([Row("a/1", b"1"), Row("b", b"2")]).wait()
    database.append(Columns([b"a/2"], [b"3"])).wait()
    (batch,) = database.read("a/+", columns=["topic", "value"])
    assert batch.to_pydict() == {"topic": ["a/1", "a/2"], "value": [b"1", b"3"]}
    assert [each.num_rows for each in database.read(rows_max=1)] == [1]
    assert (database.count("#"), database.count("b")) == (3, 1)
    with database.feed("a/#") as feed:
        values: list[bytes] = []
        while len(values) < 2:
            read = feed.next(20.0)
            assert read is not None
            values += [change.value for change in read.changes() if change.value is not None]
        assert values == [b"1", b"3"]
        assert feed.position == database.end_position()


def test_an_iterator_continues_after_its_bytes_were_saved(database: Database) -> None:
    database.append([Row("a", b"1")]).wait()
    (stream,) = database.streams("a")
    iterator = database.iterator(stream)
    assert isinstance(iterator, StreamIterator)
    first = database.next(iterator)
    assert ([row.value for row in first.batch.rows()], first.status) == ([b"1"], Status.CAUGHT_UP)
    database.append([Row("a", b"2")]).wait()
    saved = StreamIterator.from_bytes(first.iterator.to_bytes())
    assert saved == first.iterator
    assert database.next(saved).batch.arrow(["value"])["value"].to_pylist() == [b"2"]


def test_a_generation_ends_and_is_dropped(database: Database) -> None:
    database.append([Row("a", b"1")]).wait()
    (stream,) = database.streams("a")
    database.seal()
    assert database.next(database.iterator(stream)).status is Status.END
    database.drop_slab(stream.slab)
    assert (database.count(), database.enforce_retention()) == (0, [])
    assert database.failure() is None
    database.close()
    assert database.closed


def test_an_iterator_of_the_other_layout_is_refused(database: Database) -> None:
    database.append([Row("a", b"1")]).wait()
    (stream,) = database.streams("a")
    iterator = database.iterator(stream)
    with KeyWorld() if database.layout == "log" else World().store() as other:
        found = (
            other.database
            if isinstance(other, KeyWorld)
            else other.create(database.name, settings_of())
        )
        with pytest.raises(UsageError, match="the iterator belongs to a"):
            found.next(iterator)


class TestStore:
    def test_a_name_opens_either_layout_and_messages_come_first(self) -> None:
        engines: dict[str, MemoryEngine] = {}
        world = World()
        with Store(
            world.store().path,
            fs=World().fs,
            clock=world.clock,
            open_engine=lambda path: engines.setdefault(path.name, MemoryEngine()).reopened(),
        ) as store:
            store.keyvalue("both", KeyValueSettings(timed=False))
            keyed = store.database("both")
            assert (keyed.layout, keyed.name) == ("keyvalue", "both")
            assert keyed.keyvalue is store.keyvalue("both")
            store.create("both", settings_of())
            assert store.database("both").layout == "log"
            with pytest.raises(NotFoundError):
                store.database("neither")


class TestLog:
    def test_rows_are_not_changed_one_by_one(self, store: Store) -> None:
        database = store.create(NAME, settings_of())
        with pytest.raises(UsageError, match="only appended, and never replaced or deleted"):
            database.transaction()
        with pytest.raises(UsageError, match="only appended, and never replaced or deleted"):
            _ = database.keyvalue

    def test_rows_have_no_times_of_their_own(self, store: Store) -> None:
        database = store.create(NAME, settings_of())
        with pytest.raises(UsageError, match="the store sets timestamp_us"):
            database.append([Row("a", b"1", timestamp_us=5)])


class TestKeyValue:
    def test_what_only_messages_have_is_refused(self) -> None:
        with KeyWorld() as world:
            database = Database(world.database)
            for call in (database.extents, database.holes, database.structure, database.sync):
                with pytest.raises(UsageError, match="'test' is a key-value database"):
                    call()
            with pytest.raises(UsageError, match="'test' is a key-value database"):
                _ = database.settings

    def test_rows_may_have_times_of_their_own(self) -> None:
        with KeyWorld() as world:
            ticket = world.database.append([Row("a", b"1", timestamp_us=5), Row("a", b"2")])
            ticket.wait()
            assert world.rows() == [("a", 5, b"1"), ("a", START_US, b"2")]
            world.database.append([Row("a", b"3", timestamp_us=5)]).wait()
            assert world.rows() == [("a", 5, b"3"), ("a", START_US, b"2")]

    def test_in_a_plain_map_rows_replace_values_and_have_no_times(self) -> None:
        with KeyWorld(timed=False) as world:
            world.database.append([Row("a", b"1"), Row("a", b"2")]).wait()
            assert world.database.get("a") == b"2"
            with pytest.raises(UsageError, match="do not have a time"):
                world.database.append([Row("a", b"1", timestamp_us=5)])

    def test_a_call_is_stored_as_a_whole_or_not_at_all(self) -> None:
        with KeyWorld() as world:
            with pytest.raises(InvalidTopicError):
                world.database.append([Row("a", b"1"), Row("a/+", b"2")])
            with pytest.raises(InvalidTopicError, match="not valid UTF-8"):
                world.database.append(Columns([b"a", b"\xff"], [b"", b""]))
            assert world.rows() == []

    def test_a_call_of_a_producer_is_stored_once(self) -> None:
        with KeyWorld() as world:
            for expected in (False, True):
                ticket = world.database.append([Row("a", b"1")], producer=("loader", 7))
                ticket.wait()
                assert ticket.duplicate is expected
            later = world.database.append([Row("a", b"2")], producer=("loader", 8))
            assert not later.wait().duplicate
            assert len(world.rows()) == 2

    @pytest.mark.parametrize(
        "row",
        [
            Row("a", b"", publisher="p"),
            Row("a", b"", qos=1),
            Row("a", b"", retain=True),
            Row("a", b"", properties=b"x"),
            Row("a", b"", serial=4),
        ],
    )
    def test_what_would_not_be_stored_is_refused(self, row: Row) -> None:
        with KeyWorld() as world:
            with pytest.raises(UsageError, match="a topic, a value and perhaps a timestamp"):
                world.database.append([row])
            columns = Columns([b"a"], [b""], row.publisher.encode(), row.qos, [row.properties])
            if row.publisher or row.qos or row.properties:
                with pytest.raises(UsageError, match="a topic, a value and perhaps a timestamp"):
                    world.database.append(columns)

    def test_the_shard_is_selected_as_for_a_transaction(self) -> None:
        with KeyWorld(shards=2) as world:
            with pytest.raises(UsageError, match="give a shard or a key"):
                world.database.append([Row("a", b"1")])
            world.database.append([Row("a", b"1")], shard=1).wait()
            (row,) = world.database.read()
            assert row.shard == 1
            assert isinstance(world.database, KeyValueDatabase)
            with pytest.raises(UsageError, match="durability must be one of"):
                world.database.append([Row("a", b"1")], durability="soon")
