from __future__ import annotations

from pathlib import PurePath
from threading import Event

from siltstone.errors import ClosedError
from siltstone.store.log.compact.encode import UnfitError
from siltstone.store.log.compact.rewrite import Rewritten, rewrite_segment
from siltstone.store.log.read.pieces import Row
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

    def __call__(self, source: PurePath, target: PurePath) -> Rewritten:
        self.calls += 1
        if self._errors:
            raise self._errors.pop(0)
        made = rewrite_segment(self._world.fs, source, target)
        self.called.set()
        return made

    def rest(self) -> None:
        """There is no process."""

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
