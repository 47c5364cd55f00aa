"""Named maps that belong to one owner at a time, built on transactions. They hold the sessions.

A collection has maps, a map has keys, a key has bytes. The database must be a plain map:

    d/<collection>/<map>/<key>    a value
    g/<collection>                the guard: the serial of the commit by which its owner took it

A new owner of a collection writes the guard again, and every save requires the guard that its owner
wrote. A former owner therefore cannot save any more, even if it has not noticed the new owner yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Final, Protocol
from urllib.parse import quote, unquote

from siltstone.errors import UsageError
from siltstone.store.log.read.pieces import Row
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.operations import COMMIT_SERIAL, NO_SERIAL, Value
from siltstone.store.tx.retry import Committable, Retry, transact
from siltstone.store.tx.settings import KeyValueSettings


class OwnerTransaction(Committable, Protocol):
    """The parts of a transaction that owned maps need."""

    def get(self, topic: str) -> bytes | None: ...

    def read(self, topic_filter: str) -> list[Row]: ...

    def write(self, topic: str, value: Value) -> None: ...

    def delete(self, topic_filter: str) -> None: ...

    def require_owner(self, topic: str, serial: int) -> None: ...

    def commit(self) -> int: ...

    def submit(self) -> CommitTicket: ...


# Begins a transaction on the shard of the collection.
Begin = Callable[[], OwnerTransaction]

# One stream for each name of a map, and one for all guards.
OWNED_MAP_SETTINGS: Final = KeyValueSettings(timed=False, thresholds=(-1, 0, -1, 0))
_DATA: Final = "d"
_GUARD: Final = "g"


class OwnedMap:
    """One map of a collection: keys to bytes, all in memory; changes are stored by `save`."""

    def __init__(self, values: dict[str, bytes]) -> None:
        self._values = values
        self._dirty: dict[str, None] = {}

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._values)

    def __contains__(self, key: str) -> bool:
        """Return whether a key has a value."""
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        """Yield the keys, in the order in which they were first set."""
        return iter(self._values)

    def __getitem__(self, key: str) -> bytes:
        """Return the value of a key. Raises: KeyError."""
        return self._values[key]

    def __setitem__(self, key: str, value: bytes) -> None:
        """Set the value of a key."""
        if not isinstance(value, bytes):
            raise UsageError(f"a value must be bytes: type={type(value).__name__}")
        self._values[key] = value
        self._dirty[key] = None

    def __delitem__(self, key: str) -> None:
        """Remove a key. Raises: KeyError."""
        del self._values[key]
        self._dirty[key] = None

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, None if it has none."""
        return self._values.get(key)

    def items(self) -> list[tuple[str, bytes]]:
        """Return all keys with their values."""
        return list(self._values.items())

    @property
    def dirty(self) -> list[str]:
        """The keys that were changed since the last save."""
        return list(self._dirty)

    def take_dirty(self) -> list[str]:
        """Return the changed keys, and count them as saved from now on."""
        dirty, self._dirty = self._dirty, {}
        return list(dirty)

    def put_back(self, keys: list[str]) -> None:
        """Count keys as changed again."""
        # In place: the owner may be changing other keys at this moment.
        self._dirty.update(dict.fromkeys(keys))


class OwnedMaps:
    """The maps of one collection, for one owner; created by `take`.

    They belong to one thread. Only the result of a save arrives on the shard's thread.
    """

    def __init__(
        self, begin: Begin, collection: str, maps: dict[str, OwnedMap], serial: int
    ) -> None:
        self.collection = collection
        # The serial of the commit by which the collection was taken; later owners have a greater
        # one.
        self.serial = serial
        self._begin = begin
        self._maps = maps
        self._lock = Lock()
        self._dropped = False

    def map(self, name: str) -> OwnedMap:
        """Return a map by its name; a new one is empty."""
        if name not in self._maps:
            _quoted(name)
            self._maps[name] = OwnedMap({})
        return self._maps[name]

    def names(self) -> list[str]:
        """Return the names of the maps that have keys."""
        return sorted(name for name, known in self._maps.items() if len(known))

    @property
    def is_dirty(self) -> bool:
        """Whether there are changes to save."""
        return any(known.dirty for known in self._maps.values())

    def save(self) -> int:
        """Store all changes since the last save; return the serial, -1 if there were none.

        Raises: FencedError if the collection has another owner by now; the errors of
        Transaction.commit. Changes that could not be saved count as changed again.
        """
        ticket = self.save_later()
        return NO_SERIAL if ticket is None else ticket.wait().serial

    def save_later(self) -> CommitTicket | None:
        """Begin to store all changes; return the ticket, None if there are none.

        If the save fails, the changes count as changed again once the ticket is done.
        """
        with self._lock:
            taken = {name: known.take_dirty() for name, known in self._maps.items() if known.dirty}
        if not taken:
            return None
        saved = False
        try:
            tx = self._owning()
            for name, keys in taken.items():
                self._schedule(tx, name, keys)
            ticket = tx.submit()
            saved = True
        finally:
            if not saved:
                self._put_back(taken)
        ticket.on_done(lambda done: self._put_back(taken) if done.error is not None else None)
        return ticket

    def drop(self) -> int:
        """Delete the whole collection with its guard. Raises: FencedError."""
        tx = self._owning()
        tx.delete(f"{_DATA}/{_quoted(self.collection)}/+/+")
        tx.delete(guard_topic(self.collection))
        serial = tx.commit()
        self._dropped = True
        self._maps = {}
        return serial

    def _owning(self) -> OwnerTransaction:
        if self._dropped:
            raise UsageError(f"the collection was dropped: collection={self.collection!r}")
        tx = self._begin()
        tx.require_owner(guard_topic(self.collection), self.serial)
        return tx

    def _schedule(self, tx: OwnerTransaction, name: str, keys: list[str]) -> None:
        values = self._maps[name]
        for key in keys:
            value = values.get(key)
            topic = f"{_DATA}/{_quoted(self.collection)}/{_quoted(name)}/{_quoted(key)}"
            if value is None:
                tx.delete(topic)
            else:
                tx.write(topic, value)

    def _put_back(self, taken: dict[str, list[str]]) -> None:
        with self._lock:
            for name, keys in taken.items():
                if not self._dropped:
                    self._maps[name].put_back(keys)


def take(begin: Begin, collection: str, retries: int, retry: Retry, *, timed: bool) -> OwnedMaps:
    """Load a collection, which may be new and empty, and become its owner. The former owner cannot
    save after this commit.

    Raises: UsageError for a database with times; ConflictError if too many callers take it at
    once, and the errors of `transact`.
    """
    if timed:
        raise UsageError("owned maps need a plain map: a database with the setting timed = false")
    guard = guard_topic(collection)

    def load(tx: OwnerTransaction) -> dict[str, OwnedMap]:
        # The guard is read at the same moment as the rows: another `take` in between conflicts.
        tx.get(guard)
        maps = _maps_of(tx.read(f"{_DATA}/{_quoted(collection)}/+/+"))
        tx.write(guard, COMMIT_SERIAL)
        return maps

    taken = transact(begin, load, retries=retries, has_id=False, retry=retry)
    return OwnedMaps(begin, collection, taken.value, taken.serial)


def guard_topic(collection: str) -> str:
    """Return the topic of the guard of a collection. Raises: UsageError."""
    return f"{_GUARD}/{_quoted(collection)}"


def _maps_of(rows: list[Row]) -> dict[str, OwnedMap]:
    values: dict[str, dict[str, bytes]] = {}
    for row in rows:
        _, _, name, key = row.topic.split("/")
        values.setdefault(unquote(name), {})[unquote(key)] = row.value
    return {name: OwnedMap(found) for name, found in values.items()}


def _quoted(word: str) -> str:
    """Return any word as one level of a topic. Raises: UsageError."""
    try:
        return quote(word, safe=" !\"$&'()*,:;<=>?@[\\]^`{|}")
    except UnicodeEncodeError as exc:
        raise UsageError(f"a name must be valid Unicode: name={word!a}") from exc
