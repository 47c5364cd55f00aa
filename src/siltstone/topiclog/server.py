"""The listener of topic logs, in the broker or alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from siltstone.errors import SiltstoneError, UsageError
from siltstone.logs import log
from siltstone.topiclog.connection import TopicLogConnection
from siltstone.topiclog.hub import Act, Hub, HubLimits, Publisher
from siltstone.topiclog.log import TopicLogs

_LOG: Final = logging.getLogger("siltstone.topiclog")
_BACKLOG: Final = 1024
_DRAIN_STEP: Final = 0.005
# The number of topics that are recovered in parallel, each at its first use.
_OPENERS: Final = 4


class HubLoopShell:
    """The hub's access to the event loop and to threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # One thread, so that topics are created in the order of the requests.
        self._executor = ThreadPoolExecutor(1, "siltstone-topics")
        self._openers = ThreadPoolExecutor(_OPENERS, "siltstone-topics-open")

    def soon(self, act: Act) -> None:
        self._loop.call_soon(act)

    def soon_from_thread(self, act: Act) -> None:
        # A shard that resolves its last tickets may outlive the event loop.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act)

    def in_thread(self, work: Act, then: Callable[[Exception | None], None]) -> None:
        self._submit(self._executor, work, then)

    def open_in_thread(self, work: Act, then: Callable[[Exception | None], None]) -> None:
        self._submit(self._openers, work, then)

    def _submit(
        self,
        executor: ThreadPoolExecutor,
        work: Act,
        then: Callable[[Exception | None], None],
    ) -> None:
        def run() -> None:
            error: Exception | None = None
            try:
                work()
            except SiltstoneError as exc:
                error = exc
            self.soon_from_thread(lambda: then(error))

        executor.submit(run)

    def later(self, seconds: float, act: Act) -> Act:
        return self._loop.call_later(seconds, act).cancel

    def close(self) -> None:
        """Wait for the threads and accept no more work."""
        self._executor.shutdown(wait=True)
        self._openers.shutdown(wait=True)


class TopicLogServer:
    """A server of topic logs on one address."""

    def __init__(
        self,
        logs: TopicLogs,
        *,
        limits: HubLimits | None = None,
        body_timeout: float = 30.0,
        idle_timeout: float = 3600.0,
        connections_max: int = 10_000,
        publisher: Publisher | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._shell = HubLoopShell(self._loop)
        self._hub = Hub(logs, self._shell, limits or HubLimits(), publisher)
        self._body_timeout = body_timeout
        self._idle_timeout = idle_timeout
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._connections_max = connections_max
        self._channels: set[TopicLogConnection] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Begin to accept connections; return the port. Raises: UsageError."""
        try:
            self._server = await self._loop.create_server(
                self._accept, host, port, backlog=_BACKLOG
            )
        except OSError as exc:
            reason = exc.strerror or str(exc)
            raise UsageError(f"cannot listen for topic logs on {host}:{port}: {reason}") from exc
        except ValueError as exc:
            # Python cannot encode the name, for example one with an empty label.
            raise UsageError(f"cannot listen for topic logs: invalid host name {host!r}") from exc
        self._sweep()
        found: int = self._server.sockets[0].getsockname()[1]
        log(_LOG, logging.INFO, "listening", address=f"topiclog://{host}:{found}")
        return found

    async def close(self, drain_timeout: float = 2.0) -> None:
        """Accept no more connections, store and acknowledge what has arrived, close the rest."""
        if self._server is not None:
            self._server.close()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for channel in self._channels:
            channel.stop_reading()
        deadline = self._loop.time() + drain_timeout
        await self._until(lambda: not self._hub.storing, deadline)
        for channel in list(self._channels):
            channel.close()
        await self._until(lambda: not self._channels, deadline)
        for channel in list(self._channels):
            channel.abort()
        self._shell.close()

    def _sweep(self) -> None:
        """Close idle connections, at regular intervals."""
        for channel in list(self._channels):
            if channel.is_idle(self._idle_timeout, self._body_timeout):
                log(_LOG, logging.INFO, "topiclog_idle_connection_closed")
                channel.abort()
        shortest = min(self._body_timeout, self._idle_timeout or self._body_timeout)
        self._sweep_timer = self._loop.call_later(shortest / 4, self._sweep)

    async def _until(self, holds: Callable[[], bool], deadline: float) -> None:
        # Polling, because the conditions depend on threads and peers that signal no common event.
        while not holds() and self._loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_DRAIN_STEP)

    def _accept(self) -> TopicLogConnection:
        channel = TopicLogConnection(
            self._loop, self._hub, body_timeout=self._body_timeout, gone=self._channels.discard
        )
        self._channels.add(channel)
        if len(self._channels) > self._connections_max:
            log(_LOG, logging.WARNING, "topiclog_connections_refused", max=self._connections_max)
            self._loop.call_soon(channel.abort)
        return channel
