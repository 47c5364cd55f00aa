"""The digests and numbers of the contents that were written, in about 24 bytes each.

A dictionary would take six times as much. With half a million payloads that is more memory than a
small device has. The tables use open addressing with linear probing. There are many small tables,
selected by the digest, because a table grows in one step and blocks all other threads meanwhile.
"""

from __future__ import annotations

from array import array
from typing import Final

DIGEST_BYTES: Final = 16
_TABLES: Final = 1024
_SLOTS_MIN: Final = 8
_HASH_BYTES: Final = 8


class DigestTable:
    """Numbers digests from 1 on, in the order in which they are first seen."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self._tables = [array("I", bytes(4 * _SLOTS_MIN)) for _ in range(_TABLES)]
        self._counts = [0] * _TABLES

    def __len__(self) -> int:
        return len(self._digests) // DIGEST_BYTES

    def number_of(self, digest: bytes) -> tuple[int, bool]:
        """Return the number of a digest, and whether it is new."""
        begins = int.from_bytes(digest[:_HASH_BYTES], "little")
        which = begins % _TABLES
        slots = self._tables[which]
        slot = self._find(slots, begins // _TABLES, digest)
        known: int = slots[slot]
        if known:
            return known, False
        self._digests += digest
        number = len(self)
        slots[slot] = number
        self._counts[which] += 1
        if self._counts[which] * 2 > len(slots):
            self._grow(which)
        return number, True

    def _find(self, slots: array[int], begins: int, digest: bytes) -> int:
        """Return the slot of a digest, or the free slot for it."""
        digests = self._digests
        mask = len(slots) - 1
        slot = begins & mask
        while number := slots[slot]:
            end = number * DIGEST_BYTES
            if digests[end - DIGEST_BYTES : end] == digest:
                break
            slot = (slot + 1) & mask
        return slot

    def _grow(self, which: int) -> None:
        old = self._tables[which]
        slots = array("I", bytes(8 * len(old)))
        for number in old:
            if number:
                end = number * DIGEST_BYTES
                digest = bytes(self._digests[end - DIGEST_BYTES : end])
                begins = int.from_bytes(digest[:_HASH_BYTES], "little")
                slots[self._find(slots, begins // _TABLES, digest)] = number
        self._tables[which] = slots
