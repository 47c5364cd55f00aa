"""Batches of many connections, gathered into the columns of one append.

A publisher or flags that all rows share are passed as one value, so that the store need not process
them row by row.
"""

from __future__ import annotations

from typing import Final

from siltstone.mqtt.publish import PublishBatch

# QoS and retain. DUP is not stored: it belongs to one transmission, not to the message.
STORED_FLAGS: Final = 7
# Bytes of memory that a waiting message takes in addition to its own bytes.
_OVERHEAD: Final = 64


class GatheredPublishes:
    """Rows of one append, in the order of their arrival."""

    def __init__(self) -> None:
        self.topics: list[bytes] = []
        self.payloads: list[bytes] = []
        self.flags: list[int] = []
        self.properties: list[bytes] = []
        self.size_bytes = 0
        # Publishers, run-length encoded: a name, and the number of its consecutive rows.
        self._names: list[bytes] = []
        self._counts: list[int] = []
        self._mixed_flags = False

    def __len__(self) -> int:
        return len(self.topics)

    def add(self, batch: PublishBatch, publisher: bytes) -> int:
        """Add a batch; return its size in bytes."""
        before = len(self.topics)
        count = len(batch.topics)
        self.topics.extend(batch.topics)
        self.payloads.extend(batch.payloads)
        size = _OVERHEAD * count
        for index in range(count):
            flags = batch.flags[index] & STORED_FLAGS
            if self.flags and flags != self.flags[0]:
                self._mixed_flags = True
            self.flags.append(flags)
            size += len(batch.topics[index]) + len(batch.payloads[index])
        if batch.properties:
            while len(self.properties) < before:
                self.properties.append(b"")
            self.properties.extend(batch.properties)
            for properties in batch.properties:
                size += len(properties)
        if self._names and self._names[-1] == publisher:
            self._counts[-1] += count
        else:
            self._names.append(publisher)
            self._counts.append(count)
        self.size_bytes += size
        return size

    def has(self, publisher: bytes) -> bool:
        """Return whether any row has this publisher."""
        return publisher in self._names

    def shared_flags(self) -> int | list[int]:
        """Return one value if all rows have the same flags, otherwise the flags of each row."""
        return self.flags if self._mixed_flags else self.flags[0]

    def publishers(self) -> bytes | list[bytes]:
        """Return one name if all rows have one publisher, otherwise the publisher of each row."""
        first = self._names[0]
        if len(self._names) == 1:
            return first
        names: list[bytes] = []
        for index in range(len(self._names)):
            names += [self._names[index]] * self._counts[index]
        return names

    def all_properties(self) -> list[bytes] | None:
        """Return the properties of each row; None if no row has any."""
        if not self.properties:
            return None
        while len(self.properties) < len(self.topics):
            self.properties.append(b"")
        return self.properties
