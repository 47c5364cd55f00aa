"""Login tokens: issued after a successful login, and sent with later calls instead of it.

A token is a random text without information. Only its digest is kept. It expires a fixed time after
it was issued. Above the limit of tokens, the oldest are removed first. All methods may be called
from any thread.
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
    """The tokens and their holders."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = Lock()
        # In the order of issue, which is the order of expiry.
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
        """Return the holder of a token; None if it is unknown or has expired."""
        with self._mutex:
            known = self._holders.get(_digest(token))
        if known is None or known[0] <= self._clock.monotonic():
            return None
        return known[1]

    def clear(self) -> None:
        """Revoke all tokens."""
        with self._mutex:
            self._holders.clear()

    def _oldest_end(self) -> float:
        end, _ = next(iter(self._holders.values()))
        return end


def _digest(token: str) -> bytes:
    return blake2b(token.encode(errors="surrogateescape"), digest_size=32).digest()
