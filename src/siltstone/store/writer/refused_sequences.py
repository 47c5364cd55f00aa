"""The refused calls that a producer must repeat before its later calls are accepted.

A number of a producer counts as stored if a higher one is stored. If a later call were stored
first, the repeated call would be taken for a duplicate, and its rows would be lost silently. The
table is kept only while the database is open: a client that opens it again has waited for the
outcome of every call.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Container
from typing import Final

from siltstone.store.writer.producers import PRODUCERS_MAX

# If a producer ignores its errors and continues to send, only its lowest numbers are kept.
NUMBERS_MAX: Final = 1024


class RefusedSequences:
    """The refused numbers of each producer. Not thread-safe: threads that share it need a lock.

    If there are too many producers, those with the most recent refusals are kept.
    """

    def __init__(self, *, producers_max: int = PRODUCERS_MAX) -> None:
        self._producers_max = producers_max
        self._numbers: OrderedDict[bytes, list[int]] = OrderedDict()

    def add(self, producer: bytes, sequence: int) -> None:
        """Record a refused call."""
        numbers = self._numbers.setdefault(producer, [])
        place = bisect_left(numbers, sequence)
        if numbers[place : place + 1] != [sequence]:
            numbers.insert(place, sequence)
            del numbers[NUMBERS_MAX:]
        self._numbers.move_to_end(producer)
        if len(self._numbers) > self._producers_max:
            self._numbers.popitem(last=False)

    def settle(self, producer: bytes, sequence: int) -> None:
        """Remove a call that is stored now, or that will never be stored."""
        numbers = self._numbers.get(producer, [])
        place = bisect_left(numbers, sequence)
        if numbers[place : place + 1] == [sequence]:
            del numbers[place]
            if not numbers:
                del self._numbers[producer]

    def first_before(
        self, producer: bytes, sequence: int, coming: Container[int] = ()
    ) -> int | None:
        """Return the lowest refused number below this one that is not in `coming`; None if none is.

        `coming` has the numbers that will be stored before this one anyway.
        """
        for number in self._numbers.get(producer, ()):
            if number >= sequence:
                break
            if number not in coming:
                return number
        return None
