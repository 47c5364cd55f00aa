"""Which calls of a flush their producers have sent before.

A flush keeps what the same calls would have left one by one: a call whose number was stored, or is
below one that was, is a repetition; one that will be refused for a bad topic makes no other so.
"""

from __future__ import annotations

from collections.abc import Sequence

from siltstone.store.log.write.cook import Call, has_sound_topics
from siltstone.store.writer.producers import ProducerTable


def without_repetitions(calls: Sequence[Call], stored: ProducerTable) -> list[Call]:
    """Return the calls that are to be stored, in order, those with bad topics among them."""
    fresh: list[Call] = []
    sent: dict[bytes, _Sent] = {}
    for call in calls:
        if call.producer:
            if stored.holds(call.producer, call.sequence):
                continue
            before = sent.get(call.producer)
            if before is None:
                before = sent[call.producer] = _Sent()
            elif before.makes_repetition(call):
                continue
            before.add(call)
        fresh.append(call)
    return fresh


class _Sent:
    """The calls of one producer in a flush, in order."""

    def __init__(self) -> None:
        self._highest = -1
        # The highest that will be stored, as far as that was looked for; and those it was not.
        self._stored = -1
        self._unchecked: list[Call] = []

    def add(self, call: Call) -> None:
        """Take note of a call that is no repetition."""
        self._highest = max(self._highest, call.sequence)
        self._unchecked.append(call)

    def makes_repetition(self, call: Call) -> bool:
        """Tell whether a call before it will make this one a repetition."""
        if call.sequence > self._highest:
            return False
        # Few are not above what came before, and only for these all of it is looked at, once.
        for other in self._unchecked:
            if other.sequence > self._stored and has_sound_topics(other):
                self._stored = other.sequence
        self._unchecked.clear()
        return call.sequence <= self._stored
