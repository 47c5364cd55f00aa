"""The last stored sequence of each idempotent producer.

A producer numbers its calls upwards. A call whose number is not above the last stored one is
acknowledged and not stored again. The table is stored in the segments: a state frame holds the
whole table, and each rows frame holds the entries that it adds. If there are too many producers,
the least recently used ones are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import Final

from siltstone.errors import UsageError
from siltstone.store.segment.frame import PRODUCER

PRODUCERS_MAX: Final = 100_000


def producer_key(name: str) -> bytes:
    """Return the 16-byte key of a producer's name."""
    return blake2b(name.encode(), digest_size=16).digest()


class ProducerTable:
    """The last sequence by producer. It belongs to the committer of the shard.

    Any thread may call `holds`.
    """

    def __init__(self, *, producers_max: int = PRODUCERS_MAX) -> None:
        self._producers_max = producers_max
        self._sequences: OrderedDict[bytes, int] = OrderedDict()

    def holds(self, producer: bytes, sequence: int) -> bool:
        """Return whether this call was stored before."""
        return sequence <= self._sequences.get(producer, -1)

    def apply(self, encoded: bytes | memoryview) -> None:
        """Apply the entries of a frame."""
        for producer, sequence in PRODUCER.iter_unpack(encoded):
            # Assign, then move: other threads must never see the producer absent.
            self._sequences[producer] = sequence
            self._sequences.move_to_end(producer)
        while len(self._sequences) > self._producers_max:
            self._sequences.popitem(last=False)

    def encode(self) -> bytes:
        """Return the whole table, the least recently used producer first."""
        return b"".join(PRODUCER.pack(*item) for item in self._sequences.items())


def producer_of(producer: object) -> tuple[bytes, int]:
    """Return the key and the sequence of a `producer` argument. Raises: UsageError."""
    match producer:
        case (str(name), int(sequence)) if not isinstance(sequence, bool):
            if not 0 <= sequence < 1 << 64:
                raise UsageError(
                    f"the sequence of a producer must be from 0 to 2**64 - 1, got {sequence}"
                )
            try:
                return producer_key(name), sequence
            except UnicodeEncodeError as exc:
                raise UsageError(
                    f"the name of a producer must be valid Unicode, got {producer!r}"
                ) from exc
    raise UsageError(
        f"producer must be a name and a number, such as ('loader', 1), got {producer!r}"
    )
