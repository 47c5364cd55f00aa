from __future__ import annotations

import errno
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from siltstone.errors import InvalidTopicError, PoisonedError, RetryError, StorageFullError
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.rows.batch import RowBatch
from siltstone.store.log.read.pieces import Batch, Row
from siltstone.store.log.read.scan import Span, read_slab
from siltstone.store.log.slab import Slab
from siltstone.store.log.write.committer import Committer
from siltstone.store.log.write.frame_builder import Block, Call
from siltstone.store.segment.frame import PACKED, PACKED_ROWS_MAX, PLAIN, ZSTD
from siltstone.store.segment.writer import Room
from siltstone.store.writer.commit_log import Record, Replica
from siltstone.store.writer.producers import ProducerTable, producer_key
from siltstone.store.writer.ticket import Outcome
from siltstone.topic.grammar import TopicFilter
from tests.support.builders import (
    NOW_US,
    SEGMENT_BYTES,
    World,
    begun,
    call_on,
    reopened,
    slab_place,
)
from tests.support.topiclog import offsets_of

PRODUCER = producer_key("p")


def topics_of(slab: Slab) -> list[str]:
    """Return the topics of all rows in order of arrival."""
    return [row.topic for row in rows_of(slab)]


def rows_of(slab: Slab) -> list[Row]:
    frames = read_slab(slab, slab.match(TopicFilter.parse("#")), Span())
    rows = [row for pieces in frames for row in Batch(pieces, 0).rows()]
    return sorted(rows, key=lambda row: row.timestamp_us)


def stored(outcome: Outcome | Exception) -> tuple[bool, list[int]]:
    """Return whether a call was a duplicate, and its serials."""
    assert isinstance(outcome, Outcome), outcome
    return outcome.duplicate, outcome.serials()


def large_call(topic: str, size_bytes: int) -> Call:
    call = call_on(topic)
    call.batch.values = [bytes(size_bytes)]
    return call


def block_call(value: bytes, room: Room | None = None) -> Call:
    call = Call(RowBatch())
    call.block = Block(b"t", offsets_of([value]), b"" if room is not None else value, room)
    return call


def faulty_world() -> tuple[World, FaultyFileSystem]:
    fs = FaultyFileSystem(MemoryFileSystem())
    return World(fs), fs


class TestSpaceAhead:
    def test_space_that_was_allocated_ahead_is_not_allocated_by_the_next_frame(self) -> None:
        fs = MemoryFileSystem()
        committer = begun(World(fs), segment_bytes=1 << 20)
        committer.allocate_ahead()
        assert committer.size_bytes() == 64 * 1024, "most of the space is free"
        committer.commit([large_call("t", 50_000)])
        committer.allocate_ahead()
        assert committer.size_bytes() == 128 * 1024
        before = len(fs.operations)
        assert committer.is_handy(20_000)
        committer.commit([large_call("t", 20_000)])
        kinds = [operation.split()[0] for operation in fs.operations[before:]]
        assert kinds == ["write_at", "sync"]
        committer.close()

    def test_rows_are_handy_only_if_their_space_is_allocated(self) -> None:
        committer = begun(World(MemoryFileSystem()), segment_bytes=1 << 20)
        assert committer.is_handy(1_000)
        assert not committer.is_handy(40_000)
        committer.close()
        assert not committer.is_handy(1)

    def test_a_full_disk_is_left_to_the_next_frame(self) -> None:
        world, fs = faulty_world()
        committer = begun(world, segment_bytes=1 << 20)
        committer.commit([large_call("t", 50_000)])
        fs.add(Fault(operation="allocate", errno=errno.ENOSPC))
        committer.allocate_ahead()
        assert committer.size_bytes() == 64 * 1024
        outcomes = committer.commit([large_call("t", 20_000)])
        assert stored(outcomes[0]) == (False, [1])
        committer.close()

    def test_a_shard_with_another_log_is_not_handy(self) -> None:
        committer = begun(World(MemoryFileSystem()))
        assert committer.is_handy(1)
        committer.log = _Elsewhere()
        assert not committer.is_handy(1)
        committer.close()


class _Elsewhere:
    """A log that is not only on this machine."""

    def commit(self, record: Record, replica: Replica, *, sync: bool) -> None:
        raise AssertionError("nothing is committed")


class TestOrder:
    def test_a_synced_call_is_written_then_synced_and_nothing_else(self) -> None:
        fs = MemoryFileSystem()
        committer = begun(World(fs))
        before = len(fs.operations)
        committer.commit([call_on("t")])
        kinds = [operation.split()[0] for operation in fs.operations[before:]]
        assert kinds == ["write_at", "sync"]

    def test_the_first_written_call_reserves_its_serials_durably_and_later_ones_do_not_sync(
        self,
    ) -> None:
        fs = MemoryFileSystem()
        committer = begun(World(fs))
        before = len(fs.operations)
        committer.commit([call_on("t", sync=False)])
        committer.commit([call_on("t", sync=False)])
        kinds = [operation.split()[0] for operation in fs.operations[before:]]
        assert kinds == ["sync", "write_at", "write_at", "write_at", "write_at"]

    def test_a_call_that_wants_a_sync_gets_it_for_the_whole_flush(self) -> None:
        fs = MemoryFileSystem()
        committer = begun(World(fs))
        committer.commit([call_on("a", sync=False), call_on("b"), call_on("c", sync=False)])
        assert committer.unsynced is False
        again, _ = reopened(World(fs.crash_clone()))
        assert topics_of(again.slab) == ["a", "b", "c"]

    def test_readers_know_the_stream_of_a_row_before_they_see_the_row(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        committer = begun(World())
        publish, seen = Slab.publish, []

        def watched(slab: Slab, edges: Iterable[bytes]) -> None:
            # A reader that comes before the streams, and one that comes after them.
            seen.append((slab.next_serial(), topics_of(slab)))
            publish(slab, edges)
            seen.append((slab.next_serial(), topics_of(slab)))

        monkeypatch.setattr(Slab, "publish", watched)
        committer.commit([call_on("a/1")])
        committer.commit([call_on("b"), call_on("c/d/e")])
        assert seen == [(0, []), (0, []), (1, ["a/1"]), (1, ["a/1"])]
        assert topics_of(committer.slab) == ["a/1", "b", "c/d/e"]

    def test_rows_are_seen_only_when_they_are_synced(self) -> None:
        world, fs = faulty_world()
        committer = begun(world)
        fs.add(Fault(operation="sync", errno=errno.EIO))
        with pytest.raises(PoisonedError):
            committer.commit([call_on("t")])
        assert topics_of(committer.slab) == []
        assert committer.slab.match(TopicFilter.parse("#")) == []

    def test_serials_and_times_rise_by_one_a_row_from_call_to_call(self) -> None:
        committer = begun(World())
        committer.commit([call_on("a", "b"), call_on("a")])
        committer.commit([call_on("b")])
        assert [(row.timestamp_us - NOW_US, row.topic) for row in rows_of(committer.slab)] == [
            (0, "a"),
            (1, "b"),
            (2, "a"),
            (3, "b"),
        ]
        assert (committer.next_serial, committer.last_timestamp_us) == (4, NOW_US + 3)
        assert committer.rows == 4

    def test_times_follow_the_clock_but_never_go_back(self) -> None:
        world = World()
        committer = begun(world)
        times = []
        for seconds in (0.0, 5.0, -3600.0, 3600.0):
            world.clock.jump(seconds)
            committer.commit([call_on("t", "t")])
            times.append(committer.last_timestamp_us - NOW_US)
        assert times == [1, 5_000_001, 5_000_003, 5_000_005]


class TestBlocks:
    def test_the_blocks_of_a_flush_share_one_sync(self) -> None:
        fs = MemoryFileSystem()
        committer = begun(World(fs))
        before = len(fs.operations)
        committer.commit_blocks([block_call(b"a"), block_call(b"b")])
        kinds = [operation.split()[0] for operation in fs.operations[before:]]
        assert kinds == ["write_at"] * 4 + ["sync"]

    @pytest.mark.parametrize("operations", range(6))
    def test_a_frame_is_not_durable_before_the_values_of_its_room(self, operations: int) -> None:
        fs = MemoryFileSystem()
        committer = begun(World(fs))
        room = committer.make_room(20_000, rows=1, topic=b"t")
        # This sync covers the room, which is not filled yet.
        committer.commit_blocks([block_call(b"first")])
        room.contents()[:] = b"L" * 20_000
        fs.operations_left = operations
        acknowledged = 1
        with suppress(PowerCut):
            acknowledged += len(
                committer.commit_blocks([block_call(b"L" * 20_000, room), block_call(b"last")])
            )
        assert acknowledged == (1 if operations < 5 else 3)
        for seed in range(20):
            again, _ = reopened(World(fs.crash_clone(Random(seed))))
            assert acknowledged <= again.next_serial <= 3


class TestOutcomes:
    def test_each_call_learns_the_serials_of_its_own_rows_though_they_stand_by_stream(
        self,
    ) -> None:
        committer = begun(World())
        calls = [call_on("b", "a", "c"), call_on("a"), call_on("c", "b", "b", "a")]
        outcomes = committer.commit(calls)
        by_serial = {row.serial: (row.topic, row.timestamp_us) for row in rows_of(committer.slab)}
        time = NOW_US
        for call, outcome in zip(calls, outcomes, strict=True):
            _, serials = stored(outcome)
            expected = [(topic.decode(), time + i) for i, topic in enumerate(call.batch.topics)]
            assert [by_serial[serial] for serial in serials] == expected
            time += len(call.batch.topics)

    def test_serials_that_were_not_asked_for_at_once_stay_right_when_more_was_written(
        self,
    ) -> None:
        committer = begun(World(), compression="zstd")
        (outcome,) = committer.commit([call_on("b", "a")])
        committer.commit([call_on("a", "c", "b")])
        rows = {row.serial: row.topic for row in rows_of(committer.slab)}
        assert [rows[serial] for serial in stored(outcome)[1]] == ["b", "a"]

    def test_a_bad_topic_fails_its_own_call_and_no_neighbour(self) -> None:
        committer = begun(World())
        first, bad, last = committer.commit(
            [call_on("a", "b"), call_on("c", "d/+", "e"), call_on("f")]
        )
        assert isinstance(bad, InvalidTopicError)
        assert str(bad) == ("topic must not have the wildcards + and #: topic='d/+': row=1")
        assert sorted(stored(first)[1] + stored(last)[1]) == [0, 1, 2]
        assert topics_of(committer.slab) == ["a", "b", "f"]

    def test_a_bad_call_alone_writes_nothing_and_teaches_nothing(self) -> None:
        fs = MemoryFileSystem()
        committer = begun(World(fs))
        before = len(fs.operations), committer.slab.export()
        (bad,) = committer.commit([call_on("learned", "#")])
        assert isinstance(bad, InvalidTopicError)
        assert (len(fs.operations), committer.slab.export()) == before
        committer.commit([call_on("t")])
        assert [stream.pattern for stream in committer.inherited((-1, 1)).streams()] == []
        assert topics_of(committer.slab) == ["t"]


class TestProducers:
    def test_a_sequence_that_was_stored_is_acknowledged_and_not_stored_again(self) -> None:
        committer = begun(World())
        outcomes = [
            committer.commit([call_on("t", producer=PRODUCER, sequence=sequence)])[0]
            for sequence in (5, 5, 4, 6)
        ]
        assert [stored(outcome) for outcome in outcomes] == [
            (False, [0]),
            (True, []),
            (True, []),
            (False, [1]),
        ]
        assert topics_of(committer.slab) == ["t", "t"]

    def test_a_sequence_that_is_twice_in_one_flush_is_stored_once(self) -> None:
        committer = begun(World())
        calls = [call_on("t", producer=PRODUCER, sequence=sequence) for sequence in (1, 1, 2, 1)]
        outcomes = committer.commit([*calls, call_on("t")])
        assert [stored(outcome) for outcome in outcomes] == [
            (False, [0]),
            (True, []),
            (False, [1]),
            (True, []),
            (False, [2]),
        ]

    def test_producers_do_not_meet(self) -> None:
        committer = begun(World())
        outcomes = committer.commit(
            [
                call_on("t", producer=producer_key(name), sequence=1)
                for name in ("one", "two", "three")
            ]
        )
        assert [stored(outcome)[0] for outcome in outcomes] == [False, False, False]

    def test_a_call_that_failed_does_not_use_up_its_sequence(self) -> None:
        committer = begun(World())
        (bad,) = committer.commit([call_on("#", producer=PRODUCER, sequence=1)])
        (good,) = committer.commit([call_on("t", producer=PRODUCER, sequence=1)])
        assert isinstance(bad, InvalidTopicError)
        assert stored(good) == (False, [0])

    def test_a_call_that_failed_does_not_use_up_its_sequence_within_its_flush(self) -> None:
        committer = begun(World())
        bad, good = committer.commit(
            [
                call_on("#", producer=PRODUCER, sequence=1),
                call_on("t", producer=PRODUCER, sequence=1),
            ]
        )
        assert isinstance(bad, InvalidTopicError)
        assert stored(good) == (False, [0])
        assert topics_of(committer.slab) == ["t"]

    @pytest.mark.parametrize(
        ("sent", "kept"),
        [
            ([(5, "#"), (5, "five"), (6, "six")], ["five", "six"]),
            ([(6, "#"), (5, "five")], ["five"]),
            ([(5, "five"), (6, "#"), (5, "again")], ["five"]),
            ([(5, "#"), (6, "six"), (5, "late")], ["six"]),
        ],
        ids=str,
    )
    def test_a_flush_keeps_what_calls_one_by_one_would(
        self, sent: list[tuple[int, str]], kept: list[str]
    ) -> None:
        told = []
        for together in (True, False):
            committer = begun(World())
            calls = [call_on(topic, producer=PRODUCER, sequence=number) for number, topic in sent]
            outcomes: list[Outcome | Exception] = []
            for flush in [calls] if together else [[call] for call in calls]:
                outcomes += committer.commit(flush)
            assert topics_of(committer.slab) == kept
            told.append([type(o) if isinstance(o, Exception) else o.duplicate for o in outcomes])
        assert told[0] == told[1]

    @pytest.mark.parametrize("together", [False, True], ids=["later", "in the same flush"])
    def test_a_duplicate_that_wants_a_sync_gets_it_though_the_first_did_not_want_one(
        self, *, together: bool
    ) -> None:
        fs = MemoryFileSystem()
        committer = begun(World(fs))
        calls = [call_on("t", sync=sync, producer=PRODUCER, sequence=1) for sync in (False, True)]
        if not together:
            committer.commit(calls[:1])
        outcomes = committer.commit(calls if together else calls[1:])
        assert stored(outcomes[-1]) == (True, [])
        again, _ = reopened(World(fs.crash_clone()))
        assert topics_of(again.slab) == ["t"]

    def test_sequences_come_back_with_the_slab(self) -> None:
        world = World()
        committer = begun(world)
        committer.commit([call_on("t", producer=PRODUCER, sequence=7)])
        committer.close()
        again, _ = reopened(world)
        outcomes = again.commit(
            [call_on("t", producer=PRODUCER, sequence=sequence) for sequence in (7, 8)]
        )
        assert [stored(outcome)[0] for outcome in outcomes] == [True, False]


class TestSync:
    def test_written_rows_are_seen_at_once_and_unsynced_until_sync(self) -> None:
        fs = MemoryFileSystem()
        committer = begun(World(fs))
        committer.commit([call_on("t", sync=False)])
        assert (topics_of(committer.slab), committer.unsynced) == (["t"], True)
        lost, _ = reopened(World(fs.crash_clone()))
        assert topics_of(lost.slab) == []
        committer.sync()
        assert committer.unsynced is False
        kept, _ = reopened(World(fs.crash_clone()))
        assert topics_of(kept.slab) == ["t"]

    def test_a_synced_flush_makes_earlier_written_ones_durable_too(self) -> None:
        fs = MemoryFileSystem()
        committer = begun(World(fs))
        committer.commit([call_on("a", sync=False)])
        committer.commit([call_on("b")])
        assert committer.unsynced is False
        again, _ = reopened(World(fs.crash_clone()))
        assert topics_of(again.slab) == ["a", "b"]

    def test_sync_does_nothing_when_all_is_synced(self) -> None:
        fs = MemoryFileSystem()
        committer = begun(World(fs))
        committer.commit([call_on("t")])
        before = len(fs.operations)
        committer.sync()
        assert len(fs.operations) == before

    def test_close_makes_written_rows_durable_and_gives_their_serials_back(self) -> None:
        fs = MemoryFileSystem()
        committer = begun(World(fs))
        committer.commit([call_on("t", sync=False)])
        committer.close()
        committer.close()
        again, _ = reopened(World(fs.crash_clone()))
        assert (topics_of(again.slab), again.next_serial) == (["t"], 1)


class TestRoll:
    def test_a_frame_that_does_not_fit_begins_a_segment_that_knows_all_so_far(self) -> None:
        world = World()
        committer = begun(world)
        for number in range(5):
            call = large_call(f"t/{number}", SEGMENT_BYTES // 3)
            call.producer, call.sequence = PRODUCER, number
            committer.commit([call])
        handles = committer.slab.handles()
        assert [(handle.base_serial, handle.sealed) for handle in handles] == [
            (0, True),
            (2, True),
            (4, False),
        ]
        assert topics_of(committer.slab) == [f"t/{number}" for number in range(5)]
        committer.close()
        again, report = reopened(world)
        assert (topics_of(again.slab), report.rebuilt) == ([f"t/{n}" for n in range(5)], ())
        assert stored(again.commit([call_on("t", producer=PRODUCER, sequence=4)])[0])[0] is True

    def test_a_frame_larger_than_a_segment_gets_a_segment_of_its_size(self) -> None:
        world = World()
        committer = begun(world)
        committer.commit([call_on("small")])
        committer.commit([large_call("large", 3 * SEGMENT_BYTES)])
        committer.commit([call_on("small")])
        assert [row.value for row in rows_of(committer.slab)] == [
            b"0",
            bytes(3 * SEGMENT_BYTES),
            b"0",
        ]
        sizes = {entry.name: entry.size_bytes for entry in world.fs.list(slab_place())}
        assert sizes[f"{0:020}.seg"] == SEGMENT_BYTES
        assert 3 * SEGMENT_BYTES < sizes[f"{1:020}.seg"] < 3 * SEGMENT_BYTES + 3 * 4096

    def test_a_first_frame_larger_than_a_segment_gets_a_larger_file_of_that_name(self) -> None:
        world = World()
        committer = begun(world)
        (outcome,) = committer.commit([large_call("large", 2 * SEGMENT_BYTES)])
        assert stored(outcome) == (False, [0])
        committer.close()
        assert [entry.name for entry in world.fs.list(slab_place())] == [f"{0:020}.seg"]
        again, _ = reopened(world)
        assert (topics_of(again.slab), again.next_serial) == (["large"], 1)

    def test_the_size_is_what_the_files_take_on_the_disk(self) -> None:
        world = World(MemoryFileSystem(page_bytes=4096))
        committer = begun(world)
        for number in range(4):
            committer.commit([large_call(f"t/{number}", SEGMENT_BYTES // 3)])
        on_disk = sum(entry.allocated_bytes for entry in world.fs.list(slab_place()))
        assert committer.size_bytes() == on_disk


class TestFullDisk:
    @pytest.mark.parametrize(
        ("operation", "nth"), [("allocate", 1), ("write_at", 1), ("write_at", 2)]
    )
    def test_a_full_disk_leaves_nothing_behind_and_the_next_call_goes_through(
        self, operation: Any, nth: int
    ) -> None:
        world, fs = faulty_world()
        committer = begun(world, thresholds=(1, 0))
        committer.commit([call_on("before")])
        state = committer.state(), committer.next_serial, committer.last_timestamp_us
        fs.add(Fault(operation=operation, errno=errno.ENOSPC, nth=nth, keep_bytes=10))
        with pytest.raises(StorageFullError):
            committer.commit([large_call("learned/1", SEGMENT_BYTES)])
        assert (committer.state(), committer.next_serial, committer.last_timestamp_us) == state
        assert topics_of(committer.slab) == ["before"]
        fs.clear()
        committer.commit([call_on("after/2")])
        assert topics_of(committer.slab) == ["before", "after/2"]
        committer.close()
        again, report = reopened(world, thresholds=(1, 0))
        assert (topics_of(again.slab), report.torn_bytes) == (["before", "after/2"], 0)

    def test_what_was_learned_for_a_frame_that_was_not_written_is_forgotten(self) -> None:
        world, fs = faulty_world()
        committer = begun(world, thresholds=(-1, 1))
        fs.add(Fault(operation="write_at", errno=errno.ENOSPC))
        with pytest.raises(StorageFullError):
            committer.commit([call_on("a/lost")])
        fs.clear()
        committer.commit([call_on("a/kept")])
        patterns = [match.stream.pattern for match in committer.slab.match(TopicFilter.parse("#"))]
        # Had `lost` been remembered as the one word that the level may learn, it would vary now.
        assert patterns == [b"a/kept"]

    def test_rows_that_a_full_disk_refuses_again_are_not_even_looked_at(self) -> None:
        world, fs = faulty_world()
        committer = begun(world, segment_bytes=4 * SEGMENT_BYTES)
        fs.add(Fault(operation="allocate", errno=errno.ENOSPC, repeat=True))
        errors: list[Exception | None] = []
        for number in range(3):
            bad = call_on("no/+/topic")
            with pytest.raises(StorageFullError):
                committer.commit([large_call(f"new/{number}", 2 * SEGMENT_BYTES), bad])
            errors.append(bad.error)
        assert [error is None for error in errors] == [False, True, True]
        fs.clear()
        committer.commit([large_call("new/3", 2 * SEGMENT_BYTES)])
        assert topics_of(committer.slab) == ["new/3"]

    def test_a_producer_may_try_again_after_a_full_disk(self) -> None:
        world, fs = faulty_world()
        committer = begun(world)
        fs.add(Fault(operation="write_at", errno=errno.ENOSPC))
        with pytest.raises(StorageFullError):
            committer.commit([call_on("t", producer=PRODUCER, sequence=1)])
        fs.clear()
        (outcome,) = committer.commit([call_on("t", producer=PRODUCER, sequence=1)])
        assert stored(outcome) == (False, [0])


class TestPoison:
    @pytest.mark.parametrize("operation", ["sync", "write_at"])
    def test_a_failed_write_or_sync_refuses_everything_from_then_on(self, operation: Any) -> None:
        world, fs = faulty_world()
        committer = begun(world)
        committer.commit([call_on("before")])
        fs.add(Fault(operation=operation, errno=errno.EIO))
        with pytest.raises(PoisonedError, match="close the database and open it again") as caught:
            committer.commit([call_on("t")])
        fs.clear()
        for refused in (
            committer.check,
            committer.sync,
            lambda: committer.seal(b"", b""),
            lambda: committer.commit([call_on("t")]),
        ):
            with pytest.raises(PoisonedError) as again:
                refused()
            assert str(again.value) == str(caught.value)
            # One error that is raised for ever would keep all that it was raised through.
            assert again.value is not caught.value
        assert topics_of(committer.slab) == ["before"]

    def test_a_failed_sync_of_written_rows_poisons_too(self) -> None:
        world, fs = faulty_world()
        committer = begun(world)
        committer.commit([call_on("t", sync=False)])
        fs.add(Fault(operation="sync", errno=errno.EIO))
        with pytest.raises(PoisonedError, match="cause=sync failed"):
            committer.sync()
        with pytest.raises(PoisonedError):
            committer.check()

    def test_a_failed_sync_is_never_tried_again_by_close(self) -> None:
        fs = MemoryFileSystem()
        faulty = FaultyFileSystem(fs)
        committer = begun(World(faulty))
        faulty.add(Fault(operation="sync", errno=errno.EIO))
        with pytest.raises(PoisonedError):
            committer.commit([call_on("t")])
        faulty.clear()
        before = len(fs.operations)
        committer.close()
        assert len(fs.operations) == before

    def test_opening_again_recovers(self) -> None:
        fs = MemoryFileSystem()
        faulty = FaultyFileSystem(fs)
        committer = begun(World(faulty))
        committer.commit([call_on("before")])
        faulty.add(Fault(operation="sync", errno=errno.EIO))
        with pytest.raises(PoisonedError):
            committer.commit([call_on("t")])
        committer.close()
        again, _ = reopened(World(fs.crash_clone()))
        again.commit([call_on("after")])
        assert topics_of(again.slab) == ["before", "after"]


class TestSeal:
    def test_a_sealed_slab_has_an_index_for_its_last_segment(self) -> None:
        world = World()
        committer = begun(world)
        committer.commit([call_on("t", sync=False)])
        committer.seal(*committer.state())
        assert committer.unsynced is False
        names = [entry.name for entry in world.fs.list(slab_place())]
        assert names == [f"{0:020}.idx", f"{0:020}.seg"]
        assert topics_of(committer.slab) == ["t"]

    def test_the_heir_has_what_varies_special_topics_included_and_the_producers(self) -> None:
        committer = begun(World(), thresholds=(-1, 1))
        call = call_on("a/1", "a/2", "$SYS/1/x", "$SYS/2/x", "b")
        call.producer, call.sequence = PRODUCER, 3
        committer.commit([call])
        structure, (_, producers) = committer.inherited((-1, 1)), committer.state()
        patterns = sorted((stream.pattern, stream.special) for stream in structure.streams())
        assert patterns == [(b"$SYS/+/x", True), (b"a/+", False)]
        assert structure.has_pending() is False
        expected = ProducerTable()
        expected.apply(PRODUCER + (3).to_bytes(8, "little"))
        assert producers == expected.encode()


def test_every_compression_stores_the_same_rows() -> None:
    found: dict[str, list[Row]] = {}
    for compression in ("none", "zstd", "lz4"):
        world = World()
        committer = begun(world, compression=compression)
        committer.commit([call_on("a", "b", "a"), large_call("c", 10_000)])
        committer.close()
        again, _ = reopened(world, compression="none")
        found[compression] = rows_of(again.slab)
    assert found["zstd"] == found["none"]
    assert found["lz4"] == found["none"]
    assert [row.topic for row in found["none"]] == ["a", "b", "a", "c"]


def test_settings_hold_from_the_next_frame_on() -> None:
    committer = begun(World())
    committer.commit([large_call("t", 10_000)])
    plain = committer.slab.handles()[-1].segment().index.end_position
    changed: Committer = committer
    changed.settings = type(committer.settings)(compression="zstd", segment_bytes=SEGMENT_BYTES)
    committer.commit([large_call("t", 10_000)])
    packed = committer.slab.handles()[-1].segment().index.end_position - plain
    assert packed < 1_000
    assert [len(row.value) for row in rows_of(committer.slab)] == [10_000, 10_000]


class OtherLog:
    """A commit log that takes notes, and refuses or fails when it is told to."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.refuses = False

    def commit(self, record: Record, replica: Replica, *, sync: bool) -> None:
        if self.refuses:
            raise RetryError("another machine leads the shard")
        self.steps.append(f"{record.kind.name} {sync}")
        replica.store(record)
        if sync:
            replica.sync()


class TestCommitLog:
    """A log that may refuse a record before it is stored."""

    def test_every_frame_goes_through_the_log_with_the_durability_that_was_asked_for(self) -> None:
        committer = begun(World())
        log = committer.log = OtherLog()
        written = call_on("b")
        written.wants_sync = False
        committer.commit([call_on("a")])
        committer.commit([written])
        assert log.steps == ["ROWS True", "ROWS False"]
        assert topics_of(committer.slab) == ["a", "b"]

    def test_what_the_log_refuses_leaves_nothing_behind(self) -> None:
        world = World()
        committer = begun(world)
        log = committer.log = OtherLog()
        committer.commit([call_on("a/1")])
        end = committer.size_bytes()
        for _ in range(3):
            log.refuses = True
            with pytest.raises(RetryError, match="another machine"):
                committer.commit([call_on("x/y/z"), large_call("b", 500)])
            log.refuses = False
            (outcome,) = committer.commit([call_on("a/2")])
            assert isinstance(outcome, Outcome)
        assert topics_of(committer.slab) == ["a/1", "a/2", "a/2", "a/2"]
        assert [row.serial for row in rows_of(committer.slab)] == [0, 1, 2, 3]
        assert committer.slab.match(TopicFilter.parse("x/#")) == []
        assert committer.size_bytes() == end
        committer.close()
        again, _ = reopened(world)
        assert topics_of(again.slab) == ["a/1", "a/2", "a/2", "a/2"]
        again.close()

    def test_a_segment_that_was_begun_for_a_refused_frame_takes_the_next_one(self) -> None:
        world = World()
        committer = begun(world)
        log = committer.log = OtherLog()
        committer.commit([call_on("a")])
        log.refuses = True
        with pytest.raises(RetryError):
            committer.commit([large_call("b", SEGMENT_BYTES)])
        log.refuses = False
        committer.commit([call_on("c")])
        assert topics_of(committer.slab) == ["a", "c"]
        committer.close()
        again, _ = reopened(world)
        assert topics_of(again.slab) == ["a", "c"]
        again.close()


class TestPacked:
    def compressions(self, committer: Committer) -> list[int]:
        """Return the compression of each frame behind the state."""
        segment = committer.slab.handles()[-1].segment()
        return [segment.checked_header(n).compression for n in range(1, segment.index.frame_count)]

    def test_frames_of_few_rows_are_packed_also_with_edges_and_producers(self) -> None:
        committer = begun(World())
        for topics in (["a"], ["a", "a"], ["a", "b"]):
            committer.commit([call_on(*topics)])
        committer.commit([call_on("b", producer=PRODUCER, sequence=1)])
        assert self.compressions(committer) == [PACKED] * 4
        assert topics_of(committer.slab) == ["a", "a", "a", "a", "b", "b"]

    def test_a_frame_of_many_rows_is_not_packed(self) -> None:
        committer = begun(World())
        committer.commit([call_on(*["a"] * PACKED_ROWS_MAX)])
        committer.commit([call_on(*["a"] * (PACKED_ROWS_MAX + 1))])
        assert self.compressions(committer) == [PACKED, PLAIN]

    def test_a_database_that_compresses_has_no_packed_frames(self) -> None:
        committer = begun(World(), compression="zstd")
        for _ in range(2):
            committer.commit([call_on("a")])
        assert self.compressions(committer) == [ZSTD, ZSTD]

    def test_a_database_with_a_shared_log_has_no_packed_frames(self) -> None:
        committer = begun(World())
        committer.replicate(OtherLog())
        for _ in range(2):
            committer.commit([call_on("a")])
        committer.end_segment()
        assert self.compressions(committer) == []
        assert not committer.slab.handles()[-1].segment().header.packs
        committer.commit([call_on("a")])
        assert self.compressions(committer) == [PLAIN]

    def test_a_replicated_database_begins_its_segments_without_packed_frames(self) -> None:
        committer = begun(World(), backend="replicated")
        assert not committer.slab.handles()[-1].segment().header.packs
        committer.commit([call_on("a")])
        assert self.compressions(committer) == [PLAIN]

    def test_a_segment_of_an_earlier_version_is_continued_without_packed_frames(self) -> None:
        world = World()
        committer = begun(world)
        committer.commit([call_on("a")])
        path = committer.slab.handles()[-1].path
        header = committer.slab.handles()[-1].segment().header
        committer.close()
        earlier = replace(header, packs=False).encode(end=0)
        with world.fs.open(path, writable=True) as file:
            file.write_at(0, earlier[:2048])
            file.sync()
        committer, _ = reopened(world)
        committer.commit([call_on("a")])
        assert self.compressions(committer) == [PACKED, PLAIN]
        committer.end_segment()
        committer.commit([call_on("a")])
        assert self.compressions(committer) == [PACKED]
        assert topics_of(committer.slab) == ["a", "a", "a"]

    def test_callers_get_the_serials_of_a_packed_frame_with_several_streams(self) -> None:
        committer = begun(World())
        committer.commit([call_on("b", "a")])
        segment = committer.slab.handles()[-1].segment()
        outcomes = committer.commit([call_on("b", "a"), call_on("b")])
        assert self.compressions(committer) == [PACKED, PACKED]
        frame = segment.frame(2)
        topics = [bytes(topic).decode() for topic in frame.topics_at(range(3))]
        expected = {
            (topic, time): serial
            for serial, (topic, time) in enumerate(zip(topics, frame.times(), strict=True), 2)
        }
        first_us = frame.header.first_timestamp_us
        assert [stored(outcome) for outcome in outcomes] == [
            (False, [expected["b", first_us], expected["a", first_us + 1]]),
            (False, [expected["b", first_us + 2]]),
        ]
