from __future__ import annotations

from collections.abc import Callable

from siltstone.errors import OutcomeUnknownError, OverloadedError, PoisonedError
from siltstone.session.durable.saves import SaveScheduler, SaveTicket

Act = Callable[[], None]


class Ticket:
    """The outcome of a save, told by hand."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._callbacks: list[Callable[[SaveTicket], None]] = []

    def on_done(self, callback: Callable[[SaveTicket], None]) -> None:
        self._callbacks.append(callback)

    def tell(self, error: Exception | None = None) -> None:
        self.error = error
        for callback in self._callbacks:
            callback(self)


class Desk:
    """A keeper, and all that it does."""

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        self.refusals: list[Exception] = []
        self.is_clean = False
        self.failures: list[Exception] = []
        self.timers: list[tuple[float, Act]] = []
        self.told: list[str] = []
        self.keeper = SaveScheduler(
            self.submit,
            hop=lambda act: act(),
            later=lambda seconds, act: self.timers.append((seconds, act)),
            failed=self.failures.append,
        )

    def submit(self) -> Ticket | None:
        if self.refusals:
            raise self.refusals.pop()
        if self.is_clean:
            return None
        self.tickets.append(Ticket())
        return self.tickets[-1]

    def save(self, name: str) -> None:
        self.keeper.save(lambda: self.told.append(name))


def test_who_asks_is_told_when_it_is_durable() -> None:
    desk = Desk()
    desk.save("a")
    assert (desk.told, len(desk.tickets)) == ([], 1)
    desk.tickets[0].tell()
    assert (desk.told, len(desk.tickets)) == (["a"], 1)


def test_where_nothing_was_changed_it_is_at_once() -> None:
    desk = Desk()
    desk.is_clean = True
    desk.save("a")
    assert (desk.told, desk.tickets) == (["a"], [])


def test_what_comes_while_a_save_is_under_way_is_part_of_the_next_one() -> None:
    desk = Desk()
    desk.save("a")
    desk.save("b")
    desk.save("c")
    assert len(desk.tickets) == 1
    desk.tickets[0].tell()
    assert (desk.told, len(desk.tickets)) == (["a"], 2)
    desk.tickets[1].tell()
    assert (desk.told, len(desk.tickets)) == (["a", "b", "c"], 2)


def test_a_save_without_room_is_tried_again_and_again() -> None:
    desk = Desk()
    desk.refusals = [OverloadedError("full")]
    desk.save("a")
    desk.save("b")
    [(seconds, again)] = desk.timers
    assert (seconds, desk.tickets, desk.failures) == (0.5, [], [])
    again()
    desk.tickets[0].tell(OverloadedError("full still"))
    desk.timers[1][1]()
    desk.tickets[1].tell()
    assert (desk.told, desk.failures, len(desk.tickets)) == (["a", "b"], [], 2)


def test_after_a_failure_nobody_is_told_but_the_owner() -> None:
    desk = Desk()
    desk.save("a")
    desk.save("b")
    failure = PoisonedError("a sync failed")
    desk.tickets[0].tell(failure)
    assert (desk.told, desk.failures, len(desk.tickets)) == ([], [failure], 1)


class TestClosing:
    def test_the_last_one_is_told_behind_all_others(self) -> None:
        desk = Desk()
        desk.save("a")
        desk.keeper.close(lambda: desk.told.append("last"))
        desk.tickets[0].tell()
        assert desk.told == ["a"]
        desk.tickets[1].tell()
        assert desk.told == ["a", "last"]

    def test_it_is_told_also_where_it_cannot_be_saved(self) -> None:
        desk = Desk()
        desk.keeper.close(lambda: desk.told.append("last"))
        desk.tickets[0].tell(PoisonedError("a sync failed"))
        assert (desk.told, len(desk.failures)) == (["last"], 1)

    def test_it_is_not_tried_for_ever(self) -> None:
        desk = Desk()
        desk.refusals = [OverloadedError("full")] * 100
        desk.keeper.close(lambda: desk.told.append("last"))
        while desk.timers:
            desk.timers.pop()[1]()
        assert (desk.told, len(desk.failures), len(desk.refusals)) == (["last"], 1, 80)


def test_a_mistake_of_ours_is_a_failure_and_the_last_one_is_called_back() -> None:
    desk = Desk()
    desk.refusals = [ValueError("ours")]
    desk.save("a")
    assert (desk.told, [type(each) for each in desk.failures]) == ([], [OutcomeUnknownError])
    desk.refusals = [ValueError("ours")]
    desk.keeper.close(lambda: desk.told.append("last"))
    assert (desk.told, len(desk.failures), desk.tickets) == (["last"], 2, [])


def test_who_hears_of_a_failure_may_fail_too() -> None:
    desk = Desk()

    def fail(_: Exception) -> None:
        raise ValueError("ours")

    desk.keeper = SaveScheduler(
        desk.submit, hop=lambda act: act(), later=lambda _, act: act(), failed=fail
    )
    desk.keeper.close(lambda: desk.told.append("last"))
    desk.tickets[0].tell(PoisonedError("a sync failed"))
    assert desk.told == ["last"]
