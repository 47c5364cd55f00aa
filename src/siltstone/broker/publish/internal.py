"""Messages that the broker itself publishes, for example for a bridge.

They are stored, retained and sent like messages of clients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from siltstone.broker.broker import Broker
from siltstone.broker.publish.outcomes import Settling
from siltstone.errors import OverloadedError, QuotaExceededError, SiltstoneError
from siltstone.mqtt.publish import PublishBatch

Done = Callable[[Exception | None], None]


def publish_here(broker: Broker, publisher: bytes, batch: PublishBatch, done: Done) -> None:
    """Publish a batch; `done` is called once, when all of it has the durability of the rules.

    After an error, part of the batch may have been stored and sent to subscribers.
    """
    outcome = Settling(done)
    broker.statistics.publishes_received += len(batch.topics)
    if broker.taps.refused(batch, publisher):
        # The caller publishes the batch again, so no part of it may be stored or sent now.
        outcome.settled(None, OverloadedError("the spool of a bridge is full"))
        return
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
    # All parts are counted now. End the wait of this function; it may be the last one.
    broker.shell.soon(partial(outcome.settled, None, None))
