"""The interface of a key-value store: families of sorted keys, snapshot views, batches of writes.

Invariants of every implementation:
- the changes of one `write` are stored as a whole or not at all; they are durable when it returns,
  and not visible before that;
- after an error of `write` the outcome is unknown: the changes may have been stored, and the engine
  must not be used any more;
- a view shows one family at the moment when the view was taken, until it is released or the engine
  is closed.

All methods may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import Final, Protocol

# The family that every store has. It holds everything that is not a row.
DEFAULT_FAMILY: Final = "default"

Item = tuple[bytes, bytes]


class Changes:
    """The changes of one write: first it deletes ranges, then it sets values.

    The value None deletes the key.
    """

    __slots__ = ("ranges", "values")

    def __init__(self) -> None:
        self.ranges: list[tuple[str, bytes, bytes]] = []
        self.values: dict[str, dict[bytes, bytes | None]] = {}

    def put(self, family: str, key: bytes, value: bytes | None) -> None:
        """Set one value."""
        self.values.setdefault(family, {})[key] = value


class View(Protocol):
    """One family at one moment; every call but `release` raises ClosedError after its end."""

    def get(self, key: bytes) -> bytes | None: ...

    def items(self, start: bytes, stop: bytes, limit: int) -> list[Item]:
        """Return up to limit items of [start, stop), in order of their keys."""
        ...

    def last(self, start: bytes, stop: bytes) -> Item | None:
        """Return the item of [start, stop) with the greatest key."""
        ...

    def release(self) -> None:
        """Release the view; a second call does nothing."""
        ...


class Engine(Protocol):
    """An open key-value store; every call but `close` raises ClosedError once it is closed."""

    def families(self) -> list[str]: ...

    def create_family(self, name: str) -> None:
        """Create an empty family, durably. Raises: ExistsError."""
        ...

    def drop_family(self, name: str) -> None:
        """Delete a family with all its keys. Raises: NotFoundError."""
        ...

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the newest value of a key."""
        ...

    def view(self, family: str) -> View: ...

    def write(self, changes: Changes) -> None:
        """Store changes, as a whole and durably. Raises: DiskError, StorageFullError."""
        ...

    def size_bytes(self, family: str | None = None) -> int:
        """Return the approximate size of a family, or of everything. Raises: NotFoundError."""
        ...

    def write_back(self) -> None:
        """Write data that is only in memory and in a log to tables, which frees the log.

        Raises: DiskError, StorageFullError.
        """
        ...

    def close(self) -> None:
        """Close the files and end all views. A second call does nothing."""
        ...


# Opens the engine in an existing directory, and creates what is missing in it.
EngineOpener = Callable[[PurePath], Engine]
