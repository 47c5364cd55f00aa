from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePath
from threading import Thread
from typing import Any, cast

import pytest

from siltstone.clock import ManualClock
from siltstone.errors import (
    ClosedError,
    ConflictError,
    CorruptionError,
    NotFoundError,
    OutcomeUnknownError,
    PoisonedError,
    PreconditionError,
    SiltstoneError,
    SlabDroppedError,
    StorageFullError,
    UsageError,
)
from siltstone.store.keyvalue import KeyValueDatabase
from siltstone.store.kv.api import DEFAULT_FAMILY, Changes
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.log.iterator import StreamRef
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.read.scan import Status
from siltstone.store.log.write.partition import shard_of
from siltstone.store.slab.manifest import SlabId, SlabState
from siltstone.store.tx import catalog
from siltstone.store.tx.retry import Committed
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.tx.transaction import Transaction
from tests.support.tx_builders import START_US, World
from tests.support.tx_model import held, opened, queue_of


def test_arguments_of_the_wrong_kind_are_refused_by_name() -> None:
    with World(timed=False) as world:
        database = world.database
        wrong: Any = b"5"
        calls: list[tuple[str, Callable[[], object]]] = [
            ("key must be text", lambda: database.shard_of(wrong)),
            ("key must be text", lambda: database.transaction(key=wrong)),
            ("shard must be a whole number", lambda: database.transaction(shard=wrong)),
            ("generation must be a whole number", lambda: database.transaction(generation=wrong)),
            ("timeout must be a number of seconds", lambda: database.transaction(timeout=wrong)),
            ("id must be text", lambda: database.transaction(id=wrong)),
            ("retries must be a whole number", lambda: database.transact(print, retries=wrong)),
            ("function must be a function", lambda: database.transact(wrong)),
            ("id must be text", lambda: database.outcome(wrong)),
            ("collection must be text", lambda: database.take(wrong)),
            ("topic must be text", lambda: database.get(wrong)),
            ("since_us must be a whole number", lambda: database.read("#", wrong)),
            ("until_us must be a whole number", lambda: database.read("#", 0, wrong)),
            ("first_topic must be text", lambda: database.read("#", first_topic=wrong)),
            ("stream must be one that streams() returned", lambda: database.iterator(wrong)),
            (
                "iterator must be one that iterator() or next() returned",
                lambda: database.next(wrong),
            ),
            ("slab must be a SlabId", lambda: database.drop_slab(wrong)),
        ]
        for message, call in calls:
            with pytest.raises(UsageError) as caught:
                call()
            assert str(caught.value) == f"{message}: type=bytes"


class TestOpening:
    def test_settings_of_an_existing_database_win(self) -> None:
        with World(timed=False, shards=3) as world:
            world.database.close()
            engine = world.memory.reopened()
            again = opened(engine, world.clock, KeyValueSettings(timed=True))
            assert again.settings == KeyValueSettings(timed=False, shards=3)
            again.close()

    def test_what_was_committed_is_there_and_contexts_of_before_are_refused(self) -> None:
        with World() as world:
            world.write("a", b"v", time_us=1)
            before = world.database.transaction()
            before.write("a", b"late", 1)
            world.reopen()
            assert world.rows() == [("a", 1, b"v")]
            with pytest.raises(ClosedError):
                before.commit()
            with world.database.transaction() as tx:
                assert tx.term == 2

    def test_families_that_a_crash_has_left_are_dropped(self) -> None:
        with World() as world:
            world.memory.create_family("0.2")
            world.memory.create_family("stranger")
            world.reopen()
            assert world.memory.families() == ["0.1", DEFAULT_FAMILY]

    def test_a_creation_that_was_cut_short_is_finished(self) -> None:
        engine = MemoryEngine()
        engine.create_family("0.1")
        with World() as world:
            database = opened(engine, world.clock)
            assert [record.id for record in database.slabs()] == [SlabId(0, 1)]
            database.close()

    def test_an_opening_that_fails_lets_go_of_the_engine(self) -> None:
        with World(shards=2) as world:
            world.database.close()
            engine = world.memory.reopened()
            changes = Changes()
            catalog.put_edges(changes, SlabId(1, 1), 0, b"nonsense")
            engine.write(changes)
            with pytest.raises(CorruptionError):
                opened(engine, world.clock)
            assert engine.closed


class TestShards:
    def test_a_key_has_its_shard_for_ever(self) -> None:
        with World(shards=7) as world:
            database = world.database
            found = [database.shard_of(f"key-{n}") for n in range(5)]
            assert found == [shard_of(b"key-%d" % n, 7) for n in range(5)]
            with database.transaction(key="key-1") as tx:
                tx.write("a", b"v", 1)
            (row,) = database.read(key="key-1")
            assert row.shard == database.shard_of("key-1")
            assert database.get("a", 1, key="key-1") == b"v"
            assert database.get("a", 1, shard=(row.shard + 1) % 7) is None

    def test_shards_are_given_in_one_way(self) -> None:
        with World(shards=2) as world:
            for wrong, text in [
                ({}, "give a shard or a key: the database has more than one shard: shards=2"),
                ({"shard": 0, "key": "x"}, "give a shard or a key, not both"),
                ({"shard": 2}, "shard must be from 0 to 1, got 2"),
                ({"shard": -1}, "shard must be from 0 to 1, got -1"),
            ]:
                with pytest.raises(UsageError) as caught:
                    world.database.transaction(**cast("Any", wrong))
                assert str(caught.value) == text

    def test_shards_have_serials_and_rows_of_their_own(self) -> None:
        with World(shards=2) as world:
            serials = []
            for shard in (0, 1, 1):
                with world.database.transaction(shard=shard) as tx:
                    tx.write("a", b"%d" % shard)
                serials.append(tx.serial)
            assert serials == [1, 1, 2]
            assert [(row.shard, row.value) for row in world.database.read("a")] == [
                (0, b"0"),
                (1, b"1"),
                (1, b"1"),
            ]
            assert [row.shard for row in world.database.read("a", shard=1)] == [1, 1]


class TestTransact:
    def test_the_function_runs_again_on_what_has_changed(self) -> None:
        with World(timed=False) as world:
            world.write("n", b"0")
            runs: list[bytes | None] = []

            def increment(tx: Transaction) -> str:
                found = tx.get("n")
                runs.append(found)
                if len(runs) == 1:
                    world.write("n", b"10")
                tx.write("n", b"%d" % (int(found or b"0") + 1))
                return "done"

            assert world.database.transact(increment) == Committed(
                value="done", serial=3, attempts=2, duplicate=False
            )
            assert (runs, world.database.get("n")) == ([b"0", b"10"], b"11")

    def test_without_retries_a_conflict_is_raised(self) -> None:
        with World(timed=False) as world:

            def clash(tx: Transaction) -> None:
                tx.get("n")
                world.write("n", b"")
                tx.write("m", b"")

            with pytest.raises(ConflictError):
                world.database.transact(clash, retries=0)

    def test_a_generation_that_is_sealed_meanwhile_is_tried_again_in_the_next(self) -> None:
        with World() as world:
            generations: list[int] = []

            def write(tx: Transaction) -> None:
                generations.append(tx.generation)
                tx.write("a", b"v", 1)
                if len(generations) == 1:
                    world.database.seal()

            world.database.transact(write)
            assert generations == [1, 2]
            assert [row.generation for row in world.database.read()] == [2]

    @pytest.mark.parametrize("stored", [True, False])
    def test_an_id_makes_a_retry_after_an_unknown_outcome_safe(self, stored: bool) -> None:
        with World(timed=False) as world:
            world.write("n", b"0")

            def increment(tx: Transaction) -> None:
                tx.write("n", b"%d" % (int(tx.get("n") or b"") + 1))

            world.fail_write(stored=stored)
            with pytest.raises(OutcomeUnknownError):
                world.database.transact(increment, id="x", retries=0)
            world.crash()
            assert world.database.outcome("x") == (2 if stored else None)
            again = world.database.transact(increment, id="x")
            assert (again.serial, again.duplicate) == (2, stored)
            assert world.database.get("n") == b"1"
            assert world.database.outcome("x") == 2


class TestReading:
    def test_a_read_covers_all_generations_and_shards_oldest_first(self) -> None:
        with World(shards=2) as world:
            for generation in (1, 2):
                for shard in (1, 0):
                    with world.database.transaction(shard=shard) as tx:
                        tx.write(f"a/{shard}", b"%d" % generation, 1)
                if generation == 1:
                    world.database.seal()
            found = [(row.generation, row.shard, row.value) for row in world.database.read("a/+")]
            assert found == [(1, 0, b"1"), (1, 1, b"1"), (2, 0, b"2"), (2, 1, b"2")]

    def test_a_read_is_half_open_in_time(self) -> None:
        with World() as world:
            for time_us in (1, 2, 3):
                world.write("a", b"%d" % time_us, time_us=time_us)
            assert [row.value for row in world.database.read("a", 1, 3)] == [b"1", b"2"]
            assert [row.value for row in world.database.read("a", 2)] == [b"2", b"3"]
            with pytest.raises(UsageError, match="times must be 0 or more: since_us"):
                world.database.read("a", -1)

    def test_a_read_may_begin_with_a_topic(self) -> None:
        with World(timed=False, thresholds=(0,)) as world:
            for topic in ("a", "b", "d"):
                world.write(topic)
            found = [row.topic for row in world.database.read("+", first_topic="c")]
            assert found == ["d"]

    def test_a_read_that_has_begun_sees_nothing_newer(self) -> None:
        with World(thresholds=(0,)) as world:
            for topic in ("a", "b"):
                world.write(topic, b"old", time_us=1)
            reading = world.database.read("#")
            first = next(reading)
            world.write("b", b"new", time_us=1)
            world.write("c", b"new", time_us=1)
            assert [first.value, *(row.value for row in reading)] == [b"old", b"old"]

    def test_a_read_ends_when_the_database_is_closed(self) -> None:
        with World(thresholds=(0,)) as world:
            for number in range(100):
                world.write(str(number), b"", time_us=1)
            reading = world.database.read("#")
            next(reading)
            world.database.close()
            with pytest.raises(ClosedError):
                list(reading)
            with pytest.raises(ClosedError):
                world.database.read("#")

    def test_streams_are_those_with_rows(self) -> None:
        with World(thresholds=(-1, 0)) as world:
            world.write("a/1", b"", time_us=1)
            world.write("b/1", b"", time_us=1)
            world.database.seal()
            world.write("a/2", b"", time_us=1)
            patterns = [(ref.slab, ref.pattern) for ref in world.database.streams("#")]
            assert sorted(patterns) == [
                (SlabId(0, 1), "a/+"),
                (SlabId(0, 1), "b/+"),
                (SlabId(0, 2), "a/+"),
            ]
            newest = world.database.streams("a/1", generation_min=2)
            assert [(ref.slab, ref.pattern) for ref in newest] == [(SlabId(0, 2), "a/+")]
            ref = newest[0]
            assert StreamRef.from_bytes(ref.to_bytes()) == ref

    def test_iterators_belong_to_their_database_and_stream(self) -> None:
        with World() as world:
            world.write("a", b"", time_us=1)
            (stream,) = world.database.streams()
            iterator = world.database.iterator(stream)
            calls: list[tuple[Callable[[], object], type[Exception]]] = [
                (lambda: world.database.iterator(replace(stream, database="x")), UsageError),
                (lambda: world.database.iterator(replace(stream, stream_id=1)), NotFoundError),
                (lambda: world.database.next(replace(iterator, database="x")), UsageError),
                (lambda: world.database.next(iterator, 0), UsageError),
            ]
            for call, kind in calls:
                with pytest.raises(kind):
                    call()
            found = world.database.next(iterator)
            assert found.status is Status.CAUGHT_UP
            assert found.batch.rows() == [
                Row("a", b"", timestamp_us=1, generation=1, stream=stream.stream_id)
            ]


class TestSlabs:
    def test_slabs_adjoin_in_time(self) -> None:
        with World() as world:
            world.write("a", b"")
            world.clock.advance(1)
            world.database.seal()
            first, second = world.database.slabs()
            assert (first.state, second.state) == (SlabState.SEALED, SlabState.CURRENT)
            assert (first.since_us, first.until_us, second.since_us, second.until_us) == (
                START_US,
                START_US + 1_000_000,
                START_US + 1_000_000,
                None,
            )

    def test_a_sealed_generation_is_read_and_not_changed(self) -> None:
        with World() as world:
            world.write("a", b"1", time_us=1)
            world.database.seal()
            world.write("a", b"2", time_us=1)
            with world.database.transaction(generation=1) as tx:
                assert tx.get("a", 1) == b"1"
            tx = world.database.transaction(generation=1)
            tx.write("a", b"late", 1)
            with pytest.raises(UsageError, match="the generation is sealed"):
                tx.commit()
            with world.database.transaction(generation=2) as tx:
                assert tx.get("a", 1) == b"2"
                tx.write("a", b"3", 1)
            world.reopen()
            assert [row.value for row in world.database.read()] == [b"1", b"3"]

    def test_a_dropped_slab_is_gone_for_good(self) -> None:
        with World() as world:
            world.write("a", b"1", time_us=1)
            (stream,) = world.database.streams()
            fresh = world.database.iterator(stream)
            used = world.database.next(fresh).iterator
            reading = world.database.transaction(generation=1)
            world.database.seal()
            world.write("a", b"2", time_us=1)
            world.database.drop_slab(SlabId(0, 1))
            for _ in range(2):
                for call in (
                    lambda: world.database.next(fresh),
                    lambda: world.database.next(used),
                    lambda: world.database.iterator(stream),
                    lambda: world.database.transaction(generation=1),
                    lambda: world.database.drop_slab(SlabId(0, 1)),
                ):
                    with pytest.raises(SlabDroppedError):
                        call()
                assert [row.value for row in world.database.read()] == [b"2"]
                assert world.memory.families() == ["0.2", DEFAULT_FAMILY]
                world.reopen()
            with pytest.raises((SlabDroppedError, ClosedError)):
                reading.get("a", 1)

    def test_the_current_slab_and_unknown_ones_are_not_dropped(self) -> None:
        with World() as world:
            with pytest.raises(UsageError, match="slab 0/1 is current: seal it"):
                world.database.drop_slab(SlabId(0, 1))
            for slab in (SlabId(0, 9), SlabId(7, 1)):
                with pytest.raises(NotFoundError):
                    world.database.drop_slab(slab)

    def test_a_drop_in_the_middle_hides_nothing_older(self) -> None:
        with World() as world:
            for number in range(3):
                world.write("a", b"%d" % number, time_us=1)
                world.database.seal()
            world.database.drop_slab(SlabId(0, 2))
            assert [row.value for row in world.database.read()] == [b"0", b"2"]
            assert [ref.slab.generation for ref in world.database.streams()] == [1, 3]

    def test_a_crash_between_the_two_steps_of_a_drop_is_finished_at_the_next_start(self) -> None:
        with World() as world:
            world.write("a", b"1", time_us=1)
            world.database.seal()
            drop = world.memory.drop_family
            cast("Any", world.memory).drop_family = lambda name: None
            world.database.drop_slab(SlabId(0, 1))
            cast("Any", world.memory).drop_family = drop
            assert world.memory.families() == ["0.1", "0.2", DEFAULT_FAMILY]
            world.crash()
            assert world.memory.families() == ["0.2", DEFAULT_FAMILY]


def settle(world: World) -> None:
    """Let every shard's thread come round once more."""
    for shard in range(world.database.settings.shards):
        for _ in range(2):
            queue_of(world.database, shard).order(lambda: None)


def generations(world: World) -> list[int]:
    return [record.generation for record in world.database.slabs()]


class TestLimits:
    def test_a_generation_turns_over_by_its_age_unless_it_is_empty(self) -> None:
        with World(rotate_seconds=10) as world:
            world.clock.advance(20)
            settle(world)
            assert generations(world) == [1]
            world.write("a", b"old", time_us=1)
            settle(world)
            world.clock.advance(5)
            world.write("a", b"new", time_us=1)
            settle(world)
            assert generations(world) == [1, 2]
            assert [row.value for row in world.database.read("a")] == [b"new"]

    def test_a_generation_turns_over_by_its_size(self) -> None:
        with World(rotate_bytes=1000) as world:
            world.write("a", b"v" * 900, time_us=1)
            world.clock.advance(2)
            settle(world)
            assert generations(world) == [1]
            world.write("a", b"v" * 900, time_us=2)
            world.clock.advance(2)
            settle(world)
            assert generations(world) == [1, 2]

    def test_sealed_generations_are_dropped_by_age(self) -> None:
        with World(retain_seconds=60, shards=2) as world:
            world.database.seal()
            world.clock.advance(30)
            world.database.seal()
            settle(world)
            assert generations(world) == [1, 1, 2, 2, 3, 3]
            world.clock.advance(40)
            settle(world)
            assert generations(world) == [2, 2, 3, 3]
            world.clock.advance(3600)
            settle(world)
            assert generations(world) == [3, 3]

    def test_the_oldest_are_dropped_by_bytes_when_asked_to(self) -> None:
        with World() as world:
            for _ in range(3):
                world.write("a", b"v" * 1000)
                world.database.seal()
            world.database.configure(retain_bytes=2500)
            assert world.database.enforce_retention() == [SlabId(0, 1)]
            assert generations(world) == [2, 3, 4]
            assert world.database.enforce_retention() == []

    def test_what_is_due_stays_due_when_it_fails(self) -> None:
        with World(rotate_seconds=10) as world:
            world.write("a", time_us=1)
            world.clock.advance(20)
            world.fail_write()
            with suppress(PoisonedError):
                settle(world)
            assert generations(world) == [1]
            world.crash()
            world.clock.advance(2)
            settle(world)
            assert generations(world) == [1, 2]


class TestSettings:
    def test_settings_change_and_stay_changed(self) -> None:
        with World() as world:
            expected = KeyValueSettings(max_items=7, quota_bytes=10**9)
            assert world.database.configure(max_items=7, quota_bytes=10**9) == expected
            assert world.database.settings == expected
            world.write("a", b"", time_us=1)
            assert world.reopen().settings == expected

    def test_settings_may_change_while_a_generation_is_turned_over(self) -> None:
        with World() as world:
            with held(world.database):
                sealing = Thread(target=world.database.seal)
                sealing.start()
                changing = Thread(target=lambda: world.database.configure(max_items=7))
                changing.start()
            sealing.join(10)
            changing.join(10)
            assert (len(world.database.slabs()), world.database.settings.max_items) == (2, 7)

    def test_the_encoding_of_a_generation_never_changes(self) -> None:
        with World(thresholds=(-1,)) as world:
            world.write("a/1", b"", time_us=1)
            world.database.configure(thresholds=(-1, 0), max_items=7)
            assert world.database.pending_settings() == {"thresholds": [(-1,)]}
            world.write("a/2", b"", time_us=1)
            world.crash()
            world.write("a/3", b"", time_us=1)
            assert world.database.pending_settings() == {"thresholds": [(-1,)]}
            world.database.seal()
            assert world.database.pending_settings() == {}
            world.write("a/4", b"", time_us=1)
            found = [
                (stream.slab.generation, stream.pattern) for stream in world.database.streams()
            ]
            assert sorted(found) == [(1, "a/1"), (1, "a/2"), (1, "a/3"), (2, "a/+")]

    def test_a_slab_that_an_earlier_version_began_keeps_its_encoding_too(self) -> None:
        with World(thresholds=(-1,)) as world:
            (record,) = world.database.slabs()
            changes = Changes()
            catalog.put_slab(changes, replace(record, encoding=()))
            world.engine.write(changes)
            world.crash().configure(thresholds=(-1, 0))
            world.crash()
            world.write("a/1", b"", time_us=1)
            assert [stream.pattern for stream in world.database.streams()] == ["a/1"]

    def test_the_thresholds_of_a_plain_map_do_not_change(self) -> None:
        with World(timed=False) as world:
            with pytest.raises(UsageError, match="one generation, so its thresholds cannot change"):
                world.database.configure(thresholds=(5,))
            assert world.database.configure(thresholds=(100, 10), max_items=7).max_items == 7

    def test_what_cannot_change_is_refused(self) -> None:
        with World() as world:
            with pytest.raises(UsageError):
                world.database.configure(timed=False)
            with pytest.raises(UsageError):
                world.database.configure(colour="red")
            assert world.database.settings == KeyValueSettings()


class TestClosing:
    def test_closing_twice_is_closing_once(self) -> None:
        world = World()
        world.database.close()
        world.database.close()
        assert world.database.closed
        assert world.memory.closed

    def test_a_closed_database_does_nothing(self) -> None:
        world = World()
        database = world.database
        database.close()
        calls: list[Any] = [
            database.transaction,
            lambda: database.transact(lambda tx: None),
            lambda: database.get("a", 1),
            database.streams,
            database.slabs,
            database.seal,
            lambda: database.drop_slab(SlabId(0, 1)),
            lambda: database.configure(max_items=5),
            database.size_bytes,
            lambda: database.outcome("x"),
        ]
        for call in calls:
            with pytest.raises(ClosedError):
                call()

    def test_the_size_is_that_of_what_is_stored(self) -> None:
        with World() as world:
            before = world.database.size_bytes()
            world.write("a", b"v" * 10_000, time_us=1)
            assert 10_000 <= world.database.size_bytes() - before < 11_000


def test_an_outcome_is_known_only_when_everything_handed_in_before_has_ended() -> None:
    with World() as world:
        tx = world.database.transaction(id="x")
        tx.write("a", b"", 1)
        found: list[int | None] = []
        with held(world.database):
            tx.submit()
            asking = Thread(target=lambda: found.append(world.database.outcome("x")))
            asking.start()
        asking.join()
        assert found == [1]


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), 1e300])
def test_a_timeout_that_none_is_is_refused_before_anything_happens(timeout: float) -> None:
    with World(timed=False) as world, pytest.raises(UsageError, match="timeout must be from 0 to"):
        world.database.transaction(timeout=timeout)


def test_a_disk_that_is_almost_full_refuses_writes_and_is_got_over() -> None:
    full = StorageFullError(PurePath("/kv"), needed_bytes=9)
    refusals: list[SiltstoneError | None] = []
    settings = KeyValueSettings(timed=False)
    database = KeyValueDatabase(
        MemoryEngine(), ManualClock(), "t", settings, room=lambda _: refusals[-1]
    )

    def put(value: bytes) -> None:
        with database.transaction() as tx:
            tx.write("a", value)

    refusals.append(None)
    put(b"1")
    refusals.append(full)
    with pytest.raises(StorageFullError):
        put(b"2")
    # What asks for something that is not there writes nothing, and what deletes makes room.
    tx = database.transaction()
    tx.require_present("none")
    tx.write("a", b"3")
    with pytest.raises(PreconditionError):
        tx.commit()
    with database.transaction() as tx:
        tx.delete("b")
    refusals.append(None)
    put(b"4")
    assert database.get("a") == b"4"
    database.close()
