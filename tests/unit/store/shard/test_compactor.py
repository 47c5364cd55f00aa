from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import PurePath
from threading import Event

import pytest

from siltstone.errors import ClosedError, StorageFullError
from siltstone.store.database import Database
from siltstone.store.log.compact.encode import UnfitError
from siltstone.store.log.compact.rewrite import Rewritten, rewrite_segment
from siltstone.store.log.read.pieces import Row
from siltstone.store.shard.compaction import Compaction
from siltstone.store.shard.compactor import Compactor
from tests.support.builders import World
from tests.support.reading import check_everything


class Rewriter:
    """Writes on the thread of the compactor; the first segments may fail."""

    def __init__(self, world: World, *errors: Exception) -> None:
        self._world = world
        self._errors = list(errors)
        self.called = Event()
        self.closed = False
        self.calls = 0
        self.rests = 0
        self.size_bytes = 0

    def __call__(self, source: PurePath, target: PurePath) -> Rewritten:
        self.calls += 1
        if self._errors:
            raise self._errors.pop(0)
        made = rewrite_segment(self._world.fs, source, target)
        self.size_bytes += made.size_bytes
        self.called.set()
        return made

    def rest(self) -> None:
        """There is no process."""
        self.rests += 1

    def close(self) -> None:
        self.closed = True


def test_sealed_segments_are_compacted_while_the_setting_is_on() -> None:
    world = World()
    with world.database() as database:
        for _ in range(2):
            for number in range(3):
                database.append([Row("a", b"%d" % number)]).wait()
            database.seal()
        before = check_everything(database)
        # The first segment cannot be compacted, and is not tried again.
        rewriter = Rewriter(world, ClosedError("ended"), UnfitError("no"))
        is_on = Event()
        compactor = Compactor(
            "messages", lambda: database.compaction, rewriter, is_on=is_on.is_set, seconds=0.001
        )
        is_on.set()
        assert rewriter.called.wait(10)
        compactor.close()
        assert rewriter.closed
        assert (compactor.segments, compactor.rows) == (1, 3)
        assert rewriter.calls == 3
        assert len(database.compaction.jobs()) == 1
        assert check_everything(database) == before


class Looks:
    """A compactor that looks all the time, and how often it has looked, or could have."""

    def __init__(
        self, database: Database, rewriter: Rewriter, is_on: Callable[[], bool] = lambda: True
    ) -> None:
        self.count = 0
        self.asked = 0
        self._is_on = is_on
        self._database = database
        self._rewriter = rewriter
        self.compactor = Compactor(
            "messages", self._look, rewriter, is_on=self._ask, seconds=0.0005
        )

    def _ask(self) -> bool:
        self.asked += 1
        return self._is_on()

    def _look(self) -> Compaction:
        self.count += 1
        return self._database.compaction

    def wait(self, count: int) -> None:
        """Wait until it has looked so often, and once more."""
        until(lambda: self.count > count)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline


def fill(database: Database, slabs: int) -> None:
    for _ in range(slabs):
        for number in range(3):
            database.append([Row("a", b"%d" % number)]).wait()
        database.seal()


def test_a_segment_that_cannot_be_compacted_is_tried_once() -> None:
    world = World()
    with world.database() as database:
        fill(database, 1)
        rewriter = Rewriter(world, UnfitError("no"))
        looks = Looks(database, rewriter)
        looks.wait(5)
        looks.compactor.close()
        assert (rewriter.calls, looks.compactor.segments) == (1, 0)


def test_a_segment_that_found_no_space_is_tried_again_and_the_process_stays() -> None:
    world = World()
    with world.database() as database:
        fill(database, 1)
        (job,) = database.compaction.jobs()
        rewriter = Rewriter(world, *[StorageFullError(PurePath("p")) for _ in range(40)])
        looks = Looks(database, rewriter)
        assert rewriter.called.wait(10)
        # There was work at every look.
        looks.compactor.close()
        # The last one is that of the end.
        assert rewriter.rests == 1
        assert (rewriter.calls, looks.compactor.segments) == (41, 1)
        assert looks.compactor.saved_bytes == job.size_bytes - rewriter.size_bytes


def test_the_process_rests_once_when_there_was_no_work_for_many_looks() -> None:
    world = World()
    with world.database() as database:
        rewriter = Rewriter(world)
        looks = Looks(database, rewriter)
        looks.wait(22)
        # Two minutes of looks have not passed.
        assert rewriter.rests == 0 or looks.count > 23
        looks.wait(60)
        assert rewriter.rests == 1
        looks.compactor.close()
        assert rewriter.rests == 2


@pytest.mark.parametrize("during", ["the first segment", "nothing"])
def test_it_stops_between_two_segments_when_it_is_turned_off(during: str) -> None:
    world = World()
    with world.database() as database:
        fill(database, 3)

        class TurningOff(Rewriter):
            is_on = during != "nothing"

            def __call__(self, source: PurePath, target: PurePath) -> Rewritten:
                self.is_on = False
                return super().__call__(source, target)

        rewriter = TurningOff(world)
        looks = Looks(database, rewriter, lambda: rewriter.is_on)
        if during != "nothing":
            assert rewriter.called.wait(10)
        asked = looks.asked
        until(lambda: looks.asked > asked + 5)
        looks.compactor.close()
        assert looks.count == rewriter.calls == (0 if during == "nothing" else 1)
