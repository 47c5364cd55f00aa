"""A session: the state that the broker keeps for a client id, connected or not (MQTT 4.1).

It holds subscriptions, messages to the client, and QoS 2 messages from the client. A session that
outlives its connection is durable if the broker has a store for it; otherwise it stays in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from siltstone.guard import contain
from siltstone.mqtt.flow import Received
from siltstone.session.durable.session import Durable
from siltstone.session.sending.outbox import Outbox
from siltstone.session.subscribed import Subscribed

NO_EXPIRY: Final = 0xFFFF_FFFF


class Group(Protocol):
    """A share group that lends rows to the session."""

    def leave(self, outbox: Outbox) -> None:
        """Remove the session from the group; its rows are lent to other members."""

    def replenish(self, outbox: Outbox) -> None:
        """Lend more rows if there is room, after the session has acknowledged something."""


class Session:
    """The state of one client. The broker owns it and decides when it ends."""

    __slots__ = (
        "client_id",
        "dispatched",
        "durable",
        "expiry_seconds",
        "groups",
        "outbox",
        "publisher",
        "received",
        "subscriptions",
        "unsettled",
        "user",
        "when_settled",
    )

    def __init__(self, client_id: str, user: str, outbox: Outbox) -> None:
        self.client_id = client_id
        # The authenticated user name of the client, or "" if there is none.
        self.user = user
        self.publisher = client_id.encode()
        self.outbox = outbox
        outbox.client_id = client_id
        # Reads the store for the session and saves its state; None if the session is only in
        # memory.
        self.durable: Durable | None = None
        self.received = Received()
        # QoS 2 messages that were delivered to subscribers but could not be stored: packet id ->
        # hash. The client may publish them again.
        self.dispatched: dict[int, int] = {}
        # By the text of the filter, with the share prefix.
        self.subscriptions: dict[str, Subscribed] = {}
        # Its share groups that read the store, by the text of the filter.
        self.groups: dict[str, Group] = {}
        self.expiry_seconds = 0
        # Published batches whose outcome is not known yet, and the callbacks for the last of them.
        self.unsettled = 0
        self.when_settled: list[Callable[[], None]] = []

    def dropped(self) -> int:
        """Return how many messages were dropped since the client connected: too large, or beyond
        the limits of the queue or the backlog.
        """
        durable = self.durable
        return self.outbox.dropped + (0 if durable is None else durable.reader.dropped)

    def settled(self) -> None:
        """Record that the outcome of one batch is known."""
        self.unsettled -= 1
        if self.unsettled == 0 and self.when_settled:
            waiting, self.when_settled = self.when_settled, []
            for act in waiting:
                contain(act)
