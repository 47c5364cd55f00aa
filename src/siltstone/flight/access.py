"""Who may come in by Flight and what they may do: asked here, decided by whom the server serves.

Every method may be called from any thread and may wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What a caller shows: a user and a password, or a token, none of which is part of a text."""

    address: str
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)


class FlightUser(Protocol):
    """A caller that was let in."""

    # Whether everything is allowed, so that nobody needs to ask.
    unlimited: bool

    def may_read(self, filters: Sequence[str]) -> str | None:
        """Return the first filter that it may not read; None: it may read them all."""
        ...

    def unreadable(self, topics: Iterable[bytes]) -> set[bytes]:
        """Return those of the topics that it may not read, though they match what it may."""
        ...

    def unwritable(self, topics: Iterable[bytes]) -> set[bytes]:
        """Return those of the topics that it may not write."""
        ...


class FlightAccess(Protocol):
    """Lets callers in."""

    def enter(self, caller: Caller) -> FlightUser | str:
        """Let a caller in, or say why not."""
        ...

    def token_for(self, visitor: FlightUser) -> str:
        """Return a token by which a visitor that was let in here comes in again."""
        ...


class AnyUser:
    """A visitor that may do everything."""

    unlimited = True

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
    """Lets everybody in: for a socket that the system guards, and for tests."""

    def enter(self, caller: Caller) -> FlightUser | str:
        del caller
        return AnyUser()

    def token_for(self, visitor: FlightUser) -> str:
        del visitor
        return "anybody"
