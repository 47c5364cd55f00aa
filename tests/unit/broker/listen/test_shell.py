from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine

import pytest
import uvloop

from siltstone.broker.listen.shell import LoopShell


async def turn() -> None:
    """Let the loop go round once."""
    passed = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(passed.set_result, None)
    await passed


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await turn()


def test_it_runs_what_is_asked_for_and_when() -> None:
    events: list[str] = []

    async def play() -> None:
        loop = asyncio.get_running_loop()
        shell = LoopShell(loop, lambda: events.append("tick"))
        shell.soon(lambda: events.append("soon"))
        thread = threading.Thread(
            target=shell.soon_from_thread, args=(lambda: events.append("from thread"),)
        )
        thread.start()
        thread.join()
        await until(lambda: len(events) == 2)
        shell.wake_at(shell.now() + 3600)
        # A new time takes the place of the one before.
        shell.wake_at(shell.now())
        await until(lambda: "tick" in events)
        shell.in_thread(
            lambda: events.append(threading.current_thread().name.partition("_")[0]),
            lambda: events.append(threading.current_thread().name),
        )
        await until(lambda: len(events) == 5)
        shell.wake_at(shell.now())
        shell.close()
        for _ in range(5):
            await turn()

    asyncio.run(play())
    assert events == ["soon", "from thread", "tick", "siltstone-login", "MainThread"]


def test_a_thread_that_outlives_the_loop_is_not_heard() -> None:
    async def make() -> LoopShell:
        return LoopShell(asyncio.get_running_loop(), lambda: None)

    shell = asyncio.run(make())
    heard: list[str] = []
    # The first loop is closed; what it is told goes nowhere, and raises nothing.
    shell.soon_from_thread(lambda: heard.append("too late"))
    asyncio.run(turn())
    shell.close()
    assert heard == []


def test_a_round_runs_what_the_round_before_it_asked_for_and_a_third_waits() -> None:
    events: list[str] = []

    async def play() -> None:
        loop = asyncio.get_running_loop()
        shell = LoopShell(loop, lambda: None)

        def first() -> None:
            events.append("first")
            shell.soon(second)

        def second() -> None:
            events.append("second")
            shell.soon(lambda: events.append("third"))

        shell.soon(first)
        shell.soon_from_thread(lambda: events.append("beside"))
        loop.call_soon(events.append, "loop")
        await until(lambda: "third" in events)
        shell.close()

    asyncio.run(play())
    assert events == ["first", "beside", "second", "loop", "third"]


def test_acts_of_a_thread_and_of_the_loop_keep_their_order() -> None:
    events: list[int] = []

    async def play() -> None:
        shell = LoopShell(asyncio.get_running_loop(), lambda: None)

        def count(start: int) -> None:
            for number in range(start, start + 100):
                shell.soon_from_thread(lambda number=number: events.append(number))  # type: ignore[misc]

        thread = threading.Thread(target=count, args=(0,))
        thread.start()
        thread.join()
        count(100)
        await until(lambda: len(events) == 200)
        shell.close()

    uvloop.run(play())
    assert events == list(range(200))


def test_an_act_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    events: list[str] = []

    def fail() -> None:
        raise RuntimeError("a mistake")

    async def play() -> None:
        shell = LoopShell(asyncio.get_running_loop(), lambda: None)
        shell.soon(fail)
        shell.soon(lambda: events.append("next"))
        await until(lambda: bool(events))
        shell.close()

    asyncio.run(play())
    assert events == ["next"]
    assert [record.message for record in caplog.records] == ["internal_error"]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_act_that_is_cancelled_does_not_hold_up_the_others(
    run: Callable[[Coroutine[None, None, None]], None],
) -> None:
    events: list[str] = []

    def cancelled() -> None:
        raise asyncio.CancelledError

    async def play() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(
            lambda _, context: events.append(type(context["exception"]).__name__)
        )
        shell = LoopShell(loop, lambda: None)
        shell.soon(cancelled)
        shell.soon(lambda: events.append("next"))
        for _ in range(5):
            await turn()
        shell.close()

    run(play())
    assert events[-1:] == ["next"]


def test_a_timer_does_not_come_early_so_that_the_loop_would_turn_for_nothing() -> None:
    late: list[float] = []

    async def play() -> None:
        loop = asyncio.get_running_loop()
        came = asyncio.Event()
        shell = LoopShell(loop, came.set)
        for number in range(20):
            at = shell.now() + 0.0031 + number / 7000
            came.clear()
            shell.wake_at(at)
            await came.wait()
            late.append(shell.now() - at)
        shell.close()

    uvloop.run(play())
    assert min(late) >= 0
