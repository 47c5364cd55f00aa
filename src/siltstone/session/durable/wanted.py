"""One subscription of a durable session, as its reader needs it."""

from __future__ import annotations

from collections.abc import Callable


class WantedFilter:
    """How rows of one filter are wanted, and from which row of each shard on."""

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
        # What it was when the client was away, where it is another now.
        self.away_qos = max(qos, away_qos)
        self.no_local = no_local
        self.keeps_retain = keeps_retain
        # The encoded property, or nothing.
        self.identifier = identifier
        self.since = since
        # Says whether the session may read a topic; None where it may read all.
        self.guard = guard

    def may_receive(self, topic: bytes) -> bool:
        guard = self.guard
        return guard is None or guard(topic)
