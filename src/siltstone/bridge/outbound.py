"""Stores messages for the remote broker in the spool.

The acknowledgement to a publisher waits until its message is synced in the spool, as it waits for
the store. Messages that arrive while the disk is busy form the next batch. All code here runs on
the event loop, except the write to the spool.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from siltstone.bridge.entries import encode_entries
from siltstone.bridge.mapping import MappedTopic, Routes
from siltstone.bridge.settings import WhenFull
from siltstone.errors import OutcomeUnknownError, OverloadedError, SiltstoneError
from siltstone.guard import contain
from siltstone.logs import log
from siltstone.mqtt.flow import pick
from siltstone.mqtt.publish import PublishBatch
from siltstone.spool import Entry, Spool
from siltstone.spool.contents import PROOF_BYTES

Act = Callable[[], None]
# Runs work in a thread, then a function on the event loop.
InThread = Callable[[Act, Act], None]
# Receives the outcome of a part of a batch.
SettlePart = Callable[[PublishBatch, Exception | None], None]

_LOG: Final = logging.getLogger("siltstone.bridge")
_QOS: Final = 3
# The maximum size of a message in an entry beside its topic, properties and payload.
_OVERHEAD_BYTES: Final = 16
_TELL_EACH: Final = 1000


class WaitingBytes:
    """Two functions that count the bytes that wait for the disk, for backpressure."""

    def __init__(self, hold: Callable[[int], None], release: Callable[[int], None]) -> None:
        self.hold = hold
        self.release = release


@dataclass(slots=True)
class _Gathered:
    batch: PublishBatch = field(default_factory=PublishBatch)
    size_bytes: int = 0
    waiting: list[tuple[SettlePart, PublishBatch]] = field(default_factory=list)


@dataclass(slots=True)
class _Written:
    """The result of the thread that stores a batch."""

    entries: list[Entry] = field(default_factory=list)
    size_bytes: int = 0
    error: SiltstoneError | None = None


class Outbound:
    """Takes messages for the spool; `added` is called with the new entries."""

    def __init__(
        self,
        spool: Spool,
        routes: Routes,
        *,
        name: str,
        publisher: bytes,
        size_bytes_max: int,
        when_full: WhenFull,
        in_thread: InThread,
        now_us: Callable[[], int],
        pace: WaitingBytes,
        added: Callable[[list[Entry]], None],
    ) -> None:
        # The size of the messages in the spool, without the overhead of the spool.
        counted = spool.stats()
        self.size_bytes = counted.size_bytes - counted.entries * PROOF_BYTES
        self.dropped = 0
        self._spool = spool
        self._routes = routes
        self._name = name
        self._publisher = publisher
        self._size_bytes_max = size_bytes_max
        self._when_full: WhenFull = when_full
        self._in_thread = in_thread
        self._now_us = now_us
        self._pace = pace
        self._added = added
        self._gathered = _Gathered()
        self._is_busy = False

    def refused(self, batch: PublishBatch, publisher: bytes) -> list[int]:
        """Return the indexes of messages that do not fit into the spool and must be sent again.

        Messages that are dropped instead, and messages of QoS 0, are not included.
        """
        if publisher == self._publisher or self._when_full == "drop":
            return []
        _, beyond = self._split(batch, [self._routes.find(topic) for topic in batch.topics])
        refused = [index for index in beyond if batch.flags[index] & _QOS]
        if refused:
            self._tell_full(len(refused))
        return refused

    def take(self, batch: PublishBatch, publisher: bytes, settle: SettlePart | None) -> int:
        """Take the messages for the remote broker; return how often `settle` will be called.

        Messages that came from the remote broker are not sent back to it.
        """
        if publisher == self._publisher:
            return 0
        routes = [self._routes.find(topic) for topic in batch.topics]
        fitting, beyond = self._split(batch, routes)
        calls = self._refuse(pick(batch, beyond), settle) if beyond else 0
        if not fitting:
            return calls
        part = pick(batch, fitting)
        size = self._add(part, [route for index in fitting if (route := routes[index])])
        if settle is not None:
            self._gathered.waiting.append((settle, part))
            calls += 1
        self._pace.hold(size)
        self._flush()
        return calls

    def freed(self, size_bytes: int) -> None:
        """Record that entries of this size were discarded."""
        self.size_bytes -= size_bytes

    def store_rest(self) -> None:
        """Store the messages that wait for the disk, in this thread; call it when the threads have
        ended.
        """
        gathered, self._gathered = self._gathered, _Gathered()
        if gathered.batch.topics:
            written = _Written()
            contain(partial(self._store, gathered.batch, written))
            self._settle(gathered, written)

    def _split(
        self, batch: PublishBatch, routes: list[MappedTopic | None]
    ) -> tuple[list[int], list[int]]:
        """Return the indexes of the messages that have a route: those for which there is room, and
        the others.
        """
        fitting: list[int] = []
        beyond: list[int] = []
        room = self._size_bytes_max - self.size_bytes
        for index, route in enumerate(routes):
            if route is None:
                continue
            size = _size_of(batch, index, route)
            if size <= room:
                room -= size
                fitting.append(index)
            else:
                beyond.append(index)
        return fitting, beyond

    def _add(self, part: PublishBatch, routes: list[MappedTopic]) -> int:
        """Add messages to the next batch, with their remote topics; return their size."""
        size = sum(_size_of(part, index, route) for index, route in enumerate(routes))
        self.size_bytes += size
        gathered = self._gathered
        batch = gathered.batch
        # A list of properties is empty if no message has any, so it may have to be filled up here.
        if part.properties and not batch.properties:
            batch.properties += [b""] * len(batch.topics)
        if batch.properties or part.properties:
            batch.properties += part.properties or [b""] * len(part.topics)
        batch.topics += [route.topic for route in routes]
        batch.values += part.values
        batch.packet_ids += [0] * len(routes)
        batch.flags += [
            min(flags & _QOS, route.qos) | flags & ~_QOS
            for flags, route in zip(part.flags, routes, strict=True)
        ]
        gathered.size_bytes += size
        return size

    def _refuse(self, part: PublishBatch, settle: SettlePart | None) -> int:
        """Refuse messages that do not fit; return how often `settle` is called."""
        self._tell_full(len(part.topics))
        if (
            settle is None
            or self._when_full == "drop"
            or not any(flags & _QOS for flags in part.flags)
        ):
            return 0
        error = OverloadedError(
            f"the spool of bridge {self._name!r} is full: size_bytes={self.size_bytes}"
        )
        # Not called directly: the publisher first has to count the calls that it will receive.
        self._in_thread(lambda: None, partial(settle, part, error))
        return 1

    def _tell_full(self, count: int) -> None:
        """Count messages that do not fit into the spool.

        Log a warning for the first one, and whenever the count passes a multiple of 1000.
        """
        before = self.dropped
        self.dropped += count
        if before == 0 or before // _TELL_EACH != self.dropped // _TELL_EACH:
            log(
                _LOG,
                logging.WARNING,
                "bridge_spool_full",
                bridge=self._name,
                size_bytes=self.size_bytes,
                policy=self._when_full,
            )

    def _flush(self) -> None:
        if self._is_busy or not self._gathered.batch.topics:
            return
        self._is_busy = True
        gathered, self._gathered = self._gathered, _Gathered()
        written = _Written()
        store = partial(self._store, gathered.batch, written)
        self._in_thread(partial(contain, store), lambda: self._settle(gathered, written))

    def _store(self, batch: PublishBatch, written: _Written) -> None:
        try:
            items = list(encode_entries(batch, self._now_us()))
            written.size_bytes = sum(len(data) for data, _ in items)
            written.entries = self._spool.store_many(items)
        except SiltstoneError as exc:
            written.error = exc

    def _settle(self, gathered: _Gathered, written: _Written) -> None:
        self._is_busy = False
        self.size_bytes -= gathered.size_bytes
        error: SiltstoneError | None = None
        if written.entries:
            self.size_bytes += written.size_bytes
        else:
            error = written.error or OutcomeUnknownError(
                "internal error: see the log of the broker"
            )
            log(_LOG, logging.ERROR, "bridge_spool_failed", bridge=self._name, error=str(error))
        self._pace.release(gathered.size_bytes)
        for settle, part in gathered.waiting:
            contain(partial(settle, part, error))
        self._added(written.entries)
        self._flush()


def _size_of(batch: PublishBatch, index: int, route: MappedTopic) -> int:
    """Return the maximum size of a message in an entry."""
    properties = len(batch.properties[index]) if batch.properties else 0
    return len(batch.values[index]) + properties + len(route.topic) + _OVERHEAD_BYTES
