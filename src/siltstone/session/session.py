"""A session: what the broker keeps for a client id, connected or not (MQTT 4.1).

Subscriptions, messages on their way to the client, QoS 2 messages on their way from it. It lives in
RAM: with the connection, or as long as its expiry interval allows behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from siltstone.guard import contain
from siltstone.mqtt.flow import Received
from siltstone.mqtt.packets import Subscription
from siltstone.session.outbox import Outbox

NO_EXPIRY: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """A subscription with its identifier, 0 for none."""

    subscription: Subscription
    identifier: int


class Session:
    """One client's state. The broker owns it and says when it ends."""

    __slots__ = (
        "client_id",
        "dispatched",
        "expiry_seconds",
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
        self.received = Received()
        # QoS 2 messages that subscribers have, though they could not be stored: packet id -> hash.
        # Who published them may send them again.
        self.dispatched: dict[int, int] = {}
        # By the text of the filter, share prefix and all.
        self.subscriptions: dict[str, Subscribed] = {}
        self.expiry_seconds = 0
        # Batches of its publishes whose outcome is not known, and who waits for the last of them.
        self.unsettled = 0
        self.when_settled: list[Callable[[], None]] = []

    def settled(self) -> None:
        """Take note that the outcome of one batch is known."""
        self.unsettled -= 1
        if self.unsettled == 0 and self.when_settled:
            waiting, self.when_settled = self.when_settled, []
            for act in waiting:
                contain(act)
