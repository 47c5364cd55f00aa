"""Which calls of producers were refused and must come again before later ones are taken.

A producer's number counts as stored when one above it is. What was refused would so be taken for a
repetition, and be lost without a word, if a later call were stored first. This is known for as long
as the database is open: who opens it again has waited for the outcome of every call.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Container
from typing import Final

from siltstone.store.writer.producers import PRODUCERS_MAX

# A producer that sends on without a look at its errors is remembered by its lowest numbers.
NUMBERS_MAX: Final = 1024


class RefusedSequences:
    """The numbers that each producer owes; whoever shares it must hold a lock.

    Of too many producers those that were refused last are kept.
    """

    def __init__(self, *, producers_max: int = PRODUCERS_MAX) -> None:
        self._producers_max = producers_max
        self._numbers: OrderedDict[bytes, list[int]] = OrderedDict()

    def add(self, producer: bytes, sequence: int) -> None:
        """Take note of a call that was refused."""
        numbers = self._numbers.setdefault(producer, [])
        place = bisect_left(numbers, sequence)
        if numbers[place : place + 1] != [sequence]:
            numbers.insert(place, sequence)
            del numbers[NUMBERS_MAX:]
        self._numbers.move_to_end(producer)
        if len(self._numbers) > self._producers_max:
            self._numbers.popitem(last=False)

    def settle(self, producer: bytes, sequence: int) -> None:
        """Take note of a call that is stored, or that will never be."""
        numbers = self._numbers.get(producer, [])
        place = bisect_left(numbers, sequence)
        if numbers[place : place + 1] == [sequence]:
            del numbers[place]
            if not numbers:
                del self._numbers[producer]

    def first_before(
        self, producer: bytes, sequence: int, coming: Container[int] = ()
    ) -> int | None:
        """Return the lowest number that must come before this one, but for those that do."""
        for number in self._numbers.get(producer, ()):
            if number >= sequence:
                break
            if number not in coming:
                return number
        return None
