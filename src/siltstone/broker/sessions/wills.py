"""Wills: messages that are published when a client disconnects without DISCONNECT (3.1.2.5).

A will is never early: its delay counts from the end of the connection. Only the end of the session
shortens it [MQTT-3.1.3-9].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from siltstone.broker.sessions.timers import Timer, Timers
from siltstone.errors import SiltstoneError
from siltstone.mqtt.encode import encode_message_properties
from siltstone.mqtt.packets import Will
from siltstone.mqtt.publish import PublishBatch
from siltstone.rows.batch import RETAIN
from siltstone.session.archive.records import SavedWill
from siltstone.session.sending.delivery import Spilled
from siltstone.session.session import Session

Publish = Callable[[Session, Will], None]
# Called with a will that is lost because its payload cannot be read, and with the reason.
Lost = Callable[[Session, Will, SiltstoneError], None]


class _Delayed(NamedTuple):
    """A will that waits. If a snapshot left its payload on disk, `spilled` is the place of it."""

    session: Session
    will: Will
    timer: Timer
    spilled: Spilled | None


class Wills:
    """The delayed wills, by client id."""

    def __init__(self, timers: Timers, publish: Publish, lost: Lost) -> None:
        self._timers = timers
        self._publish = publish
        self._lost = lost
        self._waiting: dict[str, _Delayed] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def leave(
        self, session: Session, will: Will, now: float, spilled: Spilled | None = None
    ) -> None:
        """Publish a will now, or after its delay; `spilled` is its payload, if that is on disk."""
        delay = will.properties.will_delay_interval or 0
        if delay == 0:
            self._publish_whole(session, will, spilled)
            return
        timer = self._timers.at(now + delay, partial(self.fire, session.client_id))
        self._waiting[session.client_id] = _Delayed(session, will, timer, spilled)

    def waiting(self, client_id: str) -> tuple[Will, Spilled | None, float] | None:
        """Return the delayed will of a client id, the place of its payload if that is on disk, and
        its time.
        """
        waiting = self._waiting.get(client_id)
        return None if waiting is None else (waiting.will, waiting.spilled, waiting.timer.at)

    def cancel(self, client_id: str) -> None:
        """Delete the delayed will of a client that connected again."""
        waiting = self._waiting.pop(client_id, None)
        if waiting is not None:
            self._timers.cancel(waiting.timer)

    def fire(self, client_id: str) -> None:
        """Publish the delayed will of a client id, if there is one."""
        if client_id in self._waiting:
            self._waiting[client_id].session.outbox.changing()
        waiting = self._waiting.pop(client_id, None)
        if waiting is not None:
            self._timers.cancel(waiting.timer)
            self._publish_whole(waiting.session, waiting.will, waiting.spilled)

    def _publish_whole(self, session: Session, will: Will, spilled: Spilled | None) -> None:
        if spilled is not None:
            try:
                will = replace(will, payload=spilled.read())
            except SiltstoneError as exc:
                self._lost(session, will, exc)
                return
        self._publish(session, will)


def saved_will(will: Will | None) -> SavedWill | None:
    """Return a will in the form that is saved with its session."""
    if will is None:
        return None
    return SavedWill(
        topic=will.topic,
        payload=will.payload,
        qos=will.qos,
        retain=will.retain,
        properties=encode_message_properties(will.properties),
        delay_seconds=will.properties.will_delay_interval or 0,
        expiry_seconds=will.properties.message_expiry_interval,
    )


def batch_of(will: SavedWill) -> PublishBatch:
    """Return the message of a will."""
    batch = PublishBatch()
    batch.topics.append(will.topic)
    batch.values.append(will.payload)
    batch.flags.append(will.qos | (RETAIN if will.retain else 0))
    batch.packet_ids.append(0)
    if will.properties:
        batch.properties.append(will.properties)
    if will.expiry_seconds is not None:
        batch.expiries.append(will.expiry_seconds)
    return batch
