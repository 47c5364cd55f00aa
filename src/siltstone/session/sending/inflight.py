"""The messages of a session that are in flight: their packet ids, and what they take. Compiled.

Invariants: a packet id stands for one message until that is over, also for one that is still to be
read from the store; ids are given in turn, so that one is used again as late as possible.
"""

from __future__ import annotations

from typing import Final

from siltstone.session.durable.progress import Progress
from siltstone.session.sending.delivery import Budget, Delivery

_PACKET_IDS: Final = 65_535


class Inflight:
    """By packet id, in the order in which they were first sent."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.deliveries: dict[int, Delivery] = {}
        self.size_bytes = 0
        # How many of them count against the window of this connection.
        self.outstanding = 0
        # The packet id that was given last.
        self.last_id = 0
        # Packet ids of messages that were in flight, and are still to be read from the store.
        self.reserved: set[int] = set()

    def __len__(self) -> int:
        return len(self.deliveries)

    def has_free_id(self) -> bool:
        """Tell whether there is a packet id for one more."""
        return len(self.deliveries) + len(self.reserved) < _PACKET_IDS

    def free_id(self) -> int:
        """Return the next packet id that stands for nothing."""
        packet_id = self.last_id % _PACKET_IDS + 1
        while packet_id in self.deliveries or packet_id in self.reserved:
            packet_id = packet_id % _PACKET_IDS + 1
        self.last_id = packet_id
        return packet_id

    def add(self, delivery: Delivery) -> None:
        """Take a message in, under the packet id that it has."""
        self.deliveries[delivery.packet_id] = delivery
        size = delivery.size()
        self.size_bytes += size
        self._budget.used += size

    def remove(self, delivery: Delivery) -> None:
        """Let a message go that counts against the window; its packet id is free."""
        del self.deliveries[delivery.packet_id]
        size = delivery.size()
        self.size_bytes -= size
        self._budget.used -= size
        self.outstanding -= 1

    def replace(self, delivery: Delivery, kept: Delivery) -> None:
        """Keep another in place of a message, under the same packet id."""
        self.deliveries[kept.packet_id] = kept
        freed = delivery.size() - kept.size()
        self.size_bytes -= freed
        self._budget.used -= freed

    def clear(self) -> None:
        """Forget all messages."""
        self._budget.used -= self.size_bytes
        self.size_bytes = 0
        self.outstanding = 0
        self.deliveries.clear()

    def rows_of(self, owner: Progress) -> list[Delivery]:
        """Return the rows of the store that are somebody's, in order."""
        found: list[Delivery] = []
        for delivery in self.deliveries.values():
            lane = delivery.lane
            if lane is not None and lane.owner is owner:
                found.append(delivery)
        return found
