from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from siltstone.broker.retained import log as retained_log
from siltstone.broker.retained import messages as retained
from siltstone.broker.retained.log import LOG_SETTINGS, Retained, RetainedLog
from siltstone.broker.retained.messages import PutReceipt, RetainedMessages
from siltstone.broker.settings.broker import Limits
from siltstone.clock import ManualClock
from siltstone.errors import ClosedError, OverloadedError, QuotaExceededError
from siltstone.mqtt.publish import NO_EXPIRY
from siltstone.store.database import Database
from siltstone.store.writer.ticket import Ticket
from siltstone.topic.grammar import TopicFilter
from tests.support.broker_core import ScriptedDatabase, over_quota
from tests.support.builders import HELD, NOW_US, World

SECOND_US = 1_000_000


class Shelf:
    """Retained messages over a disk in memory, with the calls that tests make many times."""

    def __init__(self, world: World, database: Database | None, **limits: Any) -> None:
        self.world = world
        self._database = database
        self.messages = RetainedMessages(database, world.clock, Limits(**limits))
        self.messages.load()

    @property
    def database(self) -> Database:
        assert self._database is not None
        return self._database

    def put(self, *pairs: tuple[str, str], expiry: int = NO_EXPIRY) -> PutReceipt:
        """Put payloads without saying what became of them."""
        return self.messages.put(
            [topic.encode() for topic, _ in pairs],
            [payload.encode() for _, payload in pairs],
            [5] * len(pairs),
            [],
            [expiry] * len(pairs) if expiry != NO_EXPIRY else [],
            b"client",
            "synced",
        )

    def put_durably(self, *pairs: tuple[str, str], expiry: int = NO_EXPIRY) -> None:
        receipt = self.put(*pairs, expiry=expiry)
        assert receipt.refused == []
        assert receipt.ticket is not None
        self.messages.settled(receipt.ticket.wait())

    def put_in_vain(self, *pairs: tuple[str, str]) -> Ticket:
        """Put payloads that the store refuses, which nobody has told the messages yet."""
        self.database.configure(quota_bytes=1)
        ticket = self.put(*pairs).ticket
        assert ticket is not None
        with pytest.raises(QuotaExceededError):
            ticket.wait()
        self.database.configure(quota_bytes=None)
        return ticket

    def put_well(self, *pairs: tuple[str, str]) -> Ticket:
        """Put payloads that the store takes, which nobody has told the messages yet."""
        ticket = self.put(*pairs).ticket
        assert ticket is not None
        return ticket.wait()

    def shown(self, text: str = "#") -> dict[str, str]:
        """Return what a filter finds."""
        found = self.messages.find(TopicFilter.parse(text), self.world.clock.now_us())
        return {message.topic.decode(): message.payload.decode() for message in found}

    def reloaded(self) -> dict[str, str]:
        """Return what a broker would show that starts now."""
        return Shelf(self.world, self.database).shown()

    def rows(self) -> int:
        return self.database.count("#")


@contextmanager
def new_shelf(world: World | None = None, **limits: Any) -> Iterator[Shelf]:
    world = world or World()
    with world.database(thresholds=LOG_SETTINGS.thresholds) as database:
        yield Shelf(world, database, **limits)


def told(receipt: PutReceipt) -> tuple[Ticket | None, list[int]]:
    return receipt.ticket, receipt.refused


def compact(messages: RetainedMessages) -> int:
    """Compact in one go; return how many steps there were."""
    count = 0
    with closing(messages.compact()) as steps:
        for step in steps:
            step()
            count += 1
    return count


class TestPut:
    def test_a_message_is_found_whole_at_once(self) -> None:
        with new_shelf() as shelf:
            receipt = shelf.messages.put(
                [b"a/b", b"a/c"],
                [b"1", b"2"],
                [0b1101, 4],
                [b"\x01\x01", b""],
                [9, -1],
                b"p",
                "none",
            )
            assert receipt.refused == []
            expected = [
                Retained(b"a/b", b"1", 5, b"\x01\x01", NOW_US, NOW_US + 9 * SECOND_US, b"p"),
                Retained(b"a/c", b"2", 4, b"", NOW_US, 0, b"p"),
            ]
            assert shelf.messages.find(TopicFilter.parse("a/+"), NOW_US) == expected
            assert shelf.messages.get(b"a/b", NOW_US) == expected[0]
            assert shelf.messages.get(b"a", NOW_US) is None
            assert (len(shelf.messages), shelf.messages.size_bytes) == (
                2,
                3 + 1 + 2 + 1 + 3 + 1 + 1,
            )

    def test_mqtt_3_3_1_5_the_last_message_of_a_topic_replaces_the_one_before(self) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(("a", "old"), ("b", "1"), ("a", "new"))
            assert (shelf.shown(), shelf.rows()) == ({"a": "new", "b": "1"}, 2)
            shelf.put_durably(("a", "newest"))
            assert shelf.shown() == shelf.reloaded() == {"a": "newest", "b": "1"}
            assert shelf.messages.size_bytes == 7 + 2 + 2 * len("client")

    def test_a_topic_that_is_replaced_is_kept_once(self) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(("a/b", "1"))
            before = shelf.messages.get(b"a/b", NOW_US)
            shelf.put_durably(("a/b", "2"))
            after = shelf.messages.get(b"a/b", NOW_US)
            assert before is not None
            assert after is not None
            assert after.topic is before.topic

    def test_mqtt_3_3_1_6_an_empty_payload_clears_its_topic(self) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(("a", "1"), ("b", "2"))
            shelf.put_durably(("a", ""))
            assert shelf.shown() == shelf.reloaded() == {"b": "2"}
            shelf.put_durably(("b", ""))
            assert (len(shelf.messages), shelf.messages.size_bytes) == (0, 0)

    def test_mqtt_3_3_1_7_an_empty_payload_is_not_stored(self) -> None:
        with new_shelf() as shelf:
            assert told(shelf.put(("a", ""))) == (None, [])
            assert told(shelf.put(("a", "1"), ("a", ""))) == (None, [])
            assert told(shelf.put()) == (None, [])
            assert (shelf.shown(), shelf.rows()) == ({}, 0)

    def test_without_a_database_messages_are_in_ram_alone(self) -> None:
        shelf = Shelf(World(), None)
        assert told(shelf.put(("a", "1"), ("b", "2"), ("b", ""))) == (None, [])
        assert shelf.shown() == {"a": "1"}
        assert not shelf.messages.needs_compaction()

    def test_what_the_store_has_no_room_to_queue_changes_nothing(self) -> None:
        world = World()
        with world.database(pending_bytes_max=10, **HELD) as database:
            shelf = Shelf(world, database)
            ticket = shelf.put(("a", "1")).ticket
            with pytest.raises(OverloadedError):
                shelf.put(("a", "2"), ("b", "1"))
            assert (shelf.shown(), len(shelf.messages)) == ({"a": "1"}, 1)
            database.sync()
            assert ticket is not None
            shelf.messages.settled(ticket)
            assert shelf.reloaded() == {"a": "1"}

    def test_what_a_closed_store_refuses_changes_nothing(self) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(("a", "1"))
            shelf.database.close()
            with pytest.raises(ClosedError):
                shelf.put(("a", ""))
            assert shelf.shown() == {"a": "1"}


class TestRestart:
    def test_messages_come_back_exactly(self) -> None:
        world = World()
        given = [b"a/b", b"$queue/x", b"!queue/x", b"$", b"/"]
        with new_shelf(world) as shelf:
            receipt = shelf.messages.put(
                given,
                [b"1", b"2", b"3", b"4", b"5"],
                [4, 5, 6, 5, 4],
                [b"\x01\x00"] * 5,
                [],
                b"p",
                "synced",
            )
            assert receipt.ticket is not None
            shelf.messages.settled(receipt.ticket.wait())
            shelf.put_durably(("e", "6"), expiry=100)
            before = [shelf.messages.get(topic, NOW_US) for topic in [*given, b"e"]]
            size_bytes = shelf.messages.size_bytes
        # The clock goes back, so that the store gives times that are ahead of it.
        world.clock.jump(-3600.0)
        with new_shelf(world) as shelf:
            shelf.put_durably(("f", "7"), expiry=5)
            last = shelf.messages.get(b"f", 0)
        with new_shelf(world) as shelf:
            topics = [*given, b"e", b"f"]
            assert [shelf.messages.get(topic, 0) for topic in topics] == [*before, last]
            assert shelf.messages.size_bytes == size_bytes + 2 + len("client")

    def test_more_messages_than_the_limits_allow_are_loaded_and_can_be_replaced(self) -> None:
        world = World()
        with new_shelf(world) as shelf:
            shelf.put_durably(("a", "1"), ("b", "2"))
        with new_shelf(world, retained_messages_max=1, retained_bytes_max=1) as shelf:
            assert shelf.put(("c", "3"), ("a", "10")).refused == [0, 1]
            shelf.put_durably(("a", "4"), ("b", ""))
            assert shelf.shown() == {"a": "4"}


class TestLimits:
    def test_a_topic_too_many_is_refused_alone(self) -> None:
        with new_shelf(retained_messages_max=2) as shelf:
            pairs = [
                ("a", "1"),
                ("b", "1"),
                ("c", "1"),
                ("a", "2"),
                ("b", ""),
                ("d", "1"),
                ("b", "1"),
            ]
            receipt = shelf.put(*pairs)
            assert receipt.refused == [2, 6]
            assert shelf.shown() == {"a": "2", "d": "1"}

    def test_bytes_too_many_are_refused_unless_they_replace_as_many(self) -> None:
        with new_shelf(retained_bytes_max=2 * (6 + 3)) as shelf:
            assert shelf.put(("a", "12"), ("b", "123"), ("b", "12"), ("a", "123")).refused == [1, 3]
            assert shelf.put(("a", "34"), ("c", "1"), ("a", "1"), ("b", "123")).refused == [1]
            assert shelf.put(("a", ""), ("c", "1")).refused == []
            assert shelf.shown() == {"b": "123", "c": "1"}
            assert shelf.messages.size_bytes == 18

    def test_one_by_one_and_together_refuse_the_same(self) -> None:
        pairs = [
            ("a", "1"),
            ("b", "12"),
            ("a", "123"),
            ("c", "1"),
            ("a", ""),
            ("c", "1"),
            ("b", "1"),
        ]
        with new_shelf(retained_messages_max=2, retained_bytes_max=18) as shelf:
            together = (shelf.put(*pairs).refused, shelf.shown())
        with new_shelf(retained_messages_max=2, retained_bytes_max=18) as shelf:
            refused = [number for number, pair in enumerate(pairs) if shelf.put(pair).refused]
            assert (refused, shelf.shown()) == together == ([2, 3], {"b": "1", "c": "1"})


class TestFailure:
    def test_a_change_that_failed_is_undone(self) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(("a", "1"), ("b", "1"))
            ticket = shelf.put_in_vain(("a", "2"), ("b", ""), ("c", "2"))
            assert shelf.shown() == {"a": "2", "c": "2"}
            shelf.messages.settled(ticket)
            assert shelf.shown() == shelf.reloaded() == {"a": "1", "b": "1"}
            assert (len(shelf.messages), shelf.messages.size_bytes) == (2, 16)

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_a_later_change_outlives_the_failure_of_an_earlier_one(
        self, order: tuple[int, int]
    ) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(("a", "1"))
            tickets = [shelf.put_in_vain(("a", "2")), shelf.put_well(("a", "3"))]
            for number in order:
                shelf.messages.settled(tickets[number])
            assert shelf.shown() == shelf.reloaded() == {"a": "3"}

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_changes_that_failed_one_behind_the_other_lead_back_to_what_is_stored(
        self, order: tuple[int, int]
    ) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(("a", "1"))
            tickets = [shelf.put_in_vain(("a", "2")), shelf.put_in_vain(("a", "3"))]
            for number in order:
                shelf.messages.settled(tickets[number])
            assert shelf.shown() == shelf.reloaded() == {"a": "1"}

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_an_earlier_change_outlives_the_failure_of_a_later_one(
        self, order: tuple[int, int]
    ) -> None:
        with new_shelf() as shelf:
            tickets = [shelf.put_well(("a", "1")), shelf.put_in_vain(("a", ""))]
            for number in order:
                shelf.messages.settled(tickets[number])
            assert shelf.shown() == shelf.reloaded() == {"a": "1"}

    def test_a_topic_is_cleared_for_good_though_an_earlier_clearing_fails_later(self) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(("a", "1"))
            in_vain = shelf.put_in_vain(("a", ""))
            # There seems to be nothing to clear, but the message is still in the log.
            well = shelf.put_well(("a", ""))
            shelf.messages.settled(in_vain)
            shelf.messages.settled(well)
            assert shelf.shown() == shelf.reloaded() == {}


class TestExpiry:
    def test_mqtt_3_3_2_5_an_expired_message_is_neither_found_nor_kept(self) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(("a", "1"), expiry=5)
            shelf.put_durably(("b", "2"))
            shelf.world.clock.advance(4.9)
            assert shelf.shown() == {"a": "1", "b": "2"}
            shelf.world.clock.advance(0.1)
            now_us = shelf.world.clock.now_us()
            assert shelf.messages.get(b"a", now_us) is None
            assert len(shelf.messages) == 2
            assert (shelf.shown(), len(shelf.messages), shelf.messages.size_bytes) == (
                {"b": "2"},
                1,
                8,
            )

    def test_a_message_that_expires_at_once_is_never_found(self) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(("a", "1"), expiry=0)
            assert shelf.shown() == shelf.reloaded() == {}

    def test_neither_an_expired_message_nor_the_one_before_it_comes_back(self) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(("a", "old"))
            shelf.put_durably(("a", "new"), expiry=5)
            shelf.world.clock.advance(5.0)
            again = Shelf(shelf.world, shelf.database)
            assert (len(again.messages), again.messages.size_bytes, again.shown()) == (0, 0, {})

    def test_a_message_without_expiry_takes_the_expiry_of_the_one_before_away(self) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(("a", "1"), expiry=5)
            shelf.put_durably(("a", "2"))
            shelf.world.clock.advance(5.0)
            assert shelf.messages.sweep(10) == 0
            assert shelf.shown() == shelf.reloaded() == {"a": "2"}

    def test_sweeping_looks_at_its_budget_of_messages_and_goes_on_there(self) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(*((f"a/{number}", "1") for number in range(10)), expiry=5)
            shelf.put_durably(*((f"b/{number}", "1") for number in range(10)), expiry=9)
            shelf.put_durably(("c", "1"))
            assert shelf.messages.sweep(100) == 0
            shelf.world.clock.advance(6.0)
            swept = [shelf.messages.sweep(3) for _ in range(7)]
            assert sum(swept) == 10
            assert max(swept) <= 3
            assert len(shelf.messages) == 11
            shelf.world.clock.advance(9.0)
            assert [shelf.messages.sweep(8) for _ in range(3)] == [8, 2, 0]
            assert len(shelf.messages) == 1

    def test_a_failed_change_leads_back_although_it_expired_before(self) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(("a", "1"))
            shelf.database.configure(quota_bytes=1)
            ticket = shelf.put(("a", "2"), expiry=0).ticket
            assert ticket is not None
            assert shelf.shown() == {}
            with pytest.raises(QuotaExceededError):
                ticket.wait()
            shelf.messages.settled(ticket)
            assert shelf.shown() == {"a": "1"}


class HoldingClock(ManualClock):
    """A clock whose last seconds may not have passed."""

    held_seconds = 0

    def passed_us(self, since_us: int) -> int:
        return super().passed_us(since_us) - self.held_seconds * SECOND_US


@pytest.mark.usefixtures("_small_steps")
class TestClocks:
    def test_what_may_have_expired_is_hidden_and_kept_until_it_is_certain(self) -> None:
        clock = HoldingClock(NOW_US)
        with new_shelf(World(clock=clock)) as shelf:
            shelf.put_durably(("a", "1"), expiry=5)
            clock.jump(5.0)
            clock.held_seconds = 5
            assert (shelf.shown(), shelf.messages.get(b"a", clock.now_us())) == ({}, None)
            assert (shelf.messages.sweep(10), len(shelf.messages)) == (0, 1)
            compact(shelf.messages)
            assert shelf.rows() == 1
            again = Shelf(shelf.world, shelf.database)
            assert len(again.messages) == 1
            # The clock was wrong.
            clock.jump(-5.0)
            clock.held_seconds = 0
            assert shelf.shown() == again.shown() == {"a": "1"}
            clock.advance(5.0)
            assert len(Shelf(shelf.world, shelf.database).messages) == 0
            assert (shelf.shown(), len(shelf.messages)) == ({}, 0)

    def test_what_was_stored_ahead_of_the_clock_can_come_again(self) -> None:
        with new_shelf() as shelf:
            clock = shelf.world.clock
            shelf.put_durably(("now", "1"), expiry=5)
            clock.jump(3600.0)
            shelf.put_durably(("ahead", "1"), expiry=5)
            shelf.put_durably(("for ever", "1"))
            clock.jump(-3600.0)
            topics = shelf.messages.after(clock.now_us())
            assert topics == [b"ahead"]
            ticket = shelf.messages.come_again([*topics, b"not there"])
            assert ticket is not None
            shelf.messages.settled(ticket.wait())
            assert shelf.messages.after(clock.now_us()) == []
            for messages in (shelf.messages, Shelf(shelf.world, shelf.database).messages):
                found = messages.get(b"ahead", NOW_US)
                assert found is not None
                assert (found.stored_us, found.expires_us) == (NOW_US, NOW_US + 5 * SECOND_US)


class TestTakingBack:
    def test_a_put_is_taken_back_durably_where_nothing_was_put_since(self) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(("a", "1"), ("b", "1"))
            receipt = shelf.put(("a", "2"), ("b", "2"), ("c", "2"))
            assert receipt.ticket is not None
            shelf.messages.settled(receipt.ticket.wait())
            shelf.put_durably(("b", "3"))
            ticket = shelf.messages.take_back(receipt.exchanges)
            assert ticket is not None
            shelf.messages.settled(ticket.wait())
            assert shelf.shown() == shelf.reloaded() == {"a": "1", "b": "3"}

    def test_without_the_store_it_is_taken_back_in_ram(self) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(("a", "1"))
            receipt = shelf.put(("a", "2"), ("b", "2"))
            assert receipt.ticket is not None
            shelf.messages.settled(receipt.ticket.wait())
            shelf.database.close()
            with pytest.raises(ClosedError):
                shelf.messages.take_back(receipt.exchanges)
            assert shelf.shown() == {"a": "1"}


class TestVolatile:
    def test_a_value_of_the_broker_is_found_but_neither_counted_nor_logged(self) -> None:
        with new_shelf(retained_messages_max=0) as shelf:
            shelf.messages.put_volatile(b"$SYS/broker/uptime", b"1 seconds")
            shelf.messages.put_volatile(b"$SYS/broker/uptime", b"2 seconds")
            expected = Retained(b"$SYS/broker/uptime", b"2 seconds", 4, b"", NOW_US, 0, b"")
            assert shelf.messages.find(TopicFilter.parse("$SYS/#"), NOW_US) == [expected]
            assert shelf.messages.get(b"$SYS/broker/uptime", NOW_US) == expected
            assert (len(shelf.messages), shelf.messages.size_bytes, shelf.rows()) == (0, 0, 0)
            assert shelf.shown("#") == {}
            shelf.messages.put_volatile(b"$SYS/broker/uptime", b"")
            assert shelf.shown("$SYS/#") == {}

    def test_values_of_the_broker_stand_among_the_others_in_order(self) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(("$SYS/b", "2"), ("$SYS/d", "4"))
            shelf.messages.put_volatile(b"$SYS/c", b"3")
            shelf.messages.put_volatile(b"$SYS/a", b"1")
            assert list(shelf.shown("$SYS/+").items()) == [
                ("$SYS/a", "1"),
                ("$SYS/b", "2"),
                ("$SYS/c", "3"),
                ("$SYS/d", "4"),
            ]

    def test_a_topic_of_clients_cannot_be_volatile(self) -> None:
        with pytest.raises(AssertionError), new_shelf() as shelf:
            shelf.messages.put_volatile(b"a", b"1")


class TestWalk:
    def walked(self, steps: Iterator[Retained | None]) -> set[tuple[bytes, bytes]]:
        return {(message.topic, message.payload) for message in steps if message is not None}

    def test_it_meets_all_that_a_filter_matches_and_values_of_the_broker_too(self) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(("a/1", "1"), ("a/b/2", "2"), ("b", "3"), ("$SYS/c", "4"))
            shelf.messages.put_volatile(b"$SYS/d", b"5")
            found = {
                text: self.walked(shelf.messages.walk(TopicFilter.parse(text)))
                for text in ("#", "a/#", "a/+", "$SYS/+", "c")
            }
            under_a = {(b"a/1", b"1"), (b"a/b/2", b"2")}
            assert found == {
                "#": under_a | {(b"b", b"3")},
                "a/#": under_a,
                "a/+": {(b"a/1", b"1")},
                "$SYS/+": {(b"$SYS/c", b"4"), (b"$SYS/d", b"5")},
                "c": set(),
            }

    def test_a_message_is_as_it_is_when_its_turn_comes(self) -> None:
        topics = {b"$SYS/1", b"$SYS/2", b"$SYS/3"}
        with new_shelf() as shelf:
            shelf.put_durably(("$SYS/4", "old"), ("$SYS/5", "old"))
            for topic in topics:
                shelf.messages.put_volatile(topic, b"old")
            steps = shelf.messages.walk(TopicFilter.parse("$SYS/#"))
            first = next(message for message in steps if message is not None)
            replaced, dropped = topics - {first.topic}
            shelf.messages.put_volatile(replaced, b"new")
            shelf.messages.put_volatile(dropped, b"")
            shelf.put_durably(("$SYS/4", ""), ("$SYS/5", "new"))
            assert self.walked(steps) == {(replaced, b"new"), (b"$SYS/5", b"new")}


@pytest.fixture
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let little be a waste, and a step be three rows."""
    monkeypatch.setattr(retained_log, "_WASTED_ROWS", 10)
    monkeypatch.setattr(retained, "_STEP_ROWS", 3)


@pytest.mark.usefixtures("_small_steps")
class TestCompaction:
    def test_a_log_with_many_changes_is_written_anew_with_what_is_live(self) -> None:
        with new_shelf() as shelf:
            for number in range(6):
                shelf.put_durably(("a", str(number)), ("b", str(number)), ("$c", str(number)))
                assert shelf.messages.needs_compaction() == (number == 5)
            shelf.put_durably(("b", ""), ("d", "1"), ("e", "1"), ("f", "1"))
            assert shelf.messages.needs_compaction()
            before = shelf.shown()
            # Seal, two chunks, sync, drop.
            assert compact(shelf.messages) == 5
            assert not shelf.messages.needs_compaction()
            assert shelf.rows() == 5
            assert [info.slab.generation for info in shelf.database.slabs()] == [2]
            assert shelf.shown() == shelf.reloaded() == before
            again = Shelf(shelf.world, shelf.database)
            assert again.shown("$c") == {"$c": "5"}
            assert again.messages.size_bytes == shelf.messages.size_bytes

    def test_one_that_is_done_may_be_followed_by_the_next_at_once(self) -> None:
        with new_shelf() as shelf:
            for _ in range(2):
                for number in range(13):
                    assert not shelf.messages.needs_compaction()
                    shelf.put_durably(("a", str(number)))
                assert shelf.messages.needs_compaction()
                compact(shelf.messages)
                shelf.put_durably(("a", ""))
                compact(shelf.messages)
            assert shelf.rows() == 0

    def test_what_was_written_again_keeps_its_times(self) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(("a", "1"), expiry=100)
            before = shelf.messages.get(b"a", NOW_US)
            shelf.world.clock.advance(40.0)
            compact(shelf.messages)
            again = Shelf(shelf.world, shelf.database)
            assert again.messages.get(b"a", NOW_US) == before

    def test_a_log_of_nothing_live_becomes_empty(self) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(("a", "1"), ("b", "1"))
            shelf.put_durably(("c", "1"), expiry=5)
            shelf.put_durably(("a", ""), ("b", ""))
            shelf.world.clock.advance(5.0)
            compact(shelf.messages)
            assert (shelf.rows(), len(shelf.messages), shelf.reloaded()) == (0, 0, {})

    def test_a_step_ends_with_enough_bytes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(retained, "_STEP_BYTES", 20)
        with new_shelf() as shelf:
            shelf.put_durably(*((f"{number}", "1234") for number in range(6)))
            # Three chunks, for each message has eleven bytes.
            assert compact(shelf.messages) == 6
            assert shelf.rows() == 6

    def test_changes_between_the_steps_are_kept(self) -> None:
        topics = [f"{number}" for number in range(9)]
        with new_shelf() as shelf:
            shelf.put_durably(*((topic, "old") for topic in topics))
            with closing(shelf.messages.compact()) as steps:
                for number, step in enumerate(steps):
                    step()
                    shelf.put_durably((topics[number], f"new {number}"))
                    shelf.put_durably((topics[-1 - number], ""))
                    shelf.put_durably((f"fresh {number}", "1"))
            expected = shelf.shown()
            assert shelf.reloaded() == expected
            assert [info.slab.generation for info in shelf.database.slabs()] == [2]
            # What was appended meanwhile counts for the next one.
            log, again = shelf.messages._log, RetainedLog(shelf.database)  # noqa: SLF001
            assert log is not None
            assert list(again.replay()) != []
            assert (log.rows, log.size_bytes) == (again.rows, again.size_bytes)

    @pytest.mark.parametrize("payload", ["", "2"])
    def test_what_a_failed_change_hid_from_it_is_not_lost(self, payload: str) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(("a", "1"))
            in_vain = shelf.put_in_vain(("a", payload))
            with closing(shelf.messages.compact()) as steps:
                for number, step in enumerate(steps):
                    step()
                    if number == 0:
                        shelf.messages.settled(in_vain)
            assert shelf.shown() == shelf.reloaded() == {"a": "1"}

    @pytest.mark.parametrize("payload", ["", "2"])
    def test_what_it_wrote_again_stays_though_the_change_itself_fails(self, payload: str) -> None:
        with new_shelf() as shelf:
            shelf.put_durably(("a", "1"))
            in_vain = shelf.put_in_vain(("a", payload))
            compact(shelf.messages)
            shelf.messages.settled(in_vain)
            expected = {"a": payload} if payload else {}
            assert shelf.shown() == shelf.reloaded() == expected

    def test_one_that_fails_loses_nothing_and_waits_before_the_next(self) -> None:
        with new_shelf() as shelf:
            for number in range(12):
                shelf.put_durably(("a", str(number)), (f"b/{number}", ""), ("c", "1"))
            before = shelf.shown()
            steps = shelf.messages.compact()
            next(steps)()
            shelf.database.configure(quota_bytes=1)
            with pytest.raises(QuotaExceededError):
                next(steps)()
            steps.close()
            shelf.database.configure(quota_bytes=None)
            assert shelf.shown() == shelf.reloaded() == before
            assert not shelf.messages.needs_compaction()
            shelf.world.clock.advance(60.0)
            assert shelf.messages.needs_compaction()
            compact(shelf.messages)
            assert (shelf.rows(), shelf.reloaded()) == (2, before)
            assert [info.slab.generation for info in shelf.database.slabs()] == [3]

    def test_no_other_begins_while_one_runs_however_long(self) -> None:
        with new_shelf() as shelf:
            for number in range(13):
                shelf.put_durably(("a", str(number)))
            assert shelf.messages.needs_compaction()
            with closing(shelf.messages.compact()) as steps:
                next(steps)
                shelf.world.clock.advance(61.0)
                assert not shelf.messages.needs_compaction()
            assert shelf.messages.needs_compaction()

    def test_what_is_not_done_when_one_is_given_up_stays_under_way(self) -> None:
        database = ScriptedDatabase(automatic=False)
        shelf = Shelf(World(), None)
        shelf.messages = RetainedMessages(database, shelf.world.clock, Limits())
        for payload in ("1", "2"):
            shelf.put(("a", payload))
        tickets = [append.ticket for append in database.pending]
        database.settle()
        shelf.messages.settled(tickets[0])
        steps = shelf.messages.compact()
        next(steps)
        next(steps)
        tickets.append(database.pending[1].ticket)
        steps.close()
        # Neither the message nor what was written of it again is stored: it must not stay.
        while database.pending:
            database.settle(over_quota())
        shelf.messages.settled(tickets[2])
        assert shelf.shown() == {"a": "2"}
        shelf.messages.settled(tickets[1])
        assert shelf.shown() == {"a": "1"}
