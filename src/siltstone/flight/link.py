"""A connection for management to a node: requests and answers in actions of Flight.

    begin      action "manage-begin", empty body; answered by the id of the link
    request    action "manage", the id, a line feed, a line of JSON, and bytes
               answered by a line of JSON and bytes
    end        action "manage-end", the id

The lines are those of the control socket. The node ends a link that is not used for a while.
"""

from __future__ import annotations

from io import BytesIO
from typing import Final, Protocol

from siltstone.errors import SiltstoneError
from siltstone.flight.client import NodeClient

BEGIN: Final = "manage-begin"
REQUEST: Final = "manage"
END: Final = "manage-end"


class Management(Protocol):
    """Executes requests of management; its methods may be called from any thread, and block."""

    def begin(self) -> str:
        """Begin a link; return its id. Raises: OverloadedError."""
        ...

    def answer(self, link: str, request: bytes) -> bytes:
        """Execute a request: a line, and bytes. Raises: RetryError if the link has ended."""
        ...

    def end(self, link: str) -> None:
        """End a link; its open transaction is discarded."""
        ...


class FlightLink:
    """One link to a node; it belongs to one thread at a time."""

    def __init__(self, client: NodeClient) -> None:
        """Begin the link. Raises: ConnectionError; UsageError for a user who may not manage."""
        self._client = client
        self._id = client.call(BEGIN, b"", None)
        self._answer = BytesIO()
        self._failure: OSError | None = None
        self.closed = False

    def send(self, line: bytes, payload: bytes, timeout: float) -> None:
        """Send a request. A failure is raised by `read_line`, because the request may have been
        executed.
        """
        body = self._id + b"\n" + line + payload
        try:
            self._answer = BytesIO(self._client.call(REQUEST, body, timeout))
        except OSError as exc:
            self._failure = exc

    def read_line(self) -> bytes:
        """Return the line of the answer. Raises: OSError."""
        if self._failure is not None:
            raise self._failure
        return self._answer.readline()

    def read(self, size: int) -> bytes:
        """Return bytes of the answer."""
        return self._answer.read(size)

    def is_stale(self) -> bool:
        """Return whether the link has ended while it was not used, as far as this side knows."""
        return self.closed

    def close(self) -> None:
        """End the link."""
        if not self.closed:
            self.closed = True
            try:
                self._client.call(END, self._id, None)
            except (OSError, SiltstoneError):
                # The node ends the link by itself.
                return
