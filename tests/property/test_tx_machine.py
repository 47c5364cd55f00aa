"""Transactions in any interleaving, alone and in groups, against a model that runs them one by one.

Held throughout: reads are of one moment with the transaction's own changes over it; a commit is
refused exactly when what it read has changed, or what it requires does not hold; what is committed
happens whole, in the order of the serials; nothing else ever happens.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from siltstone.clock import ManualClock
from siltstone.errors import ConflictError, PreconditionError, SiltstoneError, UsageError
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.tx.operations import LATEST, MONOTONIC
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.tx.transaction import Transaction
from tests.support.tx_builders import problems_in
from tests.support.tx_model import END, Model, ModelRead, ModelTransaction, held, opened, selected

START_US = 1_000
TOPICS = ("a", "a/x", "a/y", "b/x/1", "$s/x")
FILTERS = (*TOPICS, "#", "+", "a/#", "+/x", "a/+", "b/+/1", "$s/#", "b/#")
VALUES = (b"", b"1", b"2")
TIMES = (0, 1, 2, 3, START_US + 1, END - 1)
ENDS = (0, 1, 2, 3, START_US + 1, END, END + 1, None)
KINDS = (*["read"] * 3, *["get"] * 2, *["write"] * 4, "delete", "require")
EVENTS = (*["tick"] * 5, "jump", "seal", "reopen")
THRESHOLDS = ((100, 10), (0,), (1,), (-1, 0, -1, 0))
Step = tuple[str, str, str, int, int | None, bytes, bool]
step = st.tuples(
    st.sampled_from(KINDS),
    st.sampled_from(TOPICS),
    st.sampled_from(FILTERS),
    st.sampled_from(TIMES),
    st.sampled_from(ENDS),
    st.sampled_from(VALUES),
    st.booleans(),
)


class Pair:
    """A transaction and its model."""

    def __init__(self, real: Transaction, name: str | None) -> None:
        self.real = real
        self.model = ModelTransaction()
        self.id = name


class TransactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(START_US)
        self.engine = MemoryEngine()
        self.model = Model()
        self.sealed: list[Model] = []
        self.since_us = START_US
        self.ids: dict[str, int] = {}
        self.era = 0
        self.pairs: list[Pair] = []

    @initialize(
        timed=st.booleans(),
        thresholds=st.sampled_from(THRESHOLDS),
        topic_cache=st.sampled_from([2, 200_000]),
    )
    def open(self, timed: bool, thresholds: tuple[int, ...], topic_cache: int) -> None:
        self.timed = timed
        settings = KeyValueSettings(
            timed=timed, thresholds=thresholds, topic_cache=topic_cache, conflict_window=3600.0
        )
        self.database = opened(self.engine, self.clock, settings)

    def teardown(self) -> None:
        self.database.close()
        assert problems_in(self.engine.reopened()) == []

    def now(self, pair: Pair | None = None) -> int:
        """Return the time; for a transaction the first that its commit may give, as it sees it."""
        given = 0 if pair is None else self.model.timestamps[pair.model.read_serial] + 1
        return max(given, self.clock.now_us())

    @rule(
        name=st.sampled_from([None, None, None, "one", "two"]),
        steps=st.lists(step, min_size=1, max_size=5),
    )
    def begin(self, name: str | None, steps: list[Step]) -> None:
        pair = Pair(self.database.transaction(id=name), name)
        self.pairs.append(pair)
        self.do(pair, steps)

    def looked(self, pair: Pair) -> dict[tuple[str, int], bytes]:
        """Return what the transaction sees: the state of its first look, its own changes on top."""
        if pair.model.read_serial < 0:
            pair.model.read_serial = self.model.serial
        assert pair.real.read_serial == pair.model.read_serial
        state = self.model.states[pair.model.read_serial]
        return pair.model.seen(state, self.now(pair))

    @rule(number=st.integers(0, 5), steps=st.lists(step, min_size=1, max_size=5))
    def operate(self, number: int, steps: list[Step]) -> None:
        """Let a transaction do some more."""
        if self.pairs:
            self.do(self.pairs[number % len(self.pairs)], steps)

    def do(self, pair: Pair, steps: list[Step]) -> None:
        if self.is_old(pair):
            return
        for kind, topic, topic_filter, time_us, end, value, flag in steps:
            match kind:
                case "read":
                    self.read(pair, topic_filter, time_us, end)
                case "get":
                    self.get(pair, topic, LATEST if flag else time_us)
                case "write":
                    self.write(pair, topic, value, MONOTONIC if flag else time_us)
                case "delete":
                    self.delete(pair, topic_filter, time_us, MONOTONIC if flag else end)
                case _:
                    self.require(pair, topic, time_us, value, present=flag)

    def read(self, pair: Pair, topic_filter: str, since_us: int, until_us: int | None) -> None:
        end = END if until_us is None else until_us
        seen = self.looked(pair)
        expected = selected(seen, topic_filter, since_us, end, self.now(pair))
        found = pair.real.read(topic_filter, since_us, until_us)
        assert [(row.topic, row.timestamp_us, row.value) for row in found] == expected
        pair.model.reads.append(ModelRead(topic_filter, since_us, end, expected, since_us))

    def get(self, pair: Pair, topic: str, time_us: int) -> None:
        seen = self.looked(pair)
        if self.timed and time_us == LATEST:
            rows = selected(seen, topic, 0, END, self.now(pair))
            assert pair.real.get(topic) == (rows[-1][2] if rows else None)
            since = rows[-1][1] if rows else 0
            if pair.model.deletions or any(known == topic for known, _ in pair.model.writes):
                since = 0
            pair.model.reads.append(ModelRead(topic, 0, END, rows, since))
            return
        at = time_us if self.timed else 0
        assert pair.real.get(topic, time_us if self.timed else LATEST) == seen.get((topic, at))
        if (topic, at) not in pair.model.writes:
            rows = selected(seen, topic, at, at + 1, self.now(pair))
            pair.model.reads.append(ModelRead(topic, at, at + 1, rows, at))

    def write(self, pair: Pair, topic: str, value: bytes, time_us: int) -> None:
        pair.real.write(topic, value, time_us if self.timed else MONOTONIC)
        pair.model.write(topic, value, time_us if self.timed else 0)

    def delete(self, pair: Pair, topic_filter: str, since_us: int, until_us: int | None) -> None:
        pair.real.delete(topic_filter, since_us, until_us)
        end = END if until_us is None else until_us
        if pair.model.writes:
            self.looked(pair)
            pair.model.delete(topic_filter, since_us, end, self.now(pair))
        else:
            pair.model.delete(topic_filter, since_us, end, 0)

    def require(self, pair: Pair, topic: str, time_us: int, value: bytes, *, present: bool) -> None:
        asked = time_us if self.timed else LATEST
        wanted = value or None
        if present:
            pair.real.require_present(topic, asked, wanted)
        else:
            pair.real.require_absent(topic, asked)
        place = (topic, time_us if self.timed else 0)
        pair.model.required.append((place, present, wanted if present else None))

    @rule(numbers=st.lists(st.integers(0, 5), min_size=1, max_size=4))
    def commit(self, numbers: list[int]) -> None:
        """Hand transactions in together; each must end as the model says, in this order."""
        group = [self.pairs.pop(number % len(self.pairs)) for number in numbers if self.pairs]
        with held(self.database):
            tickets = [pair.real.submit() for pair in group]
        self.model.stored = dict(self.model.state)
        for pair, ticket in zip(group, tickets, strict=True):
            error: SiltstoneError | None = None
            try:
                ticket.wait(10)
            except (ConflictError, PreconditionError) as exc:
                error = exc
            self.judge(pair, error)

    def judge(self, pair: Pair, error: SiltstoneError | None) -> None:
        model = pair.model
        effective = bool(model.writes or model.deletions or model.required)
        if not effective:
            assert error is None
            return
        if pair.id is not None and pair.id in self.ids:
            assert error is None
            assert (pair.real.duplicate, pair.real.serial) == (True, self.ids[pair.id])
            return
        assert not pair.real.duplicate
        if self.is_old(pair) or self.model.conflicts(model):
            assert isinstance(error, ConflictError)
            return
        if isinstance(error, ConflictError):
            assert self.model.may_conflict(model)
            return
        if unmet := self.model.unmet(model):
            assert isinstance(error, PreconditionError)
            assert [(one.topic, one.time_us, one.found) for one in error.unmet] == unmet
            return
        assert error is None
        if model.writes or model.deletions:
            self.model.apply(model, self.now())
            if pair.id is not None:
                self.ids[pair.id] = self.model.serial
        assert pair.real.serial == self.model.serial

    def is_old(self, pair: Pair) -> bool:
        return pair.real.generation != len(self.sealed) + 1

    @rule(event=st.sampled_from(EVENTS))
    def disturb(self, event: str) -> None:
        """Let something happen from outside."""
        match event:
            case "tick":
                self.clock.advance(0.000_001)
            case "jump":
                self.clock.jump(-0.000_5)
            case "seal" if not self.timed:
                with pytest.raises(UsageError, match="is a plain map"):
                    self.database.seal()
            case "seal":
                self.database.seal()
                self.since_us = max(self.since_us, self.model.timestamp_us + 1, self.now())
                self.sealed.append(self.model)
                self.model = Model(self.model.serial, self.since_us)
            case _:
                self.database.close()
                self.engine = self.engine.reopened()
                self.database = opened(self.engine, self.clock)
                self.era += 1
                # They hold on to a database that is closed.
                self.pairs.clear()

    @invariant()
    def holds_what_was_committed(self) -> None:
        expected = [
            (generation, *row)
            for generation, model in enumerate([*self.sealed, self.model], 1)
            for filters in ("#", "$s/#")
            for row in selected(model.state, filters, 0, END, self.now())
        ]
        found = [
            (row.generation, row.topic, row.timestamp_us, row.value)
            for filters in ("#", "$s/#")
            for row in self.database.read(filters)
        ]
        assert sorted(found) == sorted(expected)


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(max_examples=settings().max_examples // 2)


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_long_histories_are_those_of_one_transaction_after_the_other(
    seed: int, timed: bool
) -> None:
    rng = random.Random(seed)
    machine = TransactionMachine()
    machine.open(timed, rng.choice(THRESHOLDS), rng.choice([2, 200_000]))
    for number in range(500):
        steps = [
            (
                rng.choice(KINDS),
                rng.choice(TOPICS),
                rng.choice(FILTERS),
                rng.choice(TIMES),
                rng.choice(ENDS),
                rng.choice(VALUES),
                rng.random() < 0.5,
            )
            for _ in range(rng.randrange(1, 5))
        ]
        machine.begin(rng.choice([None, None, None, str(number // 4)]), steps)
        if rng.random() < 0.5:
            machine.operate(rng.randrange(6), steps)
        if len(machine.pairs) > 3:
            machine.commit([rng.randrange(6) for _ in range(rng.randrange(1, 5))])
            machine.holds_what_was_committed()
        if rng.random() < 0.05:
            # More rows of a topic than are looked at one by one.
            topic = rng.choice(TOPICS)
            machine.begin(
                None,
                [("write", topic, "#", at, None, b"3", rng.random() < 0.5) for at in range(24)],
            )
        if rng.random() < 0.1:
            machine.disturb(rng.choice(EVENTS))
    machine.teardown()
