"""Tokens that stand for a login that was right: given once, shown with the calls that follow.

A token is a random text that says nothing. Only its digest is kept, for a time that is counted from
when it was given; of very many tokens the oldest are forgotten first. Any thread may ask.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from hashlib import blake2b
from threading import Lock
from typing import Final, Generic, TypeVar

from siltstone.clock import Clock

LIFETIME_SECONDS: Final = 3600.0
TOKENS_MAX: Final = 10_000
_TOKEN_BYTES: Final = 32
T = TypeVar("T")


class Tokens(Generic[T]):
    """Who holds which token."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = Lock()
        # In the order in which they were given, and so in which they end.
        self._holders: OrderedDict[bytes, tuple[float, T]] = OrderedDict()

    def issue(self, holder: T) -> str:
        """Return a new token."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        now = self._clock.monotonic()
        with self._mutex:
            self._holders[_digest(token)] = (now + LIFETIME_SECONDS, holder)
            while len(self._holders) > TOKENS_MAX or self._oldest_end() <= now:
                self._holders.popitem(last=False)
        return token

    def holder(self, token: str) -> T | None:
        """Return whose token this is; None: nobody's, or not any more."""
        with self._mutex:
            known = self._holders.get(_digest(token))
        if known is None or known[0] <= self._clock.monotonic():
            return None
        return known[1]

    def clear(self) -> None:
        """Forget them all."""
        with self._mutex:
            self._holders.clear()

    def _oldest_end(self) -> float:
        end, _ = next(iter(self._holders.values()))
        return end


def _digest(token: str) -> bytes:
    return blake2b(token.encode(errors="surrogateescape"), digest_size=32).digest()
