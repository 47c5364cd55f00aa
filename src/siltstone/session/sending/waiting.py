"""Messages that wait for their turn to be sent: a queue with limits, shared budget and policy.

What does not fit is dropped, be it the new message or the oldest ones, and counted. Rows of the
store always fit: who offers them offers no more than may wait.
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
        """Return the flags of the message whose turn is next; there must be one."""
        return self._queue[0].flags

    def pop(self) -> Delivery:
        """Take the message whose turn is next.

        Raises: what keeps its payload from being read; it waits on then.
        """
        delivery = self._queue[0]
        payload = delivery.body()
        self._queue.popleft()
        self._uncount(delivery)
        delivery.have(payload)
        return delivery

    def add_row(self, delivery: Delivery) -> None:
        """Let a row of the store wait."""
        size = delivery.size()
        self._queue.append(delivery)
        self._bytes += size
        self._budget.used += size

    def add(self, delivery: Delivery) -> bool:
        """Let a message wait if there is room, or room can be made; return whether others were
        dropped for it.
        """
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
        """Tell whether more than half of the room is taken."""
        return self._bytes * 2 > self._bytes_max or len(self._queue) * 2 > self._messages_max

    def is_short(self) -> bool:
        """Tell whether no more than a quarter of the room is taken."""
        return len(self._queue) * 4 <= self._messages_max and self._bytes * 4 <= self._bytes_max

    def keep_acknowledged(self) -> None:
        """Drop what has QoS 0: nobody is there to take it."""
        kept: deque[Delivery] = deque()
        for delivery in self._queue:
            if delivery.flags & 3 != 0:
                kept.append(delivery)
            else:
                self._uncount(delivery)
        self._queue = kept

    def take_rows(self, owner: Progress) -> list[Delivery]:
        """Take out the rows of the store that belong to somebody; return them, in order."""
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
        """Take out what is no row of the store; return it, in order.

        Raises: what keeps a payload from being read; all of them wait on then.
        """
        taken = [delivery for delivery in self._queue if delivery.lane is None]
        payloads = [delivery.body() for delivery in taken]
        self._queue = deque([delivery for delivery in self._queue if delivery.lane is not None])
        for index in range(len(taken)):
            self._uncount(taken[index])
            taken[index].have(payloads[index])
        return taken

    def remove(self, unwanted: set[Delivery]) -> None:
        """Take out some that wait."""
        kept: deque[Delivery] = deque()
        for delivery in self._queue:
            if delivery in unwanted:
                self._uncount(delivery)
            else:
                kept.append(delivery)
        self._queue = kept

    def messages(self) -> list[Delivery]:
        """Return what waits, in order."""
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
            # Where all sessions hold too much, each may still replace what it has.
            and (freed >= size or self._budget.used + size <= self._budget.bytes_max)
        )

    def _could_have_room(self, size: int, freed: int) -> bool:
        """Tell whether dropping what waits would help; nothing is dropped in vain."""
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
    """Messages that must be on disk before they are sent, and all that come behind them, in their
    order.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._messages: list[Delivery] = []
        # How many of them must be saved, and whether others are being saved.
        self._count = 0
        self._is_saving = False

    def holds(self) -> bool:
        """Tell whether a message that comes now must wait here."""
        return self._is_saving or len(self._messages) > 0

    def add(self, delivery: Delivery) -> None:
        """Let a message wait behind all others."""
        self._messages.append(delivery)
        self.size_bytes += delivery.size()

    def add_to_save(self, delivery: Delivery) -> None:
        """Let a message wait that must be saved."""
        self.add(delivery)
        self._count += 1

    def take(self) -> list[Delivery]:
        """Return what is saved from now on, with what stands between; `saved` brings it back."""
        taken, self._messages = self._messages, []
        self._count = 0
        if taken:
            self._is_saving = True
        return taken

    def saved(self, taken: list[Delivery]) -> list[Delivery]:
        """Return what may be sent now that this is saved: also what has come meanwhile, if nothing
        of it must be saved itself.
        """
        self._is_saving = False
        ready = taken
        if self._count == 0:
            ready = taken + self._messages
            self._messages = []
        for delivery in ready:
            self.size_bytes -= delivery.size()
        return ready
