from __future__ import annotations

import pytest

from siltstone.broker.connect.keep_alive import KeepAlive
from siltstone.broker.sessions.timers import Timers
from siltstone.clock import ManualClock


class Watch:
    """A client that is expected to show that it lives, and when it was found silent."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timers = Timers(lambda _: None)
        self.silent_at: list[float] = []
        self.keep_alive = KeepAlive(self.timers, self.clock.monotonic, self.silent)

    def silent(self) -> None:
        self.silent_at.append(self.clock.monotonic())

    def pass_seconds(self, count: int) -> None:
        for _ in range(count):
            self.clock.advance(1.0)
            self.timers.run(self.clock.monotonic())


@pytest.mark.parametrize("seconds", [2, 10, 100])
def test_mqtt_3_1_2_22_silence_is_told_once_at_one_and_a_half_times_the_keep_alive(
    seconds: int,
) -> None:
    watch = Watch()
    watch.keep_alive.begin(seconds)
    watch.pass_seconds(seconds * 4)
    assert (watch.silent_at, len(watch.timers)) == ([seconds * 1.5], 0)


def test_a_sign_of_life_begins_the_wait_anew() -> None:
    watch = Watch()
    watch.keep_alive.begin(10)
    watch.pass_seconds(14)
    watch.keep_alive.seen()
    watch.pass_seconds(7)
    watch.keep_alive.seen()
    watch.pass_seconds(14)
    assert watch.silent_at == []
    watch.pass_seconds(1)
    assert watch.silent_at == [36.0]


def test_the_wait_counts_from_its_begin_not_from_the_connection() -> None:
    watch = Watch()
    watch.pass_seconds(100)
    watch.keep_alive.begin(10)
    watch.pass_seconds(15)
    assert watch.silent_at == [115.0]


def test_no_keep_alive_waits_for_ever() -> None:
    watch = Watch()
    watch.keep_alive.begin(0)
    assert len(watch.timers) == 0
    watch.keep_alive.end()
    watch.pass_seconds(1000)
    assert watch.silent_at == []


def test_who_is_not_read_is_not_silent() -> None:
    watch = Watch()
    watch.keep_alive.begin(10)
    watch.keep_alive.is_deaf = True
    watch.pass_seconds(100)
    assert watch.silent_at == []
    watch.keep_alive.is_deaf = False
    watch.keep_alive.seen()
    watch.pass_seconds(20)
    assert watch.silent_at == [115.0]


def test_after_the_end_nothing_is_expected() -> None:
    watch = Watch()
    watch.keep_alive.begin(10)
    watch.keep_alive.end()
    assert len(watch.timers) == 0
    watch.pass_seconds(100)
    assert watch.silent_at == []
