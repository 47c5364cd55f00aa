"""The saved state of durable sessions and share groups, as values without code.

Places are serials of rows in the store. Every row of a shard has a serial, so one serial for each
shard is enough to record how far a session has read, even with many filters. `position` carries the
identity of the database to which all places of a session or group refer; it is empty if an earlier
version saved them. A `since` refers to the same database and has no identity of its own. Times are
µs of the wall clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from siltstone.store.feed.position import START, Position
from siltstone.store.slab.identity import UNIDENTIFIED

# The position of a session that has read nothing yet.
NOWHERE: Final = Position({}, UNIDENTIFIED)
NEVER_EXPIRES: Final = 0xFFFF_FFFF
# The shard of a message in flight that is not a row of the store but one of `extra`.
NOT_STORED: Final = 0xFFFF_FFFF

# Flags of a message in flight. The lower bits are those of a row: QoS in 0 and 1, retain in 2.
DUP: Final = 0x08
# The receiver has the message, but the packet id is still in use (QoS 2).
RELEASED: Final = 0x10


class SerialRange(NamedTuple):
    """The serials [first, stop) of a shard."""

    shard: int
    first: int
    stop: int


class SavedInflight(NamedTuple):
    """A message that was sent and not fully acknowledged; with NOT_STORED the serial is 0."""

    packet_id: int
    shard: int
    serial: int
    flags: int


class SavedMessage(NamedTuple):
    """A message in flight that is not a row of the store; its expiry counts from `arrived_us`."""

    packet_id: int
    topic: bytes
    payload: bytes
    flags: int
    properties: bytes
    arrived_us: int


class SavedReceived(NamedTuple):
    """A QoS 2 message from the client that the client has not released.

    `producer` and `sequence` are those of its append; both are 0 if the message is known to be
    stored.
    """

    packet_id: int
    producer: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedWill:
    """The message to publish when the client disconnects abnormally or stays away (3.1.2.5).

    `properties` are encoded. The delay and the expiry are also in the two fields.
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
    """One filter with its options; rows before `since` do not belong to it.

    `filter` is as the client sent it, with the share prefix; `identifier` 0 means none.
    """

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int = 0
    since: Position = START


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSession:
    """A durable session. Its filters are distinct, and so are its packet ids.

    `run` is the run of the broker that last changed the session. `away_since_us` is None while
    connected. `unclean` says that the broker stopped without the last save of the session. All rows
    before `position` are acknowledged or not wanted, and so are the rows in `done` after it.
    `inflight` is in order of sending. `received` are the QoS 2 messages from the client that it has
    not released. `dropped` counts messages that were lost to limits.
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
    position: Position = NOWHERE
    done: tuple[SerialRange, ...] = ()
    inflight: tuple[SavedInflight, ...] = ()
    next_packet_id: int = 1
    received: tuple[SavedReceived, ...] = ()
    extra: tuple[SavedMessage, ...] = ()

    @property
    def identity(self) -> str:
        """The identity of the database to which all places refer."""
        return self.position.identity or UNIDENTIFIED


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedGroup:
    """A share group: the common progress of its members. Loans are not saved: after a restart all
    rows from `position` on that are not in `done` are lent again.

    `empty_since_us` is None while the group has members. Rows before `since` do not belong to it.
    """

    name: str
    filter: str
    strategy: str = "least-loaded"
    expiry_seconds: int = NEVER_EXPIRES
    created_us: int = 0
    empty_since_us: int | None = None
    since: Position = START
    position: Position = NOWHERE
    done: tuple[SerialRange, ...] = ()

    @property
    def identity(self) -> str:
        """The identity of the database to which all places refer."""
        return self.position.identity or UNIDENTIFIED
