"""Find the calls of a flush that are repetitions.

The result is the same as if the calls were committed one by one. A call is a repetition if its
number or a higher one of its producer was stored. A call that will be refused for a bad topic does
not make another call a repetition.
"""

from __future__ import annotations

from collections.abc import Sequence

from siltstone.store.log.write.frame_builder import Call, has_sound_topics
from siltstone.store.writer.producers import ProducerTable


def without_repetitions(calls: Sequence[Call], stored: ProducerTable) -> list[Call]:
    """Return the calls to store, in order. Calls with bad topics are included."""
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
        # The highest number that will be stored, of the checked calls; and the unchecked calls.
        self._stored = -1
        self._unchecked: list[Call] = []

    def add(self, call: Call) -> None:
        """Add a call that is not a repetition."""
        self._highest = max(self._highest, call.sequence)
        self._unchecked.append(call)

    def makes_repetition(self, call: Call) -> bool:
        """Return whether an earlier call makes this one a repetition."""
        if call.sequence > self._highest:
            return False
        # Most numbers are above all earlier ones. Otherwise check the earlier topics, once each.
        for other in self._unchecked:
            if other.sequence > self._stored and has_sound_topics(other):
                self._stored = other.sequence
        self._unchecked.clear()
        return call.sequence <= self._stored
