"""Messages that wait to be sent: a queue with limits, a shared budget and a drop policy.

If a message does not fit, it is dropped, or the oldest messages are; dropped messages are counted.
Rows of the store are always added: their caller offers no more than may wait.
"""

from __future__ import annotations

from collections import deque

from siltstone.session.durable.progress import Progress
from siltstone.session.sending.delivery import Budget, Delivery


class Waiting:
    """The queue of one session."""

    def __init__(self, budget: Budget, messages_max: int, bytes_max: int, drop_old: bool) -> None:
        self._budget = budget
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._drop_old = drop_old
        self._queue: deque[Delivery] = deque()
        self._bytes = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._queue)

    def first_flags(self) -> int:
        """Return the flags of the next message; the queue must not be empty."""
        return self._queue[0].flags

    def pop(self) -> Delivery:
        """Remove and return the next message.

        Raises: the error that prevents reading its payload; the message then stays in the queue.
        """
        delivery = self._queue[0]
        payload = delivery.body()
        self._queue.popleft()
        self._uncount(delivery)
        delivery.have(payload)
        return delivery

    def add_row(self, delivery: Delivery) -> None:
        """Add a row of the store, whatever the limits are."""
        size = delivery.size()
        self._queue.append(delivery)
        self._bytes += size
        self._budget.used += size

    def add(self, delivery: Delivery) -> bool:
        """Add a message if room can be made; return whether others were dropped for it."""
        size = delivery.size()
        freed = 0
        while not self._has_room(size, freed):
            if not self._drop_old or not self._could_have_room(size, freed):
                self.dropped += 1
                return freed > 0
            dropped = self._queue.popleft()
            self._uncount(dropped)
            freed += dropped.size()
            self.dropped += 1
        self.add_row(delivery)
        return freed > 0

    def is_long(self) -> bool:
        """Tell whether the queue has more than half of its messages or bytes."""
        return self._bytes * 2 > self._bytes_max or len(self._queue) * 2 > self._messages_max

    def is_short(self) -> bool:
        """Tell whether the queue has at most a quarter of its messages and bytes."""
        return len(self._queue) * 4 <= self._messages_max and self._bytes * 4 <= self._bytes_max

    def keep_acknowledged(self) -> None:
        """Drop messages of QoS 0, because there is no connection any more."""
        kept: deque[Delivery] = deque()
        for delivery in self._queue:
            if delivery.flags & 3 != 0:
                kept.append(delivery)
            else:
                self._uncount(delivery)
        self._queue = kept

    def take_rows(self, owner: Progress) -> list[Delivery]:
        """Remove and return the rows of the store that belong to a session or group, in order."""
        kept: deque[Delivery] = deque()
        taken: list[Delivery] = []
        for delivery in self._queue:
            lane = delivery.lane
            if lane is not None and lane.owner is owner:
                taken.append(delivery)
                self._uncount(delivery)
            else:
                kept.append(delivery)
        self._queue = kept
        return taken

    def take_others(self) -> list[Delivery]:
        """Remove and return the messages that are not rows of the store, in order.

        Raises: the error that prevents reading a payload; all messages then stay in the queue.
        """
        taken = [delivery for delivery in self._queue if delivery.lane is None]
        payloads = [delivery.body() for delivery in taken]
        self._queue = deque([delivery for delivery in self._queue if delivery.lane is not None])
        for index in range(len(taken)):
            self._uncount(taken[index])
            taken[index].have(payloads[index])
        return taken

    def remove(self, unwanted: set[Delivery]) -> None:
        """Remove the given messages."""
        kept: deque[Delivery] = deque()
        for delivery in self._queue:
            if delivery in unwanted:
                self._uncount(delivery)
            else:
                kept.append(delivery)
        self._queue = kept

    def messages(self) -> list[Delivery]:
        """Return all messages, in order."""
        return list(self._queue)

    def clear(self) -> None:
        """Forget everything."""
        self._budget.used -= self._bytes
        self._bytes = 0
        self._queue.clear()

    def _has_room(self, size: int, freed: int) -> bool:
        return (
            len(self._queue) < self._messages_max
            and self._bytes + size <= self._bytes_max
            # If all sessions together hold too much, each may still replace its own messages.
            and (freed >= size or self._budget.used + size <= self._budget.bytes_max)
        )

    def _could_have_room(self, size: int, freed: int) -> bool:
        """Tell whether dropping messages would make room; none is dropped without effect."""
        if not self._queue or size > self._bytes_max:
            return False
        waiting = self._bytes
        budget = self._budget
        return freed + waiting >= size or budget.used - waiting + size <= budget.bytes_max

    def _uncount(self, delivery: Delivery) -> None:
        size = delivery.size()
        self._bytes -= size
        self._budget.used -= size


class Unsaved:
    """Messages that must be on disk before they are sent, and all messages after them, in order."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._messages: list[Delivery] = []
        # The number of messages that must be saved, and whether others are being saved now.
        self._count = 0
        self._is_saving = False

    def holds(self) -> bool:
        """Tell whether a new message must wait here."""
        return self._is_saving or len(self._messages) > 0

    def add(self, delivery: Delivery) -> None:
        """Add a message after all others."""
        self._messages.append(delivery)
        self.size_bytes += delivery.size()

    def add_to_save(self, delivery: Delivery) -> None:
        """Add a message that must be saved before it is sent."""
        self.add(delivery)
        self._count += 1

    def take(self) -> list[Delivery]:
        """Return all messages, for a save that starts now; pass them to `saved` after it."""
        taken, self._messages = self._messages, []
        self._count = 0
        if taken:
            self._is_saving = True
        return taken

    def saved(self, taken: list[Delivery]) -> list[Delivery]:
        """Return the messages to send after a save: `taken`, and also the later ones if none of
        them must be saved itself.
        """
        self._is_saving = False
        ready = taken
        if self._count == 0:
            ready = taken + self._messages
            self._messages = []
        for delivery in ready:
            self.size_bytes -= delivery.size()
        return ready
