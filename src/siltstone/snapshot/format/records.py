"""What a snapshot holds, as values: state is an iterable of these, whoever has it.

The order says what belongs to what: subscriptions, queued messages, handshakes and the will follow
the session that they are of, and the parts of a file follow the file. Flags are those of a stored
row: QoS in bits 0 and 1, retain in 2. Times are µs since 1970, 0 for none.

A payload is given as it is; that equal ones are written once, and shared when they are read, is the
business of the writer and the loader.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

NEVER_US = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The first record: which snapshot this is, when its state was, and what wrote it."""

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
    """A session; it was last connected at `last_active_us`, the time of the snapshot if it still
    was.
    """

    client_id: str
    user: str
    expiry_seconds: int
    last_active_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionState:
    """A subscription of the session before it; identifier 0 is none."""

    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifier: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedMessage:
    """A message that the session before it has not acknowledged, in the order of sending.

    packet_id is what its client knows it by, 0 for one that was never sent.
    """

    topic: bytes
    payload: bytes
    flags: int
    properties: bytes
    expires_us: int
    packet_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshakes:
    """QoS 2 of the session before it: the ids it has sent and not released, and those of messages
    to it that it has received and not completed.
    """

    received: tuple[int, ...]
    released: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingWill:
    """The will of the session before it, whose delay ends at `due_us`."""

    topic: bytes
    payload: bytes
    flags: int
    properties: bytes
    due_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a reader has come: whose reader, in what, and its own bytes for where."""

    owner: str
    name: str
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedStructure:
    """A stream of a slab: the structure of its topics, and how many rows have it."""

    database: str
    shard: int
    generation: int
    stream_id: int
    pattern: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file of a data directory by its path in it; what its parts leave out is a hole."""

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
    | Position
    | LearnedStructure
    | StoredFile
    | FilePart
    | KeyValueFamily
    | KeyValuePair
)

# What must come, at some time or directly before, for a record to belong to something.
OWNERS: dict[type[Record], type[Record]] = {
    SubscriptionState: SessionState,
    QueuedMessage: SessionState,
    Handshakes: SessionState,
    WaitingWill: SessionState,
    FilePart: StoredFile,
    KeyValuePair: KeyValueFamily,
}


class StateSource(Protocol):
    """Has state to save: of one moment, however long the records take to be read."""

    def records(self) -> Iterator[Record]: ...


class StateSink(Protocol):
    """Takes state that was saved, in the order of the records."""

    def apply(self, record: Record) -> None: ...
