"""One subscription of a durable session, as its reader needs it."""

from __future__ import annotations

from collections.abc import Callable


class WantedFilter:
    """The options of one filter, and the first row of each shard that it applies to."""

    def __init__(
        self,
        qos: int,
        no_local: bool,
        keeps_retain: bool,
        identifier: bytes,
        since: dict[int, int],
        guard: Callable[[bytes], bool] | None,
        away_qos: int = -1,
    ) -> None:
        self.qos = qos
        # The higher of the current QoS and the QoS while the client was disconnected.
        self.away_qos = max(qos, away_qos)
        self.no_local = no_local
        self.keeps_retain = keeps_retain
        # The encoded subscription identifier, or empty.
        self.identifier = identifier
        self.since = since
        # Tells whether the session may read a topic; None if it may read all topics.
        self.guard = guard

    def may_receive(self, topic: bytes) -> bool:
        guard = self.guard
        return guard is None or guard(topic)
