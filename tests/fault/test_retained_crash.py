"""The power goes at every operation while messages are retained, cleared and compacted, and while
the log is opened again.

Whatever is left, each topic shows what was last acknowledged of it, or a later change that was not;
and when nothing is under way a restart shows what was shown before it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.broker.retained import messages as retained
from siltstone.broker.retained.log import LOG_NAME, LOG_SETTINGS
from siltstone.broker.retained.messages import RetainedMessages
from siltstone.broker.settings.broker import Limits
from siltstone.errors import PoisonedError, QuotaExceededError
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.mqtt.publish import NO_EXPIRY
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.writer.ticket import Ticket
from siltstone.topic.grammar import TopicFilter
from tests.support.builders import World, settings_of

BIG = "b" * 20_000
EVERYTHING = ("#", "$c/#")


@dataclass
class Attempt:
    """Messages whose power will go, and what their publisher knows.

    Of each topic: the payloads from the last one that was acknowledged on; an empty one is cleared.
    """

    world: World
    store: Store
    database: Database
    messages: RetainedMessages
    possible: dict[str, list[str]] = field(default_factory=dict)

    def put(self, *pairs: tuple[str, str]) -> None:
        for topic, payload in pairs:
            self.possible.setdefault(topic, [""]).append(payload)
        ticket = publish(self.messages, *pairs)
        assert ticket is not None
        self.messages.settled(ticket.wait())
        for topic, payload in pairs:
            self.possible[topic] = [payload]

    def compact(self, between: Callable[[Attempt, int], None] | None = None) -> None:
        with closing(self.messages.compact()) as steps:
            for number, step in enumerate(steps):
                step()
                if between is not None:
                    between(self, number)

    def check(self, found: dict[str, str]) -> None:
        assert set(found) <= set(self.possible)
        for topic, payloads in self.possible.items():
            assert found.get(topic, "") in payloads


def opened(world: World) -> tuple[Store, Database, RetainedMessages]:
    """Start as a broker does."""
    store = world.store()
    database = store.ensure(LOG_NAME, settings_of(thresholds=LOG_SETTINGS.thresholds))
    messages = RetainedMessages(database, world.clock, Limits())
    messages.load()
    return store, database, messages


def publish(
    messages: RetainedMessages, *pairs: tuple[str, str], expiry: int = NO_EXPIRY
) -> Ticket | None:
    receipt = messages.put(
        [topic.encode() for topic, _ in pairs],
        [payload.encode() for _, payload in pairs],
        [5] * len(pairs),
        [],
        [expiry] * len(pairs),
        b"client",
        "synced",
    )
    assert receipt.refused == []
    return receipt.ticket


def shown(messages: RetainedMessages, now_us: int) -> dict[str, str]:
    return {
        message.topic.decode(): message.payload.decode()
        for name in EVERYTHING
        for message in messages.find(TopicFilter.parse(name), now_us)
    }


def disk_of(world: World) -> MemoryFileSystem:
    assert isinstance(world.fs, MemoryFileSystem)
    return world.fs


Act = Callable[[Attempt], None]


def crashes(prepare: Act, act: Act) -> Iterator[Attempt]:
    """Yield the attempt after the power went at each operation of act in turn."""
    for operations in count():
        world = World(fs=MemoryFileSystem())
        attempt = Attempt(world, *opened(world))
        prepare(attempt)
        disk_of(world).operations_left = operations
        try:
            act(attempt)
        except (PowerCut, PoisonedError):
            yield attempt
            attempt.store.close()
        else:
            attempt.store.close()
            assert operations > 0
            return


def remains(disk: MemoryFileSystem, seed: int) -> list[MemoryFileSystem]:
    """Return what may be found."""
    return [
        disk.kill_clone(),
        disk.crash_clone(),
        disk.crash_clone(Random(seed), in_order=seed % 2 == 0),
    ]


def check_left(disk: MemoryFileSystem, attempt: Attempt, *, compacts: bool) -> None:
    """Check that a broker starts on a disk and goes on as if nothing had happened."""
    world = World(fs=disk)
    now_us = world.clock.now_us()
    store, database, messages = opened(world)
    found = shown(messages, now_us)
    attempt.check(found)
    again = Attempt(world, store, database, messages)
    again.put(("a", "again"), ("b", "again"), ("b", ""), ("new", "1"))
    if compacts:
        again.compact()
    store.close()
    expected = found | {"a": "again", "new": "1"}
    expected.pop("b", None)
    store, database, messages = opened(World(fs=disk.crash_clone()))
    assert shown(messages, now_us) == expected
    if compacts:
        assert (len(database.slabs()), database.count()) == (1, len(expected))
    store.close()


def nothing(attempt: Attempt) -> None:
    """Leave the log empty."""


def some(attempt: Attempt) -> None:
    attempt.put(("a", "1"), ("b", "1"), ("$c/d", "1"), ("e/f", "1"))
    attempt.put(("a", "2"), ("b", ""), ("g", BIG))


def change(attempt: Attempt) -> None:
    attempt.put(("a", "3"), ("h", "1"), ("a", "4"))
    attempt.put(("$c/d", ""), ("e/f", ""), ("g", ""))
    attempt.put(("b", "2"), ("$c/d", "2"), ("h", BIG), ("i", BIG), ("j", BIG))


def two_slabs(attempt: Attempt) -> None:
    """Leave what a compaction leaves that could not drop what it sealed."""
    some(attempt)
    attempt.database.seal()
    attempt.put(("a", "3"), ("e/f", ""), ("k", "1"))


def compact(attempt: Attempt) -> None:
    attempt.compact()


def compact_and_change(attempt: Attempt) -> None:
    def between(attempt: Attempt, number: int) -> None:
        match number:
            case 0:
                attempt.put(("a", "5"), ("g", ""))
            case 1:
                attempt.put(("e/f", "5"), ("b", "5"), ("a", ""))
            case 2:
                attempt.put(("b", ""), ("$c/d", ""), ("a", "6"))
            case _:
                attempt.put(("e/f", str(number)))

    attempt.compact(between)


def start(attempt: Attempt) -> None:
    """Close, and start again on what is left."""
    attempt.store.close()
    attempt.store, attempt.database, attempt.messages = opened(attempt.world)


SCENARIOS: dict[str, tuple[Act, Act]] = {
    "the first messages": (nothing, some),
    "changes": (some, change),
    "compaction": (some, compact),
    "compaction of what another one left": (two_slabs, compact),
    "changes during compaction": (some, compact_and_change),
    "start": (two_slabs, start),
}


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained, "_STEP_ROWS", 2)


@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_no_acknowledged_change_is_lost_in_a_crash_at_any_operation(scenario: str) -> None:
    for operations, attempt in enumerate(crashes(*SCENARIOS[scenario])):
        for kind, disk in enumerate(remains(disk_of(attempt.world), operations)):
            check_left(disk, attempt, compacts=kind == operations % 3)


def test_no_acknowledged_change_is_lost_in_a_crash_at_any_operation_of_starting() -> None:
    for number, attempt in enumerate(crashes(*SCENARIOS["changes during compaction"])):
        if number % 7:
            continue
        disk = disk_of(attempt.world)
        left = disk.kill_clone() if number % 2 else disk.crash_clone(Random(number))
        for operations in count():
            again = left.kill_clone()
            again.operations_left = operations
            try:
                store, _, _ = opened(World(fs=again))
            except PowerCut:
                check_left(again.crash_clone(Random(operations)), attempt, compacts=False)
            else:
                again.operations_left = None
                store.close()
                break


@dataclass
class Entry:
    """A change that was asked for."""

    payload: str
    expires_us: int


class Program:
    """Runs steps on retained messages and holds them against what may be shown.

    Of each topic: the change that was stored last, and the later ones, which were refused.
    """

    def __init__(self) -> None:
        self.world = World()
        self.entries: dict[str, list[Entry]] = {}
        self.tickets: list[Ticket] = []
        self.steps: Generator[Callable[[], object], None, None] | None = None
        self.store, self.database, self.messages = opened(self.world)

    @contextmanager
    def refusing(self, *, in_vain: bool) -> Iterator[None]:
        """Let the store refuse what is appended meanwhile, or not."""
        if in_vain:
            self.database.configure(quota_bytes=1)
        yield
        if in_vain:
            self.database.sync()
            self.database.configure(quota_bytes=None)

    def put(self, topic: str, payload: str, expiry: int, *, in_vain: bool) -> None:
        with self.refusing(in_vain=in_vain):
            ticket = publish(self.messages, (topic, payload), expiry=expiry)
        expires_us = 0 if expiry == NO_EXPIRY else self.world.clock.now_us() + expiry * 1_000_000
        entries = self.entries.setdefault(topic, [Entry("", 0)])
        if ticket is None:
            assert payload == ""
            return
        self.database.sync()
        assert isinstance(ticket.error, QuotaExceededError) == in_vain
        if not in_vain:
            entries.clear()
        entries.append(Entry(payload, expires_us))
        self.tickets.append(ticket)

    def settle(self, number: int) -> None:
        """Tell of one outcome, in any order."""
        if self.tickets:
            self.messages.settled(self.tickets.pop(number % len(self.tickets)))

    def compact(self, *, in_vain: bool) -> None:
        """Take one step of compaction, beginning one if none is under way."""
        if self.steps is None:
            self.steps = self.messages.compact()
        with self.refusing(in_vain=in_vain):
            step = next(self.steps, None)
            try:
                if step is not None:
                    step()
            except QuotaExceededError:
                self.steps.close()
                step = None
        if step is None:
            self.steps = None

    def check(self) -> None:
        now_us = self.world.clock.now_us()
        found = shown(self.messages, now_us)
        assert set(found) <= set(self.entries)
        for topic, entries in self.entries.items():
            possible = {
                "" if 0 < entry.expires_us <= now_us else entry.payload for entry in entries
            }
            assert found.get(topic, "") in possible

    def restart(self) -> None:
        """Let everything settle and start again: nothing may change."""
        while self.tickets:
            self.settle(0)
        if self.steps is not None:
            self.steps.close()
            self.steps = None
        now_us = self.world.clock.now_us()
        before = self.messages.find(TopicFilter.parse("#"), now_us)
        before += self.messages.find(TopicFilter.parse("$c/#"), now_us)
        self.store.close()
        self.store, self.database, self.messages = opened(self.world)
        after = self.messages.find(TopicFilter.parse("#"), now_us)
        after += self.messages.find(TopicFilter.parse("$c/#"), now_us)
        assert after == before
        assert self.messages.size_bytes == sum(message.size_bytes for message in after)

    def crash(self, seed: int) -> None:
        """Lose the power, and some of what was not synced."""
        disk = disk_of(self.world).crash_clone(Random(seed))
        self.store.close()
        self.world = World(fs=disk, clock=self.world.clock)
        self.tickets, self.steps = [], None
        self.store, self.database, self.messages = opened(self.world)
        self.check()


NUMBERS = st.integers(0, 5)
STEPS = st.lists(
    st.tuples(
        st.just("put"),
        st.sampled_from(["a", "b", "$c/d"]),
        st.sampled_from(["", "1", "2", "3"]),
        st.sampled_from([NO_EXPIRY, NO_EXPIRY, 0, 2]),
        st.booleans(),
    )
    | st.tuples(st.just("settle"), NUMBERS)
    | st.tuples(st.just("compact"), st.sampled_from([False, False, False, True]))
    | st.tuples(st.just("restart"))
    | st.tuples(st.just("crash"), NUMBERS)
    | st.tuples(st.just("wait")),
    max_size=30,
)


@settings(max_examples=60)
@given(STEPS)
def test_any_order_of_events_shows_what_the_log_will_show(steps: list[tuple[object, ...]]) -> None:
    program = Program()
    for step in steps:
        match step:
            case ("put", str(topic), str(payload), int(expiry), bool(in_vain)):
                program.put(topic, payload, expiry, in_vain=in_vain)
            case ("settle", int(number)):
                program.settle(number)
            case ("compact", bool(in_vain)):
                program.compact(in_vain=in_vain)
            case ("crash", int(seed)):
                program.crash(seed)
            case ("restart",):
                program.restart()
            case _:
                program.world.clock.advance(1.0)
        program.check()
    program.restart()
    program.store.close()
