from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import PurePath

import pytest

from siltstone.broker.snapshots.pace import LoopPace, Lull, ThreadPace
from siltstone.clock import ManualClock
from siltstone.errors import ClosedError, UsageError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.snapshot.format.records import Record
from siltstone.snapshot.writer import SnapshotWriter
from tests.support.snapshots import ABOUT, session


def make_writer() -> SnapshotWriter:
    return SnapshotWriter(MemoryFileSystem().create(PurePath("/x.gz")), ABOUT)


class Work:
    """Sessions that each take 0.035 ms to be looked at, and what was done behind them."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.seen = 0
        self.turns: list[int] = []
        self.rests: list[float] = []

    def records(self, count: int, size_bytes: int = 1) -> Iterator[Record]:
        for _ in range(count):
            self.clock.advance(0.000035)
            self.seen += 1
            yield session("x" * size_bytes)

    def received(self) -> int:
        """Note a turn of the loop; something comes in each."""
        self.turns.append(self.seen)
        return len(self.turns)

    def make_pace(self, loop: asyncio.AbstractEventLoop) -> LoopPace:
        return LoopPace(loop, self.clock.monotonic, self.rests.append, self.received)


def filled(work: Work, records: Iterator[Record | None], *, is_hurried: bool = False) -> bool:
    """Fill as a snapshot does: from a thread, on a loop that serves others."""

    async def scenario() -> bool:
        loop = asyncio.get_running_loop()
        pace = work.make_pace(loop)
        work.turns.clear()
        if is_hurried:
            pace.hurry()
        return await loop.run_in_executor(None, pace.fill, make_writer(), records)

    return asyncio.run(scenario())


class TestLoopPace:
    def test_the_loop_does_other_things_behind_each_moment(self) -> None:
        work = Work()
        assert not filled(work, work.records(12))
        assert work.turns == [5, 10]

    def test_it_ends_when_the_writer_is_full(self) -> None:
        work = Work()
        assert filled(work, work.records(10, size_bytes=30_000))
        assert (work.seen, work.turns) == (3, [])

    def test_in_a_hurry_the_loop_works_for_longer(self) -> None:
        work = Work()
        assert not filled(work, work.records(400), is_hurried=True)
        assert work.turns == [143, 286]

    def test_what_the_records_raise_is_raised_in_the_thread(self) -> None:
        def records() -> Iterator[Record]:
            yield session("c")
            raise UsageError("too much")

        with pytest.raises(UsageError, match="too much"):
            filled(Work(), records())

    @pytest.mark.parametrize("is_stopped_before", [True, False])
    def test_when_it_is_stopped_the_thread_waits_no_more(self, is_stopped_before: bool) -> None:
        async def scenario() -> None:
            loop = asyncio.get_running_loop()
            work = Work()
            pace = work.make_pace(loop)
            begun = asyncio.Event()

            def records() -> Iterator[None]:
                while True:
                    work.clock.advance(1.0)
                    begun.set()
                    yield None

            if is_stopped_before:
                pace.stop()
            filling = loop.run_in_executor(None, pace.fill, make_writer(), records())
            if not is_stopped_before:
                await begun.wait()
                pace.stop()
            with pytest.raises(ClosedError, match="the broker stopped"):
                await filling

        asyncio.run(scenario())

    def test_neither_the_loop_nor_the_thread_rests_while_nobody_sends(self) -> None:
        line = Line()
        rests: list[float] = []
        with asyncio.Runner() as runner:
            pace = LoopPace(
                runner.get_loop(), line.clock.monotonic, rests.append, lambda: line.received
            )
            for message, seconds in LINE:
                line.pass_time(message, seconds)
                rests.append(pace.turn_rest())
                pace.rest()
        busy = [0.001, 0.0004]
        assert rests == [*busy, *busy, 0.0, 0.0, *busy, 0.0]

    def test_the_thread_rests_until_there_is_a_hurry(self) -> None:
        work = Work()
        with asyncio.Runner() as runner:
            pace = work.make_pace(runner.get_loop())
            pace.rest()
            pace.hurry()
            pace.rest()
            assert pace.turn_rest() == 0.0
        assert work.rests == [0.0004]


# Whether a message comes, and how long it is until then.
LINE = [(True, 1.0), (False, 0.009), (False, 0.0011), (False, 5.0), (True, 0.0), (False, 0.011)]


class Line:
    """What others send."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.received = 0

    def pass_time(self, message: bool, seconds: float) -> None:
        self.clock.advance(seconds)
        self.received += message


def test_a_lull_is_on_when_nothing_came_for_ten_milliseconds() -> None:
    line = Line()
    lull = Lull(line.clock.monotonic, lambda: line.received)
    found = []
    for message, seconds in LINE:
        line.pass_time(message, seconds)
        found.append(lull.is_on())
    assert found == [False, False, True, True, False, True]


class TestThreadPace:
    def test_in_a_lull_the_thread_works_for_longer_and_hardly_rests(self) -> None:
        work = Work()
        pace = ThreadPace(work.clock.monotonic, work.rests.append, lambda: 0)
        work.clock.advance(1.0)
        assert not pace.fill(make_writer(), work.records(60))
        pace.rest()
        assert work.rests == [0.00005, 0.00005]

    def test_the_thread_rests_behind_each_moment(self) -> None:
        work = Work()
        pace = ThreadPace(work.clock.monotonic, work.rests.append, work.received)
        assert not pace.fill(make_writer(), work.records(10))
        assert work.rests == [0.0004, 0.0004, 0.0004]

    def test_it_ends_when_the_writer_is_full(self) -> None:
        work = Work()
        pace = ThreadPace(work.clock.monotonic, work.rests.append, work.received)
        assert pace.fill(make_writer(), work.records(10, size_bytes=30_000))
        assert work.seen == 3

    def test_in_a_hurry_it_does_not_rest(self) -> None:
        work = Work()
        pace = ThreadPace(work.clock.monotonic, work.rests.append, work.received)
        pace.hurry()
        assert not pace.fill(make_writer(), work.records(10))
        assert work.rests == []
