from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from siltstone.errors import (
    ClosedError,
    CorruptionError,
    InvalidTopicError,
    NotFoundError,
    OutcomeUnknownError,
    SlabDroppedError,
    UsageError,
)
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.database import Database
from siltstone.store.log.info import SlabInfo
from siltstone.store.log.iterator import Read, StreamIterator, StreamRef
from siltstone.store.log.read.pieces import COLUMNS, Row
from siltstone.store.log.read.scan import Status
from siltstone.store.log.write.partition import Columns, shard_of
from siltstone.store.slab.manifest import SlabId
from siltstone.store.slab.settings import CALL_BYTES_MAX
from siltstone.store.writer.ticket import Ticket
from tests.support.builders import (
    HELD,
    NAME,
    NOW_US,
    PATH,
    SEGMENT_BYTES,
    World,
    as_given,
    drain,
    drain_streams,
    new_database,
    read_rows,
    read_topics,
    rows_on,
    settings_of,
)

# Publishers by the shard they belong to, out of two.
ON_SHARD = {shard_of(name.encode(), 2): name for name in ("a", "b", "c", "d")}


def patterns(database: Database, topic_filter: str) -> list[tuple[int, str]]:
    streams = database.streams(topic_filter)
    return [(stream.slab.generation, stream.pattern) for stream in streams]


def topics_of(read: Read) -> list[str]:
    return [row.topic for row in read.batch.rows()]


def check_ticket(database: Database, ticket: Ticket, rows: list[Row]) -> None:
    """Hold the serials and times of a ticket against what reading finds."""
    found = {(row.shard, row.serial): row for row in read_rows(database)}
    by_time = {(row.shard, row.timestamp_us): row for row in found.values()}
    shards = database.settings.shards
    for row, serial, time in zip(rows, ticket.serials(), ticket.timestamps(), strict=True):
        shard = shard_of(row.publisher.encode(), shards)
        assert found[shard, serial] is by_time[shard, time]
        assert as_given([found[shard, serial]]) == [row]


class TestAppend:
    def test_rows_come_back_as_they_were_given_in_order(self) -> None:
        rows = [
            Row("a", b"1", "p", qos=1, retain=True, properties=b"x"),
            Row("b/c", b"", qos=2),
            Row("a", b"3"),
        ]
        with new_database() as database:
            database.append(iter(rows)).wait()
            assert as_given(read_rows(database)) == rows

    def test_several_calls_of_one_flush_keep_their_order(self) -> None:
        topics = [f"{'xyz'[number % 3]}/{number}" for number in range(30)]
        with new_database(**HELD) as database:
            for topic in topics:
                database.append(rows_on(topic))
            database.sync()
            assert read_topics(database) == topics
            assert database.slabs()[0].rows == 30

    def test_times_are_microseconds_and_rise_by_one_at_least_across_a_restart(self) -> None:
        world = World()
        times = []
        with world.database() as database:
            times += database.append(rows_on("t", "t")).timestamps()
            world.clock.advance(0.5)
            times += database.append(rows_on("t")).timestamps()
        world.clock.jump(-60)
        with world.database() as database:
            times += database.append(rows_on("t")).timestamps()
        assert [time - NOW_US for time in times] == [0, 1, 500_000, 500_001]

    def test_no_rows_are_done_at_once(self) -> None:
        with new_database() as database:
            ticket = database.append([]).wait()
            assert (ticket.done, ticket.error, ticket.serials()) == (True, None, [])
            assert (ticket.duplicate, ticket.timestamps(), database.count()) == (False, [], 0)

    def test_an_unknown_durability_is_refused(self) -> None:
        unknown: Any = "sure"
        with new_database() as database, pytest.raises(UsageError, match="durability='sure'"):
            database.append(rows_on("t"), durability=unknown)

    @pytest.mark.parametrize("shards", [1, 2])
    @pytest.mark.parametrize("topic", ["", "a/+", "a/#/b", "#", "a\x00"])
    def test_a_bad_topic_fails_its_own_call_by_number_and_no_other(
        self, topic: str, shards: int
    ) -> None:
        bad = [Row("x", b"", ON_SHARD[0]), Row("y", b"", ON_SHARD[0]), Row(topic, b"", ON_SHARD[1])]
        with new_database(shards=shards, **HELD) as database:
            tickets = [database.append(rows) for rows in (rows_on("a"), bad, rows_on("b"))]
            database.sync()
            assert [ticket.error is None for ticket in tickets] == [True, False, True]
            assert "row=2" in str(tickets[1].error)

    def test_a_call_too_large_for_a_frame_is_refused_before_anything_is_queued(self) -> None:
        size = CALL_BYTES_MAX // 4 - 1
        value = bytes(size)
        with new_database() as database:
            with pytest.raises(UsageError, match="the append is too large, split it: size_bytes"):
                database.append(Columns([b"t"] * 5, [value] * 5))
            assert database.count() == 0


class TestProducer:
    def test_a_sequence_is_stored_once_even_across_a_restart_and_a_turn(self) -> None:
        world = World()
        with world.database() as database:
            first = database.append(rows_on("a"), producer=("p", 1)).wait()
            second = database.append(rows_on("b"), producer=("p", 1)).wait()
            database.seal()
            third = database.append(rows_on("c"), producer=("p", 1)).wait()
        with world.database() as database:
            fourth = database.append(rows_on("d"), producer=("p", 1)).wait()
            fifth = database.append(rows_on("e"), producer=("p", 2)).wait()
            other = database.append(rows_on("f"), producer=("q", 1)).wait()
            assert read_topics(database) == ["a", "e", "f"]
        tickets = [first, second, third, fourth, fifth, other]
        assert [ticket.duplicate for ticket in tickets] == [False, True, True, True, False, False]
        assert (second.serials(), second.timestamps(), second.error) == ([0], [0], None)

    def test_a_sequence_is_known_in_every_shard_that_got_a_part(self) -> None:
        rows = [Row("t", b"", ON_SHARD[0]), Row("t", b"", ON_SHARD[1])]
        with new_database(shards=2) as database:
            tickets = [database.append(rows, producer=("p", 1)).wait() for _ in range(2)]
            assert [ticket.duplicate for ticket in tickets] == [False, True]
            assert database.count() == 2

    @pytest.mark.parametrize("sequence", [-1, 1 << 64, 1 << 100])
    def test_a_sequence_that_is_no_unsigned_64_bit_number_is_refused_at_once(
        self, sequence: int
    ) -> None:
        with new_database() as database:
            with pytest.raises(UsageError, match=f"got {sequence}$"):
                database.append(rows_on("t"), producer=("p", sequence)).wait()
            database.append(rows_on("t"), producer=("p", (1 << 64) - 1)).wait()

    def test_a_name_that_is_no_unicode_is_refused(self) -> None:
        with new_database() as database, pytest.raises(UsageError, match="must be valid Unicode"):
            database.append(rows_on("t"), producer=("\ud800", 0))


class TestTicket:
    @pytest.mark.parametrize("compression", ["none", "zstd"])
    @pytest.mark.parametrize("shards", [1, 2])
    def test_serials_and_times_are_those_of_each_row_over_streams_shards_and_calls_of_one_frame(
        self, shards: int, compression: str
    ) -> None:
        with new_database(shards=shards, compression=compression, **HELD) as database:
            calls = [
                [
                    Row("zyx"[(call + row) % 3], b"%d.%d" % (call, row), ON_SHARD[row * call % 2])
                    for row in range(7)
                ]
                for call in range(4)
            ]
            tickets = [database.append(rows) for rows in calls]
            database.sync()
            for ticket, rows in zip(tickets, calls, strict=True):
                check_ticket(database, ticket, rows)

    def test_waiting_has_a_limit_and_the_outcome_is_then_unknown(self) -> None:
        with new_database(**HELD) as database:
            ticket = database.append(rows_on("t"))
            with pytest.raises(OutcomeUnknownError, match="is not known after 0 seconds"):
                ticket.wait(0)
            assert ticket.done is False
            database.sync()
            assert (ticket.wait(0), ticket.done) == (ticket, True)

    def test_none_is_not_waited_for_but_serials_are(self) -> None:
        with new_database(**HELD) as database:
            ticket = database.append(rows_on("t"), durability="none")
            assert (ticket.wait(), ticket.done) == (ticket, False)
            database.sync()
            assert ticket.serials() == [0]

    def test_on_done_calls_back_once_with_the_ticket_now_or_later(self) -> None:
        called: list[Ticket] = []
        with new_database(shards=2, **HELD) as database:
            rows = [Row("t", b"", ON_SHARD[0]), Row("t", b"", ON_SHARD[1])]
            ticket = database.append(rows)
            ticket.on_done(called.append)
            assert called == []
            database.sync()
            ticket.on_done(called.append)
        assert called == [ticket, ticket]

    def test_a_call_that_one_shard_stored_and_another_refused_is_of_unknown_outcome(self) -> None:
        with new_database(shards=2) as database:
            rows = [Row("good", b"", ON_SHARD[0]), Row("bad/#", b"", ON_SHARD[1])]
            ticket = database.append(rows)
            with pytest.raises(OutcomeUnknownError) as caught:
                ticket.wait()
            assert isinstance(caught.value.__cause__, InvalidTopicError)
            assert "only the rows of some shards were stored" in str(caught.value)
            assert read_topics(database) == ["good"]


class TestStreams:
    def test_streams_are_those_of_a_filter_oldest_slab_first(self) -> None:
        with new_database(thresholds=(-1, 0)) as database:
            database.append(rows_on("a/1", "a/2", "b", "$SYS/x")).wait()
            database.seal()
            database.append(rows_on("a/3")).wait()
            both = [(1, "a/+"), (2, "a/+")]
            assert [patterns(database, text) for text in ("a/#", "a/7", "+/+")] == [both] * 3
            assert patterns(database, "b") == [(1, "b")]
            assert patterns(database, "$SYS/+") == [(1, "$SYS/+")]
            assert patterns(database, "c") == []

    def test_slabs_that_ended_before_the_start_have_none(self) -> None:
        with new_database() as database:
            for topic in "abc":
                database.append(rows_on(topic)).wait()
                database.seal()
            since = [
                [stream.pattern for stream in database.streams("#", NOW_US + start)]
                for start in range(4)
            ]
        assert since == [["a", "b", "c"], ["b", "c"], ["c"], []]

    def test_streams_and_iterators_outlive_the_process_as_bytes(self) -> None:
        world = World()
        with world.database(thresholds=(-1, 0)) as database:
            database.append(rows_on("s/a", "s/b", "s/a", "s/b")).wait()
            stream = database.streams()[0].to_bytes()
            found = database.next(database.iterator(database.streams()[0], "s/b"), 1)
            position = found.iterator.to_bytes()
        with world.database() as database:
            assert StreamRef.from_bytes(stream) == database.streams()[0]
            rest = database.next(StreamIterator.from_bytes(position))
            whole = database.next(database.iterator(StreamRef.from_bytes(stream)))
            assert (topics_of(found), topics_of(rest)) == (["s/b"], ["s/b"])
            assert topics_of(whole) == ["s/a", "s/b", "s/a", "s/b"]

    def test_a_stream_that_does_not_exist_has_no_iterator(self) -> None:
        with new_database() as database:
            database.append(rows_on("t")).wait()
            (stream,) = database.streams()
            for missing in (replace(stream, stream_id=5), replace(stream, slab=SlabId(0, 9))):
                with pytest.raises(NotFoundError):
                    database.iterator(missing)

    def test_streams_and_iterators_of_another_database_are_refused(self) -> None:
        with World().store() as store:
            first, second = (store.create(name, settings_of()) for name in ("first", "second"))
            for database in (first, second):
                database.append(rows_on("t")).wait()
            (stream,) = first.streams()
            with pytest.raises(UsageError, match="belongs to another database: 'first'"):
                second.next(first.iterator(stream))
            with pytest.raises(UsageError, match="belongs to another database: 'first'"):
                second.iterator(stream)

    @pytest.mark.parametrize("rows_max", [0, -1])
    def test_fewer_rows_than_one_cannot_be_asked_for(self, rows_max: int) -> None:
        with new_database() as database:
            database.append(rows_on("t")).wait()
            iterator = database.iterator(database.streams()[0])
            with pytest.raises(UsageError, match=f"rows_max must be at least 1, got {rows_max}"):
                database.next(iterator, rows_max)


class TestNext:
    def test_a_fresh_iterator_starts_at_its_time_inclusively(self) -> None:
        with new_database() as database:
            database.append(rows_on("t", "t", "t")).wait()
            (stream,) = database.streams()
            counts = [
                len(database.next(database.iterator(stream, "#", NOW_US + start)).batch)
                for start in range(4)
            ]
        assert counts == [3, 2, 1, 0]

    def test_an_upper_limit_of_time_is_exclusive(self) -> None:
        with new_database() as database:
            database.append(rows_on("t", "t", "t")).wait()
            iterator = database.iterator(database.streams()[0])
            found = [
                (len(read.batch), read.status)
                for until in range(5)
                for read in [database.next(iterator, until_us=NOW_US + until)]
            ]
        assert found[:3] == [(0, Status.LIMIT), (1, Status.LIMIT), (2, Status.LIMIT)]
        assert found[3:] == [(3, Status.CAUGHT_UP)] * 2

    def test_a_limit_in_a_sealed_generation_is_no_end_while_there_are_later_rows(self) -> None:
        with new_database() as database:
            database.append(rows_on("t")).wait()
            database.append(rows_on("t")).wait()
            database.seal()
            iterator = database.iterator(database.streams()[0])
            early = database.next(iterator, until_us=NOW_US)
            assert (early.iterator, len(early.batch), early.status) == (iterator, 0, Status.LIMIT)
            first = database.next(early.iterator, until_us=NOW_US + 1)
            assert (len(first.batch), first.status) == (1, Status.LIMIT)
            rest = database.next(first.iterator, until_us=NOW_US + 2)
            assert (len(rest.batch), rest.status) == (1, Status.END)

    def test_caught_up_becomes_the_end_when_the_generation_is_sealed(self) -> None:
        with new_database(thresholds=(-1, 0)) as database:
            database.append(rows_on("s/a")).wait()
            stream = database.streams()[0]
            iterators = [database.iterator(stream, text) for text in ("#", "s/b", "other")]
            current = [database.next(iterator) for iterator in iterators]
            database.append(rows_on("s/b")).wait()
            database.seal()
            sealed = [database.next(read.iterator) for read in current]
        assert [topics_of(read) for read in current] == [["s/a"], [], []]
        assert [read.status for read in current] == [Status.CAUGHT_UP] * 3
        assert [topics_of(read) for read in sealed] == [["s/b"], ["s/b"], []]
        assert [read.status for read in sealed] == [Status.END] * 3

    def test_a_position_goes_on_with_rows_that_came_later_and_only_once(self) -> None:
        with new_database() as database:
            database.append(rows_on("t")).wait()
            iterator = database.iterator(database.streams()[0])
            serials = []
            for _ in range(4):
                rows, iterator, status = drain(database, iterator)
                assert status is Status.CAUGHT_UP
                serials += [row.serial for row in rows]
                database.append(rows_on("u", "t")).wait()
            rows, iterator, _ = drain(database, iterator)
            found = serials + [row.serial for row in rows]
        assert len(found) == len(set(found)) == 5

    @pytest.mark.parametrize("rows_max", [1, 2, 3, 100])
    def test_pages_over_shards_generations_and_streams_hold_every_row_once(
        self, rows_max: int
    ) -> None:
        rows = [
            Row(f"{'st'[number % 2]}/{number % 5}", b"%d" % number, "abcd"[number % 4])
            for number in range(40)
        ]
        world = World()
        with world.database(shards=2, thresholds=(-1, 2)) as database:
            for start in range(0, 40, 10):
                database.append(rows[start : start + 10]).wait()
                if start in (10, 20):
                    database.seal()
            found = drain_streams(database, rows_max=rows_max)
            assert sorted(as_given(found)) == sorted(rows)
            chosen = drain_streams(database, "+/3", rows_max=rows_max)
            assert sorted(as_given(chosen)) == sorted(r for r in rows if r.topic.endswith("/3"))


class TestDroppedSlabs:
    @pytest.mark.parametrize("used", [False, True], ids=["never used", "used once"])
    def test_the_iterator_of_a_dropped_slab_says_so_and_others_go_on(self, *, used: bool) -> None:
        world = World()
        with world.database() as database:
            database.append(rows_on("t", "t")).wait()
            database.seal()
            database.append(rows_on("t")).wait()
            iterators = [database.iterator(stream) for stream in database.streams()]
            if used:
                iterators = [database.next(iterator, 1).iterator for iterator in iterators]
            stream = database.streams()[0]
            database.drop_slab(SlabId(0, 1))
            for _ in range(2):
                with pytest.raises(SlabDroppedError, match="slab 0/1 was dropped"):
                    database.next(iterators[0])
                with pytest.raises(SlabDroppedError):
                    database.iterator(stream)
            assert len(database.next(iterators[1]).batch) == (0 if used else 1)
        with world.database() as database, pytest.raises(SlabDroppedError):
            database.next(iterators[0])

    def test_a_slab_dropped_in_the_middle_does_not_hide_older_ones(self) -> None:
        world = World()
        with world.database() as database:
            for topic in "abc":
                database.append(rows_on(topic)).wait()
                database.seal()
            database.drop_slab(SlabId(0, 2))
            assert (read_topics(database), database.count()) == (["a", "c"], 2)
            assert [stream.pattern for stream in database.streams()] == ["a", "c"]
        with world.database() as database:
            assert read_topics(database) == ["a", "c"]


class TestRead:
    def test_rows_come_in_order_of_time_over_streams_shards_and_generations(self) -> None:
        world = World()
        rows = [Row("cab"[n % 3], b"%d" % n, ON_SHARD[n // 2 % 2]) for n in range(12)]
        with world.database(shards=2) as database:
            for number, row in enumerate(rows):
                database.append([row]).wait()
                world.clock.advance(0.001)
                if number == 5:
                    database.seal()
            assert as_given(read_rows(database)) == rows
            assert as_given(read_rows(database, "a")) == [row for row in rows if row.topic == "a"]
            since, until = NOW_US + 3000, NOW_US + 8000
            assert as_given(read_rows(database, since_us=since, until_us=until)) == rows[3:8]
            assert database.count(since_us=since, until_us=until) == 5
            assert as_given(read_rows(database, rows_max=7)) == rows[:7]

    def test_the_end_is_where_the_database_ended_when_the_read_began(self) -> None:
        with new_database() as database:
            database.append(rows_on("a", "b")).wait()
            batches = database.read()
            database.append(rows_on("c", "a")).wait()
            database.seal()
            database.append(rows_on("d")).wait()
            topics = [topic for batch in batches for topic in batch["topic"].to_pylist()]
            assert topics == ["a", "b"]
            assert read_topics(database) == ["a", "b", "c", "a", "d"]

    def test_only_the_columns_asked_for_are_read(self) -> None:
        with new_database() as database:
            database.append(rows_on("a", "b")).wait()
            (batch,) = database.read(columns=["value", "topic"])
        wanted = {"value": [b"0", b"1"], "topic": ["a", "b"]}
        assert batch == pa.RecordBatch.from_pydict(wanted, schema=batch.schema)
        assert batch.schema.names == ["value", "topic"]

    def test_an_unknown_column_and_a_bad_filter_are_refused_before_the_first_batch(self) -> None:
        with new_database() as database:
            with pytest.raises(UsageError, match=f"unknown column payload .*{COLUMNS[-1]}"):
                database.read(columns=["payload"])
            for call in (database.read, database.count, database.streams):
                with pytest.raises(InvalidTopicError):
                    call("a/#/b")

    def test_fewer_rows_than_none_cannot_be_asked_for(self) -> None:
        with new_database() as database:
            database.append(rows_on("t")).wait()
            assert read_rows(database, rows_max=0) == []
            with pytest.raises(UsageError, match="got -1"):
                read_rows(database, rows_max=-1)

    def test_an_empty_database_has_nothing(self) -> None:
        with new_database(shards=2) as database:
            assert (list(database.read()), database.count(), database.streams()) == ([], 0, [])


class TestSlabs:
    def test_slabs_are_told_with_bounds_that_adjoin_and_what_they_hold(self) -> None:
        world = World(MemoryFileSystem(page_bytes=4096))
        with world.database() as database:
            database.append(rows_on("a", "b", "a")).wait()
            world.clock.advance(1)
            database.seal()
            sealed, current = database.slabs()
            total = database.size_bytes()
        turned = NOW_US + 1_000_000
        assert current == SlabInfo(
            slab=SlabId(0, 2),
            state="current",
            since_us=turned,
            until_us=None,
            created_us=turned,
            rows=0,
            size_bytes=SEGMENT_BYTES,
            segments=1,
            streams=0,
        )
        assert sealed == replace(
            current,
            slab=SlabId(0, 1),
            state="sealed",
            rows=3,
            streams=2,
            since_us=NOW_US,
            until_us=turned,
            created_us=NOW_US,
            size_bytes=total - SEGMENT_BYTES,
        )

    def test_the_structure_tells_patterns_and_rows_of_every_slab(self) -> None:
        with new_database(thresholds=(-1, 1)) as database:
            database.append(rows_on("$SYS/a/x", "$SYS/b/x", "t/a", "t/b", "t/c")).wait()
            database.seal()
            database.append(rows_on("$SYS/a/x", "t/a")).wait()
            structure = database.structure()
        found = sorted((info.slab.generation, info.pattern, info.rows) for info in structure)
        first = [(1, "$SYS/+/x", 1), (1, "$SYS/a/x", 1), (1, "t/+", 2), (1, "t/a", 1)]
        assert found == [*first, (2, "$SYS/+/x", 1), (2, "t/+", 1)]


class TestConfigure:
    def test_what_may_change_changes_for_good_and_old_rows_stay(self) -> None:
        world = World()
        with world.database(thresholds=(-1,)) as database:
            database.append(rows_on("s/a", "s/b")).wait()
            changed = database.configure(compression="zstd", thresholds=[-1, 0], max_items=5)
            assert changed == database.settings
            database.seal()
            database.append(rows_on("s/a", "s/b")).wait()
            assert read_topics(database) == ["s/a", "s/b"] * 2
            assert sorted(info.pattern for info in database.structure()) == ["s/+", "s/a", "s/b"]
        with world.database() as database:
            assert database.settings == settings_of(
                compression="zstd", thresholds=(-1, 0), max_items=5
            )
            assert read_topics(database, "+/b") == ["s/b"] * 2


class TestReader:
    def test_it_sees_what_the_writer_makes_visible(self) -> None:
        world = World()
        with world.database(thresholds=(-1, 0)) as writer, world.reader() as reader:
            assert (reader.count(), reader.reports) == (0, [])
            writer.append(rows_on("s/a")).wait()
            assert read_topics(reader) == ["s/a"]
            first = reader.next(reader.iterator(reader.streams()[0]))
            writer.append(rows_on("s/b")).wait()
            writer.seal()
            second = reader.next(first.iterator)
            assert (topics_of(first), first.status) == (["s/a"], Status.CAUGHT_UP)
            assert (topics_of(second), second.status) == (["s/b"], Status.END)
            writer.append(rows_on("s/c")).wait()
            assert (read_topics(reader), reader.count()) == (["s/a", "s/b", "s/c"], 3)
            assert reader.structure() == writer.structure()
            assert [info.rows for info in reader.slabs()] == [2, 1]

    def test_it_lists_streams_that_have_come_since(self) -> None:
        world = World()
        with world.database() as writer, world.reader() as reader:
            writer.append(rows_on("t")).wait()
            assert reader.streams() == writer.streams()

    @pytest.mark.parametrize("turns", [0, 1], ids=["a known slab", "a new slab"])
    def test_it_follows_streams_and_positions_it_has_not_met(self, turns: int) -> None:
        world = World()
        with world.database() as writer, world.reader() as reader:
            for _ in range(turns):
                writer.seal()
            writer.append(rows_on("t")).wait()
            (stream,) = writer.streams()
            assert topics_of(reader.next(writer.iterator(stream))) == ["t"]
            writer.append(rows_on("u")).wait()
            assert topics_of(reader.next(reader.iterator(writer.streams("u")[0]))) == ["u"]

    def test_it_changes_nothing(self) -> None:
        world = World()
        with world.database() as writer, world.reader() as reader:
            writer.seal()
            actions: list[Callable[[], Any]] = [
                lambda: reader.append(rows_on("t")),
                reader.seal,
                reader.sync,
                reader.enforce_retention,
                lambda: reader.drop_slab(SlabId(0, 1)),
                lambda: reader.configure(max_items=5),
            ]
            for refused in actions:
                with pytest.raises(UsageError, match="opened for reading only"):
                    refused()


class TestClose:
    def test_a_closed_database_is_not_an_empty_one(self) -> None:
        with new_database() as database:
            database.append(rows_on("t")).wait()
            iterator = database.iterator(database.streams()[0])
        actions: list[Callable[[], Any]] = [
            lambda: database.append(rows_on("t")),
            lambda: list(database.read()),
            database.count,
            database.streams,
            database.slabs,
            database.structure,
            lambda: database.next(iterator),
            database.seal,
            database.sync,
            lambda: database.configure(max_items=5),
        ]
        for refused in actions:
            with pytest.raises(ClosedError):
                refused()


def test_a_call_that_is_under_way_has_a_ticket_whatever_keeps_later_shards_from_it() -> None:
    world = World()
    # Some more than are opened from the start.
    shards = 70
    with world.store() as store:
        store.create(NAME, settings_of(shards=shards, shard_by="topic"))
    for number in (68, 69):
        segment = PATH / "data" / NAME / str(number) / "1" / f"{0:020d}.seg"
        with world.fs.open(segment, writable=True) as file:
            file.write_at(0, b"\xff" * 16)
    topics = {shard_of(b"t%d" % each, shards): f"t{each}" for each in range(2000)}
    with world.store() as store:
        database = store.database(NAME)
        call = rows_on(topics[0], topics[68], topics[69])
        ticket = database.append(call, producer=("p", 1))
        with pytest.raises(OutcomeUnknownError) as caught:
            ticket.wait()
        assert isinstance(caught.value.__cause__, CorruptionError)
        assert database.has_stored(("p", 1), topics[0].encode(), b"")
