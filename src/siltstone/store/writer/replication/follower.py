"""The state that every site of a replicated shard has, the leader too: it reads the log, and
counts.

Invariants:
- a message is counted once, in the order of the log; a gap or damage is fetched, never skipped;
- after STOPPED nothing changes any more;
- readers see messages that have counted, and nothing else.

The position and the table of producers come from the marks of this site when it starts, and from
those of a peer when it jumps. Both belong together, with the bytes of the unfinished parts.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Final

from siltstone.store.writer.replication.codec import (
    DamagedRecordError,
    UnreadableRecordError,
    decode,
    decode_change,
)
from siltstone.store.writer.replication.messages import (
    WHOLE_KINDS,
    Message,
    RecordChange,
    RecordMessage,
    Term,
)
from siltstone.store.writer.replication.producers import Producers
from siltstone.store.writer.replication.rule import (
    Judgement,
    LogPosition,
    Verdict,
    advance,
    judge,
    skip,
)

# Sequences for which a heartbeat of a peer can be compared with what this site counted.
COMPARED_MAX: Final = 256


class FollowerStatus(Enum):
    """The states of a site for one shard.

    A current site has read everything that the log had when the site last looked at its bounds.
    """

    CATCHING_UP = "catching up"
    CURRENT = "current"
    BEHIND = "behind the trim"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBounds:
    """The bounds of a log: its first and last sequence, and the nonce of its GENESIS.

    An empty log has last = first - 1.
    """

    first: int
    last: int
    nonce: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerProgress:
    """The sequence, index and chain that a peer reports in its heartbeat."""

    sequence: int
    index: int
    chain: bytes


@dataclass(slots=True)
class MessageOutcome:
    """The outcome of one message. `message` is None if the bytes could not be read."""

    judgement: Judgement
    message: Message | None = None
    change: RecordChange | None = None


class Follower:
    """One shard at one site."""

    def __init__(
        self, position: LogPosition, producers: Producers, parts: tuple[bytes, ...] = ()
    ) -> None:
        assert position.parts == len(parts)
        self.position = position
        self.producers = producers
        self.status = FollowerStatus.CATCHING_UP
        self.reason = ""
        self._parts = list(parts)
        # The last sequence of the log when this site last looked; unknown before the first look.
        self._goal: int | None = None
        self._compared: OrderedDict[int, PeerProgress] = OrderedDict()

    def attach(self, bounds: LogBounds) -> FollowerStatus:
        """Compare the position with a log; call it whenever a tail is opened, and regularly."""
        if self.status is FollowerStatus.STOPPED:
            return self.status
        position = self.position
        if position.index and bounds.nonce != position.nonce:
            self.stop("log lost: the log was created anew")
        elif bounds.last < position.sequence:
            self.stop(
                f"log lost: its last sequence is {bounds.last}, but this site has read "
                f"{position.sequence}"
            )
        elif bounds.first > position.sequence + 1:
            self.status = FollowerStatus.BEHIND
        else:
            self.status = FollowerStatus.CATCHING_UP
            self._goal = bounds.last
            self._reach()
        return self.status

    def stop(self, reason: str) -> None:
        """Read no further."""
        self.status = FollowerStatus.STOPPED
        self.reason = reason

    def judge(self, sequence: int, message: Message) -> Judgement:
        """Return the verdict of the rule."""
        return judge(self.position, sequence, message)

    def read(self, sequence: int, data: bytes) -> MessageOutcome:
        """Take the next message of the tail."""
        assert self.status in {FollowerStatus.CATCHING_UP, FollowerStatus.CURRENT}
        try:
            message = decode(data)
        except DamagedRecordError as exc:
            return MessageOutcome(Judgement(Verdict.GAP, str(exc)))
        except UnreadableRecordError as exc:
            self.stop(f"{exc}: sequence={sequence}")
            return MessageOutcome(Judgement(Verdict.STOPPED, self.reason))
        judgement = self.judge(sequence, message)
        change = None
        match judgement.verdict:
            case Verdict.COUNTS:
                try:
                    change = self._complete(message)
                except UnreadableRecordError as exc:
                    self.stop(f"{exc}: sequence={sequence}")
                    return MessageOutcome(Judgement(Verdict.STOPPED, self.reason))
                self._count(sequence, message, data, change)
            case Verdict.IGNORED:
                self.position = skip(self.position, sequence)
            case Verdict.STOPPED:
                self.stop(judgement.reason)
            case Verdict.GAP:
                return MessageOutcome(Judgement(Verdict.GAP, "the sequence has a gap"))
        self._remember()
        self._reach()
        return MessageOutcome(judgement, message, change)

    def _complete(self, message: Message) -> RecordChange | None:
        """Return the change that this message completes. Raises: UnreadableRecordError."""
        if not isinstance(message, RecordMessage) or message.part < message.parts:
            return None
        if message.kind in WHOLE_KINDS:
            return decode_change(message.kind, message.body)
        return decode_change(message.kind, b"".join([*self._parts, message.body]))

    def _count(
        self, sequence: int, message: Message, data: bytes, change: RecordChange | None
    ) -> None:
        self.position = advance(self.position, sequence, message, data)
        if change is not None:
            self.producers.count(change)
        if isinstance(message, Term):
            self._parts.clear()
        elif isinstance(message, RecordMessage) and message.kind not in WHOLE_KINDS:
            if change is None:
                self._parts.append(message.body)
            else:
                self._parts.clear()

    def _reach(self) -> None:
        known = self._goal is not None and self.position.sequence >= self._goal
        if self.status is FollowerStatus.CATCHING_UP and known:
            self.status = FollowerStatus.CURRENT

    def _remember(self) -> None:
        position = self.position
        self._compared[position.sequence] = self.progress()
        while len(self._compared) > COMPARED_MAX:
            self._compared.popitem(last=False)

    def progress(self) -> PeerProgress:
        """Return the progress that this site reports."""
        position = self.position
        return PeerProgress(sequence=position.sequence, index=position.index, chain=position.chain)

    def compare(self, peer: PeerProgress) -> bool:
        """Return whether a peer has the same history, as far as this site can tell.

        A site that finds another index or chain at the same sequence stops.
        """
        own = self._compared.get(peer.sequence)
        if own is None or own == peer or self.status is FollowerStatus.STOPPED:
            return True
        self.stop(
            f"a peer has another history: sequence={peer.sequence} index={own.index} "
            f"peer_index={peer.index}"
        )
        return False

    def has(self, index: int) -> bool:
        """Return whether a read that needs everything up to this index may be answered here.

        A caller that gets False waits, then answers that the data is not here yet. It never
        returns fewer rows instead.
        """
        return index <= self.position.index

    def unfinished(self) -> tuple[bytes, ...]:
        """Return the parts of an unfinished record; a mark must keep them."""
        return tuple(self._parts)
