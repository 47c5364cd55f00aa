"""The commit log of a shard: every change becomes durable through it. Compiled.

The changes are rows and key-value changes, the next segment (ROLL), the next generation, dropped
slabs, and settings.

A layout prepares a change as a record and gives it to the log. The log lets a replica store the
record. When `commit` returns, the record has the promised durability: with `LocalLog` and `sync` it
is on the disk of this machine. Then the layout publishes it to readers, and the writer notifies the
callers.

Invariants:
- the log commits one record of a shard at a time, in order. The thread of the shard commits rows,
  rolls and generations. Other threads may commit drops and settings, and the log gives them their
  order: they do not depend on the rows around them;
- if `commit` raises RetryError, the record was not stored, and the layout forgets the structure
  that it learned for the record;
- no reader sees a record before it is committed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Protocol

from mypy_extensions import mypyc_attr


class RecordKind(IntEnum):
    """The kinds of records."""

    ROWS = 1
    ROLL = 2
    GENERATION = 3
    DROP = 4
    SETTINGS = 5
    KV = 6


@mypyc_attr(allow_interpreted_subclasses=True)
class Record:
    """One change of a shard, prepared by a layout."""

    def __init__(self, kind: RecordKind) -> None:
        self.kind = kind


class Replica(Protocol):
    """The files of one shard on this machine."""

    def store(self, record: Record) -> None:
        """Take a record. It may be durable already; readers do not see it yet.

        Raises: StorageFullError and OverloadedError, with nothing stored; PoisonedError.
        """

    def sync(self) -> None:
        """Make all stored records durable. Raises: PoisonedError."""

    def publish(self) -> None:
        """Make all stored records visible to readers."""


class CommitLog(Protocol):
    """Decides when a record is committed."""

    def commit(self, record: Record, replica: Replica, *, sync: bool) -> None:
        """Wait until the record is committed. `sync` asks that it is durable on this machine.

        A shared log may be durable without the disk of this machine. Raises: the errors of the
        replica; NotLeaderError and OutcomeUnknownError of a shared log.
        """


class LocalLog:
    """The commit log of a shard that is stored on one machine only: its files are the log."""

    def commit(self, record: Record, replica: Replica, *, sync: bool) -> None:
        """Store a record in the files of this machine; sync them if `sync` is set."""
        replica.store(record)
        if sync:
            replica.sync()


LOCAL_LOG: Final = LocalLog()
