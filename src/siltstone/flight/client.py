"""One connection to a node: calls with a login, and links for management; Flight errors become
Siltstone errors.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import PurePath
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa
from pyarrow import flight

from siltstone.errors import OutcomeUnknownError, RetryError, SiltstoneError, UsageError
from siltstone.flight.wire import BEGIN, END, REQUEST, dump, error_from, load
from siltstone.fs.posix import PosixFileSystem
from siltstone.scan.node import Node

_T = TypeVar("_T")


class NodeClient:
    """Calls to a node; the first call opens the connection.

    If the node has other addresses, a read continues at the next one when a site does not answer,
    or has not read enough. Everything else stays at the address that answered last.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self._urls = [node.url, *node.others]
        self._open()
        headers = []
        if node.username:
            login = b64encode(f"{node.username}:{node.password}".encode())
            headers.append((b"authorization", b"Basic " + login))
        elif node.token:
            headers.append((b"authorization", b"Bearer " + node.token.encode()))
        self._headers = headers
        self._options = flight.FlightCallOptions(headers=headers)

    def _open(self) -> None:
        with _translated(self._url):
            self._client = flight.FlightClient(self._url, **_trust(self.node))

    @property
    def _url(self) -> str:
        return self._urls[0]

    def _turn(self) -> None:
        """Go to the next address."""
        self._client.close()
        self._urls.append(self._urls.pop(0))
        self._open()

    def _anywhere(self, act: Callable[[], _T]) -> _T:
        """Return the answer of the first address that has one.

        Raises: the error of a site that answers, else that of the last one.
        """
        errors: list[RetryError] = []
        for left in reversed(range(len(self._urls))):
            try:
                with _translated(self._url):
                    return act()
            except RetryError as exc:
                errors.append(exc)
                if left:
                    self._turn()
        # An error that a site has reported has no cause here.
        raise next((error for error in errors if error.__cause__ is None), errors[-1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def log_in(self) -> str:
        """Log in with user and password; return a token for later calls."""
        with _translated(self._url):
            _, value = self._client.authenticate_basic_token(
                self.node.username.encode(), self.node.password.encode()
            )
        return str(value.decode().partition(" ")[2])

    def act(self, name: str, request: object) -> dict[str, Any]:
        """Run an action on the node; return its answer."""
        with _translated(self._url):
            return self._act(name, request)

    def ask(self, name: str, request: object) -> dict[str, Any]:
        """Run an action that changes nothing; return its answer."""
        return self._anywhere(lambda: self._act(name, request))

    def _act(self, name: str, request: object) -> dict[str, Any]:
        action = flight.Action(name, dump(request))
        answers = list(self._client.do_action(action, self._options))
        return load(answers[0].body.to_pybytes(), "answer")

    def call(self, name: str, body: bytes, timeout: float | None) -> bytes:
        """Run an action whose body and answer are bytes.

        Raises: the error that the node tells, then nothing happened; ConnectionError without an
        answer, then the action may have been executed.
        """
        options = flight.FlightCallOptions(headers=self._headers, timeout=timeout)
        try:
            answers = list(self._client.do_action(flight.Action(name, body), options))
        except flight.FlightError as exc:
            told = error_from(exc.extra_info or b"") or _refused(exc, self._url)
            if told is not None:
                raise told from None
            raise ConnectionError(str(_untold(exc, self._url))) from exc
        except pa.ArrowException as exc:
            raise ConnectionError(str(exc)) from exc
        return bytes(answers[0].body.to_pybytes()) if answers else b""

    def flights(self, criteria: bytes = b"") -> list[flight.FlightInfo]:
        """Return the databases of the node, or the streams of one database."""
        return self._anywhere(lambda: [*self._client.list_flights(criteria, self._options)])

    def plan(self, request: object) -> flight.FlightInfo:
        """Plan a read on the node."""
        descriptor = flight.FlightDescriptor.for_command(dump(request))
        return self._anywhere(lambda: self._client.get_flight_info(descriptor, self._options))

    def get(self, ticket: bytes, *, continues: bool = True) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a ticket. All sites have them in the same order, so another site
        continues behind the rows that one had sent before it failed.

        Set `continues` to false if the sites may have lost different rows. Then another site takes
        over only before the first row. Raises: RetryError.
        """
        taken, failed = 0, 0
        while True:
            before = taken
            try:
                for batch in self._get(ticket):
                    skipped = max(0, min(before, batch.num_rows))
                    before -= skipped
                    if skipped < batch.num_rows or not batch.num_rows:
                        taken += batch.num_rows - skipped
                        failed = 0
                        yield batch.slice(skipped)
            except RetryError:
                failed += 1
                if failed == len(self._urls) or (taken and not continues):
                    raise
                self._turn()
            else:
                return

    def _get(self, ticket: bytes) -> Iterator[pa.RecordBatch]:
        with _translated(self._url):
            for chunk in self._client.do_get(flight.Ticket(ticket), self._options):
                yield chunk.data

    def put(
        self, request: object, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> list[dict[str, Any]]:
        """Send rows; return the answers of the node, in order."""
        descriptor = flight.FlightDescriptor.for_command(dump(request))
        with _translated(self._url):
            writer, answers = self._client.do_put(descriptor, schema, self._options)
            with writer:
                for batch in batches:
                    writer.write_batch(batch)
                writer.done_writing()
                found = []
                while (answer := answers.read()) is not None:
                    found.append(load(answer.to_pybytes(), "answer"))
            return found


class FlightLink:
    """A connection for management, in actions of Flight; it belongs to one thread at a time."""

    def __init__(self, client: NodeClient) -> None:
        """Begin the link. Raises: ConnectionError; UsageError without the right to manage."""
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


def _trust(node: Node) -> dict[str, Any]:
    """Return the TLS arguments: CA certificates, and the client certificate and key.

    Raises: NotFoundError.
    """
    files = {
        "tls_root_certs": node.root_certificates,
        "cert_chain": node.certificate,
        "private_key": node.key,
    }
    fs = PosixFileSystem()
    return {name: fs.read(PurePath(file)) for name, file in files.items() if file}


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """Translate Flight errors into Siltstone errors, with the message of the node."""
    try:
        yield
    except flight.FlightError as exc:
        told = error_from(exc.extra_info or b"")
        if told is not None:
            raise told from None
        raise _untold(exc, url) from exc
    except (pa.ArrowException, OSError) as exc:
        raise SiltstoneError(f"the node at {url} did not answer as expected: {exc}") from exc


def _refused(error: flight.FlightError, url: str) -> SiltstoneError | None:
    """Return the error of a login that was refused; None for another error."""
    refusals = flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError
    return _untold(error, url) if isinstance(error, refusals) else None


def _untold(error: flight.FlightError, url: str) -> SiltstoneError:
    text = str(error).partition(". gRPC client debug context")[0]
    match error:
        case flight.FlightUnavailableError():
            return RetryError(f"cannot connect to the node at {url}: {text}")
        case flight.FlightUnauthenticatedError() | flight.FlightUnauthorizedError():
            return UsageError(f"the node at {url} refused the request: {text}")
        case flight.FlightTimedOutError() | flight.FlightCancelledError():
            return OutcomeUnknownError(f"the node at {url} did not answer: {text}")
        case _:
            return SiltstoneError(f"the node at {url} failed: {text}")
