"""A session: what the broker keeps for a client id, connected or not (MQTT 4.1).

Subscriptions, messages on their way to the client, QoS 2 messages on their way from it. One that
outlives its connection is durable, if the broker has a store for it; else it waits in RAM.
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
        """Take the session out; what it had is lent to others."""

    def replenish(self, outbox: Outbox) -> None:
        """Lend more where there is room, after the session has acknowledged something."""


class Session:
    """One client's state. The broker owns it and says when it ends."""

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
        # Whose it is: a proven name, or "" for nobody's.
        self.user = user
        self.publisher = client_id.encode()
        self.outbox = outbox
        outbox.client_id = client_id
        # What reads the store for it and is saved; None where it lives in RAM alone.
        self.durable: Durable | None = None
        self.received = Received()
        # QoS 2 messages that subscribers have, though they could not be stored: packet id -> hash.
        # Who published them may send them again.
        self.dispatched: dict[int, int] = {}
        # By the text of the filter, share prefix and all.
        self.subscriptions: dict[str, Subscribed] = {}
        # Its share groups that read the store, by the text of the filter.
        self.groups: dict[str, Group] = {}
        self.expiry_seconds = 0
        # Batches of its publishes whose outcome is not known, and who waits for the last of them.
        self.unsettled = 0
        self.when_settled: list[Callable[[], None]] = []

    def dropped(self) -> int:
        """Return how many messages were dropped since its client has come: too many in its queue
        or in its backlog, or too large.
        """
        durable = self.durable
        return self.outbox.dropped + (0 if durable is None else durable.reader.dropped)

    def settled(self) -> None:
        """Take note that the outcome of one batch is known."""
        self.unsettled -= 1
        if self.unsettled == 0 and self.when_settled:
            waiting, self.when_settled = self.when_settled, []
            for act in waiting:
                contain(act)
