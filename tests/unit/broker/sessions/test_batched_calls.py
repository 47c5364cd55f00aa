from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath

from siltstone.broker.sessions.batched_calls import BatchedCalls
from siltstone.errors import (
    CorruptionError,
    OutcomeUnknownError,
    PoisonedError,
    SiltstoneError,
)

Act = Callable[[], None]


class Desk:
    """A thread that is turned by hand, and what it was asked."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Act, Act]] = []
        self.asked: list[list[int]] = []
        self.error: SiltstoneError | None = None
        self.damaged: set[int] = set()
        self.answers: list[int | SiltstoneError] = []
        self.errands: BatchedCalls[int, int] = BatchedCalls(
            lambda work, then: self.jobs.append((work, then)), self.work
        )

    def work(self, items: Sequence[int]) -> list[int]:
        self.asked.append(list(items))
        if self.error is not None:
            raise self.error
        for item in items:
            if item in self.damaged:
                raise CorruptionError(f"damaged: {item}", path=PurePath("p"))
        return [item * 10 for item in items]

    def ask(self, *items: int) -> None:
        for item in items:
            self.errands.ask(item, self.answers.append)

    def run(self) -> None:
        work, then = self.jobs.pop(0)
        work()
        then()


def test_everybody_gets_the_answer_to_his_own() -> None:
    desk = Desk()
    desk.ask(1, 2, 3)
    desk.run()
    desk.run()
    assert (desk.answers, desk.asked) == ([10, 20, 30], [[1], [2, 3]])


def test_what_comes_meanwhile_is_done_together_next_time() -> None:
    desk = Desk()
    desk.ask(1)
    work, then = desk.jobs.pop()
    work()
    desk.ask(2, 3)
    assert desk.jobs == []
    then()
    desk.run()
    assert desk.asked == [[1], [2, 3]]


def test_no_more_than_a_thousand_at_once() -> None:
    desk = Desk()
    desk.ask(*range(1502))
    while desk.jobs:
        desk.run()
    assert [len(items) for items in desk.asked] == [1, 1000, 501]
    assert desk.answers == [item * 10 for item in range(1502)]


def test_a_damaged_item_is_the_error_of_nobody_else() -> None:
    desk = Desk()
    desk.damaged = {3, 5}
    desk.ask(1)
    desk.ask(*range(2, 8))
    desk.run()
    desk.run()
    errors = [answer for answer in desk.answers if isinstance(answer, CorruptionError)]
    assert [error.reason for error in errors] == ["damaged: 3", "damaged: 5"]
    assert desk.answers == [10, 20, errors[0], 40, errors[1], 60, 70]


def test_an_error_is_everybody_s_answer_and_the_next_ones_are_asked_anew() -> None:
    desk = Desk()
    desk.error = PoisonedError("a sync failed")
    desk.ask(1)
    desk.ask(2, 3)
    desk.run()
    desk.run()
    desk.error = None
    desk.ask(4)
    desk.run()
    failure = desk.answers[0]
    assert isinstance(failure, PoisonedError)
    assert desk.answers == [failure, desk.answers[1], desk.answers[1], 40]


def test_an_answer_may_ask_again() -> None:
    desk = Desk()
    desk.errands.ask(1, lambda _: desk.ask(2))
    desk.run()
    desk.run()
    assert desk.answers == [20]


def test_a_mistake_of_ours_is_an_answer_too() -> None:
    desk = Desk()
    desk.error = ValueError("ours")  # type: ignore[assignment]
    desk.ask(1)
    desk.run()
    desk.error = None
    desk.ask(2)
    desk.run()
    assert [type(answer) for answer in desk.answers] == [OutcomeUnknownError, int]


def test_work_that_answers_too_few_leaves_nobody_waiting() -> None:
    desk = Desk()
    desk.ask(1)
    desk.ask(2, 3)
    desk.run()
    work = desk.work
    desk.errands._work = lambda items: work(items)[:1]  # noqa: SLF001 - a mistake of ours
    desk.run()
    assert [type(answer) for answer in desk.answers] == [int, int, OutcomeUnknownError]


def test_a_batch_may_be_smaller() -> None:
    desk = Desk()
    desk.errands = BatchedCalls(
        lambda work, then: desk.jobs.append((work, then)), desk.work, together_max=2
    )
    desk.ask(*range(5))
    while desk.jobs:
        desk.run()
    assert desk.asked == [[0], [1, 2], [3, 4]]
