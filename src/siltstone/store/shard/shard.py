"""A shard of a database, as this process takes part in it: its role decides what can be done.

Invariant: one LEADER writes the files of a shard. Any number of READERs, in this process or in
others, read them at the same time. The shards of one database may have different roles here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from siltstone.errors import SiltstoneError
from siltstone.store.log.slab import Slab
from siltstone.store.slab.manifest import SlabId


class Role(Enum):
    """What this process does with the files of a shard.

    A LEADER decides what is written. A FOLLOWER writes the records that the leader, at another site
    of the cluster, has committed. A READER reads the files that another process writes or has
    written.
    """

    LEADER = "leader"
    FOLLOWER = "follower"
    READER = "reader"


@dataclass(frozen=True, slots=True)
class Roles:
    """The role of each shard of a database: those in `others` by number, and one for the rest."""

    rest: Role
    others: Mapping[int, Role] = field(default_factory=dict)

    def of(self, number: int) -> Role:
        """Return the role of a shard."""
        return self.others.get(number, self.rest)

    @property
    def leads_any(self) -> bool:
        """Whether this process may lead a shard."""
        return self.rest is Role.LEADER or Role.LEADER in self.others.values()

    @property
    def leads_all(self) -> bool:
        """Whether this process leads every shard, also those that are added later."""
        return self.rest is Role.LEADER and all(
            role is Role.LEADER for role in self.others.values()
        )


LEADING: Final = Roles(Role.LEADER)
READING: Final = Roles(Role.READER)


class Shard(Protocol):
    """What every role can do: read. All methods may be called from any thread."""

    @property
    def number(self) -> int:
        """The number of the shard in its database."""

    @property
    def role(self) -> Role:
        """The role of this process."""

    def slabs(self) -> tuple[Slab, ...]:
        """Return the slabs by generation. Raises: ClosedError, CorruptionError."""

    def slab(self, slab: SlabId) -> Slab:
        """Return a slab. Raises: SlabDroppedError, NotFoundError, ClosedError."""

    def ended(self, slab: SlabId) -> bool:
        """Return whether a slab accepts no more rows, and all its rows are known here."""

    def slab_bytes(self, slab: SlabId) -> int:
        """Return the disk space of a slab in bytes."""

    def end(self) -> int:
        """Return the serial after the last readable row, as `end_of` does."""

    def close(self) -> SiltstoneError | None:
        """Store the queued calls and release the files; return the error of the last sync."""


def end_of(slabs: Iterable[Slab]) -> int:
    """Return the serial after the last readable row of slabs.

    After damage it is one serial more: a reader there must read again, and gets the error.
    """
    return max(
        max(slab.record.first_serial, slab.next_serial() + slab.is_damaged) for slab in slabs
    )
