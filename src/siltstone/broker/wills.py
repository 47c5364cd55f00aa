"""Wills: what is published for a client that went without a word (3.1.2.5).

A will is never early: its delay counts from the end of the connection, and is cut short only by the
end of the session [MQTT-3.1.3-9].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from siltstone.broker.timers import Timer, Timers
from siltstone.mqtt.packets import Will
from siltstone.session.session import Session

Publish = Callable[[Session, Will], None]


class Wills:
    """The wills that wait for their time, by client id."""

    def __init__(self, timers: Timers, publish: Publish) -> None:
        self._timers = timers
        self._publish = publish
        self._waiting: dict[str, tuple[Session, Will, Timer]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def leave(self, session: Session, will: Will, now: float) -> None:
        """Publish a will now, or after its delay."""
        delay = will.properties.will_delay_interval or 0
        if delay == 0:
            self._publish(session, will)
            return
        timer = self._timers.at(now + delay, partial(self.fire, session.client_id))
        self._waiting[session.client_id] = (session, will, timer)

    def cancel(self, client_id: str) -> None:
        """Forget the will of a client that came back in time."""
        waiting = self._waiting.pop(client_id, None)
        if waiting is not None:
            self._timers.cancel(waiting[2])

    def fire(self, client_id: str) -> None:
        """Publish the will that waits for a client id, if there is one."""
        waiting = self._waiting.pop(client_id, None)
        if waiting is not None:
            session, will, timer = waiting
            self._timers.cancel(timer)
            self._publish(session, will)
