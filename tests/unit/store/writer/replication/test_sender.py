"""A sender: what it may report of a call, and which call it names as the previous one."""

from __future__ import annotations

from siltstone.store.writer.replication.messages import ProducerCall
from siltstone.store.writer.replication.sender import Sender

P, Q = b"p" * 16, b"q" * 16


def test_calls_name_the_call_before_them() -> None:
    sender = Sender(P)
    assert sender.attempt(sender.begin(), 1) == ProducerCall(producer=P, number=1, previous=0)
    assert sender.attempt(sender.begin(), 2) == ProducerCall(producer=P, number=2, previous=1)
    assert sender.stored(1)
    assert sender.attempt(2, 3) == ProducerCall(producer=P, number=2, previous=1)


def test_a_call_is_refused_only_if_every_attempt_was() -> None:
    sender = Sender(P)
    number = sender.begin()
    sender.attempt(number, 1)
    sender.attempt(number, 2)
    sender.refused(number, 2)
    assert not sender.give_up(number)
    sender.refused(number, 1)
    assert sender.give_up(number)
    assert not sender.give_up(number)
    assert sender.open_calls() == ()


def test_a_refused_call_is_not_named_as_previous() -> None:
    sender = Sender(P)
    for request in (1, 2, 3):
        sender.attempt(sender.begin(), request)
    sender.refused(2, 2)
    assert sender.give_up(2)
    assert sender.attempt(3, 4).previous == 1


def test_a_stored_call_is_reported_once_and_a_late_refusal_changes_nothing() -> None:
    sender = Sender(P)
    sender.attempt(sender.begin(), 1)
    assert sender.stored(1)
    assert not sender.stored(1)
    sender.refused(1, 1)
    assert sender.attempt(sender.begin(), 2).previous == 1


def test_many_stored_calls_leave_one_number_behind() -> None:
    sender = Sender(P)
    for _ in range(100):
        sender.stored(sender.begin())
    assert sender.attempt(sender.begin(), 1) == ProducerCall(producer=P, number=101, previous=100)
    assert len(sender._kept) == 2  # noqa: SLF001 -- memory must not grow with the calls


def test_a_successor_sends_what_the_fence_did_not_find() -> None:
    sender = Sender(P)
    for request in (1, 2, 3):
        sender.attempt(sender.begin(), request)
    following, done = sender.successor(Q, 1)
    assert done == (1,)
    assert following.open_calls() == (2, 3)
    assert following.attempt(2, 4) == ProducerCall(producer=Q, number=2, previous=0)
    assert following.attempt(3, 5) == ProducerCall(producer=Q, number=3, previous=2)
    assert following.begin() == 4
