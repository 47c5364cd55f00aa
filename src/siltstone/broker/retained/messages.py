"""The retained messages of the broker: in RAM, found by filter, and their log on disk.

A change is visible at once, and durable when its ticket is done. The caller that got the ticket
then calls `settled`, on the thread that owns the messages. Everything else runs on that thread too,
except the blocking steps of `compact`.

Invariants:
- A topic shows its last change that has not failed. The changes of a topic that are under way form
  a chain; each records the message that it replaced. When a change is stored, it and all changes
  before it leave the chain. When a change fails, it is undone if it is the last one. Otherwise it
  leaves the chain, and the next change takes over the message that it replaced.
- For a topic without a change under way, RAM and a replay of the log give the same message.
- An expired message counts as cleared: it is never sent, and never becomes visible again.
- Messages that a large snapshot leaves on disk have only their places in RAM, and only in a broker
  without a log.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from siltstone.broker.retained.log import Retained, RetainedLog, cleared
from siltstone.broker.retained.spilled import Kept, whole
from siltstone.broker.settings.broker import Limits
from siltstone.clock import Clock
from siltstone.errors import SiltstoneError
from siltstone.mqtt.publish import NO_EXPIRY
from siltstone.rows.batch import QOS_BITS, RETAIN
from siltstone.session.sending.delivery import Spilled
from siltstone.store.database import Database, Durability
from siltstone.store.slab.manifest import SlabId
from siltstone.store.writer.ticket import Ticket
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.index import TopicIndex
from siltstone.units import SECOND_US

VOLATILE_PREFIX: Final = b"$SYS/"

# Limits for one step of compaction on the thread of the loop: two or three milliseconds.
_STEP_ROWS: Final = 250
_STEP_BYTES: Final = 256 * 1024
# After a failed compaction, for example on a full disk, wait this long before the next one.
_RETRY_SECONDS: Final = 60.0


class Exchange(NamedTuple):
    """The message of a topic before and after a put."""

    topic: bytes
    before: Retained | None
    after: Retained | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PutReceipt:
    """The result of a put.

    `refused` has the indexes of messages that exceed the limits, `exchanges` the changes by the
    other messages. They are durable when `ticket` is done; None means at once.
    """

    ticket: Ticket | None
    refused: list[int]
    exchanges: list[Exchange]


class _Change:
    """A change under way, with the message of its topic before and after it."""

    __slots__ = ("after", "before", "topic")

    def __init__(self, topic: bytes, before: Retained | None, after: Retained | None) -> None:
        self.topic = topic
        self.before = before
        self.after = after


class RetainedMessages:
    """The retained messages by topic. Without a database they are lost when the process ends."""

    def __init__(self, database: Database | None, clock: Clock, limits: Limits) -> None:
        self.limits = limits
        self.size_bytes = 0
        self._clock = clock
        self._log = None if database is None else RetainedLog(database)
        self._index: TopicIndex[Kept] = TopicIndex()
        self._volatile: TopicIndex[Retained] = TopicIndex()
        self._expiring: set[bytes] = set()
        self._unswept: list[bytes] = []
        self._chains: dict[bytes, list[_Change]] = {}
        self._under_way: dict[Ticket, list[_Change]] = {}
        self._is_compacting = False
        self._compact_at = clock.monotonic()

    def __len__(self) -> int:
        """Return the number of topics with a message, without volatile ones."""
        return len(self._index)

    def load(self) -> None:
        """Read the log; call it once, before all other methods. Blocks. Raises: CorruptionError."""
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
    ) -> PutReceipt:
        """Retain a batch of messages, one after the other; an empty payload clears its topic.

        Properties and expiries may be empty lists, as in a PublishBatch. A message that clears a
        topic, or that is not larger than the one it replaces, is never refused. Never blocks. If it
        raises, nothing has changed.

        Raises: OverloadedError, PoisonedError, ClosedError.
        """
        # [MQTT-3.3.1-5]: store the message; [MQTT-3.3.1-6]: an empty payload clears the topic;
        # [MQTT-3.3.1-7]: do not store an empty payload.
        now_us = self._clock.now_us()
        planned: dict[bytes, Retained | None] = {}
        refused: list[int] = []
        count, size_bytes = len(self._index), self.size_bytes
        for number, topic in enumerate(topics):
            before = planned[topic] if topic in planned else self._held(topic)
            after: Retained | None = None
            if payloads[number]:
                expiry = expiries[number] if expiries else NO_EXPIRY
                after = Retained(
                    topic if before is None else before.topic,
                    payloads[number],
                    flags[number] & QOS_BITS | RETAIN,
                    properties[number] if properties else b"",
                    now_us,
                    0 if expiry == NO_EXPIRY else now_us + expiry * SECOND_US,
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
        exchanges = [Exchange(topic, self._held(topic), after) for topic, after in planned.items()]
        ticket = self._change(planned, now_us, durability)
        return PutReceipt(ticket=ticket, refused=refused, exchanges=exchanges)

    def take_back(self, exchanges: list[Exchange]) -> Ticket | None:
        """Restore the messages that topics had before a put, unless they were changed since.

        Return a ticket that is done when this is durable; None means at once. Raises:
        OverloadedError, PoisonedError, ClosedError; then the change is made in RAM only.
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
        """Set a value of the broker itself, below $SYS; an empty payload clears it.

        Clients may not publish there. The value is not in the log, and limits do not count it.
        """
        assert topic.startswith(VOLATILE_PREFIX), "a client's topic must not be volatile"
        if payload:
            now_us = self._clock.now_us()
            self._volatile.set(topic, Retained(topic, payload, RETAIN, b"", now_us, 0, b""))
        else:
            self._volatile.pop(topic)

    def settled(self, ticket: Ticket) -> None:
        """Process a ticket that is done; undo its changes if it failed."""
        for change in self._under_way.pop(ticket):
            chain = self._chains.get(change.topic, [])
            if change not in chain:
                # A later change of the topic is stored already, so this outcome does not matter.
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

    def all(self) -> list[Kept]:
        """Return all current messages, or their places on disk; without volatile ones."""
        return self._index.values()

    def put_back(self, message: Retained, place: Spilled | None = None) -> None:
        """Restore a message, without a check of the limits.

        If it was written to disk, keep only its place in RAM. A broker with a log has no such
        messages.
        """
        assert place is None or self._log is None, "compaction expects messages in RAM"
        self._show(message.topic, message, place)

    def find(self, topic_filter: TopicFilter, now_us: int) -> list[Retained]:
        """Return the messages that match a filter, sorted by the levels of their topics."""
        found = [whole(kept) for kept in self._index.match(topic_filter)]
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
        """Yield the messages that match a filter, step by step, each as it is at its step.

        A step that finds no message yields None. Expired messages may be included.
        """
        return chain(
            self._volatile.walk(topic_filter),
            (None if kept is None else whole(kept) for kept in self._index.walk(topic_filter)),
        )

    def is_kept(self, topic: bytes) -> bool:
        """Return whether a topic has a message that is not volatile."""
        return topic in self._index

    def get(self, topic: bytes, now_us: int) -> Retained | None:
        """Return the message of one topic."""
        message = self._volatile.get(topic) or self._held(topic)
        return None if message is None or message.is_expired(now_us) else message

    def sweep(self, budget: int) -> int:
        """Check up to `budget` messages that can expire; return how many were expired and deleted.

        The next call continues with the messages that follow.
        """
        if not self._unswept:
            self._unswept = list(self._expiring)
        forgotten = 0
        for topic in self._unswept[-budget:]:
            message = self._held(topic)
            if message is not None and message.is_over(self._clock):
                self._show(topic, None)
                forgotten += 1
        del self._unswept[-budget:]
        return forgotten

    def after(self, now_us: int) -> list[bytes]:
        """Return the topics of messages that expire and were stored after `now_us`.

        The clock was ahead when they were stored.
        """
        held = ((topic, self._held(topic)) for topic in self._expiring)
        return [topic for topic, message in held if message and message.stored_us > now_us]

    def come_again(self, topics: list[bytes]) -> Ticket | None:
        """Restart the expiry of the messages of topics, as if they arrived now.

        Return a ticket as `take_back` does. Raises: OverloadedError, PoisonedError, ClosedError;
        then nothing has changed.
        """
        now_us = self._clock.now_us()
        held = [message for topic in topics if (message := self._held(topic)) is not None]
        planned: dict[bytes, Retained | None] = {
            message.topic: message.coming_at(now_us) for message in held
        }
        return self._change(planned, now_us, "synced")

    def needs_compaction(self) -> bool:
        """Return whether `compact` should run: not while it runs, and not soon after it failed."""
        return (
            self._log is not None
            and not self._is_compacting
            and self._clock.monotonic() >= self._compact_at
            and self._log.is_wasteful(len(self._index), self.size_bytes)
        )

    def compact(self) -> Generator[Callable[[], object], None, None]:
        """Rewrite the log: seal it, append the live messages, drop the sealed slabs.

        Yields functions that block. Call each of them, on any thread, before the next step of the
        generator; between them the generator does a limited amount of work. If a call raises, close
        the generator: nothing is lost, and a later compaction starts from the beginning. A crash at
        any point leaves a log that replays to the same messages.

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
            # Every change from now on is after the seal. A change from before the seal that is not
            # settled may still be undone, so its topic is written again even if it has no message.
            waiting = [topic for topic in self._chains if topic not in self._index]
            waiting.extend(self._index)
            while waiting:
                ticket = self._write_again(waiting)
                try:
                    yield ticket.wait
                finally:
                    # If the generator is closed before the ticket is done, its changes stay under
                    # way.
                    if ticket.done:
                        self.settled(ticket)
            yield self._log.sync
            yield partial(self._log.drop, sealed)
            self._log.discount(rows=rows, size_bytes=size_bytes)
            self._compact_at = self._clock.monotonic()
        finally:
            self._is_compacting = False

    def _write_again(self, waiting: list[bytes]) -> Ticket:
        """Remove some topics from the end of the list, and append their current messages.

        Each is a change that replaces a message by itself. If the original append of a message
        fails, but this one is stored, the message stays.
        """
        assert self._log is not None
        now_us = self._clock.now_us()
        changes: list[_Change] = []
        messages: list[Retained] = []
        size_bytes = 0
        for _ in range(min(len(waiting), _STEP_ROWS)):
            topic = waiting.pop()
            message = self._held(topic)
            if topic not in self._chains and (message is None or message.is_over(self._clock)):
                # Cleared after the seal, or expired: the log needs no row for it.
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
        """Append changes to the log and show them.

        A topic without a message is not cleared again, except if a change under way could restore
        a message.
        """
        changes = [
            _Change(topic, self._held(topic), after)
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

    def _held(self, topic: bytes) -> Retained | None:
        """Return the message of a topic, from RAM or from disk; without volatile ones."""
        kept = self._index.get(topic)
        return None if kept is None else whole(kept)

    def _show(self, topic: bytes, message: Retained | None, place: Spilled | None = None) -> None:
        """Set or clear the message of a topic in RAM; with a place on disk, set only the place."""
        self.size_bytes += _size_of(message) - _size_of(self._held(topic))
        if message is None:
            self._index.pop(topic)
        else:
            self._index.set(topic, place or message)
        if message is not None and message.expires_us:
            self._expiring.add(topic)
        else:
            self._expiring.discard(topic)


def _size_of(message: Retained | None) -> int:
    return 0 if message is None else message.size_bytes


def _extend(slabs: list[SlabId], seal: Callable[[], list[SlabId]]) -> None:
    slabs.extend(seal())
