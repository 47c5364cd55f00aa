"""What is kept of a durable session and of a share group while nobody looks: values, no code.

Places are numbers of rows in the store: every row of a shard has its serial, so one serial a shard
says how far a session has read, however many filters it has. Times are µs of the wall clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

NEVER_EXPIRES: Final = 0xFFFF_FFFF
# As the shard of a message in flight: it is no row of the store, but one of `extra`.
NOT_STORED: Final = 0xFFFF_FFFF

# Flags of a message in flight. The lower bits are those of a row: QoS in 0 and 1, retain in 2.
DUP: Final = 0x08
# Its receiver has it, the packet id is still taken (QoS 2).
RELEASED: Final = 0x10


class ShardSerial(NamedTuple):
    """A place in a shard: everything before this serial is behind it."""

    shard: int
    serial: int


class SerialRange(NamedTuple):
    """The serials [first, stop) of a shard."""

    shard: int
    first: int
    stop: int


class SavedInflight(NamedTuple):
    """A message that was sent and not acknowledged to the end; in NOT_STORED the serial is 0."""

    packet_id: int
    shard: int
    serial: int
    flags: int


class SavedMessage(NamedTuple):
    """A message in flight that is no row of the store; `arrived_us` is what its expiry counts
    from.
    """

    packet_id: int
    topic: bytes
    payload: bytes
    flags: int
    properties: bytes
    arrived_us: int


class SavedReceived(NamedTuple):
    """A QoS 2 message from the client that it has not released.

    It was to be appended by this producer under this sequence; 0 and 0 where it surely was.
    """

    packet_id: int
    producer: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedWill:
    """What is published when its client goes without a word, or stays away (3.1.2.5).

    `properties` are as encoded; those that say when are the two fields as well.
    """

    topic: bytes
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: bytes = b""
    delay_seconds: int = 0
    expiry_seconds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSubscription:
    """One filter with its options; rows before `since` are not for it.

    `filter` is as the client sent it, share prefix and all; `identifier` 0 is none.
    """

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int = 0
    since: tuple[ShardSerial, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSession:
    """A durable session. Filters differ from each other, and so do packet ids.

    `run` is the run of the broker that touched it last. `away_since_us` is None while connected.
    `unclean` says that its broker stopped without saving it for the last time. Before `position`
    everything is acknowledged or not wanted, and so is what `done` names behind it. `inflight` is
    in order of sending. `received` are the QoS 2 messages from the client that it has not released.
    `dropped` counts messages that were lost to limits. `identity` is that of the database in which
    all its places are, empty where an earlier version saved it.
    """

    client_id: str
    user: str = ""
    version: int = 5
    expiry_seconds: int = NEVER_EXPIRES
    connected: bool = False
    run: int = 0
    away_since_us: int | None = None
    unclean: bool = False
    will: SavedWill | None = None
    dropped: int = 0
    subscriptions: tuple[SavedSubscription, ...] = ()
    position: tuple[ShardSerial, ...] = ()
    done: tuple[SerialRange, ...] = ()
    inflight: tuple[SavedInflight, ...] = ()
    next_packet_id: int = 1
    received: tuple[SavedReceived, ...] = ()
    extra: tuple[SavedMessage, ...] = ()
    identity: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedGroup:
    """A share group: how far its members together have come. Loans are not kept: after a restart
    everything from `position` on that is not in `done` is lent anew.

    `empty_since_us` is None while it has members. Rows before `since` are not for it. `identity` is
    that of the database in which its places are, empty where an earlier version saved it.
    """

    name: str
    filter: str
    strategy: str = "least-loaded"
    expiry_seconds: int = NEVER_EXPIRES
    created_us: int = 0
    empty_since_us: int | None = None
    since: tuple[ShardSerial, ...] = ()
    position: tuple[ShardSerial, ...] = ()
    done: tuple[SerialRange, ...] = ()
    identity: str = ""
