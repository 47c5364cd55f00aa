"""Those who get every message that is published, wherever else it goes; bridges are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from siltstone.broker.publish.outcomes import Settling
from siltstone.errors import OutcomeUnknownError, OverloadedError
from siltstone.mqtt.publish import PublishBatch

# Hears what became of a part of a batch.
SettlePart = Callable[[PublishBatch, Exception | None], None]


class PublishObserver(Protocol):
    """One of them."""

    def take(self, batch: PublishBatch, publisher: bytes, settle: SettlePart | None) -> int:
        """Take messages; return how often `settle` will be called, later."""

    def refused(self, batch: PublishBatch, publisher: bytes) -> list[int]:
        """Return the indexes of messages that it has no room for, and that must come again."""


class PublishObservers:
    """All of them."""

    def __init__(self) -> None:
        self._taps: list[PublishObserver] = []

    def add(self, tap: PublishObserver) -> None:
        """Let one more have what is published from now on."""
        self._taps.append(tap)

    def refused(self, batch: PublishBatch, publisher: bytes) -> list[int]:
        """Return the indexes of messages that one of them has no room for.

        Ask before a batch is stored or sent to anybody: its publisher sends these again. What is
        left of it has room when it is given to all within the same turn of the loop.
        """
        found: set[int] = set()
        for tap in self._taps:
            found.update(tap.refused(batch, publisher))
        return sorted(found)

    def take(self, batch: PublishBatch, publisher: bytes, settle: SettlePart | None) -> int:
        """Give a batch to all; return how often `settle` will be called."""
        waits = 0
        for tap in self._taps:
            waits += tap.take(batch, publisher, settle)
        return waits

    def take_again(
        self, batch: PublishBatch, publisher: bytes, then: Callable[[Exception | None], None]
    ) -> None:
        """Give what is stored, and may have been missed because a crash came between; go on when
        all have it, or with the error of the first that has not.
        """
        settling = Settling(then)
        settling.waits += self.take(batch, publisher, settling.settled)
        settling.settled(None, None)

    def take_missing(
        self,
        batch: PublishBatch,
        publisher: bytes,
        had: set[int],
        then: Callable[[Exception | None], None],
    ) -> None:
        """Give one message to those that do not have it yet, all or none of them; go on when all
        have it, or with the error of the first that has not. `had` holds the numbers of those that
        have it.
        """
        missing = [(number, tap) for number, tap in enumerate(self._taps) if number not in had]
        if any(tap.refused(batch, publisher) for _, tap in missing):
            then(OverloadedError("the spool of a bridge is full"))
            return
        settling = Settling(then)
        try:
            for number, tap in missing:
                waits = tap.take(batch, publisher, partial(_took, settling, had, number))
                settling.waits += waits
                if waits == 0:
                    had.add(number)
        except BaseException:
            settling.give_up(OutcomeUnknownError("internal error: see the log of the broker"))
            raise
        settling.settled(None, None)


def _took(
    settling: Settling,
    had: set[int],
    number: int,
    part: PublishBatch,
    error: Exception | None,
) -> None:
    if error is None:
        had.add(number)
    settling.settled(part, error)
