"""How long a login waits, by address: twice as long with each failure, forgotten after a while.

Addresses of IPv6 are taken by their /64, for that is what one customer gets. Memory is bounded: of
very many addresses those that failed longest ago are forgotten first. One thread uses it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Final

from siltstone.clock import Clock

ADDRESSES_MAX: Final = 10_000
FORGET_SECONDS: Final = 600.0

# Doubled so often, any delay has reached its maximum.
_DOUBLINGS_MAX: Final = 32
_HOST_BITS: Final = 64


@dataclass(slots=True)
class _Failures:
    count: int
    last: float


class Throttle:
    """Failed logins of late; `delay` is the wait after the first failure, 0 for none at all."""

    def __init__(self, clock: Clock, *, delay: float = 0.5, delay_max: float = 10.0) -> None:
        self._clock = clock
        self._delay = delay
        self._delay_max = delay_max
        # The one that failed last is the last one.
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def delay_for(self, address: str) -> float:
        """Return how many seconds to wait with a login from this address, or with its answer."""
        if not self._failures:
            return 0.0
        failures = self._recent(_network(address))
        if failures is None:
            return 0.0
        doublings = min(failures.count - 1, _DOUBLINGS_MAX)
        return min(self._delay * (1 << doublings), self._delay_max)

    def failed(self, address: str) -> None:
        """Count a failed login."""
        network = _network(address)
        failures = self._recent(network)
        count = 1 if failures is None else failures.count + 1
        self._failures[network] = _Failures(count, self._clock.monotonic())
        self._failures.move_to_end(network)
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)

    def succeeded(self, address: str) -> None:
        """Forget the failures of an address."""
        if self._failures:
            self._failures.pop(_network(address), None)

    def _recent(self, network: str) -> _Failures | None:
        """Return the failures of a network, unless they are so old that they are forgotten."""
        failures = self._failures.get(network)
        if failures is not None and self._clock.monotonic() - failures.last >= FORGET_SECONDS:
            del self._failures[network]
            return None
        return failures


def _network(address: str) -> str:
    """Return what stands for an address: of IPv6 the /64; what is no address for itself."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Address(int(parsed) >> _HOST_BITS << _HOST_BITS))
