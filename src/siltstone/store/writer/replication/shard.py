"""One replicated shard at one site: event in, actions out.

    read(sequence, data)   the next message of the tail
    attach(bounds)         a tail was opened, or the bounds of the log were looked at
    claim()                ask to lead
    admit, freeze, …       requests of clients, while this site leads
    publish_again()        time has passed
    jump(…)                the marked state of a peer was copied

The site leads when, and whenever, it sees a TERM with its own name and boot count. A boot is a
number that was never used before: the driver draws it at random at each start, and for each jump.
So a site never continues a term if it has lost the outbox of that term.
"""

from __future__ import annotations

from typing import Final

from siltstone.errors import UsageError
from siltstone.store.writer.replication.actions import (
    Action,
    Answer,
    Copy,
    FetchMessage,
    Lead,
    PublishMessage,
    Refused,
    StepDown,
    StopReading,
    StoreMessage,
    Unknown,
)
from siltstone.store.writer.replication.codec import BODY_BYTES_MAX, encode
from siltstone.store.writer.replication.follower import (
    Follower,
    FollowerStatus,
    LogBounds,
    PeerProgress,
)
from siltstone.store.writer.replication.leader import NOT_LEADER, WINDOW, CallAdmission, Leader
from siltstone.store.writer.replication.messages import (
    MessageKind,
    ProducerCall,
    RecordMessage,
    Term,
)
from siltstone.store.writer.replication.producers import Producers
from siltstone.store.writer.replication.rule import LogPosition, Verdict

READING_STATUSES: Final = frozenset({FollowerStatus.CATCHING_UP, FollowerStatus.CURRENT})


class ReplicatedShard:
    """The state of one shard at one site. One thread owns it."""

    def __init__(
        self,
        site: str,
        boot: int,
        follower: Follower,
        *,
        window: int = WINDOW,
        part_bytes: int = BODY_BYTES_MAX,
    ) -> None:
        self.site = site
        self.boot = boot
        self.follower = follower
        self.leader: Leader | None = None
        self._window = window
        self._part_bytes = part_bytes

    @property
    def position(self) -> LogPosition:
        return self.follower.position

    def make_leader(self) -> Leader:
        """Return the leader of the term that this site has just been given."""
        follower = self.follower
        return Leader(
            follower.position,
            follower.producers,
            window=self._window,
            part_bytes=self._part_bytes,
        )

    # The log

    def attach(self, bounds: LogBounds) -> list[Action]:
        """Compare the position with the bounds of the log."""
        if self.follower.status is FollowerStatus.STOPPED:
            return []
        match self.follower.attach(bounds):
            case FollowerStatus.STOPPED:
                return self._stopped()
            case FollowerStatus.BEHIND:
                return [Copy(bounds.first)]
            case _:
                return []

    def read(self, sequence: int, data: bytes) -> list[Action]:
        """Take the next message of the tail."""
        if self.follower.status not in READING_STATUSES:
            return []
        step = self.follower.read(sequence, data)
        match step.judgement.verdict:
            case Verdict.GAP:
                return [FetchMessage(self.position.sequence + 1, step.judgement.reason)]
            case Verdict.STOPPED:
                return self._stopped()
            case Verdict.IGNORED:
                if self.leader is not None:
                    self.leader.passed(self.position)
                return []
            case Verdict.COUNTS:
                store = StoreMessage(mark=self.position.mark(), data=data, change=step.change)
                if isinstance(step.message, Term):
                    return [store, *self._new_term(step.message)]
                if isinstance(step.message, RecordMessage) and self.leader is not None:
                    return self._own_record(store)
                return [store]

    def _new_term(self, term: Term) -> list[Action]:
        actions = self.step_down()
        if (term.site, term.boot) == (self.site, self.boot):
            self.leader = self.make_leader()
            actions.append(Lead(term.term))
        return actions

    def step_down(self) -> list[Action]:
        """End the leadership because of a higher TERM, even if the TERM is our own."""
        if self.leader is None:
            return []
        leader, self.leader = self.leader, None
        return [StepDown(leader.term), *leader.deposed()]

    def _own_record(self, store: StoreMessage) -> list[Action]:
        assert self.leader is not None
        answers = self.leader.counted(self.position, store.data)
        if answers is None:
            self.follower.stop(
                f"a record of this term counted that this leader did not publish: "
                f"index={self.position.index}"
            )
            return self._stopped()
        return [store, *answers]

    def _stopped(self) -> list[Action]:
        return [*self._abandon(), StopReading(self.follower.reason)]

    def _abandon(self) -> list[Action]:
        """End the leadership without knowing the fate of the outbox."""
        if self.leader is None:
            return []
        leader, self.leader = self.leader, None
        return [StepDown(leader.term), *leader.abandoned()]

    def compare(self, peer: PeerProgress) -> list[Action]:
        """Compare the history with that of a peer's heartbeat."""
        return [] if self.follower.compare(peer) else self._stopped()

    def jump(
        self, position: LogPosition, producers: Producers, parts: tuple[bytes, ...], *, boot: int
    ) -> list[Action]:
        """Continue from the marked state of a peer, which the driver has copied and synced.

        Raises: UsageError if the state is older than ours or of another log, or the boot is used.
        """
        own = self.position
        if position.sequence <= own.sequence or (own.index and position.nonce != own.nonce):
            raise UsageError(
                f"the copied state is older than that of this site, or of another log: "
                f"sequence={position.sequence} own_sequence={own.sequence}"
            )
        if boot == self.boot:
            raise UsageError(f"a jump needs a new boot, got {boot} again")
        actions = self._abandon()
        self.boot = boot
        self.follower = self.make_follower(position, producers, parts)
        return actions

    def make_follower(
        self, position: LogPosition, producers: Producers, parts: tuple[bytes, ...]
    ) -> Follower:
        """Return a follower that continues from a mark."""
        return Follower(position, producers, parts)

    # Leading

    def claim(self) -> list[Action]:
        """Ask to lead. The caller has checked that this site is in sync and hears no leader."""
        position = self.position
        if (
            self.follower.status not in READING_STATUSES
            or self.leader is not None
            or not position.index
        ):
            return []
        term = Term(
            epoch=position.identity.epoch,
            term=position.term + 1,
            root=position.root,
            site=self.site,
            boot=self.boot,
        )
        return [PublishMessage(encode(term))]

    def admit(self, request: int, call: ProducerCall) -> tuple[CallAdmission, list[Answer]]:
        """Decide about a call of a producer."""
        if self.leader is None:
            return CallAdmission.ANSWERED, [self._no_leader(request)]
        return self.leader.admit(request, call)

    def freeze(self, kind: MessageKind, payload: bytes) -> list[Action]:
        """Publish the admitted calls and the payload as one record."""
        assert self.leader is not None
        actions = self.leader.freeze(kind, payload)
        return actions + self.leader.freeze_waiting()

    def withdraw(self) -> list[Action]:
        """Refuse the admitted calls."""
        assert self.leader is not None
        return self.leader.withdraw() + self.leader.freeze_waiting()

    def close(self, request: int, producer: bytes) -> list[Action]:
        """Close a producer for ever."""
        if self.leader is None:
            return [self._no_leader(request)]
        return self.leader.close(request, producer)

    def retire(self, site: bytes, number: int) -> list[Action]:
        """Close all producers of a site up to a number, while this site leads."""
        return [] if self.leader is None else self.leader.retire(site, number)

    def ask(self, request: int) -> list[Action]:
        """Answer when it is certain that this site still leads."""
        if self.leader is None:
            return [self._no_leader(request)]
        return self.leader.ask(request)

    def _no_leader(self, request: int) -> Refused | Unknown:
        # A site that stopped knows nothing of the log any more.
        if self.follower.status is FollowerStatus.STOPPED:
            return Unknown(request)
        return Refused(request=request, reason=NOT_LEADER, last=0)

    def publish_again(self) -> list[Action]:
        """Publish the outbox again, because some time has passed."""
        return [] if self.leader is None else self.leader.publish_again()
