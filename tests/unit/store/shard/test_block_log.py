from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

import pytest

from siltstone.errors import (
    ExistsError,
    InvalidTopicError,
    QuotaExceededError,
    StorageFullError,
    UsageError,
)
from siltstone.store.shard.block_log import BlockLog
from siltstone.store.slab.settings import DatabaseSettings
from tests.support.builders import PATH, SEGMENT_BYTES, read_rows
from tests.support.topiclog import (
    SMALL,
    LogWorld,
    all_values,
    append,
    append_large,
    fill,
    offsets_of,
    taken,
)


def runs(
    log: BlockLog, offset: int, bytes_max: int, rows_max: int = 100
) -> list[tuple[int, bytes]]:
    found = log.read(offset, bytes_max=bytes_max, rows_max=rows_max)
    return [(run.first_offset, bytes(run.data)) for run in found]


class TestReading:
    def test_what_is_read_is_within_limits_and_one_message_at_least(self) -> None:
        with LogWorld().blocks() as logs:
            log = logs.add("t")
            append(log, b"aa", b"bb", b"cc")
            append(log, b"dd", b"ee")
            assert runs(log, 0, 1000) == [(0, b"aabbcc"), (3, b"ddee")]
            assert runs(log, 1, 5) == [(1, b"bbcc")]
            assert runs(log, 1, 6) == [(1, b"bbcc"), (3, b"dd")]
            assert runs(log, 0, 1) == [(0, b"aa")]
            assert runs(log, 0, 1000, 4) == [(0, b"aabbcc"), (3, b"dd")]
            assert runs(log, 5, 1000) == []
            assert runs(log, 99, 1000) == []

    def test_lengths_are_known_by_offset(self) -> None:
        with LogWorld().blocks() as logs:
            log = logs.add("t")
            append(log, b"a", b"bbb")
            append_large(log, b"c" * 9000)
            assert [log.length(offset) for offset in range(4)] == [1, 3, 9000, 0]

    def test_more_frames_than_are_opened_at_once_are_read_on(self) -> None:
        with LogWorld().blocks() as logs:
            log = logs.add("t")
            values = [b"%d" % number for number in range(150)]
            for value in values:
                append(log, value)
            assert all_values(log) == values

    def test_generations_are_read_through_and_what_is_dropped_is_gone(self) -> None:
        world = LogWorld()
        with world.logs() as (logs, database):
            logs.create_topic("t")
            log = logs.log("t")
            assert isinstance(log, BlockLog)
            append(log, b"1", b"2")
            database.seal()
            append(log, b"3")
            database.seal()
            append_large(log, b"4" * 700)
            assert all_values(log) == [b"1", b"2", b"3", b"4" * 700]
            database.drop_slab(database.slabs()[0].slab)
            assert log.bounds() == range(2, 4)
            assert all_values(log, 2) == [b"3", b"4" * 700]
            assert runs(log, 0, 1) == [(2, b"3")]

    def test_a_topic_is_looked_for_in_every_shard_for_its_name_does_not_choose_one(self) -> None:
        with LogWorld().logs(replace(SMALL, shard_by="topic")) as (logs, database):
            for topic in ("k0", "k5"):
                logs.create_topic(topic)
            assert [database.may_hold(shard, ["k0"]) for shard in range(2)] == [True, True]


class TestRooms:
    def test_a_message_by_way_of_a_room_is_a_row_like_any_other(self) -> None:
        with LogWorld().logs() as (logs, database):
            logs.create_topic("t")
            log = logs.log("t")
            assert isinstance(log, BlockLog)
            assert append_large(log, b"x" * 500, b"y" * 5) == 0
            assert [(row.serial, row.value) for row in read_rows(database)] == [
                (0, b"x" * 500),
                (1, b"y" * 5),
            ]

    def test_who_is_slow_holds_up_nobody(self) -> None:
        with LogWorld().blocks() as logs:
            log = logs.add("t")
            slow = taken(log, 1000)
            assert append(log, b"quick") == 0
            assert append_large(log, b"also quick") == 1
            offsets = fill(slow, b"s" * 1000)
            assert log.append_room(offsets, slow).wait().first_serial() == 2

    def test_a_room_that_was_given_up_at_the_end_is_as_if_it_had_never_been(self) -> None:
        world = LogWorld()
        with world.blocks() as logs:
            log = logs.add("t")
            append(log, b"before")
            before = world.fs.kill_clone()
            first, second = taken(log, 600), taken(log, 800)
            fill(first, b"f" * 600)
            fill(second, b"s" * 300)
            log.give_up_room(first)
            log.give_up_room(second)
            path = log_segment()
            assert world.fs.read(path) == before.read(path)
            assert taken(log, 600).position == first.position

    def test_a_room_that_was_given_up_in_the_middle_is_used_again(self) -> None:
        with LogWorld().blocks() as logs:
            log = logs.add("t")
            room = taken(log, 1000)
            append(log, b"behind it")
            log.give_up_room(room)
            again = taken(log, 900)
            assert again.position == room.position
            log.append_room(fill(again, b"a" * 900), again).wait()
            assert all_values(log) == [b"behind it", b"a" * 900]

    def test_a_room_whose_segment_was_rolled_is_copied(self) -> None:
        with LogWorld().blocks() as logs:
            log = logs.add("t")
            append(log, b"first")
            slow = taken(log, 30_000)
            for number in range(3):
                append_large(log, b"%d" % number * 30_000)
            assert log.append_room(fill(slow, b"s" * 30_000), slow).wait().first_serial() == 4
            assert all_values(log)[4] == b"s" * 30_000
            log.give_up_room(slow)

    def test_the_first_message_may_be_larger_than_a_segment_and_two_at_once(self) -> None:
        with LogWorld().blocks() as logs:
            log = logs.add("t")
            one, two = taken(log, 2 * SEGMENT_BYTES), taken(log, 3 * SEGMENT_BYTES)
            log.append_room(fill(one, b"1" * 2 * SEGMENT_BYTES), one).wait()
            log.append_room(fill(two, b"2" * 3 * SEGMENT_BYTES), two).wait()
            assert log.bounds() == range(2)
            assert [len(value) for value in all_values(log)] == [
                2 * SEGMENT_BYTES,
                3 * SEGMENT_BYTES,
            ]

    def test_a_quota_and_a_full_disk_keep_a_room_from_being_taken(self) -> None:
        settings = DatabaseSettings(segment_bytes=SEGMENT_BYTES, quota_bytes=200_000)
        world = LogWorld()
        with world.blocks(settings) as logs:
            log = logs.add("t")
            with pytest.raises(QuotaExceededError):
                taken(log, 300_000)
            world.fs.capacity_bytes = 1_000_000
            with pytest.raises(StorageFullError):
                taken(log, 100)
            world.fs.capacity_bytes = 1 << 40
            assert append_large(log, b"small") == 0


class TestTopics:
    def test_a_topic_is_created_once_and_in_order(self) -> None:
        world = LogWorld()
        with world.blocks() as logs:
            for topic in ("b", "a"):
                logs.add(topic)
            with pytest.raises(ExistsError, match="'b'"):
                logs.add("b")
            with pytest.raises(InvalidTopicError):
                logs.add("+")
        with world.blocks() as logs:
            assert logs.topics() == ["b", "a"]
            found = logs.find("a")
            assert found is not None
            assert (found.number, found.topic) == (1, "a")
            assert logs.find("c") is None

    def test_a_database_whose_shards_are_shared_takes_no_topics(self) -> None:
        with (
            LogWorld().blocks(DatabaseSettings(segment_bytes=SEGMENT_BYTES, shards=2)) as logs,
            pytest.raises(UsageError, match="is not a database of topic logs"),
        ):
            logs.add("t")

    def test_messages_have_offsets_and_times_that_rise(self) -> None:
        with LogWorld().logs() as (logs, database):
            logs.create_topic("t")
            log = logs.log("t")
            tickets = [log.append(offsets_of([b"x", b"y"]), b"xy") for _ in range(3)]
            assert [ticket.wait().first_serial() for ticket in tickets] == [0, 2, 4]
            times = [row.timestamp_us for row in read_rows(database)]
            assert times == sorted(set(times))


def log_segment() -> PurePath:
    return PATH / "data" / "topics" / "0" / "1" / f"{0:020d}.seg"
