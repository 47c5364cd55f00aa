"""Sends messages from the spool to the remote broker: read, send, wait for the answer, discard.

A few entries are in progress at a time. They are discarded only when the remote broker has answered
all their messages. After a crash before that, they are sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from siltstone.bridge.dead_letters import DeadLetters
from siltstone.bridge.entries import came_us, decode_entry, publications
from siltstone.bridge.threads import Threads
from siltstone.client.outgoing import Outgoing, Publication
from siltstone.errors import CorruptionError, PoisonedError, SiltstoneError
from siltstone.logs import log
from siltstone.mqtt.publish import PublishBatch
from siltstone.spool import Entry, NoSuchEntryError, Spool
from siltstone.units import SECOND_US

Value = TypeVar("Value")

_LOG: Final = logging.getLogger("siltstone.bridge")
# The limits of the entries in progress: enough for a window of messages, but not too much memory.
_ENTRIES_MAX: Final = 16
_BYTES_MAX: Final = 4 * 1_048_576
_AGAIN_SECONDS: Final = 5.0
# After this many connections that end without an acknowledgement, a message is suspected to be the
# cause.
_STALLS_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """An entry that was read."""

    entry: Entry
    size_bytes: int
    batch: PublishBatch


class Forwarder:
    """Sends the entries of a spool in order; `freed` is called with the discarded bytes."""

    def __init__(
        self,
        spool: Spool,
        outgoing: Outgoing,
        dead_letters: DeadLetters,
        *,
        name: str,
        threads: Threads,
        now_us: Callable[[], int],
        pump: Callable[[], None],
        freed: Callable[[int], None],
    ) -> None:
        self.forwarded = 0
        self._spool = spool
        self._outgoing = outgoing
        self._dead_letters = dead_letters
        self._name = name
        self._threads = threads
        self._now_us = now_us
        self._pump = pump
        self._freed = freed
        self._entries = deque(sorted(spool))
        # The entries in progress.
        self._loaded: list[_Loaded] = []
        self._refused: list[tuple[Publication, bytes, str]] = []
        self._completed = -1
        self._stalls = 0
        self._has_work = asyncio.Event()
        self._is_connected = asyncio.Event()
        self._is_idle = asyncio.Event()
        outgoing.on_refused = lambda *message: self._refused.append(message)
        if self._entries:
            self._has_work.set()

    @property
    def waiting(self) -> int:
        """The number of entries that wait."""
        return len(self._entries)

    def added(self, entries: list[Entry]) -> None:
        """Add new entries."""
        self._entries.extend(entries)
        if self._entries:
            self._has_work.set()

    def progressed(self) -> None:
        """Check whether everything was answered; called while the remote broker is connected."""
        self._is_connected.set()
        if self._outgoing.idle:
            self._is_idle.set()

    def lost(self) -> None:
        """Record that a connection has ended.

        A remote broker that closes every connection without an acknowledgement may have no other
        way to refuse a message. It then gets one message at a time. If the connections still end
        without an acknowledgement, the message in flight is handled as refused.
        """
        completed = self._outgoing.completed
        has_progressed = completed != self._completed or self._outgoing.idle
        self._completed = completed
        self._stalls = 0 if has_progressed else self._stalls + 1
        if has_progressed:
            self._outgoing.narrow(None)
        elif self._stalls == _STALLS_MAX:
            self._outgoing.narrow(1)
        elif self._stalls == 2 * _STALLS_MAX:
            self._stalls = _STALLS_MAX
            self._outgoing.condemn("the server ended every connection on which it was sent")

    async def run(self) -> None:
        """Forward without end.

        After an internal error it may be called again. The entries that were in progress are then
        sent again.

        Raises: PoisonedError if the spool accepts no more changes.
        """
        # Messages that the failed run left with the client are answered first. The answers do not
        # count: their entries are sent again.
        await self._answered()
        self._refused = []
        self._entries.extendleft(one.entry for one in reversed(self._loaded))
        self._loaded = []
        while True:
            await self._has_work.wait()
            # The limits of the remote broker are known only after it is connected.
            await self._is_connected.wait()
            await self._insist(self._load)
            loaded = self._loaded
            await self._send(loaded)
            refused, self._refused = self._refused, []
            count = sum(len(one.batch.topics) for one in loaded) - len(refused)
            size_bytes = sum(one.size_bytes for one in loaded)
            await self._insist(partial(self._finish, list(loaded), refused))
            self._loaded = []
            self._freed(size_bytes)
            self.forwarded += count
            if not self._entries:
                self._has_work.clear()

    async def _insist(self, work: Callable[[], Value]) -> Value:
        """Run work in a thread, and repeat it after each error except PoisonedError."""
        while True:
            try:
                return await self._threads.run(work)
            except PoisonedError:
                raise
            except SiltstoneError as exc:
                log(_LOG, logging.ERROR, "bridge_forward_failed", bridge=self._name, error=str(exc))
            await asyncio.sleep(_AGAIN_SECONDS)

    def _load(self) -> None:
        """Read the next entries, in a thread; after an error the entries not read stay queued."""
        # After an internal error, `run` sends what was read until then again.
        loaded = self._loaded
        size_bytes = 0
        while self._entries and len(loaded) < _ENTRIES_MAX and size_bytes < _BYTES_MAX:
            try:
                one = self._read(self._entries[0])
            except SiltstoneError:
                if loaded:
                    break
                raise
            self._entries.popleft()
            if one is not None:
                loaded.append(one)
                size_bytes += one.size_bytes

    def _read(self, entry: Entry) -> _Loaded | None:
        """Return an entry with its messages; None if it no longer exists or is damaged."""
        try:
            with self._spool.stream(entry) as stream:
                data = stream.read()
            batch = decode_entry(data, self._spool.path_of(entry))
        except NoSuchEntryError:
            # The entry was discarded manually while the broker was not running.
            return None
        except CorruptionError as exc:
            path = self._dead_letters.put_damaged(entry, str(exc))
            log(_LOG, logging.ERROR, "bridge_entry_damaged", bridge=self._name, path=path)
            return None
        return _Loaded(entry=entry, size_bytes=len(data), batch=batch)

    async def _send(self, loaded: list[_Loaded]) -> None:
        """Pass messages to the client, and wait until the remote broker has answered all."""
        outgoing = self._outgoing
        limits = outgoing.limits
        now_us = self._now_us()
        for one in loaded:
            for publication, payloads in publications(
                one.batch,
                waited_seconds=max(0, now_us - came_us(one.entry)) / SECOND_US,
                qos_max=limits.qos_max,
                retain=limits.retain,
            ):
                outgoing.add(publication, payloads)
        await self._answered()

    async def _answered(self) -> None:
        """Wait until the remote broker has answered all messages that were passed to the client."""
        self._is_idle.clear()
        if not self._outgoing.idle:
            self._pump()
            await self._is_idle.wait()

    def _finish(self, loaded: list[_Loaded], refused: list[tuple[Publication, bytes, str]]) -> None:
        """Discard completed entries, in a thread; refused messages are stored elsewhere first."""
        while refused:
            publication, payload, reason = refused[0]
            path = self._dead_letters.put(publication, payload, reason, self._now_us())
            refused.pop(0)
            log(
                _LOG,
                logging.WARNING,
                "bridge_message_refused",
                bridge=self._name,
                topic=publication.topic,
                reason=reason,
                path=path,
            )
        while loaded:
            try:
                self._spool.discard_many([one.entry for one in loaded])
                return
            except NoSuchEntryError as exc:
                # An earlier attempt discarded this entry and those before it.
                gone = [one.entry for one in loaded].index(exc.entry)
                del loaded[: gone + 1]
