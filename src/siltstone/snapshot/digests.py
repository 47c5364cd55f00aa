"""Which contents were written: their digests and numbers, in some 24 bytes each.

A dictionary would take six times as much, and half a million payloads more memory than a small
device has. Open addressing: `slots` has the number of a content where its digest says, or behind.
"""

from __future__ import annotations

from array import array
from typing import Final

DIGEST_BYTES: Final = 16
_SLOTS_MIN: Final = 1024


class DigestTable:
    """Numbers digests from 1 on, in the order in which they are first met."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self._slots = array("I", bytes(4 * _SLOTS_MIN))

    def __len__(self) -> int:
        return len(self._digests) // DIGEST_BYTES

    def number_of(self, digest: bytes) -> tuple[int, bool]:
        """Return the number of a digest, and whether it is new."""
        slot = self._find(digest)
        known = self._slots[slot]
        if known:
            return known, False
        self._digests += digest
        number = len(self)
        self._slots[slot] = number
        if number * 2 > len(self._slots):
            self._grow()
        return number, True

    def _find(self, digest: bytes | bytearray) -> int:
        """Return the slot that a digest has, or could take."""
        slots, digests = self._slots, self._digests
        mask = len(slots) - 1
        slot = int.from_bytes(digest[:8], "little") & mask
        while number := slots[slot]:
            end = number * DIGEST_BYTES
            if digests[end - DIGEST_BYTES : end] == digest:
                break
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        self._slots = array("I", bytes(8 * len(self._slots)))
        for number in range(1, len(self) + 1):
            end = number * DIGEST_BYTES
            self._slots[self._find(self._digests[end - DIGEST_BYTES : end])] = number
