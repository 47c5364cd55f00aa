"""The actions that a replicated shard asks its driver to execute.

The driver executes the actions of one event in order, before it gives the next event. If an action
fails, the driver drops the rest and restarts the site with a new boot: an answer that follows a
StoreMessage must not be given when the StoreMessage failed.
"""

from __future__ import annotations

from dataclasses import dataclass

from siltstone.store.writer.replication.messages import RecordChange
from siltstone.store.writer.replication.rule import LogPosition


@dataclass(frozen=True, slots=True)
class PublishMessage:
    """Publish these bytes to the shared log. They may be lost; the shard publishes them again."""

    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMessage:
    """Write a message that counted, and its mark, to the files of this site; show it to readers.

    `change` is None for a GENESIS, a TERM, and a part that does not complete its record.
    """

    mark: LogPosition
    data: bytes
    change: RecordChange | None


@dataclass(frozen=True, slots=True)
class CallStored:
    """Answer a request: the call has counted."""

    request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Answer a request: this attempt was not stored, and never will be.

    `last` is the producer's last number that counted here. It is a hint.
    """

    request: int
    reason: str
    last: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """Answer a request: this site does not know its outcome, and will not learn it."""

    request: int


@dataclass(frozen=True, slots=True)
class Closed:
    """Answer a request: the producer is closed for ever, and this was its last number."""

    request: int
    last: int


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Answer a question: everything acknowledged before it is in the state up to this index."""

    request: int
    index: int


@dataclass(frozen=True, slots=True)
class Lead:
    """This site leads from here on."""

    term: int


@dataclass(frozen=True, slots=True)
class StepDown:
    """This site no longer leads: drop all state that was ahead of the log."""

    term: int


@dataclass(frozen=True, slots=True)
class FetchMessage:
    """Fetch the message at this sequence from another copy of the log, or from a peer."""

    sequence: int
    reason: str


@dataclass(frozen=True, slots=True)
class Copy:
    """The log is trimmed above the position of this site: copy the marked state of a peer."""

    first: int


@dataclass(frozen=True, slots=True)
class StopReading:
    """Raise an alarm and read no further: only an operator can decide what to do."""

    reason: str


Answer = CallStored | Refused | Unknown | Closed | Confirmed
Action = (
    PublishMessage | StoreMessage | Answer | Lead | StepDown | FetchMessage | Copy | StopReading
)
