"""Subjects of the form comparison that are told the time: the shell of the loop, and the clock."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from random import Random
from threading import Event
from typing import Any, cast

from siltstone.broker.listen.shell import LoopShell
from siltstone.clock import GuardedClock, ManualClock, SystemClock

Act = Callable[[], object]
PATIENCE_SECONDS = 60.0


class _Handle:
    def __init__(self, told: list[Any]) -> None:
        self._told = told

    def cancel(self) -> None:
        self._told.append("cancelled")


class _Loop:
    """A loop that is turned by hand."""

    def __init__(self, told: list[Any]) -> None:
        self.told = told
        self.acts: deque[Act] = deque()
        self.seconds = 0.0

    def time(self) -> float:
        return self.seconds

    def call_soon(self, act: Act) -> None:
        self.acts.append(act)

    call_soon_threadsafe = call_soon

    def call_at(self, at: float, _: Act) -> _Handle:
        self.told.append(("at", round(at, 6)))
        return _Handle(self.told)

    def turn(self) -> None:
        for _ in range(len(self.acts)):
            self.acts.popleft()()

    def rest(self) -> None:
        """Turn until nothing is left."""
        while self.acts:
            self.turn()
            self.told.append("turned")


def shell(rng: Random) -> Any:
    """Request acts that request others, from the loop and from threads; turn the loop."""
    told: list[Any] = []
    loop = _Loop(told)
    made = LoopShell(cast("Any", loop), lambda: None)

    def act(number: int, depth: int) -> None:
        told.append((number, depth))
        if number % 3 == 0:
            for each in range(depth):
                made.soon(partial(act, number + each, depth - 1))

    for number in range(rng.randrange(1, 20)):
        match rng.randrange(6):
            case 0:
                made.wake_at(rng.choice((0.0, 1.5, 1e9)))
            case 1:
                loop.turn()
                told.append("turned")
            case 2:
                # One at a time, because several would end in any order.
                loop.rest()
                done = Event()
                ask = made.in_thread if rng.random() < 0.5 else made.read_in_thread
                ask(lambda: told.append("work"), done.set)
                deadline = time.monotonic() + PATIENCE_SECONDS
                while not done.wait(0.0005):
                    assert time.monotonic() < deadline, "the work does not end"
                    loop.turn()
            case 3:
                made.soon_from_thread(partial(act, number, 1))
            case _:
                made.soon(partial(act, number, rng.randrange(3)))
    told.append(made.now())
    made.close()
    loop.rest()
    return told


def clock(rng: Random) -> Any:
    """Move the time, jump, settle, confirm, and continue from an earlier run."""
    inner = ManualClock()
    boots = ("", "one", "two")
    made = _guarded(rng, inner, rng.choice(boots))
    told: list[Any] = []
    for _ in range(rng.randrange(2, 25)):
        match rng.randrange(9):
            case 0:
                inner.jump(rng.choice((-4000.0, -2.0, 0.5, 30.0, 400_000.0)))
            case 1:
                made.settle()
            case 2 if rng.random() < 0.4:
                made.confirm()
            case 3 if rng.random() < 0.4:
                seen = made.sighting()
                told.append(astuple(seen))
                made = _guarded(rng, inner, rng.choice(boots))
                made.resume(seen)
            case 4:
                told.append((astuple(made.state()), made.state().is_held, made.went_back))
            case 5:
                since = int(inner.now_us()) - rng.choice((-(10**9), 0, 10**6, 10**12))
                told.append((made.passed_us(since), inner.passed_us(since)))
                told.append((made.held_us(), inner.held_us()))
            case _:
                inner.advance(rng.choice((0.0, 0.25, 3.0, 50.0, 4_000.0)))
        told.append((made.now_us(), made.monotonic()))
    real = SystemClock()
    since = real.now_us()
    told.append((real.passed_us(since) >= 0, len(real.held_us()), real.monotonic() > 0))
    return told


def _guarded(rng: Random, inner: ManualClock, boot: str) -> GuardedClock:
    jump_seconds = rng.choice((1.0, 60.0))
    confirm_seconds = rng.choice((0.0, 10.0, 3_600.0))
    return GuardedClock(
        inner, jump_seconds=jump_seconds, confirm_seconds=confirm_seconds, boot=boot
    )
