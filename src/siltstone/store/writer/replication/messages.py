"""The messages of a shared log: the history of one replicated shard, in the order of the log.

A GENESIS opens the log. A TERM makes a site the leader. Everything else is a record of a leader:
rows, key-value changes, changes of slabs and settings, a FENCE that closes a producer, a RETIRE
that closes all producers of a site up to a number, or a BARRIER that changes nothing. Every message
is a value that never changes after it was published.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

# Chains, roots, nonces, producers and database identities have this length.
DIGEST_BYTES: Final = 16
NO_DIGEST: Final = bytes(DIGEST_BYTES)


class MessageKind(IntEnum):
    """The kinds of messages."""

    ROWS = 1
    ROLL = 2
    GENERATION = 3
    DROP = 4
    SETTINGS = 5
    KV = 6
    TERM = 7
    GENESIS = 8
    FENCE = 9
    BARRIER = 10
    RETIRE = 11


# The kinds that carry the calls of producers.
CALL_KINDS: Final = frozenset({MessageKind.ROWS, MessageKind.KV})
# The kinds that never have parts.
WHOLE_KINDS: Final = frozenset({MessageKind.FENCE, MessageKind.BARRIER, MessageKind.RETIRE})
# The kinds of records: every kind that only a leader publishes.
RECORD_KINDS: Final = frozenset(MessageKind) - {MessageKind.TERM, MessageKind.GENESIS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a record in the history of its shard, as its leader knew the history.

    `chain` is the chain before the record. `root` is the chain after the message that opened the
    term. `seen` is the index that the leader had counted when it froze the bytes.
    """

    epoch: int
    term: int
    index: int
    chain: bytes
    root: bytes
    seen: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogIdentity:
    """Which shard a log belongs to."""

    database: bytes
    shard: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerCall:
    """One call of an idempotent producer.

    `previous` is the number of the producer's call before this one to the same shard, or 0.
    """

    producer: bytes
    number: int
    previous: int


@dataclass(frozen=True, slots=True)
class Genesis:
    """Opens a log. The nonce distinguishes a log from another log of the same shard."""

    identity: LogIdentity
    nonce: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """The claim of a site to lead. `root` identifies the history that the claimant has."""

    epoch: int
    term: int
    root: bytes
    site: str
    boot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMessage:
    """A change of the shard, or one part of a large change.

    The kind is a plain number: a newer version may have kinds that this version does not know.
    """

    kind: int
    place: Place
    part: int
    parts: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordChange:
    """The effect of a complete record. Only rows and key-value changes have calls."""

    kind: MessageKind
    calls: tuple[ProducerCall, ...]
    payload: bytes


Message = Genesis | Term | RecordMessage
