"""The Arrow Flight servers of the broker, with the users and rights of the broker.

Calls run on threads of Flight. The event loop owns rights, failed logins and subscribers. A call
that needs them runs a function on the loop and waits for the result.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import PurePath
from threading import BoundedSemaphore, Lock
from typing import Final, TypeVar

from siltstone.broker.access.access import Credentials, Identity
from siltstone.broker.broker import Broker
from siltstone.broker.control.announced_rows import announce_rows
from siltstone.broker.control.socket import ControlOperations
from siltstone.broker.listen.flight_management import FlightManagement
from siltstone.broker.listen.tls import server_context
from siltstone.broker.settings.broker import FlightSettings, ListenerSettings
from siltstone.clock import Clock, SystemClock
from siltstone.errors import (
    NotFoundError,
    OutcomeUnknownError,
    RetryError,
    SiltstoneError,
    UsageError,
)
from siltstone.flight.access import Caller, FlightUser, OpenAccess
from siltstone.flight.appending import StagedCommits
from siltstone.flight.operations import FlightOperations
from siltstone.flight.server import Certificates, FlightServer
from siltstone.flight.target import socket_node
from siltstone.flight.tokens import Tokens
from siltstone.fs.api import FileSystem
from siltstone.fs.paths import StorePaths
from siltstone.fs.posix import PosixFileSystem
from siltstone.guard import contain
from siltstone.logs import log
from siltstone.mqtt.reason import Reason
from siltstone.scan.ingest.staging import Staging
from siltstone.store.directory import Store
from siltstone.topic.grammar import TopicFilter

_LOG: Final = logging.getLogger("siltstone.flight")
_LOGINS_MAX: Final = 32
_ANSWER_SECONDS: Final = 30.0
_BIND_ATTEMPTS: Final = 100
_BIND_PAUSE_SECONDS: Final = 0.05
# The user name under which an unknown token is checked as a password, for example by the hook.
_TOKEN_USER: Final = "token"  # noqa: S105 - a name
# The path of a Unix socket has at most 108 bytes, with a zero byte at its end.
_SOCKET_SIZE_MAX: Final = 107
_SOCKET_MODE: Final = 0o600
T = TypeVar("T")


class FlightListener:
    """The Flight servers of a broker: one for the network, one for programs of the same user."""

    def __init__(
        self,
        fs: PosixFileSystem,
        settings: FlightSettings,
        operations: FlightOperations,
        access: BrokerFlightAccess,
    ) -> None:
        """Serve the network. Raises: UsageError."""
        self._fs = fs
        self._settings = settings
        self._operations = operations
        self._access = access
        self._certificates = read_certificates(fs, settings)
        self._network = FlightServer(settings.address, operations, access, self._certificates)
        self._local: FlightServer | None = None
        self._socket: PurePath | None = None
        # Servers that a reload replaced; their calls may still run.
        self._replaced: list[FlightServer] = []
        self._closed = False
        self._mutex = Lock()

    @property
    def port(self) -> int:
        """The port of the server for the network."""
        return self._network.port

    def serve_socket(self, data: PurePath) -> None:
        """Also serve programs of the same user, on a socket. Raises: UsageError, DiskError."""
        self._local = FlightServer(socket_node(data).url, self._operations, OpenAccess())
        self._socket = StorePaths(data).flight_socket
        self._fs.set_mode(self._socket, _SOCKET_MODE)

    def revoke_tokens(self) -> None:
        """Revoke all tokens, because the users may have changed."""
        self._access.tokens.clear()

    def reload(self) -> None:
        """Use new certificates for future connections.

        Running calls continue. If the certificates changed, the old server ends before the new one
        opens the port; between the two, no client can connect. Never call it on the loop.

        Raises: UsageError; the old certificates stay in use. If another program took the port
        meanwhile, no client is served until the next reload.
        """
        found = read_certificates(self._fs, self._settings)
        with self._mutex:
            if found == self._certificates or self._closed:
                return
            address = self._settings.model_copy(update={"port": self.port}).address
            self._network.end()
            self._replaced.append(self._network)
            self._network = _patiently(
                lambda: FlightServer(address, self._operations, self._access, found)
            )
            self._certificates = found

    def close(self, timeout: float) -> bool:
        """Refuse new calls, and wait up to `timeout` seconds; return whether all calls have ended.

        The timeout is for each server. Never call it on the loop: running calls may need the loop
        to end.
        """
        with self._mutex:
            self._closed = True
            servers = [*self._replaced, self._network, *([self._local] if self._local else [])]
        held_up = [server for server in servers if not server.close(timeout)]
        if held_up:
            log(_LOG, logging.WARNING, "flight_calls_abandoned")
        if self._socket is not None:
            with suppress(NotFoundError):
                self._fs.remove(self._socket)
        return not held_up


def _patiently(serve: Callable[[], FlightServer]) -> FlightServer:
    """Open a server on a port that is about to become free. Raises: UsageError."""
    for _ in range(_BIND_ATTEMPTS):
        with suppress(UsageError):
            return serve()
        time.sleep(_BIND_PAUSE_SECONDS)
    return serve()


def open_flight(
    fs: PosixFileSystem,
    settings: FlightSettings,
    store: Store,
    broker: Broker,
    control: ControlOperations | None = None,
) -> FlightListener:
    """Open the Flight servers of a broker. Raises: UsageError, DiskError."""
    announce = partial(announce_rows, broker, broker.settings.storage.database)
    management = None
    if control is not None:
        management = FlightManagement(control, broker.settings.control_timeout)
    commits = StagedCommits(Staging(fs, store.path), announce)
    operations = FlightOperations(fs, store, commits, announce, management)
    listener = FlightListener(fs, settings, operations, BrokerFlightAccess(settings, broker))
    address = settings.address.rpartition(":")[0]
    log(_LOG, logging.INFO, "flight_listening", address=f"{address}:{listener.port}")
    socket = StorePaths(store.path).flight_socket
    if len(str(socket).encode()) > _SOCKET_SIZE_MAX:
        log(
            _LOG,
            logging.WARNING,
            "flight_socket_path_too_long",
            path=socket,
            remedy="use a shorter data directory, or set the option url of the Spark sink",
        )
    else:
        listener.serve_socket(store.path)
    return listener


def read_certificates(fs: FileSystem, settings: FlightSettings) -> Certificates | None:
    """Read the files that the settings name; None without TLS.

    Raises: UsageError that names the setting and the file.
    """
    if not settings.certificate:
        return None
    # A context of Python reports errors in a file; gRPC does not.
    server_context(
        ListenerSettings(
            kind="tls",
            host=settings.host,
            port=settings.port,
            certificate=settings.certificate,
            key=settings.key,
            client_ca=settings.client_ca,
            client_certificate="required" if settings.client_ca else "none",
        )
    )
    return Certificates(
        certificate=fs.read(PurePath(settings.certificate)),
        key=fs.read(PurePath(settings.key)),
        client_ca=fs.read(PurePath(settings.client_ca)) if settings.client_ca else b"",
    )


class BrokerFlightAccess:
    """Checks the logins of Flight clients with the users of the broker."""

    def __init__(
        self,
        settings: FlightSettings,
        broker: Broker,
        sleep: Callable[[float], None] = time.sleep,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._sleep = sleep
        self.tokens: Tokens[Identity] = Tokens(clock or SystemClock())
        self._places = BoundedSemaphore(_LOGINS_MAX)

    def enter(self, caller: Caller) -> FlightUser | str:
        broker = self._broker
        if caller.token is not None:
            holder = self.tokens.holder(caller.token)
            if holder is not None:
                return self._user(holder)
        credentials = self._credentials(caller)
        user, address = credentials.username, caller.address
        if user is not None and on_loop(broker, lambda: broker.throttle.is_locked(user, address)):
            return _LOCKED
        known = on_loop(broker, lambda: broker.access.trivial(credentials))
        if known is None:
            if not self._places.acquire(blocking=False):
                return "too many log in at once, try again"
            try:
                wait = on_loop(broker, lambda: broker.throttle.judge(user, address))
                if isinstance(wait, Reason):
                    return _LOCKED
                self._sleep(wait)
                known = broker.access.authenticate(credentials)
            finally:
                self._places.release()
        if isinstance(known, Identity):
            on_loop(broker, lambda: broker.throttle.succeeded(user, address))
            return self._user(known)
        if known is not Reason.SERVER_UNAVAILABLE:
            on_loop(broker, lambda: broker.throttle.failed(user, address))
            self._sleep(on_loop(broker, lambda: broker.throttle.delay_for(user, address)))
        if caller.token is not None and known in _REFUSALS:
            return "the token is unknown or has expired: log in again"
        return _REFUSALS.get(known, "the login cannot be judged now, try again")

    def token_for(self, visitor: FlightUser) -> str:
        assert isinstance(visitor, BrokerFlightUser), "it was let in here"
        return self.tokens.issue(visitor.identity)

    def _user(self, identity: Identity) -> BrokerFlightUser:
        may_manage = identity.user in self._settings.managers
        return BrokerFlightUser(self._broker, identity, may_manage=may_manage)

    def _credentials(self, caller: Caller) -> Credentials:
        given = caller.username, caller.password
        if caller.token is not None:
            given = _TOKEN_USER, caller.token.encode()
        return Credentials(
            client_id="",
            username=given[0],
            password=given[1],
            certificate_user=None,
            address=caller.address,
            listener=self._settings.address,
            # A client with an unknown token is not an anonymous client.
            anonymous_allowed=self._broker.settings.lets_in_anonymous(self._settings)
            and caller.token is None,
        )


_LOCKED: Final = "too many logins have failed, try again later"
_REFUSALS: Final = {
    Reason.NOT_AUTHORIZED: "a login is needed: give username and password",
    Reason.BAD_USER_NAME_OR_PASSWORD: "the user is unknown, or the password wrong",
}


class BrokerFlightUser:
    """A user of the broker; its rights are checked at each call, as they are then."""

    def __init__(self, broker: Broker, identity: Identity, *, may_manage: bool = False) -> None:
        self._broker = broker
        self.may_manage = may_manage
        self.identity = identity
        self.unlimited = broker.access.open

    def may_read(self, filters: Sequence[str]) -> str | None:
        if self.unlimited:
            return None
        parsed = [TopicFilter.parse(each) for each in filters]
        broker, identity = self._broker, self.identity
        return on_loop(
            broker,
            lambda: next(
                (each.text for each in parsed if not broker.may_subscribe(identity, each)), None
            ),
        )

    def unreadable(self, topics: Iterable[bytes]) -> set[bytes]:
        broker, identity = self._broker, self.identity
        return on_loop(
            broker, lambda: {each for each in topics if not broker.may_receive(identity, each)}
        )

    def unwritable(self, topics: Iterable[bytes]) -> set[bytes]:
        broker, identity = self._broker, self.identity
        return on_loop(
            broker,
            lambda: {each for each in topics if not broker.access.may_publish(identity, each)},
        )


def on_loop(broker: Broker, ask: Callable[[], T]) -> T:
    """Call a function on the loop and wait for its result.

    Raises: the SiltstoneError that the function raises; OutcomeUnknownError after any other error,
    which is logged; RetryError if the loop does not answer within `_ANSWER_SECONDS`.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except SiltstoneError as exc:
            answer.set_exception(exc)

    def failed() -> None:
        answer.set_exception(OutcomeUnknownError("internal error: see the log of the broker"))

    broker.shell.soon_from_thread(partial(contain, run, failed))
    try:
        return answer.result(_ANSWER_SECONDS)
    except TimeoutError as exc:
        raise RetryError("the broker does not answer: it may be stopping, try again") from exc
