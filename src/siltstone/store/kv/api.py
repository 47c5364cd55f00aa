"""The one way to a key-value store: families of sorted keys, views of one moment, batches.

Invariants that every implementation keeps:
- what one `write` changes is stored whole or not at all, is durable when it returns, and is seen by
  nobody before that;
- after an error of `write` nothing is known: it may have been stored; the engine is of no more use;
- a view shows one family as it was when the view was taken, until it is released or the engine is
  closed.

Everything may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import Final, Protocol

# The family that every store has; ours keeps there what is no row.
DEFAULT_FAMILY: Final = "default"

Item = tuple[bytes, bytes]


class Changes:
    """What one write does to the families: first it deletes ranges, then it sets values.

    None for a value deletes the key.
    """

    __slots__ = ("ranges", "values")

    def __init__(self) -> None:
        self.ranges: list[tuple[str, bytes, bytes]] = []
        self.values: dict[str, dict[bytes, bytes | None]] = {}

    def put(self, family: str, key: bytes, value: bytes | None) -> None:
        """Set one value."""
        self.values.setdefault(family, {})[key] = value


class View(Protocol):
    """One family at one moment; every call but `release` raises ClosedError once it is over."""

    def get(self, key: bytes) -> bytes | None: ...

    def items(self, start: bytes, stop: bytes, limit: int) -> list[Item]:
        """Return up to limit items of [start, stop), in order of their keys."""
        ...

    def last(self, start: bytes, stop: bytes) -> Item | None:
        """Return the item of [start, stop) with the greatest key."""
        ...

    def release(self) -> None:
        """Let go of what the view holds; a second call does nothing."""
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
        """Store changes, whole and durably. Raises: DiskError, StorageFullError."""
        ...

    def size_bytes(self, family: str | None = None) -> int:
        """Return about how much space a family takes, or everything. Raises: NotFoundError."""
        ...

    def write_back(self) -> None:
        """Write what is only in memory and in a log to its place, which frees the log. Raises:
        DiskError, StorageFullError.
        """
        ...

    def close(self) -> None:
        """Let go of the files; views of it are over. A second call does nothing."""
        ...


# Opens the engine of a directory that exists, creating what is missing in it.
EngineOpener = Callable[[PurePath], Engine]
