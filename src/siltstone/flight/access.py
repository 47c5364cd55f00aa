"""Access control of Flight: the interface that the server calls and its owner implements.

Every method may be called from any thread and may block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The credentials of a caller: user and password, or a token. Its repr shows none of the
    secrets.
    """

    address: str
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)


class FlightUser(Protocol):
    """A caller that was admitted."""

    # Whether everything is allowed. The methods then need not be called.
    unlimited: bool
    # Whether the user may manage the store, and use all its key-value databases.
    may_manage: bool

    def may_read(self, filters: Sequence[str]) -> str | None:
        """Return the first filter that the user may not read; None if it may read all."""
        ...

    def unreadable(self, topics: Iterable[bytes]) -> set[bytes]:
        """Return the topics that the user may not read, although they match an allowed filter."""
        ...

    def unwritable(self, topics: Iterable[bytes]) -> set[bytes]:
        """Return the topics that the user may not write."""
        ...


class FlightAccess(Protocol):
    """Admits callers."""

    def enter(self, caller: Caller) -> FlightUser | str:
        """Admit a caller, or return the reason why not."""
        ...

    def token_for(self, visitor: FlightUser) -> str:
        """Return a token with which an admitted user logs in again."""
        ...


class AnyUser:
    """A user that may do everything."""

    unlimited = True
    may_manage = True

    def may_read(self, filters: Sequence[str]) -> str | None:
        del filters
        return None

    def unreadable(self, topics: Iterable[bytes]) -> set[bytes]:
        del topics
        return set()

    def unwritable(self, topics: Iterable[bytes]) -> set[bytes]:
        del topics
        return set()


class OpenAccess:
    """Admits every caller: for a socket that the operating system protects, and for tests."""

    def enter(self, caller: Caller) -> FlightUser | str:
        del caller
        return AnyUser()

    def token_for(self, visitor: FlightUser) -> str:
        del visitor
        return "anybody"
