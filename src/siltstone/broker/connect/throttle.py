"""The cost of failed logins: a delay that doubles with each failure, then a lockout.

Failures are counted by user and address. A successful login deletes only the failures of its own
user from its own address. After `failures_max` failures from one address, of any users, its logins
are tried one at a time, `delay` seconds apart. An IPv6 address counts as its /64 network, because
one customer usually has a whole /64.

Invariants: each waiting login of one user and address gets its own time slot. A client with many
connections can therefore guess no faster than with one. Memory is limited: above `ENTRIES_MAX`
entries, the one that failed longest ago is deleted first. Only one thread uses it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple, TypeVar

from siltstone.clock import Clock
from siltstone.mqtt.reason import Reason

ENTRIES_MAX: Final = 10_000
FORGET_SECONDS: Final = 600.0

# After this many doublings any delay has reached its maximum. It keeps the shift small.
_DOUBLINGS_MAX: Final = 32
_HOST_BITS: Final = 64

_K = TypeVar("_K")


class _Key(NamedTuple):
    """One user from one network; the user as a digest, because a name may be long."""

    user: bytes
    network: str


@dataclass(slots=True)
class _Failures:
    count: int
    last: float
    # When the next login may be tried, after those that wait already.
    next_at: float
    locked_until: float = 0.0


class Throttle:
    """Recent failed logins.

    `delay` is the wait after the first failure; 0 means no delays. `failures_max` failures lock a
    user out from an address for `lockout` seconds; 0 for either means no lockout.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        delay: float = 0.5,
        delay_max: float = 10.0,
        failures_max: int = 10,
        lockout: float = 300.0,
    ) -> None:
        self._clock = clock
        self._delay = delay
        self._delay_max = delay_max
        self._failures_max = failures_max
        self._lockout = lockout
        # Ordered by the time of the last failure, the most recent last.
        self._users: OrderedDict[_Key, _Failures] = OrderedDict()
        self._networks: OrderedDict[str, _Failures] = OrderedDict()

    def is_locked(self, user: str | None, address: str) -> bool:
        """Return whether a user is locked out from an address."""
        if not self._users:
            return False
        failures = self._recent(self._users, _key(user, address))
        return failures is not None and self._clock.monotonic() < failures.locked_until

    def judge(self, user: str | None, address: str) -> float | Reason:
        """Return how many seconds a login must wait, or the reason to refuse it.

        The reason is BANNED during a lockout, and SERVER_BUSY if too many logins wait.
        """
        if not self._networks:
            return 0.0
        if self.is_locked(user, address):
            return Reason.BANNED
        now = self._clock.monotonic()
        waiting: list[tuple[_Failures, float]] = []
        failures = self._recent(self._users, _key(user, address))
        if failures is not None:
            waiting.append((failures, self._delay_after(failures.count)))
        network = self._recent(self._networks, network_of(address))
        if network is not None and 0 < self._failures_max <= network.count:
            waiting.append((network, self._delay))
        at = max((entry.next_at for entry, _ in waiting), default=now)
        if at - now > self._delay_max:
            return Reason.SERVER_BUSY
        for entry, delay in waiting:
            entry.next_at = max(at, now) + delay
        return max(0.0, at - now)

    def delay_for(self, user: str | None, address: str) -> float:
        """Return by how many seconds to delay the answer to a failed login."""
        if not self._users:
            return 0.0
        failures = self._recent(self._users, _key(user, address))
        return 0.0 if failures is None else self._delay_after(failures.count)

    def failed(self, user: str | None, address: str) -> bool:
        """Count a failed login; return whether it starts a lockout of the user.

        A client without a user name has not guessed a password, so it is not locked out, and its
        failure is not counted for its network.
        """
        failures = self._count(self._users, _key(user, address))
        failures.next_at = max(
            failures.next_at, self._clock.monotonic() + self._delay_after(failures.count)
        )
        if user is None:
            return False
        self._count(self._networks, network_of(address))
        if not 0 < self._failures_max <= failures.count or self._lockout == 0:
            return False
        was_locked = self._clock.monotonic() < failures.locked_until
        failures.locked_until = self._clock.monotonic() + self._lockout
        return not was_locked

    def succeeded(self, user: str | None, address: str) -> None:
        """Forget the failures of a user from an address."""
        if self._users:
            self._users.pop(_key(user, address), None)

    def _delay_after(self, count: int) -> float:
        doublings = min(count - 1, _DOUBLINGS_MAX)
        return min(self._delay * (1 << doublings), self._delay_max)

    def _count(self, entries: OrderedDict[_K, _Failures], key: _K) -> _Failures:
        failures = self._recent(entries, key)
        now = self._clock.monotonic()
        if failures is None:
            failures = entries[key] = _Failures(0, now, now)
        failures.count += 1
        failures.last = now
        entries.move_to_end(key)
        if len(entries) > ENTRIES_MAX:
            entries.popitem(last=False)
        return failures

    def _recent(self, entries: OrderedDict[_K, _Failures], key: _K) -> _Failures | None:
        """Return the failures of a key; delete old ones, unless they still lock out.

        Failures are old `FORGET_SECONDS` after the last one.
        """
        failures = entries.get(key)
        if failures is None:
            return None
        now = self._clock.monotonic()
        if now - failures.last >= FORGET_SECONDS and now >= failures.locked_until:
            del entries[key]
            return None
        return failures


def _key(user: str | None, address: str) -> _Key:
    # No digest is empty, so the empty key cannot be that of a user.
    digest = b"" if user is None else blake2b(user.encode(), digest_size=16).digest()
    return _Key(digest, network_of(address))


def network_of(address: str) -> str:
    """Return the network of an address: the /64 of IPv6, otherwise the address itself.

    Text that is not an IP address, for example `local`, is returned unchanged.
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Address(int(parsed) >> _HOST_BITS << _HOST_BITS))
