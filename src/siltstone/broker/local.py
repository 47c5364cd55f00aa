"""Messages that the broker itself publishes for somebody: stored, retained and sent as any are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from siltstone.broker.broker import Broker
from siltstone.errors import QuotaExceededError, SiltstoneError
from siltstone.mqtt.publish import PublishBatch

Done = Callable[[Exception | None], None]


class _Outcome:
    """Counts the parts of a batch whose outcome is not known, and keeps the first error."""

    def __init__(self, done: Done) -> None:
        self.waits = 1
        self._done = done
        self._error: Exception | None = None

    def settled(self, _part: PublishBatch | None, error: Exception | None) -> None:
        self._error = self._error or error
        self.waits -= 1
        if self.waits == 0:
            self._done(self._error)


def publish_here(broker: Broker, publisher: bytes, batch: PublishBatch, done: Done) -> None:
    """Publish a batch; `done` hears once, when all of it is as durable as the rules ask for.

    After an error some of it may have been stored and sent to subscribers.
    """
    outcome = _Outcome(done)
    broker.statistics.publishes_received += len(batch.topics)
    try:
        waits, beyond, exchanges = broker.retain(batch, publisher, outcome.settled)
    except SiltstoneError as exc:
        outcome.settled(None, exc)
        return
    outcome.waits += waits
    if beyond:
        refused = QuotaExceededError(
            "retained messages",
            used_bytes=len(broker.retained),
            quota_bytes=broker.limits.retained_messages_max,
        )
        broker.forget_retained(exchanges)
        outcome.settled(None, refused)
        return
    outcome.waits += broker.store(batch, publisher, outcome.settled, exchanges)
    broker.dispatch(batch, None)
    # All parts are counted: what was settled meanwhile may be the last.
    broker.shell.soon(partial(outcome.settled, None, None))
