"""The Flight server: it decodes calls and encodes results; `operations` does the work.

Calls run on threads of gRPC. A caller sends its login with every call, or the token that a login
returned. Errors are sent with their class and message, so that clients raise the same error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from siltstone.errors import SiltstoneError, UsageError
from siltstone.flight.access import FlightAccess, FlightUser
from siltstone.flight.logins import LOGIN, HandshakeLogins, Logins, enter
from siltstone.flight.operations import ACTIONS, FlightOperations
from siltstone.flight.wire import BEGIN, END, REQUEST, dump, error_info, load
from siltstone.logs import log
from siltstone.scan.columns.schema import SCHEMA

_LOG: Final = logging.getLogger("siltstone.flight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """The certificate and key of a TLS server, and the CA of its clients, as PEM.

    With an empty client_ca, clients need no certificate.
    """

    certificate: bytes
    key: bytes
    client_ca: bytes = b""


class FlightServer:
    """Serves the operations at one address until it is closed."""

    def __init__(
        self,
        location: str,
        operations: FlightOperations,
        access: FlightAccess,
        certificates: Certificates | None = None,
    ) -> None:
        """Start listening. Raises: UsageError when the address is not available."""
        options: dict[str, Any] = {
            "auth_handler": HandshakeLogins(),
            "middleware": {LOGIN: Logins(access)},
        }
        if certificates is not None:
            options["tls_certificates"] = [(certificates.certificate, certificates.key)]
            if certificates.client_ca:
                options["verify_client"] = True
                options["root_certificates"] = certificates.client_ca
        try:
            self._calls = _Calls(location, operations, access, options)
        except (OSError, pa.ArrowException) as exc:
            raise UsageError(f"cannot serve Flight at {location}: {exc}") from exc
        self.port: int = self._calls.port
        # A client that does not read its results would block the shutdown for ever.
        self._ending = Thread(target=self._calls.shutdown, name="siltstone-flight-end", daemon=True)

    def end(self) -> None:
        """Accept no more calls; running calls continue. A second call does nothing."""
        if self._ending.ident is None:
            self._ending.start()

    def close(self, timeout: float) -> bool:
        """Accept no more calls, and wait for the running ones; return whether all have ended."""
        self.end()
        self._ending.join(timeout)
        return not self._ending.is_alive()


class _Calls(flight.FlightServerBase):  # type: ignore[misc]  # no types are shipped
    """The Flight methods, each with the user that calls it."""

    def __init__(
        self,
        location: str,
        operations: FlightOperations,
        access: FlightAccess,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(location, **options)
        self._operations = operations
        self._access = access

    def list_flights(
        self, context: flight.ServerCallContext, criteria: bytes
    ) -> Iterator[flight.FlightInfo]:
        with _told(context):
            visitor = self._visitor(context)
            return iter([*self._operations.flights(_text(criteria, "criteria"), visitor)])

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        with _told(context):
            visitor = self._visitor(context)
            return self._operations.reads.plan(descriptor, _request(descriptor), visitor)

    def get_schema(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.SchemaResult:
        with _told(context):
            self._visitor(context)
            del descriptor
            return flight.SchemaResult(SCHEMA)

    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.FlightDataStream:
        with _told(context):
            schema, rows = self._operations.reads.get(ticket.ticket, self._visitor(context))
            return flight.GeneratorStream(schema, _telling(context, rows))

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        with _told(context):
            visitor = self._visitor(context)
            batches = _received(reader)
            for answer in self._operations.put(_request(descriptor), batches, visitor):
                with _streaming():
                    writer.write(dump(answer))

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        with _told(context):
            self._visitor(context)
            return list(ACTIONS.items())

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        with _told(context):
            visitor = self._visitor(context)
            body = action.body.to_pybytes()
            if action.type in {BEGIN, REQUEST, END}:
                return [self._operations.manage(action.type, body, visitor)]
            request = load(body, "request")
            return [dump(self._operations.act(action.type, request, visitor))]

    def _visitor(self, context: flight.ServerCallContext) -> FlightUser:
        """Admit the caller. Raises: FlightUnauthenticatedError."""
        header = context.get_middleware(LOGIN).header
        return enter(self._access, header, _address(context.peer()))


def _request(descriptor: flight.FlightDescriptor) -> dict[str, Any]:
    """Return the request in a descriptor. Raises: UsageError."""
    if descriptor.descriptor_type == flight.DescriptorType.CMD:
        return load(descriptor.command, "command")
    path = [_text(part, "path") for part in descriptor.path or []]
    if len(path) not in {1, 2}:
        raise UsageError("a path must have a database, and may have a topic filter")
    return dict(zip(["database", "filter"], path, strict=False))


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise UsageError(f"{what} is not valid UTF-8") from exc


def _address(peer: str) -> str:
    """Return the host of a gRPC peer, such as ipv4:127.0.0.1:4711."""
    kind, _, rest = peer.partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in {"ipv4", "ipv6"} else peer


@contextmanager
def _told(context: flight.ServerCallContext) -> Iterator[None]:
    """Translate Siltstone errors into Flight errors, from which the client restores them."""
    try:
        yield
    except SiltstoneError as exc:
        log(_LOG, logging.INFO, "flight_call_failed", peer=context.peer(), error=str(exc))
        raise flight.FlightServerError(str(exc), error_info(exc)) from exc
    except flight.FlightError:
        raise
    except Exception as exc:
        # Flight sends the traceback of any other error to the client.
        _LOG.exception("internal_error")
        raise flight.FlightServerError("internal error: see the log of the broker") from exc


@contextmanager
def _streaming() -> Iterator[None]:
    """Translate the errors of the stream of a client. Raises: UsageError."""
    try:
        yield
    except (OSError, pa.ArrowException) as exc:
        raise UsageError(f"the stream of the client ended early or is not valid: {exc}") from exc


def _received(reader: flight.MetadataRecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a client. Raises: UsageError."""
    chunks = iter(reader)
    while True:
        with _streaming():
            chunk = next(chunks, None)
        if chunk is None:
            return
        yield chunk.data


def _telling(
    context: flight.ServerCallContext, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with _told(context):
        yield from rows
