from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import cast

import pytest

from siltstone.errors import (
    ClosedError,
    ConflictError,
    OutcomeUnknownError,
    OverloadedError,
    PoisonedError,
    PreconditionError,
    RetryError,
    SiltstoneError,
    UsageError,
)
from siltstone.store.shard.replicated.kv.calls import (
    CommittedCall,
    decode_ask,
    decode_commit,
    encode_answer,
)
from siltstone.store.shard.replicated.kv.router import (
    Answer,
    CommitRouter,
    answer_of,
    unstored_of,
)
from siltstone.store.shard.replicated.log import ReplicatedLog
from siltstone.store.shard.replicated.port import (
    LogView,
    NotLeaderError,
    Replication,
    UnknownVersionError,
)
from siltstone.store.tx.commit.attempts import GIVEN_UP_MAX, Attempt, StoredAttempt
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.operations import ANY_GENERATION, ANY_TERM, NO_ID, Operations
from siltstone.store.writer.replication.follower import FollowerStatus, PeerProgress

SENDER = b"s" * 16
Then = Callable[[Answer], None]


class Desk:
    """The log and the cluster of a router, without either: it records what was sent where."""

    def __init__(self) -> None:
        self.site = "a"
        self.sent: list[tuple[Attempt, Callable[[bytes | None], None]]] = []
        self.own: list[tuple[Attempt, Operations, Then]] = []
        self.view = self.led_by("")
        self.router = CommitRouter(
            cast("ReplicatedLog", self),
            cast("Replication", self),
            sender=SENDER,
            commit_here=lambda *call: self.own.append(call),
            pending_bytes_max=lambda: 1 << 20,
        )

    def led_by(self, leader: str, term: int = 1) -> LogView:
        return LogView(
            status=FollowerStatus.CURRENT,
            reason="",
            progress=PeerProgress(sequence=1, index=1, chain=b"c" * 16),
            term=term,
            leader=leader,
            leads=leader == self.site,
            synced=0,
        )

    def send(
        self, log: ReplicatedLog, site: str, call: bytes, then: Callable[[bytes | None], None]
    ) -> None:
        _, document, values = decode_ask(call)
        self.sent.append((decode_commit(document, values)[0], then))

    def submit(self, *, writes: bool) -> CommitTicket:
        operations = Operations(ANY_TERM, ANY_GENERATION, True, NO_ID)  # noqa: FBT003 - compiled
        if writes:
            operations.writes[b"t", 0] = b"1"
        ticket = CommitTicket(operations, Lock())
        self.router.submit(operations, ticket, None)
        return ticket


def test_a_commit_that_was_refused_here_does_not_change_the_serial_of_a_later_attempt() -> None:
    desk = Desk()
    desk.view = desk.led_by("a")
    ticket = desk.submit(writes=True)
    _, tried, refused = desk.own[0]
    desk.view = desk.led_by("b", term=2)
    desk.router.look()
    desk.sent[0][1](encode_answer(CommittedCall(7, duplicate=False)))
    # The thread of the shard is slow.
    tried.serial = 3
    refused(NotLeaderError("another site leads"))
    ticket.wait(0)
    assert (ticket.serial, ticket.operations.writes) == (7, {(b"t", 0): b"1"})


def test_a_question_whose_answer_is_lost_is_sent_again() -> None:
    desk = Desk()
    desk.view = desk.led_by("b")
    ticket = desk.submit(writes=False)
    desk.sent[0][1](None)
    desk.router.look()
    assert [attempt.number for attempt, _ in desk.sent] == [1, 2]
    desk.sent[1][1](encode_answer(ConflictError("too late")))
    with pytest.raises(ConflictError):
        ticket.wait(0)


def test_a_commit_whose_answer_is_lost_is_sent_again_as_the_same_attempt() -> None:
    desk = Desk()
    desk.view = desk.led_by("b")
    ticket = desk.submit(writes=True)
    desk.router.look()
    assert len(desk.sent) == 1
    desk.sent[0][1](None)
    desk.router.look()
    desk.router.look()
    first, second = (attempt for attempt, _ in desk.sent)
    assert first == second
    desk.router.counted([StoredAttempt(SENDER, 1, 5)])
    assert ticket.serial == 5


def test_a_refusal_whose_answer_is_lost_is_asked_for_again() -> None:
    desk = Desk()
    desk.view = desk.led_by("b")
    ticket = desk.submit(writes=True)
    desk.sent[0][1](None)
    desk.router.look()
    desk.sent[1][1](encode_answer(ConflictError("too late")))
    with pytest.raises(ConflictError):
        ticket.wait(0)


@pytest.mark.parametrize("answer", [NotLeaderError("b"), UnknownVersionError("b")])
def test_a_site_that_has_begun_again_does_not_refuse_what_it_took_before(
    answer: SiltstoneError,
) -> None:
    desk = Desk()
    desk.view = desk.led_by("b")
    ticket = desk.submit(writes=True)
    desk.sent[0][1](None)
    desk.router.look()
    desk.sent[1][1](encode_answer(answer))
    desk.router.look()
    assert [attempt.number for attempt, _ in desk.sent] == [1, 1, 1]
    assert not desk.router.withdraw(ticket)
    second = desk.submit(writes=True)
    desk.sent[3][1](encode_answer(answer))
    desk.router.look()
    # The first answer to an attempt is certain.
    assert [attempt.number for attempt, _ in desk.sent[3:]] == [2, 3]
    assert not second.done


def test_a_commit_without_an_answer_is_a_new_attempt_in_a_later_term() -> None:
    desk = Desk()
    desk.view = desk.led_by("b")
    desk.submit(writes=True)
    desk.sent[0][1](None)
    desk.view = desk.led_by("", term=1)
    desk.router.look()
    assert len(desk.sent) == 1
    desk.view = desk.led_by("c", term=2)
    desk.router.look()
    assert [(attempt.number, attempt.term) for attempt, _ in desk.sent] == [(1, 1), (2, 2)]


@pytest.mark.parametrize(
    ("answer", "remembered"),
    [
        (CommittedCall(7, duplicate=False), None),
        (CommittedCall(7, duplicate=True), 7),
        (ClosedError("closed"), None),
        (OutcomeUnknownError("unknown"), None),
        (PoisonedError("poisoned"), None),
    ],
)
def test_a_leader_remembers_the_answers_to_what_it_has_not_stored(
    answer: Answer, remembered: int | None
) -> None:
    assert unstored_of(answer) == remembered


@pytest.mark.parametrize("refusal", [ConflictError("late"), PreconditionError(()), UsageError("x")])
def test_a_leader_remembers_refusals(refusal: SiltstoneError) -> None:
    assert unstored_of(refusal) is refusal
    assert answer_of(refusal) is refusal
    assert answer_of(7) == CommittedCall(7, duplicate=True)


@pytest.mark.parametrize("refusal", [NotLeaderError("a backup begins"), RetryError("later")])
def test_a_call_that_was_refused_for_the_moment_is_a_new_attempt_though_the_answer_was_lost(
    refusal: RetryError,
) -> None:
    desk = Desk()
    desk.view = desk.led_by("b")
    desk.submit(writes=True)
    desk.sent[0][1](None)
    desk.router.look()
    # The leader has taken the first copy, and remembers its refusal.
    remembered = unstored_of(refusal)
    assert remembered is not None
    desk.sent[1][1](encode_answer(answer_of(remembered)))
    desk.router.look()
    assert [attempt.number for attempt, _ in desk.sent] == [1, 1, 2]


def test_a_closed_router_takes_records_and_terms_without_harm() -> None:
    desk = Desk()
    desk.view = desk.led_by("b")
    ticket = desk.submit(writes=True)
    desk.router.close()
    desk.router.counted([StoredAttempt(SENDER, 1, 5)])
    desk.view = desk.led_by("c", term=2)
    desk.router.look()
    desk.router.lose()
    with pytest.raises(OutcomeUnknownError):
        ticket.wait(0)


def test_no_attempt_begins_while_too_many_were_given_up_behind_an_open_one() -> None:
    desk = Desk()
    desk.view = desk.led_by("b")
    oldest = desk.submit(writes=True)
    for _ in range(GIVEN_UP_MAX):
        assert not desk.router.withdraw(desk.submit(writes=True))
    with pytest.raises(OverloadedError, match="given up"):
        desk.submit(writes=True)
    desk.router.counted([StoredAttempt(SENDER, 1, 5)])
    assert oldest.done
    desk.submit(writes=True)
    assert len(desk.sent) == GIVEN_UP_MAX + 2
