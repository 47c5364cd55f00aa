from __future__ import annotations

from collections import deque
from collections.abc import Callable

from siltstone.broker.turns import Turns


class Desk:
    """Turns, and who had one."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()
        self.turns = Turns(self.soon.append)
        self.had: list[str] = []

    def begin(self, client_id: str, name: str) -> None:
        self.turns.begin(client_id, lambda: self.had.append(name))

    def run(self) -> None:
        while self.soon:
            self.soon.popleft()()


def test_the_first_one_begins_at_once() -> None:
    desk = Desk()
    desk.begin("c", "first")
    assert (desk.had, desk.turns.is_free("c"), len(desk.turns)) == (["first"], False, 1)


def test_others_wait_for_the_end_of_those_before_them() -> None:
    desk = Desk()
    for name in ("first", "second", "third"):
        desk.begin("c", name)
    assert desk.had == ["first"]
    desk.turns.end("c")
    assert desk.had == ["first"]
    desk.run()
    assert desk.had == ["first", "second"]
    desk.turns.end("c")
    desk.run()
    desk.turns.end("c")
    assert (desk.had, desk.turns.is_free("c")) == (["first", "second", "third"], True)


def test_between_two_turns_nobody_pushes_in() -> None:
    desk = Desk()
    desk.begin("c", "first")
    desk.begin("c", "second")
    desk.turns.end("c")
    desk.begin("c", "third")
    desk.run()
    assert desk.had == ["first", "second"]


def test_client_ids_do_not_wait_for_each_other() -> None:
    desk = Desk()
    desk.begin("a", "of a")
    desk.begin("b", "of b")
    assert (desk.had, len(desk.turns)) == (["of a", "of b"], 2)


def test_what_must_be_next_goes_before_all_others_that_wait() -> None:
    desk = Desk()
    desk.turns.begin_next("c", lambda: desk.had.append("first"))
    desk.begin("c", "second")
    desk.turns.begin_next("c", lambda: desk.had.append("next"))
    for _ in range(3):
        desk.turns.end("c")
        desk.run()
    assert desk.had == ["first", "next", "second"]
