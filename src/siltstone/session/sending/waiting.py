"""Messages that wait to be sent: a queue with limits, a shared budget and a drop policy.

A message that does not fit is dropped, or replaces the oldest messages. Dropped messages are
counted. Messages on disk that must make room are dropped together if they cannot be read.

Invariants: a row of the store is always added and never dropped. Its owner offers no more rows than
may wait, and counts a row as open until its delivery is complete. A message of QoS 0 takes the
place of other messages of QoS 0 only.
"""

from __future__ import annotations

from collections import deque

from siltstone.errors import SiltstoneError
from siltstone.session.durable.progress import SessionProgress
from siltstone.session.sending.delivery import Budget, Delivery, Run


class _Behind:
    """Messages behind those in memory: runs on disk, how many messages they have, later ones."""

    def __init__(self) -> None:
        self.runs: deque[Run] = deque()
        self.runs_count = 0
        self.last: deque[Delivery] = deque()


class _Part:
    """The waiting messages of one kind, in order: `messages`, then `behind`.

    Invariant: if something is behind, `messages` is not empty.
    """

    def __init__(self) -> None:
        self.messages: deque[Delivery] = deque()
        self.behind: _Behind | None = None
        self.size_bytes = 0

    def count(self) -> int:
        """Return the number of messages."""
        behind = self.behind
        count = len(self.messages)
        return count if behind is None else count + behind.runs_count + len(behind.last)

    def append(self, delivery: Delivery) -> None:
        """Add a message after all others."""
        behind = self.behind
        (self.messages if behind is None else behind.last).append(delivery)

    def read_next(self, behind: _Behind) -> None:
        """Read the first run into memory. Raises: the error that prevents it; nothing changes."""
        run = behind.runs[0]
        place = self.messages[-1].place
        for delivery in run.read():
            # The places of a run are all between those of its neighbours.
            delivery.place = place
            self.messages.append(delivery)
        self._end_run(behind)

    def drop_next(self, behind: _Behind) -> Run:
        """Forget the first run without reading it, and return it."""
        run = behind.runs[0]
        self.size_bytes -= run.size_bytes
        self._end_run(behind)
        return run

    def _end_run(self, behind: _Behind) -> None:
        run = behind.runs.popleft()
        behind.runs_count -= run.count
        if not behind.runs:
            self.messages.extend(behind.last)
            self.behind = None

    def keep(self, kept: deque[Delivery]) -> int:
        """Replace the messages by some of them; return how many bytes the others had."""
        size = 0
        for delivery in kept:
            size += delivery.size()
        freed = self.size_bytes - size
        self.messages = kept
        self.behind = None
        self.size_bytes = size
        return freed


class Waiting:
    """The queue of one session."""

    def __init__(self, budget: Budget, messages_max: int, bytes_max: int, drop_old: bool) -> None:
        self._budget = budget
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._drop_old = drop_old
        # One queue in three parts, so that the oldest message of each kind is found at once. The
        # order of two messages is the order of their places.
        self._rows = _Part()
        self._acknowledged = _Part()
        self._unacknowledged = _Part()
        self._next_place = 0
        self._bytes = 0
        self.dropped = 0
        # The reason why messages on disk were dropped although they could have stayed; the owner
        # takes it.
        self.unreadable: SiltstoneError | None = None

    def __len__(self) -> int:
        return self._rows.count() + self._acknowledged.count() + self._unacknowledged.count()

    def first_flags(self) -> int:
        """Return the flags of the next message; the queue must not be empty."""
        return self._first().messages[0].flags

    def first_topic(self) -> bytes:
        """Return the topic of the next message; the queue must not be empty."""
        return self._first().messages[0].topic

    def has_room(self, size: int) -> bool:
        """Tell whether a message of this size fits without dropping others."""
        return self._has_room(size, 0)

    def pop(self) -> Delivery:
        """Remove and return the next message.

        Raises: the error that prevents reading its payload; the message then stays in the queue.
        """
        part = self._first()
        delivery = part.messages[0]
        payload = delivery.body()
        self._remove_first(part)
        delivery.have(payload)
        return delivery

    def add_row(self, delivery: Delivery) -> None:
        """Add a message of any kind, whatever the limits are."""
        if delivery.lane is not None:
            part = self._rows
        elif delivery.flags & 3 != 0:
            part = self._acknowledged
        else:
            part = self._unacknowledged
        size = delivery.size()
        delivery.place = self._next_place
        self._next_place += 1
        part.append(delivery)
        part.size_bytes += size
        self._bytes += size
        self._budget.used += size

    def add_run(self, run: Run) -> None:
        """Add messages of QoS 1 and 2 that are on disk, whatever the limits are. They are read when
        the messages before them have left.

        At least one message of QoS 1 or 2 must wait in memory.
        """
        part = self._acknowledged
        assert part.messages, "runs follow a message"
        behind = part.behind
        if behind is None:
            behind = part.behind = _Behind()
        assert not behind.last, "all runs are added before other messages"
        behind.runs.append(run)
        behind.runs_count += run.count
        part.size_bytes += run.size_bytes
        self._bytes += run.size_bytes
        self._budget.used += run.size_bytes

    def add(self, delivery: Delivery) -> bool:
        """Add a message if room can be made; return whether others were dropped for it."""
        size = delivery.size()
        freed = 0
        qos = delivery.flags & 3
        if not self._has_room(size, freed) and not self._can_make_room(size, qos):
            self.dropped += 1
            return False
        while not self._has_room(size, freed):
            freed += self._drop_first(self._oldest(qos))
        self.add_row(delivery)
        return freed > 0

    def is_long(self) -> bool:
        """Tell whether the queue has more than half of its messages or bytes."""
        return self._bytes * 2 > self._bytes_max or len(self) * 2 > self._messages_max

    def is_short(self) -> bool:
        """Tell whether the queue has at most a quarter of its messages and bytes."""
        return len(self) * 4 <= self._messages_max and self._bytes * 4 <= self._bytes_max

    def keep_acknowledged(self) -> None:
        """Drop messages of QoS 0, because there is no connection any more."""
        self._uncount(self._unacknowledged.keep(deque()))

    def take_rows(self, owner: SessionProgress) -> list[Delivery]:
        """Remove and return the rows of the store that belong to a session or group, in order."""
        kept: deque[Delivery] = deque()
        taken: list[Delivery] = []
        for delivery in self._rows.messages:
            lane = delivery.lane
            if lane is not None and lane.owner is owner:
                taken.append(delivery)
            else:
                kept.append(delivery)
        self._uncount(self._rows.keep(kept))
        return taken

    def take_others(self) -> list[Delivery]:
        """Remove and return the messages that are not rows of the store, in order.

        Raises: the error that prevents reading a payload; all messages then stay in the queue.
        """
        taken = [delivery for delivery in self.messages() if delivery.lane is None]
        payloads = [delivery.body() for delivery in taken]
        self.remove(set(taken))
        for index in range(len(taken)):
            taken[index].have(payloads[index])
        return taken

    def remove(self, unwanted: set[Delivery]) -> None:
        """Remove the given messages, which `messages` has returned."""
        assert self._acknowledged.behind is None, "all messages are in memory"
        for part in (self._rows, self._acknowledged, self._unacknowledged):
            kept = deque([each for each in part.messages if each not in unwanted])
            self._uncount(part.keep(kept))

    def parts(self) -> list[Delivery | Run]:
        """Return all messages, in order; those on disk as runs, which never change."""
        part = self._acknowledged
        behind = part.behind
        if behind is None:
            return list(self.messages())
        assert not self._rows.messages, "only sessions without rows of the store have runs"
        # QoS 0 waits for no snapshot.
        return [*part.messages, *behind.runs, *behind.last]

    def messages(self) -> list[Delivery]:
        """Return all messages, in order, after reading those on disk into memory.

        Raises: the error that prevents reading one of them.
        """
        while (behind := self._acknowledged.behind) is not None:
            self._acknowledged.read_next(behind)
        found: list[Delivery] = []
        parts = 0
        for part in (self._rows, self._acknowledged, self._unacknowledged):
            if part.messages:
                found.extend(part.messages)
                parts += 1
        # Each part is in order. Sorting many messages would take milliseconds.
        if parts > 1:
            found.sort(key=_place)
        return found

    def clear(self) -> None:
        """Forget everything."""
        for part in (self._rows, self._acknowledged, self._unacknowledged):
            self._uncount(part.keep(deque()))

    def _first(self) -> _Part:
        """Return the part that has the next message; the queue must not be empty."""
        return _older(self._rows, _older(self._acknowledged, self._unacknowledged))

    def _oldest(self, qos: int) -> _Part:
        """Return the part whose first message is the oldest that a new message may replace."""
        if qos == 0:
            return self._unacknowledged
        return _older(self._acknowledged, self._unacknowledged)

    def _has_room(self, size: int, freed: int) -> bool:
        return (
            len(self) < self._messages_max
            and self._bytes + size <= self._bytes_max
            # If all sessions together hold too much, each may still replace its own messages.
            and (freed >= size or self._budget.used + size <= self._budget.bytes_max)
        )

    def _can_make_room(self, size: int, qos: int) -> bool:
        """Tell whether dropping messages would make room; none is dropped without effect."""
        if not self._drop_old:
            return False
        count = self._unacknowledged.count()
        waiting = self._unacknowledged.size_bytes
        if qos != 0:
            count += self._acknowledged.count()
            waiting += self._acknowledged.size_bytes
        budget = self._budget
        return (
            count > 0
            and len(self) - count < self._messages_max
            and self._bytes - waiting + size <= self._bytes_max
            and (waiting >= size or budget.used - waiting + size <= budget.bytes_max)
        )

    def _remove_first(self, part: _Part) -> int:
        """Remove the first message of a part; return its size.

        Raises: the error that prevents reading the messages after it; it then stays.
        """
        behind = part.behind
        if behind is not None and len(part.messages) == 1:
            part.read_next(behind)
        size = part.messages.popleft().size()
        part.size_bytes -= size
        self._uncount(size)
        return size

    def _drop_first(self, part: _Part) -> int:
        """Drop the first message of a part; return the size of what was dropped.

        If the run after it cannot be read, the run is dropped instead.
        """
        behind = part.behind
        if behind is not None and len(part.messages) == 1:
            try:
                part.read_next(behind)
            except SiltstoneError as exc:
                self.unreadable = exc
                run = part.drop_next(behind)
                self._uncount(run.size_bytes)
                self.dropped += run.count
                return run.size_bytes
        self.dropped += 1
        return self._remove_first(part)

    def _uncount(self, size: int) -> None:
        self._bytes -= size
        self._budget.used -= size


def _older(one: _Part, other: _Part) -> _Part:
    """Return the part whose first message is before that of the other one."""
    if not one.messages:
        return other
    if not other.messages or one.messages[0].place < other.messages[0].place:
        return one
    return other


def _place(delivery: Delivery) -> int:
    return delivery.place


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
