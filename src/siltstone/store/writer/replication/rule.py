"""The rule that decides which messages of the shared log count.

Every site, the leader too, reads the log in order and judges each message by the same rule. The
judgement depends only on the position before the message and on the message, so all sites agree.

Invariants:
- `index` is the number of messages that counted, GENESIS and TERM included;
- `chain` is blake2b-128 over the previous chain and the bytes of the message that counted;
- `root` is the chain just after the GENESIS or TERM that opened the present term, and `base` is the
  index of that message;
- a record of a deposed leader never counts, at any site;
- a site stops at a message that an intact log cannot contain. It never skips one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from hashlib import blake2b
from typing import Final

from siltstone.store.writer.replication.messages import (
    DIGEST_BYTES,
    NO_DIGEST,
    RECORD_KINDS,
    WHOLE_KINDS,
    Genesis,
    LogIdentity,
    Message,
    RecordMessage,
    Term,
)


class Verdict(Enum):
    """The decision of a site about a message."""

    COUNTS = "counts"
    IGNORED = "ignored"
    GAP = "gap"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, with the reason if the site must stop."""

    verdict: Verdict
    reason: str = ""


COUNTS: Final = Judgement(Verdict.COUNTS)
IGNORED: Final = Judgement(Verdict.IGNORED)
GAP: Final = Judgement(Verdict.GAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """How far a site has read the log, and the state that the rule needs.

    `sequence` is the last message read, `marked` the last one that counted. `parts` of `parts_all`
    parts of an unfinished record of kind `parts_kind` have counted.
    """

    identity: LogIdentity
    sequence: int = 0
    marked: int = 0
    nonce: bytes = NO_DIGEST
    term: int = 0
    site: str = ""
    boot: int = 0
    root: bytes = NO_DIGEST
    base: int = 0
    index: int = 0
    chain: bytes = NO_DIGEST
    parts: int = 0
    parts_all: int = 0
    parts_kind: int = 0

    def mark(self) -> LogPosition:
        """Return the position from which a restart continues: just behind the last message that
        counted.
        """
        return replace(self, sequence=self.marked)


def judge(position: LogPosition, sequence: int, message: Message) -> Judgement:
    """Return the verdict on the message at this sequence of the log."""
    if sequence != position.sequence + 1:
        return GAP
    if position.index == 0:
        return _judge_first(position, sequence, message)
    match message:
        case Genesis():
            if (message.identity, message.nonce) == (position.identity, position.nonce):
                return IGNORED
            return _stop("another GENESIS stands in the log", position)
        case Term():
            return _judge_term(position, message)
        case RecordMessage():
            return _judge_record(position, message)


def _judge_first(position: LogPosition, sequence: int, message: Message) -> Judgement:
    if not isinstance(message, Genesis) or sequence != 1:
        return _stop("the log does not begin with a GENESIS", position)
    if message.identity != position.identity:
        return _stop(f"the log belongs to another shard, found {message.identity}", position)
    return COUNTS


def _judge_term(position: LogPosition, message: Term) -> Judgement:
    if message.epoch != position.identity.epoch:
        return _stop(f"a TERM has another epoch, found {message.epoch}", position)
    if message.term > position.term + 1:
        return _stop(f"a TERM is missing before term {message.term}", position)
    if message.term <= position.term:
        # This claim arrived late, or twice.
        return IGNORED
    if message.root != position.root:
        return _stop(f"site {message.site!r} claims with another history", position)
    return COUNTS


def _judge_record(position: LogPosition, message: RecordMessage) -> Judgement:
    place = message.place
    if place.epoch != position.identity.epoch:
        return _stop(f"a record has another epoch, found {place.epoch}", position)
    if place.term > position.term:
        return _stop(f"the TERM of a record is missing, found term {place.term}", position)
    # The leader of an older term cannot have counted the TERM that deposed it.
    counted = position.index if place.term == position.term else position.base - 1
    if place.seen > counted:
        return _stop(f"a leader has counted up to {place.seen}, this site lacks some", position)
    if place.term < position.term:
        return IGNORED
    if place.root != position.root:
        return _stop("the leader of this term has another history before it", position)
    if place.index != position.index + 1:
        # A repetition; or a record before it was lost, and the leader will publish both again.
        return IGNORED
    if place.chain != position.chain:
        return _stop("the leader has another history", position)
    return _judge_kind(position, message)


def _judge_kind(position: LogPosition, message: RecordMessage) -> Judgement:
    if message.kind not in RECORD_KINDS:
        return _stop(f"the record has an unknown kind, upgrade this site: {message.kind}", position)
    if message.kind in WHOLE_KINDS:
        return COUNTS if message.parts == 1 else _stop("a record that is whole has parts", position)
    if message.part != position.parts + 1:
        return _stop(f"part {message.part} does not follow part {position.parts}", position)
    unfinished = (position.parts_kind, position.parts_all)
    if position.parts and (message.kind, message.parts) != unfinished:
        return _stop("a part belongs to another record than the part before it", position)
    return COUNTS


def _stop(reason: str, position: LogPosition) -> Judgement:
    place = f"term={position.term} index={position.index} sequence={position.sequence + 1}"
    return Judgement(Verdict.STOPPED, f"{reason}: {place}")


def link(chain: bytes, data: bytes) -> bytes:
    """Return the chain after a message counted."""
    return blake2b(chain + data, digest_size=DIGEST_BYTES).digest()


def advance(position: LogPosition, sequence: int, message: Message, data: bytes) -> LogPosition:
    """Return the position after a message with these bytes counted."""
    chain = link(position.chain, data)
    index = position.index + 1
    match message:
        case Genesis():
            return replace(
                position,
                sequence=sequence,
                marked=sequence,
                nonce=message.nonce,
                root=chain,
                base=index,
                index=index,
                chain=chain,
            )
        case Term():
            # Unfinished parts are dropped: their leader can no longer complete them.
            return LogPosition(
                identity=position.identity,
                sequence=sequence,
                marked=sequence,
                nonce=position.nonce,
                term=message.term,
                site=message.site,
                boot=message.boot,
                root=chain,
                base=index,
                index=index,
                chain=chain,
            )
        case RecordMessage():
            now = replace(position, sequence=sequence, marked=sequence, index=index, chain=chain)
            if message.kind in WHOLE_KINDS:
                return now
            if message.part == message.parts:
                return replace(now, parts=0, parts_all=0, parts_kind=0) if position.parts else now
            return replace(
                now, parts=message.part, parts_all=message.parts, parts_kind=message.kind
            )


def skip(position: LogPosition, sequence: int) -> LogPosition:
    """Return the position after a message was read and ignored."""
    return replace(position, sequence=sequence)
