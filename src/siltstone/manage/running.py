"""A running broker, as another process reaches it: by the control socket in the data directory,
or by another link that carries the same requests.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import PurePath
from types import TracebackType
from typing import Any, Final, Protocol, Self

from pydantic import BaseModel

from siltstone.errors import OutcomeUnknownError, RetryError, UsageError
from siltstone.fs.paths import CONTROL, StorePaths
from siltstone.manage.verb import PackedRequest, RequiredRight, Verb, parse
from siltstone.manage.wire import LINE_MAX, Packed, decode_error, encode_line

TIMEOUT_SECONDS: Final = 60.0


def is_served(data: PurePath, name: str = CONTROL) -> bool:
    """Return whether a broker accepts commands in a data directory, or listens on another socket
    there.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(TIMEOUT_SECONDS)
        try:
            probe.connect(str(data / name))
        except OSError:
            return False
        return True


class Link(Protocol):
    """A connection that carries requests to a broker, one after the other."""

    @property
    def closed(self) -> bool:
        """Whether this side has ended the connection."""
        ...

    def send(self, line: bytes, payload: bytes, timeout: float) -> None:
        """Send a request. Raises: OSError if it was not sent; SiltstoneError if it was refused."""
        ...

    def read_line(self) -> bytes:
        """Return the line of the answer, empty at the end. Raises: OSError."""
        ...

    def read(self, size: int) -> bytes:
        """Return the bytes after the line of the answer. Raises: OSError."""
        ...

    def is_stale(self) -> bool:
        """Return whether the connection has ended while it was not used."""
        ...

    def close(self) -> None:
        """End the connection."""
        ...


class SocketLink:
    """A connection to the control socket of a broker."""

    def __init__(self, path: PurePath, timeout: float) -> None:
        """Connect. Raises: OSError."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout)
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise
        self._answers = self._socket.makefile("rb")

    @property
    def closed(self) -> bool:
        return self._answers.closed

    def send(self, line: bytes, payload: bytes, timeout: float) -> None:
        self._socket.settimeout(timeout)
        self._socket.sendall(line)
        if payload:
            self._socket.sendall(payload)

    def read_line(self) -> bytes:
        return self._answers.readline()

    def read(self, size: int) -> bytes:
        return self._answers.read(size)

    def is_stale(self) -> bool:
        try:
            # The broker sends nothing without a request, so this is the end or an error.
            self._socket.settimeout(0.0)
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        self._answers.close()
        self._socket.close()


class RunningBroker:
    """One connection to a running broker, by its control socket or another link.

    It belongs to one thread at a time, and sends one request after the other.
    """

    def __init__(
        self, place: PurePath | Callable[[], Link], timeout: float = TIMEOUT_SECONDS
    ) -> None:
        """Connect to a socket, or open another link. Raises: RetryError if no broker answers."""
        self.timeout = timeout
        try:
            self._link: Link = (
                SocketLink(place, timeout) if isinstance(place, PurePath) else place()
            )
        except OSError as exc:
            raise RetryError(f"the broker did not answer: {exc}") from exc

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether the connection has ended; a failed request ends it."""
        return self._link.closed

    def is_stale(self) -> bool:
        """Return whether the connection has ended while it was not used."""
        return self.closed or self._link.is_stale()

    def close(self) -> None:
        """End the connection; the broker releases everything that it holds for this connection."""
        self._link.close()

    def ask(
        self,
        do: str,
        fields: Mapping[str, Any] | None = None,
        payload: bytes = b"",
        *,
        changes: bool = True,
        timeout: float | None = None,
    ) -> Packed:
        """Send a request; return the answer.

        Raises: the error of the broker. If the connection is lost, RetryError if the request was
        not sent or `changes` nothing, else OutcomeUnknownError.
        """
        document = {"do": do, **(fields or {})}
        line = encode_line(document | {"bytes": len(payload)} if payload else document)
        if len(line) > LINE_MAX:
            raise UsageError(f"the request is too large: size_bytes={len(line)} max={LINE_MAX}")
        if self.closed:
            raise RetryError("the connection to the broker has ended: connect again")
        is_sent = False
        try:
            self._link.send(line, payload, self.timeout if timeout is None else timeout)
            is_sent = True
            answer = json.loads(self._link.read_line() or b"null")
            if not isinstance(answer, dict):
                raise ConnectionError("the connection was closed")
            found = self._link.read(answer["bytes"]) if "bytes" in answer else b""
            if len(found) != answer.get("bytes", 0):
                raise ConnectionError("the connection was closed")
        except (OSError, ValueError) as exc:
            self.close()
            if is_sent and changes:
                raise OutcomeUnknownError(
                    f"the broker did not answer, so the request may have been executed: {exc}"
                ) from exc
            raise RetryError(f"the broker did not answer: {exc}") from exc
        except BaseException:
            # Ctrl-C: the answer may still come, and is not the answer to the next request.
            self.close()
            raise
        if "error" in answer:
            raise decode_error(answer)
        return Packed(answer["ok"], found)

    def run(self, verb: Verb, request: BaseModel, *, timeout: float | None = None) -> Any:
        """Send the request of a verb; return its response. Raises: as `ask`."""
        answer = self.ask(
            verb.name,
            request.model_dump(exclude_defaults=True),
            request.payload if isinstance(request, PackedRequest) else b"",
            changes=verb.role is not RequiredRight.READ,
            timeout=timeout,
        )
        return parse(verb.response, answer.value, answer.payload)


def find_broker(data: PurePath) -> RunningBroker | None:
    """Connect to the broker that runs on a data directory; None if there is none."""
    with suppress(RetryError):
        return RunningBroker(StorePaths(data).control_socket)
    return None


def ask_broker(data: PurePath, request: Mapping[str, Any], timeout: float = TIMEOUT_SECONDS) -> Any:
    """Send one request to the broker; return its answer.

    Raises: the error of the broker; RetryError, OutcomeUnknownError.
    """
    fields = dict(request)
    with RunningBroker(StorePaths(data).control_socket, timeout) as broker:
        return broker.ask(str(fields.pop("do")), fields).value


def while_still(data: PurePath, look: Callable[[], None]) -> bool:
    """Call `look` while the broker stores nothing; return whether the pause lasted until the end.

    Raises: RetryError, UsageError; any error of `look`.
    """
    with RunningBroker(StorePaths(data).control_socket) as broker:
        is_still = broker.ask("hold", changes=False).value
        look()
        return bool(broker.ask("release", changes=False).value and is_still)


def while_cluster_still(data: PurePath, look: Callable[[], None]) -> bool:
    """Call `look` while no shard of the broker's cluster stores anything, and the broker has
    everything that was acknowledged before; return whether the pause lasted until the end.

    Raises: RetryError, UsageError; any error of `look`.
    """
    with RunningBroker(StorePaths(data).control_socket) as broker:
        serials = broker.ask("cluster-stand-still", changes=False).value
        look()
        fields = {"serials": serials}
        return bool(broker.ask("cluster-stood-still", fields, changes=False).value)


@contextmanager
def pinned(data: PurePath) -> Iterator[None]:
    """Prevent the broker from reclaiming rows in this context. Raises: RetryError."""
    with RunningBroker(StorePaths(data).control_socket) as broker:
        # A broker of an earlier version does not know the request, and never reclaims rows.
        with suppress(UsageError):
            broker.ask("pin", changes=False)
        yield
