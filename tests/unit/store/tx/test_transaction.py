from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from siltstone.errors import (
    ClosedError,
    ConflictError,
    FencedError,
    InvalidTopicError,
    OverloadedError,
    PreconditionError,
    Unmet,
    UsageError,
)
from siltstone.store.kv.keys import TIME_END
from siltstone.store.log.read.pieces import Row
from siltstone.store.tx.operations import (
    COMMIT_SERIAL,
    COUNT_MAX,
    MONOTONIC,
    count_in,
)
from siltstone.store.tx.transaction import TRANSACTION_BYTES_MAX, Transaction
from tests.support.tx_builders import START_US, World
from tests.support.tx_model import held


def plain(rows: list[Row]) -> list[tuple[str, int, bytes]]:
    return [(row.topic, row.timestamp_us, row.value) for row in rows]


class TestReading:
    def test_rows_come_by_topic_and_then_by_time_with_where_they_stand(self) -> None:
        with World(thresholds=(0,)) as world:
            with world.database.transaction() as tx:
                for topic, time_us in [("b/x", 2), ("a/x", 3), ("b/x", 1), ("a", 9)]:
                    tx.write(topic, topic.encode(), time_us)
            (first, *rest) = world.database.transaction().read("#")
            assert (first.shard, first.generation, first.publisher) == (0, 1, "")
            assert first.stream != 0
            assert plain([first, *rest]) == [
                ("a", 9, b"a"),
                ("a/x", 3, b"a/x"),
                ("b/x", 1, b"b/x"),
                ("b/x", 2, b"b/x"),
            ]

    def test_all_reads_are_of_one_moment(self) -> None:
        with World() as world:
            world.write("a", b"1", time_us=1)
            tx = world.database.transaction()
            assert tx.get("a", 1) == b"1"
            world.write("a", b"2", time_us=1)
            world.write("new/topic", b"2", time_us=1)
            assert tx.get("a", 1) == b"1"
            assert tx.get("new/topic", 1) is None
            assert plain(tx.read("#")) == [("a", 1, b"1")]
            assert tx.read_serial == 1
            # What was only read is good, whatever has changed.
            assert tx.commit() == 1

    def test_a_topic_is_known_as_soon_as_its_rows_are_seen(self) -> None:
        with World() as world:
            seen: list[object] = []
            write = world.memory.write

            def look(changes: Any) -> None:
                write(changes)
                tx = world.database.transaction()
                seen.append((tx.read_serial, tx.get("a/b", 1), plain(tx.read("a/+"))))

            cast("Any", world.memory).write = look
            world.write("a/b", b"v", time_us=1)
            assert seen == [(1, b"v", [("a/b", 1, b"v")])]

    @pytest.mark.parametrize("timed", [True, False])
    def test_get_returns_one_value_or_none(self, timed: bool) -> None:
        with World(timed=timed) as world:
            times = {"time_us": 5} if timed else {}
            world.write("a", b"v", **times)
            tx = world.database.transaction()
            assert (tx.get("a", **times), tx.get("b", **times)) == (b"v", None)
            if timed:
                assert (tx.get("a", 4), tx.get("a", TIME_END - 1)) == (None, None)

    def test_get_without_a_time_returns_the_newest(self) -> None:
        with World() as world:
            for time_us in (5, 9, 7):
                world.write("a", b"%d" % time_us, time_us=time_us)
            world.write("a/b", b"other", time_us=99)
            assert world.database.transaction().get("a") == b"9"
            assert world.database.transaction().get("b") is None

    def test_the_newest_depends_on_nothing_older(self) -> None:
        with World() as world:
            world.write("a", b"9", time_us=9)
            older, newer = world.database.transaction(), world.database.transaction()
            for tx in (older, newer):
                assert tx.get("a") == b"9"
                tx.write("b", b"", 1)
            world.write("a", b"8", time_us=8)
            older.commit()
            world.write("a", b"10", time_us=10)
            with pytest.raises(ConflictError):
                newer.commit()

    @pytest.mark.parametrize(("since_us", "until_us"), [(-1, None), (0, -1), (0, -3)])
    def test_times_before_all_times_are_refused(self, since_us: int, until_us: int | None) -> None:
        with World() as world, pytest.raises(UsageError, match="times must be 0 or more: since_us"):
            world.database.transaction().read("a", since_us, until_us)


class TestOwnWrites:
    def test_a_transaction_sees_its_own_writes_and_nobody_else_does(self) -> None:
        with World() as world:
            world.write("a", b"old", time_us=1)
            tx = world.database.transaction()
            tx.write("a", b"new", 1)
            tx.write("b", b"now")
            assert tx.get("a", 1) == b"new"
            assert tx.get("b") == b"now"
            assert plain(tx.read("#")) == [("a", 1, b"new"), ("b", MONOTONIC, b"now")]
            assert world.rows() == [("a", 1, b"old")]
            tx.commit()
            assert world.rows() == [("a", 1, b"new"), ("b", START_US, b"now")]

    def test_own_rows_whose_time_is_not_given_stand_last_in_their_order(self) -> None:
        with World() as world:
            tx = world.database.transaction()
            for value in (b"1", b"2", b"3"):
                tx.write("a", value)
            tx.write("a", b"0", 5)
            expected = [("a", 5, b"0"), *(("a", MONOTONIC, v) for v in (b"1", b"2", b"3"))]
            assert plain(tx.read("a")) == expected
            assert tx.get("a") == b"3"
            # They will have a time that is not before now.
            assert plain(tx.read("a", 0, START_US)) == [("a", 5, b"0")]
            assert len(tx.read("a", START_US, START_US + 1)) == 3
            tx.commit()
            assert world.rows() == [
                ("a", 5, b"0"),
                *(("a", START_US + n, b"%d" % (n + 1)) for n in range(3)),
            ]

    def test_a_delete_covers_what_was_written_before_it_and_not_after(self) -> None:
        with World() as world:
            world.write("a", b"old", time_us=1)
            tx = world.database.transaction()
            tx.write("a", b"before", 2)
            tx.write("a", b"now")
            tx.delete("a")
            assert (tx.read("a"), tx.get("a"), tx.get("a", 1)) == ([], None, None)
            tx.write("a", b"after", 1)
            assert plain(tx.read("a")) == [("a", 1, b"after")]
            assert tx.get("a") == b"after"
            tx.commit()
            assert world.rows() == [("a", 1, b"after")]

    def test_a_topic_is_cleared_and_written_anew(self) -> None:
        with World() as world:
            world.write("a", b"1")
            world.write("a", b"2")
            with world.database.transaction() as tx:
                tx.write("a", b"3")
                tx.delete("a", until_us=MONOTONIC)
                assert plain(tx.read("a")) == [("a", MONOTONIC, b"3")]
            assert world.rows() == [("a", START_US + 2, b"3")]

    def test_the_serial_of_the_commit_cannot_be_read_before_it(self) -> None:
        with World(timed=False) as world:
            tx = world.database.transaction()
            tx.write("a", COMMIT_SERIAL)
            for look in (lambda: tx.get("a"), lambda: tx.read("a")):
                with pytest.raises(UsageError, match="cannot be read before the commit"):
                    look()
            assert tx.get("b") is None
            assert tx.commit() == 1
            assert world.database.get("a") == b"\x00\x00\x00\x00\x00\x00\x00\x01"


class TestRefusals:
    @pytest.mark.parametrize("topic", ["", "a/+", "#", "a\x00b", "\ud800", "x" * 65_536])
    def test_bad_topics_are_refused_where_they_are_given(self, topic: str) -> None:
        with World() as world:
            tx = world.database.transaction()
            calls: list[Callable[[], object]] = [
                lambda: tx.write(topic, b""),
                lambda: tx.get(topic),
                lambda: tx.require_present(topic, 1),
                lambda: tx.require_absent(topic, 1),
            ]
            for call in calls:
                with pytest.raises(InvalidTopicError):
                    call()
            # The transaction goes on, and the shard.
            tx.write("a", b"", 1)
            tx.commit()
            assert world.rows() == [("a", 1, b"")]

    @pytest.mark.parametrize("text", ["", "a/#/b", "a+"])
    def test_bad_filters_are_refused_where_they_are_given(self, text: str) -> None:
        with World() as world:
            tx = world.database.transaction()
            for call in (lambda: tx.read(text), lambda: tx.delete(text)):
                with pytest.raises(InvalidTopicError):
                    call()

    def test_values_are_bytes_or_the_commit_serial(self) -> None:
        with World() as world:
            tx = world.database.transaction()
            with pytest.raises(UsageError, match=r"^value must be bytes: type=str$"):
                tx.write("a", cast("bytes", "text"))

    @pytest.mark.parametrize("serial", [-1, COUNT_MAX + 1])
    def test_a_serial_that_no_commit_has_is_refused(self, serial: int) -> None:
        with (
            World(timed=False) as world,
            pytest.raises(UsageError, match=r"a serial must be from 0 to 2\*\*63 - 1, got"),
        ):
            world.database.transaction().require_owner("a", serial)

    def test_a_transaction_belongs_to_the_thread_that_began_it(self) -> None:
        with World() as world:
            tx = world.database.transaction()
            tx.write("a", b"1", 1)
            calls: list[Callable[[], object]] = [
                lambda: tx.get("a", 1),
                lambda: tx.read("a"),
                lambda: tx.read_serial,
                lambda: tx.write("a", b"2", 1),
                lambda: tx.delete("a"),
                lambda: tx.require_absent("b", 1),
                lambda: tx.on_commit(print),
                tx.commit,
                tx.submit,
                tx.discard,
            ]
            assert tx.get("a", 1) == b"1"
            with ThreadPoolExecutor(1) as pool:
                errors = [pool.submit(call).exception() for call in calls]
            assert {(type(error), str(error)) for error in errors} == {
                (UsageError, "the transaction belongs to the thread that began it")
            }
            tx.commit()
            assert world.rows() == [("a", 1, b"1")]

    @pytest.mark.parametrize("time_us", [-3, -2, -1, TIME_END])
    def test_times_that_a_key_cannot_hold_are_refused(self, time_us: int) -> None:
        with World() as world:
            tx = world.database.transaction()
            calls: list[Callable[[], object]] = [
                lambda: tx.write("a", b"", time_us),
                lambda: tx.get("a", time_us),
                lambda: tx.require_present("a", time_us),
            ]
            for call in calls:
                with pytest.raises(UsageError, match=r"time_us must be from 0 to 2\*\*63 - 1, got"):
                    call()
            tx.write("a", b"last", TIME_END - 1)
            tx.commit()
            assert world.rows() == [("a", TIME_END - 1, b"last")]

    def test_a_requirement_of_a_row_in_time_needs_its_time(self) -> None:
        with World() as world, pytest.raises(UsageError, match="time_us is missing"):
            world.database.transaction().require_absent("a")

    def test_a_plain_map_has_no_times(self) -> None:
        with World(timed=False) as world:
            tx = world.database.transaction()
            calls: list[Callable[[], object]] = [
                lambda: tx.write("a", b"", 5),
                lambda: tx.get("a", 5),
                lambda: tx.require_absent("a", 5),
            ]
            for call in calls:
                with pytest.raises(
                    UsageError, match="rows of a plain map do not have a time: time_us=5"
                ):
                    call()

    def test_a_transaction_has_a_bearable_size(self) -> None:
        with World() as world:
            tx = world.database.transaction()
            value = b"v" * (TRANSACTION_BYTES_MAX // 2)
            tx.write("a", value, 1)
            with pytest.raises(
                UsageError, match="the transaction is too large, split it: size_bytes"
            ):
                tx.write("b", value, 1)

    def test_an_ended_transaction_does_nothing_more(self) -> None:
        with World() as world:
            for end in (Transaction.commit, Transaction.submit, Transaction.discard):
                tx = world.database.transaction()
                end(tx)
                tx.discard()
                calls: list[Callable[[Transaction], object]] = [
                    lambda tx: tx.read("a"),
                    lambda tx: tx.get("a", 1),
                    lambda tx: tx.write("a", b""),
                    lambda tx: tx.delete("a"),
                    lambda tx: tx.require_absent("a", 1),
                    lambda tx: tx.on_commit(print),
                    Transaction.commit,
                    Transaction.submit,
                ]
                for call in calls:
                    with pytest.raises(UsageError, match="the transaction has ended"):
                        call(tx)

    def test_a_transaction_of_a_closed_database_is_refused(self) -> None:
        with World() as world:
            tx, looked = world.database.transaction(), world.database.transaction()
            world.write("a", b"", time_us=1)
            looked.get("a")
            tx.write("a", b"")
            world.database.close()
            calls: list[Callable[[], object]] = [
                lambda: tx.get("b", 1),
                lambda: looked.read("a"),
                tx.commit,
            ]
            for call in calls:
                with pytest.raises(ClosedError):
                    call()


class TestCounting:
    def test_what_is_added_in_one_group_and_in_many_comes_to_the_sum(self) -> None:
        with World(timed=False) as world:
            for amounts in ([1, 2], [3, -1]):
                transactions = [world.database.transaction() for _ in amounts]
                with held(world.database):
                    tickets = []
                    for tx, amount in zip(transactions, amounts, strict=True):
                        tx.add("n", amount, b"of %d" % amount)
                        tickets.append(tx.submit())
                for ticket in tickets:
                    ticket.wait()
            value = world.database.get("n")
            assert (count_in(value), value) == (5, (5).to_bytes(8, "big") + b"of -1")

    def test_a_count_that_comes_to_nothing_is_no_row(self) -> None:
        with World(timed=False) as world:
            for amount in (2, -2, 0):
                with world.database.transaction() as tx:
                    tx.add("n", amount)
            assert world.rows() == []
            with world.database.transaction() as tx:
                tx.add("n", -3)
            assert count_in(world.database.get("n")) == -3

    def test_one_transaction_may_add_twice_and_after_a_deletion(self) -> None:
        with World(timed=False) as world:
            world.write("n", (7).to_bytes(8, "big"))
            with world.database.transaction() as tx:
                tx.delete("n")
                tx.add("n", 1)
                tx.add("n", 2)
            assert count_in(world.database.get("n")) == 3

    def test_who_has_read_a_count_conflicts_with_who_adds(self) -> None:
        with World(timed=False) as world:
            reader = world.database.transaction()
            assert reader.get("n") is None
            with world.database.transaction() as tx:
                tx.add("n", 1)
            reader.write("a", b"")
            with pytest.raises(ConflictError):
                reader.commit()

    def test_what_is_no_count_is_refused_and_nothing_of_it_happens(self) -> None:
        with World(timed=False) as world:
            world.write("n", b"text")
            world.write("full", COUNT_MAX.to_bytes(8, "big"))
            for topic in ("n", "full"):
                tx = world.database.transaction()
                tx.write("other", b"")
                tx.add(topic, 1)
                with pytest.raises(
                    UsageError, match=r"too short for a count|must fit into 64 bits"
                ):
                    tx.commit()
            assert [topic for topic, _, _ in world.rows()] == ["full", "n"]

    def test_what_cannot_be_counted_is_refused_where_it_is_given(self) -> None:
        with World(timed=False) as world:
            tx = world.database.transaction()
            tx.write("a", b"")
            tx.add("n", 1)
            with pytest.raises(
                UsageError, match="this transaction writes the row, so it cannot add to it: topic"
            ):
                tx.add("a", 1)
            with pytest.raises(UsageError, match="must fit into 64 bits"):
                tx.add("b", COUNT_MAX + 1)
            with pytest.raises(UsageError, match="cannot be read before the commit"):
                tx.get("n")
        with (
            World() as timed,
            pytest.raises(
                UsageError,
                match="counts need a plain map: a database with the setting timed = false",
            ),
        ):
            timed.database.transaction().add("n", 1)


class TestBlock:
    def test_the_block_commits_at_its_end(self) -> None:
        with World() as world:
            with world.database.transaction() as tx:
                assert (tx.serial, tx.term, tx.generation) == (-1, 1, 1)
                tx.write("a", b"v", 1)
                assert world.rows() == []
            assert (tx.serial, tx.duplicate) == (1, False)
            assert world.rows() == [("a", 1, b"v")]

    def test_a_block_that_raises_gives_the_transaction_up(self) -> None:
        with World() as world:
            with pytest.raises(KeyError), world.database.transaction() as tx:  # noqa: PT012
                tx.write("a", b"v", 1)
                raise KeyError
            assert (world.rows(), tx.serial) == ([], -1)

    def test_a_block_may_commit_or_discard_by_itself(self) -> None:
        with World() as world:
            with world.database.transaction() as tx:
                tx.write("a", b"v", 1)
                assert tx.commit() == 1
            with world.database.transaction() as tx:
                tx.write("b", b"v", 1)
                tx.discard()
            assert world.rows() == [("a", 1, b"v")]

    def test_one_within_another_is_a_transaction_of_its_own(self) -> None:
        with World() as world:
            outer = world.database.transaction()
            assert outer.get("a", 1) is None
            outer.write("b", b"outer", 1)
            with world.database.transaction() as inner:
                inner.write("a", b"inner", 1)
            # It was committed, and the outer one had read what it changed.
            assert world.rows() == [("a", 1, b"inner")]
            with pytest.raises(ConflictError):
                outer.commit()

    def test_nothing_to_do_needs_no_commit(self) -> None:
        with World() as world:
            world.write("a", b"v", time_us=1)
            writes = world.engine.writes
            with world.database.transaction() as tx:
                pass
            assert (tx.serial, world.engine.writes) == (1, writes)
            assert world.database.transaction().submit().wait().serial == 1
            assert world.engine.writes == writes


class TestRequirements:
    def test_what_is_required_and_found_lets_the_commit_pass(self) -> None:
        with World() as world:
            world.write("a", b"v", time_us=1)
            with world.database.transaction() as tx:
                tx.require_present("a", 1)
                tx.require_present("a", 1, b"v")
                tx.require_absent("a", 2)
                tx.require_absent("never/written", 1)
                tx.write("b", b"", 1)
            assert tx.serial == 2

    def test_all_that_is_not_met_is_told_with_what_was_found(self) -> None:
        with World() as world:
            world.write("a", b"v", time_us=1)
            tx = world.database.transaction()
            tx.require_present("a", 1, b"w")
            tx.require_present("a", 2)
            tx.require_present("none", 1, b"w")
            tx.require_absent("a", 1)
            tx.require_absent("a", 3)
            tx.write("b", b"", 1)
            with pytest.raises(PreconditionError) as caught:
                tx.commit()
            assert caught.value.unmet == (
                Unmet(topic="a", time_us=1, present=True, expected=b"w", found=b"v"),
                Unmet(topic="a", time_us=2, present=True, expected=None, found=None),
                Unmet(topic="none", time_us=1, present=True, expected=b"w", found=None),
                Unmet(topic="a", time_us=1, present=False, expected=None, found=b"v"),
            )
            assert type(caught.value) is PreconditionError
            assert world.rows() == [("a", 1, b"v")]

    def test_requirements_hold_against_the_newest_data_not_what_was_seen(self) -> None:
        with World() as world:
            tx = world.database.transaction()
            assert tx.get("b", 9) is None
            tx.require_present("a", 1)
            world.write("a", b"v", time_us=1)
            assert tx.commit() == 1

    def test_an_owner_that_was_replaced_is_fenced(self) -> None:
        with World(timed=False) as world:
            first = world.write("guard", cast("bytes", COMMIT_SERIAL))
            with world.database.transaction() as tx:
                tx.require_owner("guard", first)
                tx.write("a", b"1")
            second = world.write("guard", cast("bytes", COMMIT_SERIAL))
            assert (first, second) == (1, 3)
            tx = world.database.transaction()
            tx.require_owner("guard", first)
            tx.write("a", b"2")
            with pytest.raises(FencedError) as caught:
                tx.commit()
            (unmet,) = caught.value.unmet
            assert (unmet.topic, unmet.found) == ("guard", second.to_bytes(8, "big"))
            assert world.database.get("a") == b"1"


class TestCallbacks:
    def test_callbacks_run_in_order_after_the_commit_with_its_serial(self) -> None:
        with World() as world:
            told: list[object] = []
            with world.database.transaction() as tx:
                tx.on_commit(lambda serial: told.append(("first", serial, world.rows())))
                tx.on_commit(lambda serial: told.append(("second", serial)))
                tx.write("a", b"v", 1)
                assert told == []
            assert told == [("first", 1, [("a", 1, b"v")]), ("second", 1)]

    def test_callbacks_run_for_what_is_handed_in_too(self) -> None:
        with World() as world:
            told: list[int] = []
            tx = world.database.transaction()
            tx.on_commit(told.append)
            tx.write("a", b"v", 1)
            with held(world.database):
                ticket = tx.submit()
                assert told == []
            ticket.wait()
            world.database.outcome("any")
            assert told == [1]

    def test_no_callback_runs_without_a_commit(self) -> None:
        with World() as world:
            told: list[int] = []
            refused = world.database.transaction()
            refused.require_present("a", 1)
            refused.on_commit(told.append)
            with pytest.raises(PreconditionError):
                refused.commit()
            refused = world.database.transaction()
            refused.require_present("a", 1)
            refused.on_commit(told.append)
            ticket = refused.submit()
            with pytest.raises(PreconditionError):
                ticket.wait()
            discarded = world.database.transaction()
            discarded.on_commit(told.append)
            discarded.discard()
            world.database.outcome("any")
            assert told == []

    def test_callbacks_run_for_what_only_reads(self) -> None:
        with World() as world:
            told: list[int] = []
            with world.database.transaction() as tx:
                tx.get("a", 1)
                tx.on_commit(told.append)
            tx = world.database.transaction()
            tx.on_commit(told.append)
            tx.submit()
            assert told == [0, 0]

    def test_a_callback_that_raises_raises_for_who_commits_and_the_commit_stands(self) -> None:
        with World() as world:
            tx = world.database.transaction()
            tx.on_commit(lambda serial: [][serial])
            tx.write("a", b"v", 1)
            with pytest.raises(IndexError):
                tx.commit()
            assert world.rows() == [("a", 1, b"v")]


class TestTimeout:
    def test_a_commit_that_was_not_begun_in_time_is_taken_back(self) -> None:
        with World() as world:
            tx = world.database.transaction(timeout=0.0)
            tx.write("a", b"v", 1)
            with held(world.database), pytest.raises(OverloadedError, match=r"timeout=0\.0"):
                tx.commit()
            world.database.outcome("any")
            assert world.rows() == []
