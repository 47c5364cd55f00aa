from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

import pytest

from siltstone.broker.sessions.turns import SLOW_SECONDS, Turn, Turns


class Desk:
    """Turns, and what had one."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()
        self.now = 0.0
        self.turns = Turns(self.soon.append, lambda: self.now)
        self.had: list[str] = []
        self.over: list[str] = []

    def turn(self, client_id: str, name: str) -> Turn:
        return Turn(client_id, lambda: self.had.append(name), lambda _: self.over.append(name))

    def begin(self, client_id: str, name: str) -> Turn:
        turn = self.turn(client_id, name)
        self.turns.begin(turn)
        return turn

    def begin_next(self, client_id: str, name: str) -> Turn:
        turn = self.turn(client_id, name)
        self.turns.begin_next(turn)
        return turn

    def run(self) -> None:
        while self.soon:
            self.soon.popleft()()


@pytest.fixture
def desk() -> Desk:
    return Desk()


def fail(*_: object) -> None:
    raise ValueError("ours")


class TestLine:
    def test_the_first_one_begins_at_once(self, desk: Desk) -> None:
        desk.begin("c", "first")
        assert (desk.had, desk.turns.is_free("c"), len(desk.turns)) == (["first"], False, 1)

    def test_others_wait_for_the_end_of_those_before_them(self, desk: Desk) -> None:
        turns = [desk.begin("c", name) for name in ("first", "second", "third")]
        assert desk.had == ["first"]
        turns[0].end()
        assert desk.had == ["first"]
        desk.run()
        assert desk.had == ["first", "second"]
        turns[1].end()
        desk.run()
        turns[2].end()
        assert (desk.had, desk.turns.is_free("c")) == (["first", "second", "third"], True)
        assert (desk.over, desk.turns.count) == (["first", "second", "third"], 3)

    def test_between_two_turns_nobody_pushes_in(self, desk: Desk) -> None:
        first = desk.begin("c", "first")
        desk.begin("c", "second")
        first.end()
        desk.begin("c", "third")
        desk.run()
        assert desk.had == ["first", "second"]

    def test_client_ids_do_not_wait_for_each_other(self, desk: Desk) -> None:
        desk.begin("a", "of a")
        desk.begin("b", "of b")
        assert (desk.had, len(desk.turns)) == (["of a", "of b"], 2)

    def test_what_must_be_next_goes_before_all_others_that_wait(self, desk: Desk) -> None:
        first = desk.begin_next("c", "first")
        second = desk.begin("c", "second")
        following = desk.begin_next("c", "next")
        for turn in (first, following, second):
            turn.end()
            desk.run()
        assert (desk.had, len(desk.turns)) == (["first", "next", "second"], 0)

    def test_it_goes_before_one_that_was_let_and_has_done_nothing_yet(self, desk: Desk) -> None:
        first = desk.begin("c", "first")
        second = desk.begin("c", "second")
        first.end()
        following = desk.begin_next("c", "next")
        desk.run()
        assert (desk.had, desk.turns.holder("c")) == (["first", "next"], following)
        second.end()
        following.end()
        desk.run()
        assert (desk.had, desk.turns.holder("c")) == (["first", "next", "second"], second)
        second.end()
        assert (desk.over, len(desk.turns)) == (["first", "next", "second"], 0)

    def test_a_place_in_the_line_can_be_given_up(self, desk: Desk) -> None:
        first = desk.begin("c", "first")
        second = desk.begin("c", "second")
        third = desk.begin("c", "third")
        desk.turns.withdraw(second)
        first.end()
        desk.run()
        third.end()
        assert (desk.had, desk.over) == (["first", "third"], ["first", "third"])
        assert len(desk.turns) == 0

    def test_a_turn_that_has_begun_is_not_withdrawn(self, desk: Desk) -> None:
        first = desk.begin("c", "first")
        desk.turns.withdraw(first)
        desk.begin("c", "second")
        desk.turns.withdraw(first)
        assert desk.turns.holder("c") is first

    def test_the_last_place_that_is_given_up_leaves_no_line(self, desk: Desk) -> None:
        first = desk.begin("c", "first")
        desk.turns.withdraw(desk.begin("c", "second"))
        first.end()
        assert (desk.turns.is_free("c"), desk.soon) == (True, deque())


class TestEnd:
    def test_a_turn_ends_once(self, desk: Desk) -> None:
        first = desk.begin("c", "first")
        desk.begin("c", "second")
        first.end()
        first.end()
        desk.run()
        assert (desk.had, desk.over, len(desk.turns)) == (["first", "second"], ["first"], 1)

    @pytest.mark.parametrize("others", [0, 1])
    def test_one_that_raises_ends(self, desk: Desk, others: int) -> None:
        waited = desk.begin("c", "waited") if others else None
        desk.turns.begin(Turn("c", fail, lambda _: desk.over.append("failed")))
        if waited is not None:
            waited.end()
        desk.run()
        assert (desk.over[others:], len(desk.turns)) == (["failed"], 0)

    def test_a_step_that_raises_ends_it(self, desk: Desk) -> None:
        first = desk.begin("c", "first")
        desk.begin("c", "second")
        first.step("the disk", fail)("outcome")
        desk.run()
        assert (desk.had, desk.over) == (["first", "second"], ["first"])

    def test_a_step_behind_the_end_is_not_taken(self, desk: Desk) -> None:
        first = desk.begin("c", "first")
        step = first.step("the disk", desk.had.append)
        first.end()
        step("late")
        assert desk.had == ["first"]

    def test_a_step_has_the_arguments_of_its_callback(self, desk: Desk) -> None:
        first = desk.begin("c", "first")
        first.step("the disk", desk.had.append)("stored")
        assert (desk.had, first.waits_for, len(desk.turns)) == (["first", "stored"], "the disk", 1)

    def test_what_hears_of_the_end_may_raise(self, desk: Desk) -> None:
        turn = Turn("c", lambda: None, fail)
        desk.turns.begin(turn)
        turn.end()
        assert len(desk.turns) == 0


class TestLook:
    def told(self, caplog: pytest.LogCaptureFixture) -> list[tuple[str, object]]:
        return [(each.getMessage(), each.__dict__["facts"]) for each in caplog.records]

    def test_a_turn_that_lasts_too_long_is_told_with_what_it_waits_for(
        self, desk: Desk, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        desk.now = 100.0
        desk.begin("c", "first").step("the disk", fail)
        desk.begin("c", "second")
        desk.now += SLOW_SECONDS - 0.1
        desk.begin("d", "young")
        desk.turns.look()
        assert self.told(caplog) == []
        desk.now += 0.1
        desk.turns.look()
        facts = {"client_id": "c", "waits_for": "the disk", "seconds": SLOW_SECONDS, "waiting": 1}
        assert self.told(caplog) == [("session_busy", facts)]

    def test_it_is_told_again_when_it_has_lasted_twice_as_long(
        self, desk: Desk, caplog: pytest.LogCaptureFixture
    ) -> None:
        desk.begin("c", "first")
        for _ in range(25):
            desk.now += 1.0
            desk.turns.look()
        seconds = [facts["seconds"] for _, facts in self.told(caplog) if isinstance(facts, dict)]
        assert seconds == [5.0, 10.0, 20.0]

    def test_the_time_of_one_that_waited_counts_from_its_own_beginning(
        self, desk: Desk, caplog: pytest.LogCaptureFixture
    ) -> None:
        first = desk.begin("c", "first")
        desk.begin("c", "second")
        desk.now += SLOW_SECONDS
        first.end()
        desk.turns.look()
        assert self.told(caplog) == []

    def test_of_very_many_only_some_are_named(
        self, desk: Desk, caplog: pytest.LogCaptureFixture
    ) -> None:
        for number in range(12):
            desk.begin(str(number), "first")
        desk.now += SLOW_SECONDS
        desk.turns.look()
        desk.turns.look()
        assert [event for event, _ in self.told(caplog)] == ["session_busy"] * 10 + [
            "more_sessions_busy"
        ]
        assert self.told(caplog)[-1][1] == {"sessions": 2}
