from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from siltstone.broker.connect.rounds import ROUND_SECONDS, Rounds


class Desk:
    """Rounds in which each call takes a third of a round, and a loop that is turned by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.done: list[int] = []
        self.soon: list[Callable[[], None]] = []
        self.rounds = Rounds(self.soon.append, lambda: self.now)

    def run(self, *numbers: int) -> None:
        for number in numbers:
            self.rounds.run(partial(self._act, number))

    def turn(self) -> None:
        acts, self.soon[:] = [*self.soon], []
        for act in acts:
            act()

    def _act(self, number: int) -> None:
        self.now += ROUND_SECONDS / 3 + 0.0001
        self.done.append(number)


def test_a_lone_call_runs_at_once() -> None:
    desk = Desk()
    for number in range(5):
        desk.run(number)
        assert desk.done == [*range(number + 1)]
        desk.turn()
    assert desk.soon == []


def test_many_calls_run_in_order_and_the_loop_turns_between_them() -> None:
    desk = Desk()
    desk.run(*range(8))
    assert desk.done == [0, 1, 2]
    desk.turn()
    assert desk.done == [0, 1, 2, 3, 4, 5]
    # A later call does not overtake those that wait.
    desk.run(8)
    assert desk.done == [0, 1, 2, 3, 4, 5]
    desk.turn()
    assert desk.done == [*range(9)]
    desk.turn()
    assert desk.soon == []
    desk.run(9)
    assert desk.done == [*range(10)]


def test_a_call_that_fails_is_logged_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()

    def fail() -> None:
        raise ValueError("broken")

    desk.run(0)
    desk.rounds.run(fail)
    desk.run(1, 2, 3)
    desk.turn()
    assert (desk.done, len(caplog.records)) == ([0, 1, 2, 3], 1)
