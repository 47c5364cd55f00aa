"""Rows as parallel lists: one class from the packet to the frame. Compiled.

Invariants: a list is empty or has one item for each row; a batch does not change after it was
handed on; the rows of a `checked` batch are valid and are not checked again. This module
imports no other module of Siltstone: packets and programs fill batches, the store reads them.

Flags have QoS in bits 0 and 1, retain in 2, DUP in 3. DUP belongs to one transmission of a message
and is not stored.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

QOS_BITS: Final = 3
RETAIN: Final = 4
STORED_FLAGS: Final = 7
DUP: Final = 8


@mypyc_attr(acyclic=True)
class RowBatch:
    """Rows with topics, values, flags, properties and publishers.

    `properties` is empty if no row has any. If `publishers` is empty, all rows have `publisher`.

    `checked` means that topics, sizes and UTF-8 are valid, and that the totals are true:
    `shared_flags` are the stored flags of all rows, or -1 if `flags` must be read because they
    differ; `any_flags` has each bit that any row has; `size_bytes` is the size of the lists of
    bytes. Of other batches, `measure` sets the totals. `flags` may be empty if all rows
    share them.
    """

    def __init__(self) -> None:
        self.topics: list[bytes] = []
        self.values: list[bytes] = []
        self.flags: list[int] = []
        self.properties: list[bytes] = []
        self.publisher = b""
        self.publishers: list[bytes] = []
        self.checked = False
        self.shared_flags = -1
        self.any_flags = 0
        self.size_bytes = 0

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.topics)

    def measure(self) -> None:
        """Set the totals by walking over the rows. It does not check them."""
        size = 0
        for topic in self.topics:
            size += len(topic)
        for value in self.values:
            size += len(value)
        for item in self.properties:
            size += len(item)
        for name in self.publishers:
            size += len(name)
        self.size_bytes = size
        flags = self.flags
        if flags:
            shared = flags[0] & STORED_FLAGS
            any_flags = 0
            for each in flags:
                any_flags |= each
                if each & STORED_FLAGS != shared:
                    shared = -1
            self.shared_flags = shared
            self.any_flags = any_flags

    def extend(self, other: RowBatch) -> None:
        """Add the rows of a batch whose totals are set. Not for a batch that others have."""
        before = len(self.topics)
        count = len(other.topics)
        if count == 0:
            return
        if before == 0:
            self.publisher = other.publisher
            self.shared_flags = other.shared_flags
            self.checked = other.checked
        elif not other.checked:
            self.checked = False
        if self.shared_flags < 0 or self.shared_flags != other.shared_flags:
            if self.shared_flags >= 0:
                self.flags = [self.shared_flags] * before
                self.shared_flags = -1
            if other.shared_flags >= 0:
                self.flags += [other.shared_flags] * count
            else:
                self.flags.extend(other.flags)
        if self.publishers or other.publishers or self.publisher != other.publisher:
            if not self.publishers:
                self.publishers = [self.publisher] * before
            _add_publishers(self.publishers, other, count)
        if self.properties or other.properties:
            if not self.properties:
                self.properties = [b""] * before
            self.properties += other.properties or [b""] * count
        self.topics.extend(other.topics)
        self.values.extend(other.values)
        self.any_flags |= other.any_flags
        self.size_bytes += other.size_bytes

    def stored(self) -> RowBatch:
        """Return the rows as they are stored, without DUP; their totals are set."""
        if self.shared_flags >= 0 or self.any_flags & DUP == 0:
            return self
        batch = RowBatch()
        batch.extend(self)
        batch.flags = [flags & STORED_FLAGS for flags in self.flags]
        batch.any_flags &= STORED_FLAGS
        return batch

    def pick(self, rows: list[int]) -> RowBatch:
        """Return a batch of these rows, in this order, with its totals."""
        picked = RowBatch()
        picked.topics = [self.topics[row] for row in rows]
        picked.values = [self.values[row] for row in rows]
        picked.publisher = self.publisher
        if self.publishers:
            picked.publishers = [self.publishers[row] for row in rows]
        if self.properties:
            picked.properties = [self.properties[row] for row in rows]
        picked.shared_flags = self.shared_flags
        picked.any_flags = self.any_flags
        if self.shared_flags < 0:
            picked.flags = [self.flags[row] for row in rows]
        picked.checked = self.checked
        picked.measure()
        return picked


def _add_publishers(publishers: list[bytes], batch: RowBatch, count: int) -> None:
    """Add the publisher of each row of a batch. Most batches of a broker have a single row."""
    if batch.publishers:
        publishers.extend(batch.publishers)
    elif count == 1:
        publishers.append(batch.publisher)
    else:
        publishers += [batch.publisher] * count
