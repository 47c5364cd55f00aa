"""Observers, which receive every published message; bridges are observers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from siltstone.broker.publish.outcomes import Settling
from siltstone.errors import OutcomeUnknownError, OverloadedError
from siltstone.mqtt.publish import PublishBatch

# Receives the outcome of a part of a batch.
SettlePart = Callable[[PublishBatch, Exception | None], None]


class PublishObserver(Protocol):
    """A receiver of all published messages."""

    def take(self, batch: PublishBatch, publisher: bytes, settle: SettlePart | None) -> int:
        """Take messages; return how often `settle` will be called, later."""

    def refused(self, batch: PublishBatch, publisher: bytes) -> list[int]:
        """Return the indexes of messages that it has no room for; they must be published again."""


class PublishObservers:
    """All observers of a broker."""

    def __init__(self) -> None:
        self._taps: list[PublishObserver] = []

    def __len__(self) -> int:
        return len(self._taps)

    def add(self, tap: PublishObserver) -> None:
        """Add an observer; it receives messages that are published from now on."""
        self._taps.append(tap)

    def refused(self, batch: PublishBatch, publisher: bytes) -> list[int]:
        """Return the indexes of messages that at least one observer has no room for.

        Call it before a batch is stored or sent, because the publisher sends the refused messages
        again. The observers have room for the others if `take` follows in the same turn of the
        loop.
        """
        found: set[int] = set()
        for tap in self._taps:
            found.update(tap.refused(batch, publisher))
        return sorted(found)

    def take(self, batch: PublishBatch, publisher: bytes, settle: SettlePart | None) -> int:
        """Give a batch to all observers; return how often `settle` will be called."""
        waits = 0
        for tap in self._taps:
            waits += tap.take(batch, publisher, settle)
        return waits

    def take_again(
        self, batch: PublishBatch, publisher: bytes, then: Callable[[Exception | None], None]
    ) -> None:
        """Give all observers messages that are stored, but that a crash may have kept from them.

        `then` is called when all observers have the messages, or with the first error.
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
        """Give one message to all observers that do not have it yet, or to none of them.

        `had` contains the numbers of the observers that have the message; it is updated. `then` is
        called when all observers have it, or with the first error.
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
