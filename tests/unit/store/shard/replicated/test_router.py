from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from siltstone.errors import (
    ClosedError,
    InvalidTopicError,
    OutcomeUnknownError,
    OverloadedError,
    PoisonedError,
    RetryError,
)
from siltstone.store.log.write.frame_builder import Call
from siltstone.store.shard.replicated.calls import decode_call, encode_answer
from siltstone.store.shard.replicated.log import ReplicatedLog
from siltstone.store.shard.replicated.port import (
    ClosedProducerError,
    LogView,
    NotLeaderError,
    OutOfOrderError,
    Replication,
)
from siltstone.store.shard.replicated.router import CallRouter
from siltstone.store.writer.replication.follower import FollowerStatus, PeerProgress
from siltstone.store.writer.replication.messages import ProducerCall
from siltstone.store.writer.ticket import Outcome, Ticket
from tests.support.row_batches import row_batch

STORED = Outcome(
    duplicate=False,
    count=1,
    timestamp_us=1,
    frame_serial=0,
    frame_timestamp_us=1,
    frame_places=None,
)


class Desk:
    """The log and the cluster of a router, without either: it records what was sent where."""

    def __init__(self) -> None:
        self.site = "a"
        self.sent: list[tuple[str, ProducerCall | None, Callable[[bytes | None], None]]] = []
        self.own: list[tuple[Call, Ticket]] = []
        self.view = self.led_by("")
        self.router = CallRouter(
            cast("ReplicatedLog", self),
            cast("Replication", self),
            producer=b"p" * 16,
            submit=lambda call, ticket: self.own.append((call, ticket)),
            pending_bytes_max=lambda: 100,
        )

    def producer(self) -> bytes:
        return b"n" * 16

    def claims(self, first: int = 0) -> list[ProducerCall | None]:
        return [claim for _, claim, _ in self.sent[first:]]

    def answer(self, number: int, answer: Outcome | Exception | None) -> None:
        """Answer an earlier call, counted back from the last one."""
        self.sent[number][2](None if answer is None else encode_answer(answer))

    def led_by(self, leader: str, term: int = 1) -> LogView:
        self.view = LogView(
            status=FollowerStatus.CURRENT,
            reason="",
            progress=PeerProgress(sequence=1, index=1, chain=b"c" * 16),
            term=term,
            leader=leader,
            leads=leader == self.site,
            synced=0,
        )
        return self.view

    def send(
        self, _log: object, site: str, call: bytes, then: Callable[[bytes | None], None]
    ) -> None:
        self.sent.append((site, decode_call(call).claim, then))

    def append(self, size: int = 1, producer: bytes = b"") -> Ticket:
        call = Call(row_batch([b"t"], [b"v"], b""))
        call.size_bytes = size
        call.producer = producer
        ticket = Ticket(1, 1)
        self.router.append(call, ticket, 0.0)
        return ticket


def claim(number: int, previous: int) -> ProducerCall:
    return ProducerCall(producer=b"p" * 16, number=number, previous=previous)


def test_calls_wait_until_a_leader_is_known() -> None:
    desk = Desk()
    ticket = desk.append()
    assert (desk.sent, desk.own, ticket.done) == ([], [], False)
    desk.led_by("b")
    desk.router.look()
    assert [(site, number) for site, number, _ in desk.sent] == [("b", claim(1, 0))]


def test_each_call_names_the_one_before_it() -> None:
    desk = Desk()
    desk.led_by("a")
    for _ in range(3):
        desk.append()
    assert [call.claim for call, _ in desk.own] == [claim(1, 0), claim(2, 1), claim(3, 2)]


def test_a_call_with_a_producer_of_its_own_has_no_number() -> None:
    desk = Desk()
    desk.led_by("a")
    desk.append(producer=b"q" * 16)
    desk.append()
    assert [call.claim for call, _ in desk.own] == [None, claim(1, 0)]


@pytest.mark.parametrize("error", [NotLeaderError("x"), OutOfOrderError("x"), OverloadedError("x")])
def test_a_refused_call_is_sent_again_with_its_number(error: Exception) -> None:
    desk = Desk()
    desk.led_by("b")
    ticket = desk.append()
    desk.sent[0][2](encode_answer(error))
    assert not ticket.done
    desk.router.look()
    assert [number for _, number, _ in desk.sent] == [claim(1, 0)] * 2
    desk.sent[1][2](encode_answer(STORED))
    assert (ticket.done, ticket.error) == (True, None)


def test_a_site_whose_producer_was_closed_continues_as_another_one() -> None:
    desk = Desk()
    desk.led_by("b")
    tickets = [desk.append() for _ in range(3)]
    closed = encode_answer(ClosedProducerError("the sender of the call was closed"))
    for _, _, then in list(desk.sent):
        then(closed)
    # The first answer tells that the others may have been stored before.
    assert [ticket.done for ticket in tickets] == [False, True, True]
    assert all(isinstance(ticket.error, OutcomeUnknownError) for ticket in tickets[1:])
    tickets.append(desk.append())
    desk.router.look()
    later = [
        ProducerCall(producer=b"n" * 16, number=1, previous=0),
        ProducerCall(producer=b"n" * 16, number=2, previous=1),
    ]
    assert sorted((number for _, number, _ in desk.sent[3:] if number), key=str) == sorted(
        later, key=str
    )
    for _, _, then in desk.sent[3:]:
        then(encode_answer(STORED))
    assert [tickets[0].error, tickets[3].error, desk.router.pending] == [None, None, 0]


def test_a_call_whose_first_attempt_has_no_answer_ends_when_its_producer_is_closed() -> None:
    desk = Desk()
    desk.led_by("b")
    ticket = desk.append()
    desk.led_by("c", 2)
    desk.router.look()
    desk.sent[1][2](encode_answer(ClosedProducerError("the sender of the call was closed")))
    assert isinstance(ticket.error, OutcomeUnknownError)
    assert desk.router.pending == 0


def test_a_call_without_an_answer_goes_to_the_next_leader() -> None:
    desk = Desk()
    desk.led_by("b")
    ticket = desk.append()
    desk.led_by("c", 2)
    desk.router.look()
    assert [site for site, _, _ in desk.sent] == ["b", "c"]
    desk.sent[1][2](encode_answer(STORED))
    # The answer of the deposed leader comes late and changes nothing.
    desk.sent[0][2](encode_answer(RetryError("x")))
    assert (ticket.done, ticket.error) == (True, None)


def test_a_call_is_refused_only_if_every_attempt_was() -> None:
    desk = Desk()
    desk.led_by("b")
    ticket = desk.append()
    desk.sent[0][2](None)
    desk.router.look()
    desk.sent[1][2](encode_answer(RetryError("full")))
    # The first attempt may still be stored.
    assert not ticket.done
    desk.router.look()
    desk.sent[2][2](encode_answer(STORED))
    assert (ticket.done, ticket.error) == (True, None)


def test_a_call_that_is_refused_for_good_after_a_lost_answer_ends_with_an_unknown_outcome() -> None:
    desk = Desk()
    desk.led_by("b")
    ticket = desk.append()
    desk.answer(0, None)
    desk.router.look()
    desk.answer(1, InvalidTopicError("bad topic"))
    assert isinstance(ticket.error, OutcomeUnknownError)
    assert "bad topic" in str(ticket.error)
    assert desk.router.pending == 0
    desk.router.look()
    assert len(desk.sent) == 2
    # The first attempt may be stored or not, so no call of the same producer can follow it.
    desk.append()
    assert desk.claims(2) == [ProducerCall(producer=b"n" * 16, number=1, previous=0)]


def test_calls_behind_one_that_is_refused_for_good_stay_behind_those_before_it() -> None:
    desk = Desk()
    desk.led_by("b")
    before, bad, refused, doubtful = (desk.append() for _ in range(4))
    for number in (0, 1):
        desk.answer(number, None)
    desk.answer(2, OutOfOrderError("x"))
    desk.router.look()
    assert desk.claims(4) == [claim(1, 0), claim(2, 1), claim(3, 2)]
    desk.answer(6, OutOfOrderError("x"))
    desk.answer(5, InvalidTopicError("bad topic"))
    # An attempt of the last one has no answer, and it may be stored behind the bad one.
    outcomes = [(ticket.done, type(ticket.error)) for ticket in (bad, doubtful)]
    assert outcomes == [(True, OutcomeUnknownError)] * 2
    last = desk.append()
    desk.router.look()
    assert len(desk.sent) == 7
    desk.answer(4, STORED)
    new = [ProducerCall(producer=b"n" * 16, number=n, previous=n - 1) for n in (1, 2)]
    assert desk.claims(7) == new
    for number in (7, 8):
        desk.answer(number, STORED)
    assert [(each.done, each.error) for each in (before, refused, last)] == [(True, None)] * 3


@pytest.mark.parametrize("error", [RetryError("full"), InvalidTopicError("bad")])
def test_a_refusal_of_the_call_itself_is_its_outcome(error: Exception) -> None:
    desk = Desk()
    desk.led_by("b")
    ticket = desk.append()
    desk.sent[0][2](encode_answer(error))
    assert type(ticket.error) is type(error)
    # The next call names the last one that was not refused.
    desk.append()
    assert desk.sent[1][1] == claim(2, 0)


def test_a_poisoned_shard_ends_its_calls() -> None:
    desk = Desk()
    desk.led_by("a")
    ticket = desk.append()
    desk.own[0][1].resolve(PoisonedError("x"), None)
    assert isinstance(ticket.error, PoisonedError)


def test_a_call_waits_while_the_shard_is_opened_again() -> None:
    desk = Desk()
    desk.led_by("a")
    tickets = [desk.append(), desk.append()]
    for _, ticket in desk.own:
        ticket.resolve(ClosedError("the database is closed"), None)
    assert [ticket.done for ticket in tickets] == [False, False]
    desk.led_by("b", 2)
    desk.router.look()
    assert [number for _, number, _ in desk.sent] == [claim(1, 0), claim(2, 1)]
    for _, _, then in desk.sent:
        then(encode_answer(STORED))
    assert [ticket.error for ticket in tickets] == [None, None]


def test_the_bytes_that_wait_are_bounded() -> None:
    desk = Desk()
    first = desk.append(80)
    with pytest.raises(OverloadedError, match="pending_bytes=80"):
        desk.append(30)
    desk.led_by("b")
    desk.router.look()
    desk.sent[0][2](encode_answer(STORED))
    assert first.done
    desk.append(30)
    assert desk.router.pending == 1


def test_closing_ends_what_waits() -> None:
    desk = Desk()
    ticket = desk.append()
    desk.router.close()
    assert isinstance(ticket.error, OutcomeUnknownError)
    with pytest.raises(ClosedError):
        desk.append()
