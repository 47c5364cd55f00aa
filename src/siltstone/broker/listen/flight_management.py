"""Management of a broker over Flight: the requests of the control socket, in calls of Flight.

A link takes the place of a connection to the control socket: it has the open transaction. It ends
when its program ends it, or after a time without a request. The calls run on threads of Flight, and
wait for the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from secrets import token_hex
from typing import Any, Final, TypeVar

from siltstone.broker.control.socket import ControlOperations
from siltstone.errors import OutcomeUnknownError, OverloadedError, RetryError, UsageError
from siltstone.manage.wire import encode_error

T = TypeVar("T")

LINKS_MAX: Final = 256


class _Link:
    """One link; it executes one request at a time."""

    def __init__(self, operations: ControlOperations) -> None:
        self.visit = operations.visit()
        self.lock = asyncio.Lock()
        self.timer: asyncio.TimerHandle | None = None


class FlightManagement:
    """The links of all programs; created on the loop."""

    def __init__(self, operations: ControlOperations, idle_seconds: float) -> None:
        self._operations = operations
        self._idle_seconds = idle_seconds
        self._loop = asyncio.get_running_loop()
        self._links: dict[str, _Link] = {}

    def begin(self) -> str:
        """Begin a link; return its id. Raises: OverloadedError."""
        return self._wait(self._begin())

    def answer(self, link: str, request: bytes) -> bytes:
        """Execute a request of a link. Raises: RetryError if the link has ended."""
        return self._wait(self._answer(link, request))

    def end(self, link: str) -> None:
        """End a link."""
        self._wait(self._end(link))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and wait for its result."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except CancelledError as exc:
            raise OutcomeUnknownError("the broker stopped before it answered") from exc

    async def _begin(self) -> str:
        if len(self._links) >= LINKS_MAX:
            raise OverloadedError(
                f"too many programs manage this broker over Flight, try again: links={LINKS_MAX}"
            )
        name = token_hex(16)
        link = self._links[name] = _Link(self._operations)
        self._wait_for_request(name, link)
        return name

    async def _answer(self, name: str, request: bytes) -> bytes:
        link = self._links.get(name)
        if link is None:
            raise RetryError("the connection to the broker has ended: connect again")
        line, end, payload = request.partition(b"\n")

        async def read(size: int) -> bytes:
            if size != len(payload):
                raise ConnectionError("the number of bytes after the line is invalid")
            return payload

        async with link.lock:
            if link.timer is not None:
                link.timer.cancel()
            try:
                return await self._operations.answer(line + end, link.visit, read)
            except ConnectionError as exc:
                return encode_error(UsageError(str(exc)))
            finally:
                if name in self._links:
                    self._wait_for_request(name, link)

    def _wait_for_request(self, name: str, link: _Link) -> None:
        link.timer = self._loop.call_later(self._idle_seconds, self._drop, name)

    async def _end(self, name: str) -> None:
        self._drop(name)

    def _drop(self, name: str) -> None:
        link = self._links.pop(name, None)
        if link is not None:
            if link.timer is not None:
                link.timer.cancel()
            link.visit.end()
