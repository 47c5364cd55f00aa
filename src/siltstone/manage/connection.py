"""Python client of the store of a running broker: management, appends and transactions.

with siltstone.connect(Path("data")) as store:
    store.keyvalue("bank").transact(lambda tx: tx.write("account/ann", b"100"))
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import PurePath
from random import random
from threading import Lock
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload

from pydantic import BaseModel

from siltstone.errors import ClosedError, NotFoundError, RetryError, UsageError
from siltstone.flight.client import FlightLink, NodeClient
from siltstone.flight.connection import Appended, Connection
from siltstone.fs.paths import CONTROL, StorePaths
from siltstone.fs.posix import absolute_path
from siltstone.manage.databases import (
    ConfigureDatabase,
    CreateDatabase,
    NameDatabase,
    NameSlab,
)
from siltstone.manage.keyvalues import Begin, CreateKeyValue, FindOutcome, NameKeyValue
from siltstone.manage.rows import AppendRows, pack
from siltstone.manage.running import RunningBroker
from siltstone.manage.running_transaction import RunningTransaction
from siltstone.manage.verbs import VERBS
from siltstone.scan.node import parse_node
from siltstone.store.database import Durability
from siltstone.store.keyvalue import RETRIES, TIMEOUT
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.write.partition import Columns, columns_of
from siltstone.store.slab.manifest import SlabId
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.tx.arguments import text_of, timeout_of
from siltstone.store.tx.operations import LATEST, digest_of
from siltstone.store.tx.owned_map import OwnedMaps, take
from siltstone.store.tx.retry import Committed, Retry, transact
from siltstone.store.tx.settings import KeyValueSettings

T = TypeVar("T")

# A connection that was not used for longer is not used again: the broker closes idle ones.
_IDLE_SECONDS: Final = 5.0


class RunningStore:
    """The store of a running broker. All methods may be called from any thread.

    Each method is one request to the broker, over the control socket in its data directory or over
    Flight. If the broker does not answer a request that changes something, OutcomeUnknownError is
    raised.
    """

    def __init__(self, path: PurePath | str, connect: Callable[[], RunningBroker]) -> None:
        """Use connections to the broker of a data directory, or of an address."""
        self.path = path
        self._connect = connect
        self._idle: list[tuple[float, RunningBroker]] = []
        self._lock = Lock()
        self._closed = False

    def __enter__(self) -> Self:
        """Return the store itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections; open transactions are discarded."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for _, broker in idle:
            broker.close()

    def create(self, name: str, settings: DatabaseSettings | None = None) -> RunningDatabase:
        """Create a database. Raises: ExistsError, UsageError."""
        fields = {} if settings is None else settings.to_json()
        self.run("db-create", CreateDatabase(database=_name(name), settings=fields))
        return RunningDatabase(self, name)

    def database(self, name: str) -> RunningDatabase:
        """Return a database by its name; its existence is checked when it is used."""
        return RunningDatabase(self, _name(name))

    def drop(self, name: str) -> None:
        """Delete a database with all its rows.

        Raises: NotFoundError; UsageError for a database that the broker uses.
        """
        self.run("db-drop", NameDatabase(database=_name(name)))

    def keyvalue(self, name: str, settings: KeyValueSettings | None = None) -> RunningKeyValue:
        """Return a key-value database; with settings, it is created if it does not exist.

        Raises: NotFoundError if it does not exist and there are no settings; UsageError.
        """
        request = NameKeyValue(database=_name(name))
        try:
            known = self.run("kv-info", request)
        except NotFoundError:
            if settings is None:
                raise
            create = CreateKeyValue(database=name, settings=settings.to_json())
            known = self.run("kv-create", create)
        return RunningKeyValue(self, name, KeyValueSettings.from_json(known.settings))

    def drop_keyvalue(self, name: str) -> None:
        """Delete a key-value database with all its rows. Raises: NotFoundError."""
        self.run("kv-drop", NameKeyValue(database=_name(name)))

    def run(self, verb: str, request: BaseModel) -> Any:
        """Send the request of a verb to the broker; return the response."""
        broker = self.borrow()
        try:
            return broker.run(VERBS[verb], request)
        finally:
            self.give_back(broker)

    def borrow(self) -> RunningBroker:
        """Return a connection for one thread. Raises: RetryError, ClosedError."""
        while True:
            with self._lock:
                if self._closed:
                    raise ClosedError("the connection to the store is closed")
                if not self._idle:
                    break
                since, broker = self._idle.pop()
            if time.monotonic() - since < _IDLE_SECONDS and not broker.is_stale():
                return broker
            broker.close()
        return self._connect()

    def give_back(self, broker: RunningBroker) -> None:
        """Return a connection; it must have no open transaction."""
        with self._lock:
            if not self._closed and not broker.closed:
                self._idle.append((time.monotonic(), broker))
                return
        broker.close()


class RunningDatabase:
    """A database of a running broker."""

    def __init__(self, store: RunningStore, name: str) -> None:
        self._store = store
        self.name = name

    def append(
        self,
        rows: Iterable[Row] | Columns,
        *,
        durability: Durability = "synced",
        producer: tuple[str, int] | None = None,
    ) -> Appended:
        """Append rows; return when they have the durability, as `Database.append`.

        A call of a producer with a sequence that was stored before is acknowledged and not stored
        again. A call with unknown outcome may therefore be repeated. MQTT subscribers receive the
        rows if the broker stores its messages in this database.

        Raises: UsageError, InvalidTopicError; OverloadedError, StorageFullError,
        QuotaExceededError, RetryError; OutcomeUnknownError.
        """
        columns = rows if isinstance(rows, Columns) else columns_of(rows)
        request = AppendRows(
            database=self.name,
            durability=durability,
            producer=None if producer is None else producer[0],
            sequence=0 if producer is None else producer[1],
            payload=pack(columns),
        )
        done = self._store.run("append", request)
        return Appended(rows=done.rows, duplicate=done.duplicate)

    def configure(self, **changes: Any) -> DatabaseSettings:
        """Change settings for everything that is written from now on.

        `thresholds` and `compression` apply to the next generation.

        Raises: UsageError.
        """
        request = ConfigureDatabase(database=self.name, changes=changes)
        return DatabaseSettings.from_json(self._store.run("db-set", request).settings)

    def seal(self) -> None:
        """End the generation of every shard. Raises: NotFoundError."""
        self._store.run("seal", NameDatabase(database=self.name))

    def drop_slab(self, slab: SlabId) -> None:
        """Delete a sealed slab. Raises: UsageError for a current one, NotFoundError."""
        request = NameSlab(database=self.name, shard=slab.shard, generation=slab.generation)
        self._store.run("drop-slab", request)


class RunningKeyValue:
    """A key-value database of a running broker; transactions are as in `KeyValueDatabase`."""

    def __init__(self, store: RunningStore, name: str, settings: KeyValueSettings) -> None:
        self._store = store
        self.name = name
        self.settings = settings
        self._retry = Retry(pause=time.sleep, chance=random)

    def transaction(
        self,
        *,
        shard: int | None = None,
        key: str | None = None,
        generation: int | None = None,
        timeout: float | None = TIMEOUT,
        id: str | None = None,  # noqa: A002 - the usual name
    ) -> RunningTransaction:
        """Begin a transaction on the given shard, or on the shard of a key.

        The arguments are those of `KeyValueDatabase.transaction`. Raises: UsageError.
        """
        if id is not None:
            digest_of(id)
        begin = Begin(
            database=self.name,
            shard=shard,
            key=None if key is None else text_of("key", key),
            generation=generation,
            timeout=timeout_of(timeout),
            id=id,
        )
        return RunningTransaction(self._store, begin)

    def transact(
        self,
        function: Callable[[RunningTransaction], T],
        *,
        shard: int | None = None,
        key: str | None = None,
        generation: int | None = None,
        timeout: float | None = TIMEOUT,
        retries: int = RETRIES,
        id: str | None = None,  # noqa: A002 - the usual name
    ) -> Committed[T]:
        """Run a function in a transaction and commit it; run it again after a conflict.

        It is repeated as by `KeyValueDatabase.transact`, but not when the broker cannot be reached.

        Raises: the errors of RunningTransaction.commit, when there are no more retries; UsageError.
        """
        if not callable(function):
            raise UsageError(f"function must be a function: type={type(function).__name__}")
        begin = partial(
            self.transaction,
            shard=shard,
            key=key,
            generation=generation,
            timeout=timeout,
            id=id,
        )
        return transact(begin, function, retries=retries, has_id=id is not None, retry=self._retry)

    def outcome(self, id: str, *, shard: int | None = None, key: str | None = None) -> int | None:  # noqa: A002
        """Return the serial with which the transaction with this id was committed, None if it was
        not.

        The result is final, because all transactions that were submitted before have ended by then.
        """
        request = FindOutcome(database=self.name, id=text_of("id", id), shard=shard, key=key)
        found: int | None = self._store.run("kv-outcome", request).serial
        return found

    def take(self, collection: str, *, retries: int = RETRIES) -> OwnedMaps:
        """Load the maps of a collection and become their owner, in place of the former owner.

        Raises: UsageError for a database with times; ConflictError if too many callers take it at
        once.
        """
        begin = partial(self.transaction, key=text_of("collection", collection))
        return take(begin, collection, retries, self._retry, timed=self.settings.timed)

    def get(
        self,
        topic: str,
        time_us: int = LATEST,
        *,
        shard: int | None = None,
        key: str | None = None,
    ) -> bytes | None:
        """Return a value of the current generation, as `RunningTransaction.get` does."""
        with self.transaction(shard=shard, key=key) as transaction:
            return transaction.get(topic, time_us)


class RunningNode(Connection):
    """A node that serves Flight: it reads and appends, and `store` manages and transacts."""

    def __init__(self, client: NodeClient) -> None:
        """Use a client; the first call connects."""
        super().__init__(client)
        self.store = RunningStore(client.node.url, partial(_broker_over_flight, client))

    def close(self) -> None:
        """Close the connections; open transactions are discarded."""
        self.store.close()
        super().close()


def _broker_over_flight(client: NodeClient) -> RunningBroker:
    return RunningBroker(partial(FlightLink, client))


def _running_store(path: PurePath) -> RunningStore:
    """Connect to the broker of a data directory, or by its control socket.

    Raises: NotFoundError.
    """
    data = path.parent if path.name == CONTROL else path
    store = RunningStore(data, partial(RunningBroker, StorePaths(data).control_socket))
    try:
        store.give_back(store.borrow())
    except RetryError as exc:
        raise NotFoundError(
            f"no broker is running on {data}; without a broker, use siltstone.open"
        ) from exc
    return store


@overload
def connect(url: PurePath) -> RunningStore: ...
@overload
def connect(
    url: str,
    *,
    username: str = "",
    password: str = "",
    token: str = "",
    root_certificates: str = "",
    certificate: str = "",
    key: str = "",
) -> RunningNode: ...
def connect(
    url: str | PurePath,
    *,
    username: str = "",
    password: str = "",
    token: str = "",
    root_certificates: str = "",
    certificate: str = "",
    key: str = "",
) -> RunningNode | RunningStore:
    """Connect to a running broker: by the path of its data directory, or by the address at which it
    serves Flight, such as grpc+tcp://host:8815.

    With a path, return a `RunningStore`: it manages the store, appends and runs transactions, for
    programs of the broker's user on the same machine. The path may also be that of the control
    socket, `control.sock` in the data directory. Pass a `pathlib.Path`: a type checker takes text
    for an address.

    With an address, return a `RunningNode`, which reads and appends. Its `store` is a
    `RunningStore`, for users in the setting `flight.managers`. The login is a user of the broker.
    `RunningNode.log_in` returns a token that other programs may use instead of it. With
    grpc+tls, the certificate of the node is checked against the CA certificates in a PEM file, or
    against those of the system. The client certificate is sent to a node that requires one. The
    first call connects.

    Raises: UsageError; NotFoundError if no broker is running on a path.
    """
    if isinstance(url, PurePath) or "://" not in url:
        return _running_store(absolute_path(url))
    node = parse_node(
        url,
        username=username,
        password=password,
        token=token,
        root_certificates=root_certificates,
        certificate=certificate,
        key=key,
    )
    return RunningNode(NodeClient(node))


def _name(name: str) -> str:
    return text_of("name", name)
