"""The counters of the broker, for the $SYS topics."""

from __future__ import annotations


class Statistics:
    """Counters since the start; each component updates its own, once per batch."""

    __slots__ = (
        "bytes_received",
        "bytes_sent",
        "clients_maximum",
        "connections",
        "messages_dropped",
        "publishes_received",
        "publishes_refused",
        "publishes_sent",
        "started_at",
    )

    def __init__(self, started_at: float) -> None:
        self.started_at = started_at
        self.connections = 0
        self.clients_maximum = 0
        self.bytes_received = 0
        self.bytes_sent = 0
        self.messages_dropped = 0
        self.publishes_received = 0
        self.publishes_sent = 0
        self.publishes_refused = 0
