"""A simple model of a key-value database, to compare with the real one; and a held queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread

from siltstone.clock import Clock
from siltstone.store.keyvalue import KeyValueDatabase
from siltstone.store.kv.api import Engine
from siltstone.store.tx.commit.shard import KeyValueShard
from siltstone.store.tx.operations import MONOTONIC
from siltstone.store.tx.retry import Retry
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.topic.grammar import TopicFilter

Place = tuple[str, int]
State = dict[Place, bytes]
END = 1 << 63
# More rows of a topic than this are deleted as a range of times.
ROWS_ONE_BY_ONE = 16


def opened(
    engine: Engine, clock: Clock, settings: KeyValueSettings | None = None
) -> KeyValueDatabase:
    """Open a database that never sleeps and is deterministic."""
    retry = Retry(pause=lambda seconds: None, chance=lambda: 0.5)
    return KeyValueDatabase(engine, clock, "test", settings, retry=retry)


def queue_of(database: KeyValueDatabase, shard: int = 0) -> KeyValueShard:
    """Return the queue of a shard, which is private."""
    return database._queues[shard]  # noqa: SLF001


@contextmanager
def held(database: KeyValueDatabase, shard: int = 0) -> Iterator[None]:
    """Block the committing thread, so that all commits in this context become one group."""
    queue = queue_of(database, shard)
    began, go = Event(), Event()

    def hold() -> None:
        began.set()
        go.wait()

    thread = Thread(target=lambda: queue.order(hold))
    thread.start()
    began.wait()
    try:
        yield
    finally:
        go.set()
        thread.join()


@dataclass
class ModelRead:
    """A read and its result."""

    topic_filter: str
    since_us: int
    until_us: int
    rows: list[tuple[str, int, bytes]]
    # The start of the range that the result depends on. For the newest row of a topic, it is later
    # than the requested start.
    depends_since_us: int


@dataclass
class ModelTransaction:
    """The operations of a transaction, in order."""

    read_serial: int = -1
    reads: list[ModelRead] = field(default_factory=list)
    deletions: list[tuple[str, int, int]] = field(default_factory=list)
    writes: dict[Place, bytes] = field(default_factory=dict)
    required: list[tuple[Place, bool, bytes | None]] = field(default_factory=list)
    given: int = 0

    def write(self, topic: str, value: bytes, time_us: int) -> None:
        if time_us == MONOTONIC:
            self.given += 1
            time_us = -self.given
        self.writes[topic, time_us] = value

    def delete(self, topic_filter: str, since_us: int, until_us: int, now_us: int) -> None:
        parsed = TopicFilter.parse(topic_filter)
        end = now_us if until_us == MONOTONIC else until_us
        for topic, time_us in list(self.writes):
            at = now_us if time_us < 0 else time_us
            if parsed.matches(topic.encode()) and since_us <= at < end:
                del self.writes[topic, time_us]
        self.deletions.append((topic_filter, since_us, until_us))

    def seen(self, state: State, now_us: int) -> State:
        """Return a state with the changes of the transaction applied."""
        found = dict(state)
        for topic_filter, since_us, until_us in self.deletions:
            end = now_us if until_us == MONOTONIC else until_us
            for place in matching(found, topic_filter, since_us, end):
                del found[place]
        return found | self.writes


def matching(state: State, topic_filter: str, since_us: int, until_us: int) -> list[Place]:
    parsed = TopicFilter.parse(topic_filter)
    return [
        (topic, time_us)
        for topic, time_us in state
        if parsed.matches(topic.encode()) and since_us <= time_us < until_us
    ]


def selected(
    state: State, topic_filter: str, since_us: int, until_us: int, now_us: int
) -> list[tuple[str, int, bytes]]:
    """Return the result of a read: rows without a time yet count as now and come last."""
    parsed = TopicFilter.parse(topic_filter)
    rows = [
        (topic, time_us, value)
        for (topic, time_us), value in state.items()
        if parsed.matches(topic.encode())
        and since_us <= (now_us if time_us < 0 else time_us) < until_us
    ]
    rows.sort(key=lambda row: (row[0].encode(), END - row[1] if row[1] < 0 else row[1]))
    return [(topic, MONOTONIC if time_us < 0 else time_us, value) for topic, time_us, value in rows]


class Model:
    """The states of a generation, each with the changes of its commit."""

    def __init__(self, serial: int = 0, timestamp_us: int = 0) -> None:
        self.state: State = {}
        # The state before the group of transactions that is being committed.
        self.stored: State = {}
        self.serial = serial
        self.timestamp_us = timestamp_us
        self.states: dict[int, State] = {serial: {}}
        self.timestamps: dict[int, int] = {serial: timestamp_us}
        self.changed: dict[int, set[Place]] = {}
        # Ranges of topics and times of which many rows were deleted at once.
        self.cleared: dict[int, list[tuple[str, int, int]]] = {}

    def conflicts(self, tx: ModelTransaction) -> bool:
        """Return whether anything that was read has changed since."""
        return any(
            matching(
                dict.fromkeys(changed, b""), read.topic_filter, read.depends_since_us, read.until_us
            )
            for serial, changed in self.changed.items()
            if serial > tx.read_serial
            for read in tx.reads
        )

    def may_conflict(self, tx: ModelTransaction) -> bool:
        """Return whether anything was read in a range that was deleted at once."""
        return any(
            since_us < read.until_us
            and until_us > read.depends_since_us
            and TopicFilter.parse(read.topic_filter).matches(topic.encode())
            for serial, cleared in self.cleared.items()
            if serial > tx.read_serial
            for topic, since_us, until_us in cleared
            for read in tx.reads
        )

    def unmet(self, tx: ModelTransaction) -> list[tuple[str, int, bytes | None]]:
        """Return the requirements that do not hold, with the values found."""
        found = []
        for place, present, value in tx.required:
            held = self.state.get(place)
            met = (held is not None and value in (None, held)) if present else held is None
            if not met:
                found.append((*place, held))
        return found

    def apply(self, tx: ModelTransaction, now_us: int) -> None:
        """Commit a transaction."""
        self.serial += 1
        next_us = max(self.timestamp_us + 1, now_us)
        changed: set[Place] = set()
        for topic_filter, since_us, until_us in tx.deletions:
            end = next_us if until_us == MONOTONIC else until_us
            deleted = matching(self.state, topic_filter, since_us, end)
            for place in deleted:
                changed.add(place)
                del self.state[place]
            stored = matching(self.stored, topic_filter, since_us, end)
            for topic, count in Counter(topic for topic, _ in stored).items():
                if count > ROWS_ONE_BY_ONE:
                    self.cleared.setdefault(self.serial, []).append((topic, since_us, end))
        for (topic, time_us), value in tx.writes.items():
            at = time_us
            if at < 0:
                at = self.timestamp_us = next_us
                next_us += 1
            self.state[topic, at] = value
            changed.add((topic, at))
        self.states[self.serial] = dict(self.state)
        self.timestamps[self.serial] = self.timestamp_us
        self.changed[self.serial] = changed
