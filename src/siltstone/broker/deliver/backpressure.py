"""Backpressure: the broker slows down a client that publishes faster than others can receive.

The broker stops reading from the client while too many bytes wait for the disk, for a short time
while a subscriber is far behind, and for as long as the rate limit requires. Each stop ends
independently of the others.
"""

from __future__ import annotations

from typing import Final

from siltstone.broker.broker import Broker
from siltstone.broker.listen.outlet import Owner
from siltstone.broker.publish.rate import Rate
from siltstone.session.sending.outbox import Behind

# A read with this many messages is bulk. Its client waits at most this long for a subscriber.
_BULK: Final = 256
_PACE_SECONDS: Final = 0.1


class Backpressure:
    """Controls how fast the broker reads from one connection."""

    def __init__(self, broker: Broker, owner: Owner) -> None:
        self._broker = broker
        self._owner = owner
        self._rate = Rate(broker.limits.publish_rate_max)

    def hold_back(self, count: int) -> None:
        """Stop reading after `count` messages, if the store or a subscriber cannot keep up."""
        broker = self._broker
        if broker.bridge.is_full:
            self._owner.stop()
            broker.bridge.when_room(self._owner.go_on)
        behind = broker.ready.behind
        if behind is not None:
            broker.ready.behind = None
            if count >= _BULK:
                self._wait_for(behind)
        if self._rate.per_second:
            self._slow_down(count)

    def _wait_for(self, behind: Behind) -> None:
        """Stop reading for a short time, so that a subscriber that is far behind can catch up.

        Only a client that publishes in bulk waits, and at most `_PACE_SECONDS`. It continues at a
        slower rate, and other publishers are not affected.
        """
        now = self._broker.shell.now()
        if behind.is_stuck(now):
            return
        self._owner.stop()
        waiting = [self._owner.go_on]

        def go_on() -> None:
            if waiting:
                waiting.pop()()

        behind.when_relieved(go_on)
        self._broker.timers.at(now + _PACE_SECONDS, go_on)

    def _slow_down(self, count: int) -> None:
        wait = self._rate.take(count, self._broker.shell.now())
        if wait > 0:
            self._owner.stop()
            self._broker.timers.at(self._broker.shell.now() + wait, self._owner.go_on)
