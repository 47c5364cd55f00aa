"""The operations of a transaction that its committer executes: plain values. Compiled.

Nothing here was checked against the data; the committer does that.
"""

from __future__ import annotations

import hashlib
from typing import Final

from mypy_extensions import mypyc_attr

from siltstone.errors import UsageError
from siltstone.store.kv.keys import TIME_END
from siltstone.store.tx.arguments import text_of, whole_number
from siltstone.store.tx.commit.conflicts import ReadRange
from siltstone.store.writer.queue import Queued
from siltstone.topic.grammar import TopicFilter

# As a time of a write: the commit assigns the next time of its shard. As an end of a range:
# everything before the times that the commit assigns. No sum of times has this value by accident.
MONOTONIC: Final = -2_000_000_000_000_000_001
# As a time of a look-up: the newest row of the topic.
LATEST: Final = -2_000_000_000_000_000_002

NO_SERIAL: Final = -1
# The term and the generation of a transaction that depends on neither.
ANY_TERM: Final = 0
ANY_GENERATION: Final = 0
NO_ID: Final = b""
SERIAL_BYTES: Final = 8
COUNT_BYTES: Final = 8
COUNT_MAX: Final = (1 << 63) - 1
ID_BYTES_MAX: Final = 1024


class CommitSerial:
    """The type of COMMIT_SERIAL, a value that the commit replaces by its own serial."""

    def __repr__(self) -> str:
        """Return the name of the constant."""
        return "COMMIT_SERIAL"


# Stored as 8 bytes, big endian, so that later commits have greater values.
COMMIT_SERIAL: Final = CommitSerial()


class Addition:
    """The value of a counter row: the commit adds the amount to the number in the row.

    A counter row has its number as 8 bytes, signed and big endian, then the note of the last
    addition. A missing row counts as 0, and a row whose number becomes 0 is deleted.
    """

    def __init__(self, amount: int, note: bytes) -> None:
        self.amount = amount
        self.note = note


Value = bytes | CommitSerial | Addition


class Requirement:
    """A row that must exist, with this value unless it is None, or must not exist.

    A guard is a requirement whose value identifies the owner.
    """

    def __init__(
        self, topic: bytes, time_us: int, present: bool, value: bytes | None, guard: bool
    ) -> None:
        self.topic = topic
        self.time_us = time_us
        self.present = present
        self.value = value
        self.guard = guard


class Deletion:
    """Rows to delete: topics of a filter in [since, until), where until may be MONOTONIC."""

    def __init__(self, topic_filter: TopicFilter, since_us: int, until_us: int) -> None:
        self.filter = topic_filter
        self.since_us = since_us
        self.until_us = until_us


@mypyc_attr(acyclic=True)
class Operations(Queued):
    """One transaction as submitted: its context, and its changes if the context is still valid.

    Deletions are done before writes. A write that a later deletion covers is not in the list any
    more. The time of a write is negative if the commit assigns it. The committer sets serial and
    duplicate.
    """

    def __init__(self, term: int, generation: int, latest: bool, id_digest: bytes) -> None:
        super().__init__()
        self.term = term
        self.generation = generation
        # Whether the client asked for the current generation without a number.
        self.latest = latest
        self.id_digest = id_digest
        # The serial at which the transaction reads; NO_SERIAL if it has not read.
        self.read_serial = NO_SERIAL
        # None if there are none: most transactions have only some of them.
        self.reads: list[ReadRange] | None = None
        self.requirements: list[Requirement] | None = None
        self.deletions: list[Deletion] | None = None
        self.deletes_by_wildcard = False
        # Whether any of the writes is an Addition.
        self.adds = False
        self.writes: dict[tuple[bytes, int], Value] = {}
        self.serial = NO_SERIAL
        self.duplicate = False

    def copied(self) -> Operations:
        """Return the same transaction, with an outcome of its own. The changes are shared."""
        copied = Operations(self.term, self.generation, self.latest, self.id_digest)
        copied.size_bytes = self.size_bytes
        copied.read_serial = self.read_serial
        copied.reads = self.reads
        copied.requirements = self.requirements
        copied.deletions = self.deletions
        copied.deletes_by_wildcard = self.deletes_by_wildcard
        copied.adds = self.adds
        copied.writes = self.writes
        return copied

    def changes_nothing(self) -> bool:
        """Return whether there is nothing to store."""
        return not self.writes and self.deletions is None

    def add_read(self, read: ReadRange) -> None:
        """Add a range that was read."""
        if self.reads is None:
            self.reads = []
        self.reads.append(read)

    def add_requirement(self, requirement: Requirement) -> None:
        """Add a requirement."""
        if self.requirements is None:
            self.requirements = []
        self.requirements.append(requirement)

    def add_deletion(self, deletion: Deletion) -> None:
        """Add a deletion."""
        if self.deletions is None:
            self.deletions = []
        self.deletions.append(deletion)


def digest_of(given: object) -> bytes:
    """Return the digest of a transaction id, which is stored. Raises: UsageError."""
    transaction_id = text_of("id", given)
    if not transaction_id:
        raise UsageError("a transaction id must not be empty")
    try:
        encoded = transaction_id.encode()
    except UnicodeEncodeError as exc:
        raise UsageError(f"a transaction id must be valid Unicode: id={transaction_id!a}") from exc
    if len(encoded) > ID_BYTES_MAX:
        raise UsageError(
            f"a transaction id is too long: size_bytes={len(encoded)} max={ID_BYTES_MAX}"
        )
    return hashlib.blake2b(encoded, digest_size=16).digest()


def count_in(value: bytes | None) -> int:
    """Return the number of a counter row. Raises: UsageError for a row that is too short."""
    if value is None:
        return 0
    if len(value) < COUNT_BYTES:
        raise UsageError(f"the value is too short for a count: size_bytes={len(value)}")
    return int.from_bytes(value[:COUNT_BYTES], "big", signed=True)


def start_of(since_us: object, until_us: int) -> int:
    """Return the start of a range with this end. Raises: UsageError for a negative time."""
    since = whole_number("since_us", since_us)
    if since < 0 or until_us < 0:
        raise UsageError(f"times must be 0 or more: since_us={since} until_us={until_us}")
    return since


def end_of(until_us: object) -> int:
    """Return the end of a range as a number; TIME_END for None and for greater values.

    Raises: UsageError.
    """
    if until_us is None:
        return TIME_END
    return min(whole_number("until_us", until_us), TIME_END)
