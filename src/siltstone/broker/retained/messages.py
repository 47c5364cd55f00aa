"""The retained messages of the broker: all of them in RAM, found by filter, and their log on disk.

A change is seen at once and durable when its ticket is done; whoever got the ticket tells of it by
`settled`, on the thread that owns the messages. All else happens on that thread too, but for the
blocking steps of `compact`.

Invariants:
- A topic shows its last change that has not failed. The changes of a topic that are under way form
  a chain, each knowing what it replaced. One that is stored ends the chain before it; one that
  fails is undone if it is the last, and else taken out, so that the next one replaced what it did.
- What RAM shows of a topic without a change under way is what replaying the log gives.
- An expired message is as good as cleared: it is never returned, and never comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from siltstone.broker.retained.log import Retained, RetainedLog, cleared
from siltstone.broker.settings.broker import Limits
from siltstone.clock import Clock
from siltstone.errors import SiltstoneError
from siltstone.mqtt.publish import NO_EXPIRY
from siltstone.store.database import Database, Durability
from siltstone.store.log.read.pieces import QOS_MASK, RETAIN
from siltstone.store.slab.manifest import SlabId
from siltstone.store.writer.ticket import Ticket
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.index import TopicIndex

VOLATILE_PREFIX: Final = b"$SYS/"

# What one step of compaction does on the loop's thread: two or three milliseconds.
_STEP_ROWS: Final = 250
_STEP_BYTES: Final = 256 * 1024
# Compaction failed: the disk is full, or slow. It is not tried again at every tick.
_RETRY_SECONDS: Final = 60.0
_SECOND_US: Final = 1_000_000


class Exchange(NamedTuple):
    """What a topic had before a put, and has after it."""

    topic: bytes
    before: Retained | None
    after: Retained | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What became of a batch: which of its messages were refused, being beyond the limits, what the
    others changed, and when they are durable; None is now.
    """

    ticket: Ticket | None
    refused: list[int]
    exchanges: list[Exchange]


class _Change:
    """A change under way: what a topic had before it and has after it."""

    __slots__ = ("after", "before", "topic")

    def __init__(self, topic: bytes, before: Retained | None, after: Retained | None) -> None:
        self.topic = topic
        self.before = before
        self.after = after


class RetainedMessages:
    """The retained messages by topic. Without a database they live as long as the process."""

    def __init__(self, database: Database | None, clock: Clock, limits: Limits) -> None:
        self.limits = limits
        self.size_bytes = 0
        self._clock = clock
        self._log = None if database is None else RetainedLog(database)
        self._index: TopicIndex[Retained] = TopicIndex()
        self._volatile: TopicIndex[Retained] = TopicIndex()
        self._expiring: set[bytes] = set()
        self._unswept: list[bytes] = []
        self._chains: dict[bytes, list[_Change]] = {}
        self._under_way: dict[Ticket, list[_Change]] = {}
        self._is_compacting = False
        self._compact_at = clock.monotonic()

    def __len__(self) -> int:
        """Return the number of topics with a message, volatile ones left out."""
        return len(self._index)

    def load(self) -> None:
        """Read the log, once and before all else. Blocks. Raises: CorruptionError."""
        if self._log is None:
            return
        for message in self._log.replay():
            is_gone = not message.payload or message.is_over(self._clock)
            self._show(message.topic, None if is_gone else message)

    def put(
        self,
        topics: list[bytes],
        payloads: list[bytes],
        flags: list[int],
        properties: list[bytes],
        expiries: list[int],
        publisher: bytes,
        durability: Durability,
    ) -> Receipt:
        """Retain a batch of publishes as if one by one; an empty payload clears its topic.

        Properties and expiries may be empty lists, as in a PublishBatch. Clearing and replacing by
        what is no larger are never refused. Never blocks. When it raises nothing has changed.

        Raises: OverloadedError, PoisonedError, ClosedError.
        """
        # [MQTT-3.3.1-5] store it, [MQTT-3.3.1-6] clear, [MQTT-3.3.1-7] and do not store that.
        now_us = self._clock.now_us()
        planned: dict[bytes, Retained | None] = {}
        refused: list[int] = []
        count, size_bytes = len(self._index), self.size_bytes
        for number, topic in enumerate(topics):
            before = planned[topic] if topic in planned else self._index.get(topic)
            after: Retained | None = None
            if payloads[number]:
                expiry = expiries[number] if expiries else NO_EXPIRY
                after = Retained(
                    topic if before is None else before.topic,
                    payloads[number],
                    flags[number] & QOS_MASK | RETAIN,
                    properties[number] if properties else b"",
                    now_us,
                    0 if expiry == NO_EXPIRY else now_us + expiry * _SECOND_US,
                    publisher,
                )
            count_after = count + (after is not None) - (before is not None)
            size_after = size_bytes + _size_of(after) - _size_of(before)
            if (count_after > count and count_after > self.limits.retained_messages_max) or (
                size_after > size_bytes and size_after > self.limits.retained_bytes_max
            ):
                refused.append(number)
                continue
            planned[topic] = after
            count, size_bytes = count_after, size_after
        exchanges = [
            Exchange(topic, self._index.get(topic), after) for topic, after in planned.items()
        ]
        ticket = self._change(planned, now_us, durability)
        return Receipt(ticket=ticket, refused=refused, exchanges=exchanges)

    def take_back(self, exchanges: list[Exchange]) -> Ticket | None:
        """Let topics have what they had before a put, unless they were changed since.

        Return when that is durable; None is now. Raises: OverloadedError, PoisonedError,
        ClosedError, and then RAM alone has changed.
        """
        planned = {
            exchange.topic: exchange.before
            for exchange in exchanges
            if self._index.get(exchange.topic) is exchange.after
        }
        try:
            return self._change(planned, self._clock.now_us(), "synced")
        except SiltstoneError:
            for topic, before in planned.items():
                self._show(topic, before)
            raise

    def put_volatile(self, topic: bytes, payload: bytes) -> None:
        """Set a value of the broker itself, below $SYS, which clients may not publish to. It is not
        in the log, nor counted; an empty one clears.
        """
        assert topic.startswith(VOLATILE_PREFIX), "a client's topic must not be volatile"
        if payload:
            now_us = self._clock.now_us()
            self._volatile.set(topic, Retained(topic, payload, RETAIN, b"", now_us, 0, b""))
        else:
            self._volatile.pop(topic)

    def settled(self, ticket: Ticket) -> None:
        """Hear that the ticket of a receipt is done. What failed is undone."""
        for change in self._under_way.pop(ticket):
            chain = self._chains.get(change.topic, [])
            if change not in chain:
                # A later change of the topic is stored already, whatever becomes of this one.
                continue
            place = chain.index(change)
            if ticket.error is None:
                del chain[: place + 1]
            else:
                del chain[place]
                if place < len(chain):
                    chain[place].before = change.before
                else:
                    self._show(change.topic, change.before)
            if not chain:
                del self._chains[change.topic]

    def all(self) -> list[Retained]:
        """Return the messages of now, volatile ones left out."""
        return self._index.values()

    def put_back(self, message: Retained) -> None:
        """Hold a message that was held before, whatever the limits are now."""
        self._show(message.topic, message)

    def find(self, topic_filter: TopicFilter, now_us: int) -> list[Retained]:
        """Return the messages of a filter, sorted by the levels of their topics."""
        found = self._index.match(topic_filter)
        if self._expiring:
            expired = [message for message in found if message.is_expired(now_us)]
            if expired:
                found = [message for message in found if not message.is_expired(now_us)]
                for message in expired:
                    if message.is_over(self._clock):
                        self._show(message.topic, None)
        volatile = self._volatile.match(topic_filter)
        if volatile:
            found = sorted(found + volatile, key=lambda message: message.topic.split(b"/"))
        return found

    def walk(self, topic_filter: TopicFilter) -> Iterator[Retained | None]:
        """Yield the messages of a filter as they are when their turn comes, a step at a time.

        A step that finds nothing yields None. Expired ones may be among them.
        """
        return chain(self._volatile.walk(topic_filter), self._index.walk(topic_filter))

    def is_kept(self, topic: bytes) -> bool:
        """Tell whether a topic has a message that is no value of the broker itself."""
        return topic in self._index

    def get(self, topic: bytes, now_us: int) -> Retained | None:
        """Return the message of one topic."""
        message = self._volatile.get(topic) or self._index.get(topic)
        return None if message is None or message.is_expired(now_us) else message

    def sweep(self, budget: int) -> int:
        """Look at so many messages that can expire, and go on there the next time; return how many
        were expired and are forgotten.
        """
        if not self._unswept:
            self._unswept = list(self._expiring)
        forgotten = 0
        for topic in self._unswept[-budget:]:
            message = self._index.get(topic)
            if message is not None and message.is_over(self._clock):
                self._show(topic, None)
                forgotten += 1
        del self._unswept[-budget:]
        return forgotten

    def after(self, now_us: int) -> list[bytes]:
        """Return the topics whose messages expire, and came later than this: the clock was ahead
        then.
        """
        held = ((topic, self._index.get(topic)) for topic in self._expiring)
        return [topic for topic, message in held if message and message.stored_us > now_us]

    def come_again(self, topics: list[bytes]) -> Ticket | None:
        """Let the messages of topics expire as if they came now; return as `take_back` does.

        Raises: OverloadedError, PoisonedError, ClosedError, and then nothing has changed.
        """
        now_us = self._clock.now_us()
        held = [message for topic in topics if (message := self._index.get(topic)) is not None]
        planned: dict[bytes, Retained | None] = {
            message.topic: message.coming_at(now_us) for message in held
        }
        return self._change(planned, now_us, "synced")

    def needs_compaction(self) -> bool:
        """Say whether `compact` should run: not while it does, and not soon after it failed."""
        return (
            self._log is not None
            and not self._is_compacting
            and self._clock.monotonic() >= self._compact_at
            and self._log.is_wasteful(len(self._index), self.size_bytes)
        )

    def compact(self) -> Generator[Callable[[], object], None, None]:
        """Write the log anew: seal, append what is live, drop what was sealed.

        Yields what blocks, to be called on any thread before going on; between that it does a
        bounded piece of work. When a call raises, close the generator: nothing is lost, all of it
        will be done again. A crash at any point leaves a log that replays to the same messages.

            with closing(retained.compact()) as steps:
                for step in steps:
                    await loop.run_in_executor(None, step)
        """
        assert self._log is not None, "without a log there is nothing to compact"
        self._is_compacting = True
        self._compact_at = self._clock.monotonic() + _RETRY_SECONDS
        rows, size_bytes = self._log.rows, self._log.size_bytes
        sealed: list[SlabId] = []
        try:
            yield partial(_extend, sealed, self._log.seal)
            # From here on every change is behind the seal. What was changed before it and is not
            # settled may yet be undone, so that its topic is written again though it shows nothing.
            waiting = [topic for topic in self._chains if topic not in self._index]
            waiting.extend(self._index)
            while waiting:
                ticket = self._write_again(waiting)
                try:
                    yield ticket.wait
                finally:
                    # One that is not done when this is given up stays under way.
                    if ticket.done:
                        self.settled(ticket)
            yield self._log.sync
            yield partial(self._log.drop, sealed)
            self._log.discount(rows=rows, size_bytes=size_bytes)
            self._compact_at = self._clock.monotonic()
        finally:
            self._is_compacting = False

    def _write_again(self, waiting: list[bytes]) -> Ticket:
        """Take some topics off the end and append what they show, as changes that change nothing.

        A message whose own append fails, but which was written here, stays.
        """
        assert self._log is not None
        now_us = self._clock.now_us()
        changes: list[_Change] = []
        messages: list[Retained] = []
        size_bytes = 0
        for _ in range(min(len(waiting), _STEP_ROWS)):
            topic = waiting.pop()
            message = self._index.get(topic)
            if topic not in self._chains and (message is None or message.is_over(self._clock)):
                # Cleared behind the seal, or expired: the log has nothing to say of it.
                self._show(topic, None)
                continue
            changes.append(_Change(topic, message, message))
            messages.append(message or cleared(topic, now_us))
            size_bytes += messages[-1].size_bytes
            if size_bytes >= _STEP_BYTES:
                break
        ticket = self._log.append(messages, "written")
        self._begin(ticket, changes)
        return ticket

    def _change(
        self, planned: dict[bytes, Retained | None], now_us: int, durability: Durability
    ) -> Ticket | None:
        """Write changes and show them. Without a message there is nothing to clear, unless a change
        that is under way could bring one back.
        """
        changes = [
            _Change(topic, self._index.get(topic), after)
            for topic, after in planned.items()
            if after is not None or topic in self._index or topic in self._chains
        ]
        ticket: Ticket | None = None
        if self._log is not None and changes:
            messages = [change.after or cleared(change.topic, now_us) for change in changes]
            ticket = self._log.append(messages, durability)
            self._begin(ticket, changes)
        for change in changes:
            self._show(change.topic, change.after)
        return ticket

    def _begin(self, ticket: Ticket, changes: list[_Change]) -> None:
        self._under_way[ticket] = changes
        for change in changes:
            self._chains.setdefault(change.topic, []).append(change)

    def _show(self, topic: bytes, message: Retained | None) -> None:
        """Let RAM hold this of a topic."""
        self.size_bytes += _size_of(message) - _size_of(self._index.get(topic))
        if message is None:
            self._index.pop(topic)
        else:
            self._index.set(topic, message)
        if message is not None and message.expires_us:
            self._expiring.add(topic)
        else:
            self._expiring.discard(topic)


def _size_of(message: Retained | None) -> int:
    return 0 if message is None else message.size_bytes


def _extend(slabs: list[SlabId], seal: Callable[[], list[SlabId]]) -> None:
    slabs.extend(seal())
