from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from pyspark.sql.types import LongType, StructField, StructType

from siltstone.errors import SlabDroppedError, UsageError
from siltstone.fs.posix import PosixFileSystem
from siltstone.fs.publish import replace_file
from siltstone.pipeline.source.schema import spark_schema
from siltstone.pipeline.source.stream_reader import SiltstoneStreamReader
from siltstone.scan.options import StartTimes
from siltstone.store.database import Database
from siltstone.store.feed.position import END, Position
from siltstone.store.slab.manifest import Manifest, SlabId
from tests.support.builders import NAME, PATH, World, rows_on, settings_of
from tests.support.pipeline import (
    by_place,
    options_of,
    reader_of,
    rows_in,
    stored_rows,
    stream_of,
    through_pickle,
)

ALL = ReadAllAvailable()


# All databases here get this salt but those that a test creates anew.
SALT = 7
IDENTITY = Manifest(database=NAME, salt=SALT, settings=settings_of(), slabs=()).identity.text


@pytest.fixture(autouse=True)
def _salt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siltstone.store.directory.secrets.randbits", lambda _: SALT)


def at(*serials: int, identity: str = IDENTITY) -> dict[str, Any]:
    return Position(dict(enumerate(serials)), identity=identity).to_json()


def append(database: Database, *topics: str) -> None:
    database.append(rows_on(*topics)).wait()


def topics_between(
    stream: SiltstoneStreamReader, start: dict[str, Any], end: dict[str, Any]
) -> list[str]:
    return sorted(row["topic"] for row in rows_in(stream, stream.partitions(start, end)))


def test_a_stream_begins_with_the_oldest_row_unless_told_otherwise() -> None:
    world = World()
    with world.database() as database:
        append(database, "a")
        database.seal()
        append(database, "b")
        database.drop_slab(SlabId(0, 1))
        assert stream_of(world).initialOffset() == at(1)
        assert stream_of(world, starting=END).initialOffset() == at(2)
        assert stream_of(world, starting=Position({0: 1})).initialOffset() == at(1)


def test_micro_batches_follow_the_writer() -> None:
    world = World()
    with world.database() as database:
        stream = stream_of(world)
        start = stream.initialOffset()
        assert (start, stream.latestOffset(start, ALL)) == (at(0), at(0))
        append(database, "a", "b")
        first = stream.latestOffset(start, ALL)
        append(database, "c")
        assert (first, topics_between(stream, start, first)) == (at(2), ["a", "b"])
        second = stream.latestOffset(first, ALL)
        assert (second, topics_between(stream, first, second)) == (at(3), ["c"])
        assert stream.latestOffset(second, ALL) == second
        assert stream.reportLatestOffset() == at(3) | {
            "source": {"store": str(PATH), "filter": ["#"]},
            "lag": {"rows": 0, "seconds": 0.0},
        }


def test_the_lag_is_what_is_not_read_after_the_batch_that_is_planned() -> None:
    world = World()
    with world.database() as database:
        append(database, "a", "b", "c")
        world.clock.advance(4)
        append(database, "d")
        world.clock.advance(2)
        stream = stream_of(world, rows_per_trigger=1, filters=("b", "d"), database=NAME)
        assert stream.reportLatestOffset()["lag"] == {"rows": 0, "seconds": 0.0}
        first = stream.latestOffset(at(0), ReadMaxRows(1))
        report = stream.reportLatestOffset()
        assert (first, report["lag"]) == (at(3), {"rows": 1, "seconds": 2.0})
        assert report["source"] == {"store": str(PATH), "filter": ["b", "d"], "database": NAME}
        assert stream.latestOffset(first, ReadMaxRows(1)) == at(4)
        assert stream.reportLatestOffset()["lag"] == {"rows": 0, "seconds": 0.0}


def test_the_age_of_a_lag_without_wanted_rows_is_not_known() -> None:
    world = World()
    with world.database() as database:
        append(database, "a")
        stream = stream_of(world, filters=("a",))
        stream.latestOffset(at(0), ALL)
        append(database, "other")
        assert stream.reportLatestOffset()["lag"] == {"rows": 1, "seconds": None}


def test_a_stream_begins_at_a_time() -> None:
    world = World()
    with world.database(shards=2, shard_by="topic") as database:
        append(database, "a", "b", "c", "d")
        world.clock.advance(10)
        now_us = world.clock.now_us()
        append(database, "a", "b")
        database.seal()
        append(database, "c", "d")
        times = StartTimes(default_us=now_us)
        stream = stream_of(world, starting_times=times)
        start = stream.initialOffset()
        end = stream.latestOffset(start, ALL)
        assert topics_between(stream, start, end) == ["a", "b", "c", "d"]
        late = stream_of(world, starting_times=StartTimes(default_us=now_us + 60_000_000))
        assert late.initialOffset() == end


def test_a_batch_begins_at_a_time_of_each_shard() -> None:
    world = World()
    with world.database(shards=2, shard_by="topic") as database:
        append(database, "a", "b", "c", "d")
        world.clock.advance(10)
        times = StartTimes(times_us={0: world.clock.now_us()})
        append(database, "a", "b", "c", "d")
        rows = stored_rows(database, ["#"])
        of_first = [row["serial"] for row in rows if row["shard"] == 0]
        reader = reader_of(world, starting_times=times)
        found = rows_in(reader, reader.partitions())
        assert by_place(found) == [
            row for row in rows if row["shard"] == 1 or row["serial"] >= len(of_first) // 2
        ]
        with pytest.raises(UsageError, match="a shard that is not in the database: shard=7"):
            reader_of(world, starting_times=StartTimes(times_us={7: 0})).partitions()


def test_a_batch_that_is_planned_again_elsewhere_is_the_same() -> None:
    world = World()
    with world.database() as database:
        append(database, "a", "b", "c")
        stream = stream_of(world)
        first = rows_in(stream, stream.partitions(at(0), at(2)))
        append(database, "d")
        database.seal()
        other = stream_of(world)
        assert rows_in(other, other.partitions(at(0), at(2))) == first


def test_new_streams_and_generations_are_found_while_it_runs() -> None:
    world = World()
    with world.database(shards=2, shard_by="topic") as database:
        stream = stream_of(world)
        position = stream.initialOffset()
        found: list[Any] = []
        for number in range(4):
            append(database, f"new/{number}", f"{number}/other")
            end = stream.latestOffset(position, ALL)
            found += rows_in(stream, stream.partitions(position, end))
            position = end
            database.seal()
        assert by_place(found) == stored_rows(database, ["#"])


def test_a_shard_that_a_checkpoint_does_not_know_is_read_from_its_beginning() -> None:
    world = World()
    with world.database(shards=2, shard_by="topic") as database:
        append(database, "a", "b", "c", "d")
        stream = stream_of(world)
        end = stream.latestOffset(at(0), ALL)
        assert by_place(rows_in(stream, stream.partitions(at(0), end))) == (
            stored_rows(database, ["#"])
        )


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"rows_per_trigger": 5}, ReadMaxRows(5)),
        ({"bytes_per_trigger": 6, "rows_to_wait_for": 2}, ReadMaxBytes(6)),
        ({"rows_to_wait_for": 2}, ReadMinRows(2)),
    ],
    ids=str,
)
def test_the_limit_that_was_set_is_the_default(changes: dict[str, int], limit: ReadLimit) -> None:
    assert stream_of(World(), **changes).getDefaultReadLimit() == limit


def test_rows_are_admitted_up_to_the_limit() -> None:
    world = World()
    with world.database() as database:
        append(database, "a", "b", "c")
        append(database, "d", "e")
        stream = stream_of(world, rows_per_trigger=2)
        limit = stream.getDefaultReadLimit()
        steps = [at(0)]
        while (end := stream.latestOffset(steps[-1], limit)) != steps[-1]:
            steps.append(end)
        assert steps == [at(0), at(2), at(4), at(5)]
        # Once, Spark asks for everything, whatever the options say.
        assert stream.latestOffset(at(0), ALL) == at(5)


def test_rows_that_do_not_match_are_not_counted_and_start_no_step() -> None:
    world = World()
    with world.database(thresholds=(0,)) as database:
        for _ in range(3):
            append(database, *"abcabcabca")
        stream = stream_of(world, filters=("b",), rows_per_trigger=4)
        limit = stream.getDefaultReadLimit()
        steps = [at(0)]
        while (end := stream.latestOffset(steps[-1], limit)) != steps[-1]:
            steps.append(end)
        found = [rows_in(stream, stream.partitions(*step)) for step in pairwise(steps)]
        assert [len(some) for some in found] == [4, 4, 1]
        assert by_place([row for some in found for row in some]) == stored_rows(database, ["b"])


def test_bytes_are_admitted_by_whole_frames() -> None:
    world = World()
    with world.database() as database:
        append(database, "a", "b", "c")
        append(database, "d", "e")
        stream = stream_of(world, bytes_per_trigger=1)
        limit = stream.getDefaultReadLimit()
        assert stream.latestOffset(at(0), limit) == at(3)
        assert stream.latestOffset(at(3), limit) == at(5)


def test_too_few_rows_are_waited_for_but_not_for_ever() -> None:
    world = World()
    with world.database() as database:
        stream = stream_of(world, rows_to_wait_for=3, wait_max=10.0)
        limit = stream.getDefaultReadLimit()
        append(database, "a", "b")
        assert stream.latestOffset(at(0), limit) == at(0)
        world.clock.advance(9)
        assert stream.latestOffset(at(0), limit) == at(0)
        world.clock.advance(1)
        assert stream.latestOffset(at(0), limit) == at(2)
        append(database, "c")
        assert stream.latestOffset(at(2), limit) == at(2)
        append(database, "d", "e")
        assert stream.latestOffset(at(2), limit) == at(5)


def test_available_now_ends_where_the_store_ended_and_waits_for_nothing() -> None:
    world = World()
    with world.database() as database:
        append(database, "a", "b", "c")
        stream = stream_of(world, rows_per_trigger=2, rows_to_wait_for=100)
        stream.prepareForTriggerAvailableNow()
        append(database, "d")
        limit = stream.getDefaultReadLimit()
        steps = [stream.latestOffset(start, limit) for start in (at(0), at(2), at(3))]
        assert steps == [at(2), at(3), at(3)]
        # A checkpoint may be ahead of what this query has seen as the end.
        assert stream.latestOffset(at(4), limit) == at(4)


def test_rows_that_nobody_wants_are_no_reason_for_a_batch() -> None:
    world = World()
    with world.database() as database:
        stream = stream_of(world, filters=("wanted",))
        append(database, "a", "b")
        assert stream.latestOffset(at(0), ALL) == at(0)
        append(database, "c")
        assert stream.latestOffset(at(0), ALL) == at(0)
        append(database, "wanted")
        assert stream.latestOffset(at(0), ALL) == at(4)
        assert topics_between(stream, at(0), at(4)) == ["wanted"]


def test_a_position_does_not_stay_in_a_generation_that_may_be_dropped() -> None:
    world = World()
    with world.database() as database:
        stream = stream_of(world, filters=("wanted",))
        append(database, "a", "b")
        assert stream.latestOffset(at(0), ALL) == at(0)
        database.seal()
        assert stream.latestOffset(at(0), ALL) == at(2)
        database.drop_slab(SlabId(0, 1))
        assert stream.latestOffset(at(2), ALL) == at(2)


def dropped_world(database: Database) -> None:
    append(database, "a", "b")
    database.seal()
    append(database, "c")
    database.drop_slab(SlabId(0, 1))


def test_rows_that_were_dropped_before_they_were_read_are_a_failure() -> None:
    world = World()
    with world.database() as database:
        dropped_world(database)
        stream = stream_of(world)
        end = stream.latestOffset(at(0), ALL)
        assert end == at(3)
        with pytest.raises(
            SlabDroppedError, match=r"not in the store: shard 0, serials 0 to 1;.*failOnData"
        ):
            stream.partitions(at(0), end)


def test_rows_that_were_dropped_may_be_gone_without() -> None:
    world = World()
    with world.database() as database:
        dropped_world(database)
        stream = stream_of(world, fails_on_loss=False)
        end = stream.latestOffset(at(0), ALL)
        assert (end, topics_between(stream, at(0), end)) == (at(3), ["c"])


def test_a_store_that_is_not_the_one_of_the_checkpoint_is_refused() -> None:
    world = World()
    with world.database() as database:
        append(database, "a")
        stream = stream_of(world)
        with pytest.raises(SlabDroppedError, match="shard 0, serials 1 to 6"):
            stream.latestOffset(at(7), ALL)
        assert stream_of(world, fails_on_loss=False).latestOffset(at(7), ALL) == at(1)
        with pytest.raises(UsageError, match="shard that is not in the database: shard=1"):
            stream.latestOffset(at(0, 0), ALL)


@pytest.mark.parametrize("serial", [1, 2])
def test_a_store_that_is_one_row_behind_a_checkpoint_is_refused(serial: int) -> None:
    world = World()
    with world.database() as database:
        append(database, "a")
        stream = stream_of(world)
        if serial == 1:
            assert stream.latestOffset(at(serial), ALL) == at(1)
            assert stream.partitions(at(serial), at(serial)) == []
            return
        with pytest.raises(SlabDroppedError, match="shard 0, serials 1 to 1;"):
            stream.latestOffset(at(serial), ALL)
        with pytest.raises(SlabDroppedError, match="shard 0, serials 1 to 1;"):
            stream.partitions(at(serial), at(serial))
        with pytest.raises(SlabDroppedError, match="shard 0, serials 1 to 1;"):
            stream.partitions(at(0), at(serial))


class TestAnotherDatabase:
    """It was dropped, and another one has its name."""

    def created_anew(self, monkeypatch: pytest.MonkeyPatch, *topics: str) -> tuple[World, str]:
        world = World()
        with world.database() as database:
            append(database, "a", "b", "c")
        with world.store() as store:
            store.drop(NAME)
        monkeypatch.setattr("siltstone.store.directory.secrets.randbits", lambda _: SALT + 1)
        with world.database() as database:
            append(database, *topics)
            return world, database.identity

    def test_a_checkpoint_of_the_former_one_is_refused(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world, identity = self.created_anew(monkeypatch, "d", "e", "f", "g")
        sentence = f"offsets={IDENTITY} database={identity}; start with a new checkpoint"
        for position in (at(0), at(3), at(4), at(9)):
            with pytest.raises(SlabDroppedError, match=sentence):
                stream_of(world).latestOffset(position, ALL)
            with pytest.raises(SlabDroppedError, match=sentence):
                stream_of(world).partitions(position, at(9))
        with pytest.raises(SlabDroppedError, match=sentence):
            stream_of(world).partitions(at(0, identity=identity), at(3))
        starting = Position({0: 1}, identity=IDENTITY)
        with pytest.raises(SlabDroppedError, match=sentence):
            stream_of(world, starting=starting).initialOffset()

    def test_a_checkpoint_of_an_earlier_version_is_of_the_former_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world, _ = self.created_anew(monkeypatch, "d", "e", "f", "g")
        with pytest.raises(SlabDroppedError, match="offsets=unknown, an earlier version saved it"):
            stream_of(world).latestOffset(at(3, identity=""), ALL)

    def test_a_query_that_may_lose_rows_goes_on_at_its_beginning(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world, identity = self.created_anew(monkeypatch, "d", "e", "f", "g")
        stream = stream_of(world, fails_on_loss=False)
        end = at(4, identity=identity)
        for position in (at(0), at(3), at(4), at(9), at(3, identity="")):
            assert stream.latestOffset(position, ALL) == end
            assert topics_between(stream, position, end) == ["d", "e", "f", "g"]
        # A batch of the former one that was planned and not done has no rows any more.
        assert stream.partitions(at(1), at(3)) == []
        starting = Position({0: 1}, identity=IDENTITY)
        first = stream_of(world, fails_on_loss=False, starting=starting).initialOffset()
        assert first == at(0, identity=identity)

    def test_a_running_query_forgets_what_it_passed_in_the_former_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = World()
        with world.database() as database:
            append(database, "a", "a", "a", "a")
            stream = stream_of(world, fails_on_loss=False, filters=("d",))
            assert stream.latestOffset(at(0), ALL) == at(0)
        with world.store() as store:
            store.drop(NAME)
        monkeypatch.setattr("siltstone.store.directory.secrets.randbits", lambda _: SALT + 1)
        with world.database() as database:
            append(database, "a", "d")
            end = at(2, identity=database.identity)
            assert stream.latestOffset(at(0), ALL) == end
            assert topics_between(stream, at(0), end) == ["d"]
            append(database, "a", "d")
            assert stream.latestOffset(end, ALL) == at(4, identity=database.identity)

    def test_a_query_of_rows_that_are_there_already_reads_to_the_end_of_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = World()
        with world.database() as database:
            append(database, "a", "b", "c")
            stream = stream_of(world, fails_on_loss=False)
            stream.prepareForTriggerAvailableNow()
        with world.store() as store:
            store.drop(NAME)
        monkeypatch.setattr("siltstone.store.directory.secrets.randbits", lambda _: SALT + 1)
        with world.database() as database:
            append(database, *"defgh")
            end = at(5, identity=database.identity)
            assert stream.latestOffset(at(0), ALL) == end

    def test_a_position_moves_to_it_though_it_is_empty(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world, identity = self.created_anew(monkeypatch)
        stream = stream_of(world, fails_on_loss=False)
        assert stream.latestOffset(at(0), ALL) == at(0, identity=identity)
        assert stream.latestOffset(at(3), ALL) == at(0, identity=identity)


def test_a_checkpoint_of_an_earlier_version_goes_on_in_a_database_that_is_as_old() -> None:
    world = World()
    with world.database() as database:
        append(database, "a", "b")
    path = PATH / "data" / NAME / "manifest"
    old = replace(Manifest.decode(world.fs.read(path), path), identified=False)
    replace_file(world.fs, path, old.encode())
    with world.database() as database:
        stream = stream_of(world)
        assert stream.latestOffset(at(2, identity=""), ALL) == at(2, identity="")
        append(database, "c")
        assert stream.latestOffset(at(2, identity=""), ALL) == at(3)
        assert topics_between(stream, at(2, identity=""), at(3)) == ["c"]


def test_a_checkpoint_of_another_version_is_refused() -> None:
    world = World()
    with world.database(), pytest.raises(UsageError, match="unknown version 9"):
        stream_of(world).latestOffset({"version": 9, "shards": {}}, ALL)


def test_a_stream_has_no_ending_offsets() -> None:
    world = World()
    with world.database():
        # Spark hides an error of the constructor behind one of its own.
        stream = stream_of(world, ending=Position({0: 1}))
        for ask in (stream.initialOffset, lambda: stream.latestOffset(at(0), ALL)):
            with pytest.raises(UsageError, match="a stream does not end"):
                ask()


def test_a_schema_that_no_stream_has_is_refused_by_the_first_call() -> None:
    world = World()
    with world.database():
        stream = SiltstoneStreamReader(
            options_of(), StructType([StructField("nothing", LongType())]), world.fs
        )
        with pytest.raises(UsageError, match="unknown column nothing"):
            stream.initialOffset()


def test_what_is_open_stays_behind_when_a_reader_is_sent() -> None:
    stream = SiltstoneStreamReader(options_of(), spark_schema(["topic"]), PosixFileSystem())
    assert isinstance(through_pickle(stream), SiltstoneStreamReader)


def test_a_committed_position_changes_nothing_and_a_stopped_reader_may_go_on() -> None:
    world = World()
    with world.database() as database:
        append(database, "a")
        stream = stream_of(world)
        end = stream.latestOffset(at(0), ALL)
        stream.commit(end)
        stream.stop()
        stream.stop()
        assert stream.latestOffset(at(0), ALL) == end
