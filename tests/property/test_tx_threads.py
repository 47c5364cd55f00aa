"""Transactions from many threads on a real disk: what they saw and did is as if each had run alone,
at one moment between its begin and its end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Barrier, Thread

import pytest

from siltstone.clock import SystemClock
from siltstone.errors import ConflictError
from siltstone.store.keyvalue import KeyValueDatabase
from siltstone.store.kv.rocks import RocksEngine
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.tx.transaction import Transaction
from tests.support.tx_model import matching

THREADS = 6
TOPICS = ["a/1", "a/2", "a/3", "b/1", "b/2"]
FILTERS = ["a/+", "b/+", "+/1", "#", *TOPICS]
PLAIN = KeyValueSettings(timed=False, thresholds=(1,))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[KeyValueDatabase]:
    database = KeyValueDatabase(RocksEngine(tmp_path), SystemClock(), "test", PLAIN)
    yield database
    database.close()


def in_threads(work: Callable[[int], None], threads: int = THREADS) -> None:
    """Run work in threads that begin together; what one raises is raised here."""
    barrier = Barrier(threads)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        done = False
        try:
            barrier.wait()
            work(number)
            done = True
        finally:
            if not done:
                errors.append(AssertionError(f"thread {number} failed"))

    running = [Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert errors == []


@dataclass
class Record:
    """What a transaction saw and did, and between which moments."""

    began: int
    reads: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    writes: dict[str, bytes] = field(default_factory=dict)
    read_serial: int = -1
    serial: int = -1
    ended: int = -1

    @property
    def only_reads(self) -> bool:
        return not self.writes and not self.deleted


def run_one(
    database: KeyValueDatabase, rng: random.Random, moments: Iterator[int], value: bytes
) -> Record | None:
    """Run a transaction that does random things; return its record, None when it conflicted."""
    record = Record(began=next(moments))
    tx = database.transaction()
    for _ in range(rng.randrange(0, 3)):
        topic_filter = rng.choice(FILTERS)
        rows = tx.read(topic_filter)
        if not record.writes and not record.deleted:
            record.reads.append((topic_filter, {row.topic: row.value for row in rows}))
    record.read_serial = tx.read_serial
    for _ in range(rng.randrange(0, 3)):
        topic = rng.choice(TOPICS)
        tx.write(topic, value)
        record.writes[topic] = value
    if rng.random() < 0.1:
        topic_filter = rng.choice(FILTERS)
        tx.delete(topic_filter)
        record.deleted.append(topic_filter)
        for topic in topics_of(record.writes, topic_filter):
            del record.writes[topic]
    try:
        record.serial = tx.commit()
    except ConflictError:
        return None
    record.ended = next(moments)
    return record


def states_of(writers: list[Record]) -> list[dict[str, bytes]]:
    """Return the state after each serial, from 0 on, had each writer run alone."""
    states: list[dict[str, bytes]] = [{}]
    for record in writers:
        state = dict(states[-1])
        for topic_filter in record.deleted:
            for topic in topics_of(state, topic_filter):
                del state[topic]
        states.append(state | record.writes)
    return states


def topics_of(state: dict[str, bytes], topic_filter: str) -> list[str]:
    places = {(topic, 0): value for topic, value in state.items()}
    return [topic for topic, _ in matching(places, topic_filter, 0, 1)]


def check_reads(record: Record, state: dict[str, bytes]) -> None:
    for topic_filter, found in record.reads:
        assert found == {topic: state[topic] for topic in topics_of(state, topic_filter)}


@pytest.mark.parametrize("seed", [1, 2])
def test_histories_are_strictly_serialisable(database: KeyValueDatabase, seed: int) -> None:
    moments = count()
    history: list[Record] = []

    def work(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        for turn in range(150):
            record = run_one(database, rng, moments, b"%d %d" % (number, turn))
            if record is not None:
                history.append(record)

    in_threads(work)
    writers = sorted((r for r in history if not r.only_reads), key=lambda r: r.serial)
    # Each has a serial of its own, and there are no others.
    assert [record.serial for record in writers] == list(range(1, len(writers) + 1))
    assert len(writers) > 100
    states = states_of(writers)
    for record in history:
        # What was read held when it was read, and still when it was committed.
        check_reads(record, states[record.read_serial])
        check_reads(record, states[record.serial if record.only_reads else record.serial - 1])
        # Who ended before another began comes before it.
        before = max((r.serial for r in history if r.ended < record.began), default=0)
        assert record.read_serial >= before
        assert record.serial >= before + (not record.only_reads)
    assert {row.topic: row.value for row in database.read()} == states[-1]


def test_no_update_is_lost(database: KeyValueDatabase) -> None:
    def increment(tx: Transaction) -> None:
        tx.write("counter", b"%d" % (int(tx.get("counter") or b"0") + 1))

    def work(number: int) -> None:
        for _ in range(25):
            database.transact(increment, retries=1_000)

    in_threads(work)
    assert database.get("counter") == b"%d" % (25 * THREADS)


def test_two_that_read_what_the_other_writes_do_not_both_commit(
    database: KeyValueDatabase,
) -> None:
    for turn in range(20):
        doctors = [f"duty/{turn}/{number}" for number in range(THREADS)]
        with database.transaction() as tx:
            for doctor in doctors:
                tx.write(doctor, b"on")

        def leave(number: int, turn: int = turn, doctors: list[str] = doctors) -> None:
            def off(tx: Transaction) -> None:
                on = [row for row in tx.read(f"duty/{turn}/+") if row.value == b"on"]
                if len(on) > 1:
                    tx.write(doctors[number], b"off")

            database.transact(off, retries=1_000)

        in_threads(leave)
        on_duty = [row for row in database.read(f"duty/{turn}/+") if row.value == b"on"]
        assert len(on_duty) == 1


def test_rows_that_appear_are_conflicts_too(database: KeyValueDatabase) -> None:
    seats = 20

    def work(number: int) -> None:
        def book(tx: Transaction) -> None:
            taken = tx.read("seat/+")
            if len(taken) < seats:
                tx.write(f"seat/{number}-{len(taken)}", b"")

        for _ in range(seats):
            database.transact(book, retries=1_000)

    in_threads(work)
    assert len(list(database.read("seat/+"))) == seats


def test_nobody_sees_half_of_a_transaction_or_one_that_was_refused(
    database: KeyValueDatabase,
) -> None:
    committed: set[bytes] = {b""}
    seen: set[bytes] = set()
    topics = ["x/1", "x/2", "x/3"]
    writing = set(range(2, THREADS))

    def write(number: int) -> None:
        for turn in range(40):
            value = b"%d %d" % (number, turn)
            tx = database.transaction()
            tx.get(topics[0])
            for topic in topics:
                tx.write(topic, value)
            # Known as committed before anybody can see it, or not at all.
            committed.add(value)
            try:
                tx.commit()
            except ConflictError:
                committed.remove(value)
        writing.remove(number)

    def look() -> None:
        while writing:
            with database.transaction() as tx:
                first = [tx.get(topic) for topic in topics]
                again = [row.value for row in tx.read("x/+")]
            assert again in ([], first)
            assert len(set(first)) == 1
            seen.add(first[0] or b"")

    in_threads(lambda number: write(number) if number in writing else look())
    assert seen - committed == set()
    assert len(seen) > 2
