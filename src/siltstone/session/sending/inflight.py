"""The messages of a session that are in flight: their packet ids and their size. Compiled.

Invariants: a packet id belongs to one message until its delivery is complete, also if that message
is still to be read from the store. Ids are given in turn, so an id is reused as late as possible.
"""

from __future__ import annotations

from typing import Final

from siltstone.session.durable.progress import SessionProgress
from siltstone.session.sending.delivery import Budget, Delivery

_PACKET_IDS: Final = 65_535


class Inflight:
    """The messages in flight by packet id, in the order in which they were first sent."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.deliveries: dict[int, Delivery] = {}
        self.size_bytes = 0
        # The number of messages that count against the window of this connection.
        self.outstanding = 0
        # The packet id that was assigned last.
        self.last_id = 0
        # Packet ids of messages that were in flight earlier, and are still to be read from the
        # store.
        self.reserved: set[int] = set()

    def __len__(self) -> int:
        return len(self.deliveries)

    def has_free_id(self) -> bool:
        """Tell whether there is a free packet id."""
        return len(self.deliveries) + len(self.reserved) < _PACKET_IDS

    def free_id(self) -> int:
        """Return the next free packet id."""
        packet_id = self.last_id % _PACKET_IDS + 1
        while packet_id in self.deliveries or packet_id in self.reserved:
            packet_id = packet_id % _PACKET_IDS + 1
        self.last_id = packet_id
        return packet_id

    def add(self, delivery: Delivery) -> None:
        """Add a message under the packet id that it has."""
        self.deliveries[delivery.packet_id] = delivery
        size = delivery.size()
        self.size_bytes += size
        self._budget.used += size

    def remove(self, delivery: Delivery) -> None:
        """Remove a message that counts against the window, and free its packet id."""
        del self.deliveries[delivery.packet_id]
        size = delivery.size()
        self.size_bytes -= size
        self._budget.used -= size
        self.outstanding -= 1

    def replace(self, delivery: Delivery, kept: Delivery) -> None:
        """Replace a message by another one with the same packet id."""
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

    def rows_of(self, owner: SessionProgress) -> list[Delivery]:
        """Return the rows of the store that belong to a session or group, in order."""
        found: list[Delivery] = []
        for delivery in self.deliveries.values():
            lane = delivery.lane
            if lane is not None and lane.owner is owner:
                found.append(delivery)
        return found
