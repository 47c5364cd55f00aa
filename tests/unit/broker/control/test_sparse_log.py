from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from siltstone.broker.control.sparse_log import KEYS_MAX, SparseLog
from siltstone.broker.sessions.timers import Timers


class Desk:
    """A clock with timers, and the lines that a sparse log wrote."""

    def __init__(self, caplog: pytest.LogCaptureFixture, **settings: float) -> None:
        caplog.set_level(logging.INFO)
        self._caplog = caplog
        self.now = 0.0
        self._timers = Timers(lambda _: None)
        later: Callable[..., object] = self._timers.at
        logger = logging.getLogger("siltstone.broker")
        self.sparse = SparseLog(logger, lambda: self.now, later, **settings)  # type: ignore[arg-type]

    def run_to(self, at: float) -> None:
        self.now = at
        self._timers.run(at)

    def tell(self, number: int, key: str = "") -> None:
        self.sparse.tell(logging.INFO, "refused", {"number": number}, key)

    @property
    def told(self) -> list[dict[str, object]]:
        return [getattr(record, "facts", {}) for record in self._caplog.records]


def test_of_events_that_come_fast_one_is_told_with_the_number_of_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk(caplog)
    for number, at in enumerate((0.0, 0.1, 0.2, 0.9, 1.5)):
        desk.run_to(at)
        desk.tell(number)
    assert desk.told == [{"number": 0}, {"number": 3, "unlogged": 2}]
    desk.run_to(2.5)
    assert desk.told[2:] == [{"number": 4}]
    desk.run_to(3.5)
    desk.tell(5)
    assert desk.told[3:] == [{"number": 5}]


def test_the_first_events_of_each_key_are_told_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(caplog, seconds=10.0, lines=2)
    for number in range(500):
        desk.tell(number, "a")
    desk.tell(500, "b")
    assert desk.told == [{"number": 0}, {"number": 1}, {"number": 500}]
    desk.run_to(10.0)
    assert desk.told[3:] == [{"number": 499, "unlogged": 497}]


def test_what_waits_is_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(caplog)
    for number in range(3):
        desk.tell(number)
    desk.sparse.flush()
    assert desk.told == [{"number": 0}, {"number": 2, "unlogged": 1}]
    desk.run_to(5.0)
    assert len(desk.told) == 2


def test_events_of_too_many_keys_share_their_lines(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(caplog)
    for number in range(KEYS_MAX + 50):
        desk.tell(number, f"key {number}")
    assert len(desk.told) == KEYS_MAX + 1
    desk.run_to(1.0)
    assert desk.told[KEYS_MAX + 1 :] == [{"number": KEYS_MAX + 49, "unlogged": 48}]


def test_events_below_the_level_are_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(caplog)
    caplog.set_level(logging.WARNING, "siltstone.broker")
    for number in range(3):
        desk.tell(number)
    desk.sparse.flush()
    assert desk.told == []
