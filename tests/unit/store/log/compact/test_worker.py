"""The pace of the process that compacts: its clock and its stdin are those of the test."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from siltstone.clock import ManualClock
from siltstone.store.log.compact import worker


class Desk:
    """A clock, and a stdin that ends when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.rests: list[float] = []
        self.has_ended = False
        monkeypatch.setattr(worker, "time", self.clock)
        monkeypatch.setattr(worker, "select", SimpleNamespace(select=self._rest))

    def _rest(
        self, readers: list[object], _writers: object, _errors: object, seconds: float
    ) -> tuple[list[object], list[object], list[object]]:
        self.rests.append(seconds)
        self.clock.advance(seconds)
        return (readers if self.has_ended else [], [], [])


def test_it_rests_in_proportion_to_the_work_since_the_last_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(monkeypatch)
    pace = worker._Pace(3.0)  # noqa: SLF001 - only the process uses it
    for seconds in (2.0, 0.5, 0.0, 4.0):
        desk.clock.advance(seconds)
        pace(7)
    assert desk.rests == [6.0, 1.5, 0.0, 12.0]


def test_it_ends_with_its_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch)
    pace = worker._Pace(0.0)  # noqa: SLF001 - only the process uses it
    pace(7)
    desk.has_ended = True
    with pytest.raises(SystemExit):
        pace(7)
