"""The leadership of one term at its site, in addition to following.

Invariants:
- the bytes of a record never change once they were published: the leader publishes the same bytes
  in the same order until they count in its own tail;
- an answer is based only on records that have counted, never on the outbox;
- nothing that this leader published can count after a higher TERM counted. So a leader that sees
  one refuses everything in its outbox for certain.

A call is admitted first. The driver then encodes the rows of all admitted calls, and `freeze` makes
them one record; `withdraw` refuses the admitted calls instead. FENCE and BARRIER records are frozen
when the window has room for them. Many questions share one BARRIER.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Final

from siltstone.errors import UsageError
from siltstone.store.writer.replication.actions import (
    Action,
    Answer,
    CallStored,
    Closed,
    Confirmed,
    PublishMessage,
    Refused,
    Unknown,
)
from siltstone.store.writer.replication.codec import BODY_BYTES_MAX, cut, encode, encode_change
from siltstone.store.writer.replication.messages import (
    CALL_KINDS,
    WHOLE_KINDS,
    MessageKind,
    Place,
    ProducerCall,
    RecordChange,
    RecordMessage,
)
from siltstone.store.writer.replication.producers import Producers, make_producer
from siltstone.store.writer.replication.rule import LogPosition, link

# The default for the most records under way. The commit log of a shard waits for each record, so it
# never has more than one.
WINDOW: Final = 4

DEPOSED: Final = "another leader was elected before the call was stored"
NOT_LEADER: Final = "this site does not lead the shard"
FENCED: Final = "the producer is closed"
OUT_OF_ORDER: Final = "the previous call of the producer is not the last one stored"
WITHDRAWN: Final = "the call was withdrawn before it was published"


class CallAdmission(Enum):
    """The decision about a call."""

    TAKEN = "it goes into the next record"
    WAITS = "it repeats a call that is under way"
    ANSWERED = "it has its answer"


class Waits(Enum):
    """The kinds of waiting requests."""

    CALL = "call"
    CLOSE = "close"
    QUESTION = "question"


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that is answered when its index has counted."""

    kind: Waits
    request: int
    producer: bytes = b""


@dataclass(frozen=True, slots=True)
class Frozen:
    """A published record, and the requests that wait for it."""

    index: int
    data: bytes
    waiting: list[WaitingRequest]
    kind: MessageKind


class Leader:
    """One term of one shard at the site that leads it."""

    def __init__(
        self,
        position: LogPosition,
        producers: Producers,
        *,
        window: int = WINDOW,
        part_bytes: int = BODY_BYTES_MAX,
    ) -> None:
        self._position = position
        self._producers = producers
        self._window = window
        self._part_bytes = part_bytes
        self._outbox: deque[Frozen] = deque()
        self._ahead_index = position.index
        self._ahead_chain = position.chain
        # Numbers and closed producers of the outbox and of the admitted calls.
        self._ahead: dict[bytes, int] = {}
        self._ahead_closed: set[bytes] = set()
        self._admitted: list[ProducerCall] = []
        self._admitted_waiting: list[WaitingRequest] = []
        self._closings: deque[WaitingRequest] = deque()
        self._questions: list[WaitingRequest] = []

    @property
    def term(self) -> int:
        return self._position.term

    # Requests

    def admit(self, request: int, call: ProducerCall) -> tuple[CallAdmission, list[Answer]]:
        """Decide about a call: it goes into the next record, waits, or is answered at once."""
        waiting = WaitingRequest(Waits.CALL, request)
        counted = self._producers.last(call.producer)
        if call.number <= counted:
            return CallAdmission.ANSWERED, [CallStored(request)]
        ahead = self._number_ahead(call.producer)
        if call.number <= ahead:
            self._wait_for_all(waiting)
            return CallAdmission.WAITS, []
        if self._is_closed(call.producer):
            return CallAdmission.ANSWERED, [Refused(request=request, reason=FENCED, last=counted)]
        if not self._follows(call, ahead):
            refused = Refused(request=request, reason=OUT_OF_ORDER, last=counted)
            return CallAdmission.ANSWERED, [refused]
        self._admitted.append(call)
        self._admitted_waiting.append(waiting)
        self._ahead[call.producer] = call.number
        return CallAdmission.TAKEN, []

    def _number_ahead(self, producer: bytes) -> int:
        return self._ahead.get(producer, self._producers.last(producer))

    def _is_closed(self, producer: bytes) -> bool:
        return self._producers.is_closed(producer) or producer in self._ahead_closed

    def _follows(self, call: ProducerCall, last: int) -> bool:
        """Return whether the call comes just behind the producer's last one."""
        return call.previous == last

    def _wait_for_all(self, waiting: WaitingRequest) -> None:
        """Answer a request when everything that is under way now has counted."""
        if self._admitted:
            self._admitted_waiting.append(waiting)
        else:
            self._outbox[-1].waiting.append(waiting)

    def close(self, request: int, producer: bytes) -> list[Action]:
        """Close a producer for ever, and answer its last number."""
        if self._producers.is_closed(producer):
            return [Closed(request, self._producers.last(producer))]
        waiting = WaitingRequest(Waits.CLOSE, request, producer)
        # Calls that arrive from now on are refused, so that the answer cannot be overtaken.
        self._ahead_closed.add(producer)
        self._closings.append(waiting)
        return self.freeze_waiting()

    def retire(self, site: bytes, number: int) -> list[Action]:
        """Close all producers of a site up to a number, if there is an entry of one and room."""
        if self._admitted or not self.room() or not self._producers.retirable(site, number):
            return []
        return self._freeze(MessageKind.RETIRE, [make_producer(site, number)], [])

    def ask(self, request: int) -> list[Action]:
        """Confirm that we lead, when a BARRIER published after this question has counted."""
        self._questions.append(WaitingRequest(Waits.QUESTION, request))
        return self.freeze_waiting()

    # Freezing

    def room(self, size_bytes: int = 0) -> bool:
        """Return whether a record with a body of this size may be frozen now.

        A record with more parts than the window has goes alone.
        """
        parts = max(1, -(-size_bytes // self._part_bytes))
        return not self._outbox or len(self._outbox) + parts <= self._window

    def freeze(self, kind: MessageKind, payload: bytes) -> list[Action]:
        """Make the admitted calls and the payload one record, and publish it.

        Raises: UsageError if the kind has no calls but calls are admitted, or if there is no room.
        """
        if kind in WHOLE_KINDS or (kind not in CALL_KINDS and self._admitted):
            raise UsageError(f"a record of kind {kind.name} carries no calls")
        body = encode_change(RecordChange(kind=kind, calls=tuple(self._admitted), payload=payload))
        if not self.room(len(body)):
            raise UsageError(f"the window is full: records={len(self._outbox)}")
        waiting = self._admitted_waiting
        self._admitted, self._admitted_waiting = [], []
        return self._freeze(kind, cut(body, self._part_bytes), waiting)

    def withdraw(self) -> list[Action]:
        """Refuse the admitted calls: nothing was published."""
        refused = [
            Refused(request=waiting.request, reason=WITHDRAWN, last=0)
            for waiting in self._admitted_waiting
        ]
        for call in self._admitted:
            # Earlier records of the producer may be in the outbox: go back behind them.
            self._ahead[call.producer] = min(self._ahead[call.producer], call.previous)
        self._admitted, self._admitted_waiting = [], []
        return list(refused)

    def freeze_waiting(self) -> list[Action]:
        """Publish the FENCEs and the BARRIER that wait for room in the window."""
        actions: list[Action] = []
        while self._closings and self.room() and not self._admitted:
            waiting = self._closings.popleft()
            actions += self._freeze(MessageKind.FENCE, [waiting.producer], [waiting])
        if self._questions and self.room() and not self._admitted and not self._barrier_under_way():
            questions, self._questions = self._questions, []
            actions += self._freeze(MessageKind.BARRIER, [b""], questions)
        return actions

    def _barrier_under_way(self) -> bool:
        return any(frozen.kind is MessageKind.BARRIER for frozen in self._outbox)

    def _freeze(
        self, kind: MessageKind, bodies: list[bytes], waiting: list[WaitingRequest]
    ) -> list[Action]:
        actions: list[Action] = []
        for part, body in enumerate(bodies, 1):
            place = Place(
                epoch=self._position.identity.epoch,
                term=self._position.term,
                index=self._ahead_index + 1,
                chain=self._ahead_chain,
                root=self._position.root,
                seen=self._position.index,
            )
            record = RecordMessage(kind=kind, place=place, part=part, parts=len(bodies), body=body)
            data = encode(record)
            last = waiting if part == len(bodies) else []
            self._outbox.append(Frozen(place.index, data, last, kind))
            self._ahead_index, self._ahead_chain = place.index, link(self._ahead_chain, data)
            actions.append(PublishMessage(data))
        return actions

    # What has happened

    def counted(self, position: LogPosition, data: bytes) -> list[Action] | None:
        """Take a record that counted in our own tail; None if it is not the one that we froze."""
        if not self._outbox or self._outbox[0].data != data:
            return None
        frozen = self._outbox.popleft()
        self._position = position
        actions: list[Action] = [self._answer(waiting) for waiting in frozen.waiting]
        if not self._outbox and not self._admitted:
            self._ahead.clear()
        return actions + self.freeze_waiting()

    def passed(self, position: LogPosition) -> None:
        """Take the position after a message of the log that did not count."""
        self._position = position

    def _answer(self, waiting: WaitingRequest) -> Answer:
        match waiting.kind:
            case Waits.CALL:
                return CallStored(waiting.request)
            case Waits.CLOSE:
                self._ahead_closed.discard(waiting.producer)
                return Closed(waiting.request, self._producers.last(waiting.producer))
            case Waits.QUESTION:
                return Confirmed(waiting.request, self._position.index)

    def publish_again(self) -> list[Action]:
        """Publish everything that has not counted again: the same bytes, in the same order."""
        return [PublishMessage(frozen.data) for frozen in self._outbox]

    def under_way(self) -> int:
        """Return the number of records that are published and have not counted."""
        return len(self._outbox)

    def oldest(self) -> int:
        """Return the index of the oldest record that has not counted, or 0."""
        return self._outbox[0].index if self._outbox else 0

    def deposed(self) -> list[Action]:
        """Refuse everything that has not counted: it never will."""
        return [Refused(request=waiting.request, reason=DEPOSED, last=0) for waiting in self._all()]

    def abandoned(self) -> list[Action]:
        """Give up everything that has not counted: this site will not learn its outcome."""
        return [Unknown(waiting.request) for waiting in self._all()]

    def _all(self) -> list[WaitingRequest]:
        under_way = [waiting for frozen in self._outbox for waiting in frozen.waiting]
        return [*under_way, *self._admitted_waiting, *self._closings, *self._questions]
