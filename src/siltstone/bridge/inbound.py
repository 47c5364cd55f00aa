"""Messages from the remote broker: published here, and acknowledged when the store synced them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from siltstone.bridge.mapping import Routes
from siltstone.client.incoming import Deferred, Incoming
from siltstone.logs import log
from siltstone.mqtt.flow import pick
from siltstone.mqtt.publish import PublishBatch
from siltstone.rows.batch import DUP

# Publishes a batch, and calls back once with the outcome.
PublishHere = Callable[[PublishBatch, Callable[[Exception | None], None]], None]

_LOG: Final = logging.getLogger("siltstone.bridge")


class _Under:
    """A batch in progress; `is_kept` is None until its outcome is known."""

    __slots__ = ("deferred", "is_kept")

    def __init__(self, deferred: Deferred) -> None:
        self.deferred = deferred
        self.is_kept: bool | None = None


class Inbound:
    """Takes the messages of the remote broker. `answer` sends pending acknowledgements; `reconnect`
    makes the remote broker send all unacknowledged messages again.
    """

    def __init__(
        self,
        incoming: Incoming,
        routes: Routes,
        *,
        name: str,
        publish: PublishHere,
        answer: Callable[[], None],
        reconnect: Callable[[], None],
    ) -> None:
        self._incoming = incoming
        self._routes = routes
        self._name = name
        self._publish = publish
        self._answer = answer
        self._reconnect = reconnect
        # In the order of arrival, in which they are acknowledged [MQTT-4.6.0-2].
        self._under_way: deque[_Under] = deque()

    def deliver(self, batch: PublishBatch) -> int:
        """Take messages; return 0, because none of them is accepted yet."""
        under = _Under(self._incoming.defer(batch))
        self._under_way.append(under)
        local = self._renamed(batch)
        if local.topics:
            self._publish(local, partial(self._kept, under))
        else:
            under.is_kept = True
            self._settle()
        return 0

    def _renamed(self, batch: PublishBatch) -> PublishBatch:
        """Return the messages with a local topic, renamed, without DUP and packet ids."""
        routes = [self._routes.find(topic) for topic in batch.topics]
        local = pick(batch, [index for index, route in enumerate(routes) if route is not None])
        # The names are new, so the batch is no longer checked.
        local.checked = False
        local.topics = [route.topic for route in routes if route is not None]
        local.flags = [flags & ~DUP for flags in local.flags]
        local.packet_ids = [0] * len(local.topics)
        return local

    def _kept(self, under: _Under, error: Exception | None) -> None:
        under.is_kept = error is None
        if error is not None:
            log(
                _LOG,
                logging.WARNING,
                "bridge_inbound_failed",
                bridge=self._name,
                error=str(error),
            )
        if self._settle():
            self._reconnect()
        else:
            self._answer()

    def _settle(self) -> bool:
        """Settle finished batches in order; return whether one of them could not be stored."""
        has_failed = False
        while self._under_way and self._under_way[0].is_kept is not None:
            under = self._under_way.popleft()
            if under.is_kept:
                self._incoming.settle(under.deferred)
            else:
                self._incoming.give_up(under.deferred)
                has_failed = True
        return has_failed
