"""The interface between a replicated shard and the cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from siltstone.errors import RetryError, UsageError
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.writer.replication.follower import FollowerStatus, PeerProgress
from siltstone.store.writer.replication.messages import DIGEST_BYTES

if TYPE_CHECKING:
    from siltstone.store.shard.replicated.log import ReplicatedLog


S = TypeVar("S", DatabaseSettings, KeyValueSettings)
# The names of key-value databases in a cluster begin with it.
KEYVALUE_PREFIX: Final = "kv/"


class NotLeaderError(RetryError):
    """Another site leads the shard, or none: nothing happened; ask the leader."""


class OutOfOrderError(RetryError):
    """An earlier call of the same sender is not stored: nothing happened; send both in order."""


class ClosedProducerError(UsageError):
    """The sender of the call was closed, and no call of it is stored any more."""


class UnknownVersionError(RetryError):
    """The call has a version that the leader cannot read: nothing happened; wait until the leader
    was upgraded, or another site leads.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """The state of a replicated shard at one moment, for other threads."""

    status: FollowerStatus
    reason: str
    progress: PeerProgress
    term: int
    leader: str
    leads: bool
    # The sequence of the last durable mark.
    synced: int
    # The index of the oldest record that this leader has published and not counted, 0 if none.
    waiting: int = field(default=0)
    # Whether a change that counted, or the mark, waits for space on the disk.
    is_full: bool = field(default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Founding(Generic[S]):
    """The values on which the sites agreed when a replicated database was created."""

    salt: int
    created_us: int
    settings: S


def cluster_name(keyvalue: str) -> str:
    """Return the name of a key-value database in a cluster: databases of messages have others."""
    return f"{KEYVALUE_PREFIX}{keyvalue}"


def identity_of_map(name: str, founding: Founding[Any]) -> bytes:
    """Return the identity of a key-value database with this name in the cluster, which all sites
    derive alike.
    """
    text = f"{name} {founding.salt} {founding.created_us}"
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


class Replication(Protocol):
    """The cluster, as the shards of a store see it. All methods may be called from any thread."""

    @property
    def site(self) -> str:
        """The name of this site."""

    @property
    def epoch(self) -> int:
        """The number of times that the logs of this cluster have begun; 1 if they never began
        again.
        """

    def boot(self) -> int:
        """Return a number that was never used before, for a shard that is opened."""

    def found(self, database: str, settings: S) -> Founding[S]:
        """Create a replicated database, or learn how another site created it.

        Raises: OutcomeUnknownError while too few sites are there.
        """

    def found_from_files(
        self, database: str, founding: Founding[DatabaseSettings]
    ) -> tuple[bytes, ...]:
        """Create the logs of a database that only this site has; return the nonces of their
        GENESIS, which is trimmed. The other sites open it after this site attached a shard.

        Raises: UsageError if the cluster has another database of this name; OutcomeUnknownError.
        """

    def drop(self, database: str, identity: bytes) -> None:
        """Decide that a replicated database is dropped at all sites, durably; each deletes its own
        copy then.

        Raises: UsageError if the cluster has another database of this name, or none; RetryError,
        OutcomeUnknownError.
        """

    def producer(self) -> bytes:
        """Return a name for a producer that was never used before, of 16 bytes."""

    def attach(self, log: ReplicatedLog) -> None:
        """Read the shared log of a shard from the position of its view on, and look after it."""

    def detach(self, log: ReplicatedLog) -> None:
        """Read no further: the shard is being closed."""

    def publish(self, log: ReplicatedLog, data: bytes) -> None:
        """Publish a message to the shared log. It may be lost."""

    def fetch(self, log: ReplicatedLog, sequence: int, reason: str) -> None:
        """Read the shared log again from this sequence on."""

    def copy(self, log: ReplicatedLog, first: int) -> None:
        """Copy the shard from another site, because the log begins only at this sequence. Then call
        `install` of the log. It may be asked for again while a copy is under way.
        """

    def send(
        self, log: ReplicatedLog, site: str, call: bytes, then: Callable[[bytes | None], None]
    ) -> None:
        """Send a call to another site. `then` gets the answer, or None if there is none."""
