"""A bridge to another broker, the remote broker, as `[[bridge]]` in the settings defines it.

Out: a message that is published here and matches is synced in the spool of the bridge before it is
acknowledged. Then it is sent, and discarded when the remote broker has acknowledged it. In: a
message from the remote broker is acknowledged when it is stored here. While the remote broker is
not connected, outgoing messages wait in the spool and incoming messages wait at the remote broker.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from siltstone.async_guard import contain_async
from siltstone.bridge.dead_letters import DeadLetters
from siltstone.bridge.forwarder import Forwarder
from siltstone.bridge.inbound import Inbound, PublishHere
from siltstone.bridge.mapping import inward, outward, subscriptions
from siltstone.bridge.outbound import Outbound, SettlePart, WaitingBytes
from siltstone.bridge.settings import LinkSettings
from siltstone.bridge.threads import Threads
from siltstone.client.client import Client
from siltstone.client.session import ClientSession, WantedSubscriptions
from siltstone.clock import Clock
from siltstone.errors import PoisonedError, SiltstoneError
from siltstone.fs.api import FileSystem
from siltstone.logs import log
from siltstone.mqtt.publish import PublishBatch
from siltstone.spool import Spool

_LOG: Final = logging.getLogger("siltstone.bridge")
# A remote broker that refused the client permanently is tried again: its settings may have changed.
_AGAIN_SECONDS: Final = 15.0
_MISTAKE: Final = "internal error: see the log of the broker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """The functions that a bridge needs from its own broker."""

    publish: PublishHere
    pace: WaitingBytes


def publisher_of(name: str) -> bytes:
    """Return the publisher of the messages that a bridge receives."""
    return f"bridge:{name}".encode()


class Bridge:
    """One bridge. It accepts messages from the start, and sends them while `run` is active."""

    def __init__(
        self,
        settings: LinkSettings,
        spool: Spool,
        here: Here,
        *,
        fs: FileSystem,
        clock: Clock,
        dead_letters: PurePath,
        again_seconds: float = _AGAIN_SECONDS,
    ) -> None:
        self.name = settings.name
        self._again_seconds = again_seconds
        self._spool = spool
        self._threads = Threads(asyncio.get_running_loop())
        self._was_connected = False
        routes_in = inward(settings.topics)
        session = ClientSession(
            settings.client,
            WantedSubscriptions(subscriptions=subscriptions(routes_in, settings.client.version)),
        )
        session.outgoing.disown()
        self._client = self._make_client(settings, session, clock)
        self._forwarder = Forwarder(
            spool,
            session.outgoing,
            DeadLetters(fs, dead_letters, spool),
            name=self.name,
            threads=self._threads,
            now_us=clock.now_us,
            pump=self._client.pump,
            freed=self._freed,
        )
        self._outbound = self._make_outbound(settings, here, clock)
        self._inbound = Inbound(
            session.incoming,
            routes_in,
            name=self.name,
            publish=here.publish,
            answer=self._client.pump,
            reconnect=self._client.reconnect,
        )

    def _make_client(self, settings: LinkSettings, session: ClientSession, clock: Clock) -> Client:
        return Client(
            settings.client,
            session,
            settings.target,
            clock=clock,
            deliver=self._deliver,
            wanted=self._progressed,
            note=self._note,
            tls=settings.tls,
            lost=self._lost,
        )

    def _make_outbound(self, settings: LinkSettings, here: Here, clock: Clock) -> Outbound:
        return Outbound(
            self._spool,
            outward(settings.topics),
            name=self.name,
            publisher=publisher_of(self.name),
            size_bytes_max=settings.spool_bytes_max,
            when_full=settings.when_full,
            in_thread=self._threads.act,
            now_us=clock.now_us,
            pace=here.pace,
            added=self._forwarder.added,
        )

    def take(self, batch: PublishBatch, publisher: bytes, settle: SettlePart | None) -> int:
        """Take messages that were published here; return how often `settle` will be called."""
        return self._outbound.take(batch, publisher, settle)

    def refused(self, batch: PublishBatch, publisher: bytes) -> list[int]:
        """Return the indexes of the messages for which the spool has no room."""
        return self._outbound.refused(batch, publisher)

    async def run(self) -> None:
        """Run the bridge until it is cancelled.

        No error ends the broker or another bridge: it is logged, and the bridge tries again.
        """
        log(_LOG, logging.INFO, "bridge_started", bridge=self.name, waiting=self._forwarder.waiting)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._forward())
            group.create_task(self._connect())

    def close(self) -> None:
        """Wait for the running disk work, store the messages that wait for it, close the spool."""
        self._threads.close()
        self._outbound.store_rest()
        self._spool.close()

    async def _connect(self) -> None:
        while True:
            error = await contain_async(self._client.run, SiltstoneError)
            if error is not None:
                log(_LOG, logging.ERROR, "bridge_failed", bridge=self.name, error=_text(error))
            await asyncio.sleep(self._again_seconds)

    async def _forward(self) -> None:
        while True:
            error = await contain_async(self._forwarder.run, SiltstoneError)
            log(_LOG, logging.ERROR, "bridge_forward_failed", bridge=self.name, error=_text(error))
            if isinstance(error, PoisonedError):
                # The spool accepts no changes; its messages are sent after the next start.
                return
            await asyncio.sleep(self._again_seconds)

    def _deliver(self, batch: PublishBatch) -> int:
        return self._inbound.deliver(batch)

    def _progressed(self) -> None:
        if not self._was_connected:
            self._was_connected = True
            log(_LOG, logging.INFO, "bridge_connected", bridge=self.name)
        self._forwarder.progressed()

    def _lost(self) -> None:
        self._forwarder.lost()

    def _freed(self, size_bytes: int) -> None:
        self._outbound.freed(size_bytes)

    def _note(self, sentence: str) -> None:
        log(_LOG, logging.INFO, "bridge_status", bridge=self.name, text=sentence)


def _text(error: BaseException | None) -> str:
    """Return the text of an error for the log; an internal error was logged before."""
    return str(error) if isinstance(error, SiltstoneError) else _MISTAKE
