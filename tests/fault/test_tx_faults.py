"""Writes that fail at every point of a history, stored or not; clients whose time runs out."""

from __future__ import annotations

from threading import Event, Thread
from typing import Any, cast

import pytest

from siltstone.errors import OutcomeUnknownError, PoisonedError, SiltstoneError
from siltstone.store.feed.position import Position
from siltstone.store.kv.api import Changes
from siltstone.store.tx.operations import COMMIT_SERIAL
from siltstone.store.tx.retry import Committed
from siltstone.store.tx.transaction import Transaction
from tests.support.tx_builders import World, problems_in

STEPS = 12


def step(number: int) -> Any:
    """Return a transaction that builds on what the one before it has done.

    All rows have the time 0, so that a topic is one row of each generation.
    """

    def run(tx: Transaction) -> None:
        tx.write("count", b"%d" % (int(tx.get("count", 0) or b"0") + 1), 0)
        tx.write(f"new/{number}/topic", COMMIT_SERIAL, 0)
        if number % 3 == 2:
            tx.delete(f"new/{number - 1}/#")

    return run


def expected(done: list[int]) -> list[str]:
    """Return the topics that so many steps leave."""
    topics = ["count"] if done else []
    deleted = {number - 1 for number in done if number % 3 == 2}
    topics += [f"new/{number}/topic" for number in done if number not in deleted]
    return sorted(topics)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("nth", range(1, STEPS + 2))
def test_a_write_that_fails_anywhere_leaves_a_whole_history_and_ids_tell_which(
    nth: int, stored: bool
) -> None:
    with World(timed=True) as world:
        world.fail_write(nth=nth, stored=stored)
        committed: list[int] = []
        unknown: list[int] = []
        for number in range(STEPS):
            if number == STEPS // 2:
                try:
                    world.database.seal()
                except PoisonedError:
                    break
            try:
                world.database.transact(step(number), id=str(number), retries=0)
            except OutcomeUnknownError:
                unknown.append(number)
            except PoisonedError:
                break
            else:
                committed.append(number)
        world.crash()
        found = {n: world.database.outcome(str(n)) for n in range(STEPS)}
        happened = [number for number, serial in found.items() if serial is not None]
        # All that was acknowledged, what was unknown if it was stored, nothing else.
        assert happened == committed + (unknown if stored else [])
        rows = sorted(row.topic for row in world.database.read())
        first_part = [n for n in happened if n < STEPS // 2]
        later_part = [n for n in happened if n >= STEPS // 2]
        assert rows == sorted(expected(first_part) + expected(later_part))
        # Each may be sent again, and happens once.
        for number in happened:
            again = world.database.transact(step(number), id=str(number))
            assert (again.duplicate, again.serial) == (True, found[number])
        assert sorted(row.topic for row in world.database.read()) == rows


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("nth", range(1, STEPS + 2))
def test_a_feed_that_continues_after_a_failed_write_has_each_change_once(
    nth: int, stored: bool
) -> None:
    with World(timed=True, feed_bytes=1 << 20) as world:
        copy: dict[str, bytes] = {}
        serials: list[int] = []

        def follow(position: Position | None) -> Position:
            """Apply the changes up to the end of the database."""
            end = world.database.end_position()
            with world.database.feed(position=position, credit=1) as feed:
                while not feed.position.reaches(end):
                    read = feed.next(20.0)
                    assert read is not None
                    assert read.lost == 0
                    for change in read.changes():
                        serials.append(change.serial)
                        if change.value is None:
                            del copy[change.topic]
                        else:
                            copy[change.topic] = change.value
                    feed.ack(read.position)
                return feed.position

        world.fail_write(nth=nth, stored=stored)
        position: Position | None = None
        for number in range(STEPS):
            try:
                world.database.transact(step(number), retries=0)
            except OutcomeUnknownError:
                break
            if number % 4 == 1:
                position = follow(position)
        world.crash()
        position = follow(position)
        world.database.transact(step(STEPS), retries=0)
        follow(position)
        assert copy == {row.topic: row.value for row in world.database.read()}
        assert serials == list(range(len(serials)))
        assert problems_in(world.memory) == []


def test_a_commit_that_is_not_done_in_time_may_have_happened() -> None:
    with World(timed=False) as world:
        begun, go = Event(), Event()
        write = world.memory.write

        def slow(changes: Changes) -> None:
            begun.set()
            go.wait()
            write(changes)

        cast("Any", world.memory).write = slow
        errors: list[SiltstoneError] = []

        def commit() -> None:
            tx = world.database.transaction(timeout=1.0, id="x")
            tx.write("a", b"v")
            try:
                tx.commit()
            except SiltstoneError as exc:
                errors.append(exc)

        client = Thread(target=commit)
        client.start()
        begun.wait()
        client.join()
        go.set()
        assert [(type(error), str(error)) for error in errors] == [
            (OutcomeUnknownError, "the outcome is not known after 1 seconds")
        ]
        cast("Any", world.memory).write = write
        # It has happened after all, and the id says so.
        assert world.database.outcome("x") == 1
        again: Committed[None] = world.database.transact(lambda tx: tx.write("a", b"w"), id="x")
        assert (again.duplicate, again.serial, world.database.get("a")) == (True, 1, b"v")
