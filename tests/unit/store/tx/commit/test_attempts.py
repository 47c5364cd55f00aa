"""Each attempt to commit is admitted once, in its term, and its sender learns its outcome."""

from __future__ import annotations

from siltstone.errors import ConflictError, RetryError
from siltstone.store.tx.commit.attempts import (
    ANSWERS_MAX,
    GIVEN_UP_MAX,
    Admissions,
    Attempt,
    AttemptSender,
    StoredAttempt,
)

NAME = b"s" * 16


def leading(term: int) -> Admissions:
    admissions = Admissions()
    admissions.lead(term)
    return admissions


def test_an_attempt_is_admitted_once() -> None:
    attempt = AttemptSender(NAME).begin(3)
    admissions = leading(3)
    assert admissions.admit(attempt)
    assert not admissions.admit(attempt)


def test_an_attempt_is_admitted_only_in_its_term() -> None:
    attempt = AttemptSender(NAME).begin(3)
    assert not leading(2).admit(attempt)
    assert not leading(4).admit(attempt)


def test_an_attempt_that_came_before_its_term_is_not_admitted_later() -> None:
    sender, admissions = AttemptSender(NAME), leading(2)
    early = sender.begin(4)
    assert not admissions.admit(early)
    admissions.lead(4)
    assert not admissions.admit(early)
    assert admissions.admit(sender.begin(4))


def test_attempts_may_arrive_in_any_order() -> None:
    sender, admissions = AttemptSender(NAME), leading(1)
    first, second = sender.begin(1), sender.begin(1)
    assert admissions.admit(second)
    assert admissions.admit(first)


def test_an_attempt_that_was_given_up_is_refused_after_a_later_one_was_taken() -> None:
    sender, admissions = AttemptSender(NAME), leading(1)
    oldest, given_up = sender.begin(1), sender.begin(1)
    sender.give_up(given_up.number)
    assert admissions.admit(sender.begin(1))
    assert not admissions.admit(given_up)
    assert admissions.admit(oldest)


def test_an_attempt_below_the_lowest_open_one_is_refused() -> None:
    sender, admissions = AttemptSender(NAME), leading(1)
    late = sender.begin(1)
    assert sender.ended(late.number)
    assert admissions.admit(sender.begin(1))
    assert not admissions.admit(late)


def test_a_leader_forgets_the_attempts_that_have_ended() -> None:
    sender, admissions = AttemptSender(NAME), leading(1)
    for _ in range(100):
        attempt = sender.begin(1)
        assert admissions.admit(attempt)
        sender.ended(attempt.number)
    assert admissions.size() <= 1


def test_an_answer_is_remembered_until_its_attempt_has_ended() -> None:
    sender, admissions = AttemptSender(NAME), leading(1)
    first, second = sender.begin(1), sender.begin(1)
    refusal = ConflictError("late")
    assert admissions.admit(first)
    assert admissions.answered(first) is None
    admissions.answer(first, refusal)
    assert admissions.admit(second)
    admissions.answer(second, 7)
    assert (admissions.answered(first), admissions.answered(second)) == (refusal, 7)
    sender.ended(first.number)
    assert admissions.admit(sender.begin(1))
    assert (admissions.answered(first), admissions.answered(second)) == (None, 7)


def test_an_answer_of_another_term_is_not_remembered() -> None:
    attempt = AttemptSender(NAME).begin(1)
    admissions = leading(1)
    assert admissions.admit(attempt)
    admissions.answer(attempt, 7)
    admissions.lead(2)
    assert admissions.answered(attempt) is None
    admissions.answer(attempt, 7)
    assert admissions.answered(attempt) is None


def test_an_attempt_that_came_before_its_term_is_refused_again() -> None:
    early, admissions = AttemptSender(NAME).begin(4), leading(2)
    assert not admissions.admit(early)
    admissions.lead(4)
    assert not admissions.admit(early)
    assert isinstance(admissions.answered(early), RetryError)


def test_of_the_oldest_answers_of_a_sender_only_the_refusal_is_remembered() -> None:
    sender, admissions = AttemptSender(NAME), leading(1)
    attempts = [sender.begin(1) for _ in range(ANSWERS_MAX + 1)]
    for attempt in attempts:
        assert admissions.admit(attempt)
        admissions.answer(attempt, 7)
    # Its sender may still wait for the answer, and sends the transaction again.
    assert type(admissions.answered(attempts[0])) is RetryError
    assert admissions.answered(attempts[1]) == 7
    for attempt in attempts[:2]:
        sender.ended(attempt.number)
    assert admissions.admit(sender.begin(1))
    assert admissions.answered(attempts[0]) is None


def test_senders_do_not_disturb_each_other() -> None:
    admissions = leading(1)
    assert admissions.admit(AttemptSender(NAME).begin(1))
    assert admissions.admit(AttemptSender(b"t" * 16).begin(1))


def test_a_record_ends_the_attempts_of_its_sender_once() -> None:
    sender = AttemptSender(NAME)
    number = sender.begin(1).number
    stored = StoredAttempt(NAME, number, 9)
    assert sender.counted([StoredAttempt(b"t" * 16, number, 8), stored]) == [stored]
    assert sender.counted([stored]) == []
    assert not sender.ended(number)


def test_a_term_ends_the_attempts_of_earlier_terms() -> None:
    sender = AttemptSender(NAME)
    first, second = sender.begin(1), sender.begin(2)
    assert sender.counted_term(1) == []
    assert sender.counted_term(2) == [first.number]
    assert sender.counted_term(3) == [second.number]
    assert sender.counted([StoredAttempt(NAME, second.number, 1)]) == []


def test_an_attempt_says_what_has_ended() -> None:
    sender = AttemptSender(NAME)
    first, second = sender.begin(1), sender.begin(1)
    sender.give_up(second.number)
    assert sender.begin(1) == Attempt(
        sender=NAME, number=3, term=1, lowest=first.number, given_up=(second.number,)
    )
    sender.ended(first.number)
    assert sender.begin(1) == Attempt(sender=NAME, number=4, term=1, lowest=3)


def test_what_an_attempt_gave_up_below_a_higher_lowest_is_not_remembered() -> None:
    admissions = leading(1)
    assert admissions.admit(Attempt(sender=NAME, number=9, term=1, lowest=9))
    late = Attempt(sender=NAME, number=8, term=1, lowest=1, given_up=(2, 3))
    assert not admissions.admit(late)
    assert admissions.size() == 1


def test_a_sender_with_too_many_given_up_attempts_is_full_until_the_oldest_ends() -> None:
    sender = AttemptSender(NAME)
    oldest = sender.begin(1)
    for _ in range(GIVEN_UP_MAX):
        assert not sender.is_full()
        sender.give_up(sender.begin(1).number)
    assert sender.is_full()
    sender.ended(oldest.number)
    assert not sender.is_full()
    assert sender.begin(1).given_up == ()
