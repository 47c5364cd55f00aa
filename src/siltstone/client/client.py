"""An asyncio client: it connects, serves its session, and reconnects after a loss."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from siltstone.client.backoff import Backoff
from siltstone.client.connection import BrokerConnection, Deliver
from siltstone.client.protocol import CONNECT_SECONDS, ClientProtocol, ClientState
from siltstone.client.refusal import RefusedError, system_words
from siltstone.client.session import ClientSession
from siltstone.client.settings import ClientSettings
from siltstone.client.target import Target, TcpTarget, UnixTarget
from siltstone.clock import Clock
from siltstone.errors import OutcomeUnknownError, RetryError, UsageError

_GOODBYE_SECONDS: Final = 1.0


class Client:
    """Runs one session against one server.

    `deliver` gets the messages. `wanted` is called when more messages could be published at once.
    `note` gets a sentence when the connection is lost and when it is restored. `lost` is called
    after each loss of a connection that the server had accepted.
    """

    def __init__(
        self,
        settings: ClientSettings,
        session: ClientSession,
        target: Target,
        *,
        clock: Clock,
        deliver: Deliver,
        wanted: Callable[[], None],
        note: Callable[[str], None],
        tls: ssl.SSLContext | None = None,
        lost: Callable[[], None] | None = None,
    ) -> None:
        self._settings = settings
        self._session = session
        self._target = target
        self._clock = clock
        self._deliver = deliver
        self._wanted = wanted
        self._note = note
        self._tls = tls
        self._lost = lost
        self._was_accepted = False
        self._backoff = Backoff(settings.reconnect_seconds)
        self._connection: BrokerConnection | None = None
        self._away = False

    async def run(self) -> None:
        """Serve until the session is over. If the task is cancelled, DISCONNECT is sent.

        Raises: RetryError, RefusedError, OutcomeUnknownError if the client gives up reconnecting;
        PeerError, UsageError, and what `deliver` raises.
        """
        while True:
            try:
                await self._serve()
                return
            except (RetryError, RefusedError, OutcomeUnknownError) as exc:
                if self._was_accepted and self._lost is not None:
                    self._lost()
                self._was_accepted = False
                wait = self._wait_after(exc)
                if wait is None:
                    raise
                if not self._away:
                    self._note(f"{exc}; connecting again")
                self._away = True
            await asyncio.sleep(wait)

    def pump(self) -> None:
        """Send the messages that were added to the session."""
        if self._connection is not None:
            self._connection.pump()

    def reconnect(self) -> None:
        """Close the connection and connect again; the server then repeats all messages that were
        not acknowledged.
        """
        if self._connection is not None:
            self._connection.abandon()

    def _wait_after(self, error: RetryError | RefusedError | OutcomeUnknownError) -> float | None:
        lasting = isinstance(error, RefusedError) and not error.passing
        if lasting or not self._settings.reconnect:
            return None
        return self._backoff.lost(self._clock.monotonic())

    async def _serve(self) -> None:
        """Open one connection and wait until it ends."""
        self._connection = connection = await self._open()
        try:
            await asyncio.wait([connection.closed])
        except asyncio.CancelledError:
            connection.abandon()
            await asyncio.wait([connection.closed], timeout=_GOODBYE_SECONDS)
            raise
        finally:
            self._connection = None
            error = connection.closed.exception() if connection.closed.done() else None
        if error is not None:
            raise error

    async def _open(self) -> BrokerConnection:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._dial()
        except TimeoutError as exc:
            raise RetryError(
                f"cannot connect to {self._target}: no answer within {CONNECT_SECONDS:.0f} s"
            ) from exc
        except ssl.SSLError as exc:
            raise RefusedError(
                f"cannot connect to {self._target} with TLS: {system_words(exc)}"
            ) from exc
        except OSError as exc:
            raise RetryError(f"cannot connect to {self._target}: {system_words(exc)}") from exc
        except ValueError as exc:
            # Python cannot encode the name, for example a host name with an empty label.
            raise UsageError(f"invalid host name or path: {str(self._target)!r}") from exc

    async def _dial(self) -> BrokerConnection:
        loop = asyncio.get_running_loop()
        match self._target:
            case UnixTarget(path):
                _, connection = await loop.create_unix_connection(self._make, path)
                return connection
            case TcpTarget(host, port):
                _, connection = await loop.create_connection(self._make, host, port, ssl=self._tls)
                return connection

    def _make(self) -> BrokerConnection:
        protocol = ClientProtocol(self._settings, self._session, now=self._clock.monotonic())

        def pumped() -> None:
            if protocol.state is ClientState.CONNECTED:
                self._backoff.connected(self._clock.monotonic())
                self._was_accepted = True
                if self._away:
                    self._note("connected again")
                self._away = False
                self._wanted()

        return BrokerConnection(protocol, self._clock, deliver=self._deliver, pumped=pumped)
