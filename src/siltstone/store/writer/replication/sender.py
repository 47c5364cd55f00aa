"""The sending side of a producer: it numbers calls, and knows the outcome of each.

Invariants:
- a call is reported as stored when one attempt was;
- a call is reported as refused only when every attempt was refused. An attempt without an answer
  leaves the call open: its record may still count;
- a call names the last call before it that was not reported as refused.

A sender that moves to another site becomes a new producer. It may send the open calls again only
after a FENCE has closed the old producer and told its last number.
"""

from __future__ import annotations

from siltstone.store.writer.replication.messages import ProducerCall


class Sender:
    """One producer, as its sender sees it."""

    def __init__(self, producer: bytes, *, first: int = 1) -> None:
        self.producer = producer
        self._next = first
        # The numbers that were not refused, from the last one before the open calls.
        self._kept: list[int] = []
        self._open: dict[int, set[int]] = {}

    def open_calls(self) -> tuple[int, ...]:
        """Return the numbers of the calls that are neither stored nor refused."""
        return tuple(sorted(self._open))

    def begin(self) -> int:
        """Return the number of a new call."""
        number = self._next
        self._next += 1
        self._kept.append(number)
        self._open[number] = set()
        return number

    def attempt(self, number: int, request: int) -> ProducerCall:
        """Return the call to send with this request."""
        self._open[number].add(request)
        previous = max((kept for kept in self._kept if kept < number), default=0)
        return ProducerCall(producer=self.producer, number=number, previous=previous)

    def stored(self, number: int) -> bool:
        """Take the answer to any attempt; return whether the call was open."""
        if self._open.pop(number, None) is None:
            return False
        self._prune()
        return True

    def refused(self, number: int, request: int) -> None:
        """Take the refusal of one attempt."""
        if number in self._open:
            self._open[number].discard(request)

    def give_up(self, number: int) -> bool:
        """Report a call as refused, if every attempt was refused; return whether it was."""
        if self._open.get(number, {0}):
            return False
        del self._open[number]
        self._kept.remove(number)
        return True

    def _prune(self) -> None:
        lowest = min(self._open, default=self._next)
        while len(self._kept) > 1 and self._kept[1] < lowest:
            del self._kept[0]

    def successor(self, producer: bytes, last: int) -> tuple[Sender, tuple[int, ...]]:
        """Return the sender that continues as another producer, and the calls that were stored.

        `last` is the answer of the FENCE that closed this producer.
        """
        done = tuple(number for number in sorted(self._open) if number <= last)
        rest = [number for number in sorted(self._open) if number > last]
        sender = Sender(producer, first=self._next)
        sender._kept = list(rest)
        sender._open = {number: set() for number in rest}
        return sender, done
