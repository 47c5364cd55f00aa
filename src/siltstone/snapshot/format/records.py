"""The records of a snapshot, as values: any state is saved as an iterable of these.

The order shows which records belong together: subscriptions, queued messages, handshakes and the
will follow their session, and the parts of a file follow the file. Flags are those of a stored row:
QoS in bits 0 and 1, retain in 2. Times are µs since 1970, 0 for none.

A record holds its whole payload. The writer stores equal payloads once, and the loader shares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

NEVER_US = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The first record: serial and time of the snapshot, its source, and the program version."""

    serial: int
    created_us: int
    source: str
    writer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedMessage:
    """A retained message."""

    topic: bytes
    payload: bytes
    flags: int
    properties: bytes
    stored_us: int
    expires_us: int
    publisher: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """A session. `last_active_us` is when it was last connected; for a connected session it is the
    time of the snapshot.
    """

    client_id: str
    user: str
    expiry_seconds: int
    last_active_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionState:
    """A subscription of the session before it; identifier 0 means none."""

    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifier: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedMessage:
    """A message that the session before it has not acknowledged, in the order of sending.

    `packet_id` is the id under which it was sent, 0 if it was never sent.
    """

    topic: bytes
    payload: bytes
    flags: int
    properties: bytes
    expires_us: int
    packet_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshakes:
    """QoS 2 state of the session before it: packet ids of messages from the client that it has not
    released, and of messages to the client that it has received and not completed.
    """

    received: tuple[int, ...]
    released: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingWill:
    """The will of the session before it; its delay ends at `due_us`."""

    topic: bytes
    payload: bytes
    flags: int
    properties: bytes
    due_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderPosition:
    """The position of a reader: its owner, its name, and the position in the owner's own format."""

    owner: str
    name: str
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedStructure:
    """A stream of a slab: the pattern of its topics, and its number of rows."""

    database: str
    shard: int
    generation: int
    stream_id: int
    pattern: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file of a data directory, by its relative path; ranges without a FilePart are holes."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """Bytes of the file before it."""

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueFamily:
    """A family of a key-value database, by its path in a data directory; its pairs follow."""

    database: str
    family: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValuePair:
    """A pair of the family before it."""

    key: bytes
    value: bytes


OfSession = SubscriptionState | QueuedMessage | Handshakes | WaitingWill
Record = (
    RetainedMessage
    | SessionState
    | OfSession
    | ReaderPosition
    | LearnedStructure
    | StoredFile
    | FilePart
    | KeyValueFamily
    | KeyValuePair
)

# The record type that must come before, so that a record belongs to it.
OWNERS: dict[type[Record], type[Record]] = {
    SubscriptionState: SessionState,
    QueuedMessage: SessionState,
    Handshakes: SessionState,
    WaitingWill: SessionState,
    FilePart: StoredFile,
    KeyValuePair: KeyValueFamily,
}


class StateSink(Protocol):
    """Receives saved state, in the order of the records."""

    def apply(self, record: Record) -> None: ...
