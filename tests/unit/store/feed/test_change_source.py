"""Reads of kept changes, from records that the test stores itself."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from siltstone.rows.stored import StoredBatch
from siltstone.store.feed import changes as changes_module
from siltstone.store.feed.changes import ChangeSource, listen_for_changes
from siltstone.store.feed.pool import ReadResult
from siltstone.store.feed.settings import FeedSettings
from siltstone.store.kv.api import Changes, Engine, Item, View
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.tx.commit.changes import CHANGES_FAMILY, ChangeList, ChangeLog
from siltstone.topic.grammar import TopicFilter
from tests.support.tx_builders import World

SHARD = 3


def small(
    *, read_rows: int = 1000, read_bytes: int = 1 << 20, read_frames: int = 1000
) -> FeedSettings:
    return FeedSettings(read_rows=read_rows, read_bytes=read_bytes, read_frames=read_frames)


PLENTY = small()


class CountedView:
    """A view that records how many records are asked for at once, and its release."""

    def __init__(self, view: View, limits: list[int], released: list[bool]) -> None:
        self._view = view
        self._limits = limits
        self._released = released

    def last(self, first: bytes, end: bytes) -> Item | None:
        return self._view.last(first, end)

    def items(self, first: bytes, end: bytes, limit: int) -> list[Item]:
        self._limits.append(limit)
        return self._view.items(first, end, limit)

    def release(self) -> None:
        self._released.append(True)
        self._view.release()


class Shelf:
    """The changes of a shard. `when_viewed` is called after each view was taken."""

    def __init__(self, *, has_family: bool = True) -> None:
        self.engine = MemoryEngine()
        if has_family:
            self.engine.create_family(CHANGES_FAMILY)
        self.log = ChangeLog(self.engine, SHARD, None)
        self.serial = 0
        self.limits: list[int] = []
        self.released: list[bool] = []
        self.when_viewed: Callable[[], object] = int
        committers = {SHARD: SimpleNamespace(changes=self.log)}
        self.source = ChangeSource(cast("Engine", self), cast("Any", committers))

    def view(self, family: str) -> CountedView:
        view = self.engine.view(family)
        self.when_viewed()
        return CountedView(view, self.limits, self.released)

    def put(
        self, *values: bytes, generation: int = 1, missed: int = 0, is_published: bool = True
    ) -> None:
        """Store a record, after commits whose changes were not kept."""
        self.log.resume(self.serial + missed)
        self.serial += missed + 1
        group = ChangeList(generation)
        for value in values:
            group.put(b"t/" + value[:1], 1, value, 5)
        changes = Changes()
        self.log.stage(changes, group, self.serial, 1 << 40)
        self.engine.write(changes)
        if is_published:
            self.log.publish()

    def read(
        self, start: int, settings: FeedSettings = PLENTY, topic_filter: str = "#"
    ) -> ReadResult:
        return self.source.read(SHARD, start, [TopicFilter.parse(topic_filter)], settings)

    def seen(
        self, start: int, settings: FeedSettings = PLENTY, topic_filter: str = "#"
    ) -> tuple[list[int], int, int]:
        """Return the serials that a read finds, where it stops, and where its rows begin."""
        found = self.read(start, settings, topic_filter)
        assert found.start == start
        serials = [] if found.batch is None else found.batch.number_rows()
        return list(serials), found.stop, found.rows_from


def test_a_read_ends_with_the_last_change_and_releases_its_view() -> None:
    shelf = Shelf()
    shelf.put(b"a", b"b")
    shelf.put(b"c")
    assert shelf.seen(0) == ([0, 1, 2], 3, 0)
    assert shelf.seen(1) == ([1, 2], 3, 1)
    assert shelf.seen(3) == ([], 3, 3)
    assert shelf.seen(0, topic_filter="t/b") == ([1], 3, 0)
    assert shelf.seen(0, topic_filter="none") == ([], 3, 0)
    assert shelf.released == [True] * 5


def test_a_change_that_is_stored_and_not_visible_yet_is_not_read() -> None:
    shelf = Shelf()
    shelf.put(b"a")
    shelf.put(b"b", is_published=False)
    assert shelf.seen(0) == ([0], 1, 0)
    shelf.log.publish()
    assert shelf.seen(0) == ([0, 1], 2, 0)


def test_a_change_that_comes_after_the_view_is_left_to_the_next_read() -> None:
    shelf = Shelf()
    shelf.put(b"a")
    shelf.when_viewed = lambda: shelf.put(b"b")
    assert shelf.seen(1) == ([], 1, 1)
    shelf.when_viewed = int
    assert shelf.seen(1) == ([1], 2, 1)


def test_a_read_over_missing_changes_goes_on_behind_them() -> None:
    shelf = Shelf()
    shelf.put(b"a", b"b")
    shelf.put(b"c", missed=3)
    # What comes before them is read first.
    assert shelf.seen(0) == ([0, 1], 2, 0)
    assert shelf.seen(2) == ([5], 6, 5)
    assert shelf.seen(4) == ([5], 6, 5)


@pytest.mark.parametrize("has_family", [False, True])
def test_where_nothing_is_kept_a_read_goes_to_the_end(*, has_family: bool) -> None:
    shelf = Shelf(has_family=has_family)
    shelf.log.resume(4)
    assert shelf.seen(1) == ([], 4, 4)


def test_a_batch_has_the_rows_of_one_generation() -> None:
    shelf = Shelf()
    shelf.put(b"a", generation=1)
    shelf.put(b"b", generation=2)
    assert [shelf.seen(start)[0] for start in (0, 1)] == [[0], [1]]


@pytest.mark.parametrize(
    ("settings", "serials"),
    [
        (small(read_rows=2), [0, 1]),
        (small(read_rows=3), [0, 1, 2]),
        # A change takes 32 bytes, its topic 3 and its value 1.
        (small(read_bytes=72), [0, 1]),
        (small(read_bytes=73), [0, 1, 2]),
        # The first change of a record too many is the last one.
        (small(read_frames=1), [0, 1]),
        (small(read_frames=2), [0, 1, 2]),
    ],
)
def test_a_read_stops_at_its_limits(settings: FeedSettings, serials: list[int]) -> None:
    shelf = Shelf()
    shelf.put(b"x")
    for value in (b"a", b"b", b"c", b"d", b"e"):
        shelf.put(value)
    expected = [serial + 1 for serial in serials]
    # The record before the start is not one of them.
    assert shelf.seen(1, settings) == (expected, expected[-1] + 1, 1)


@pytest.mark.parametrize(
    ("value_bytes", "limits"), [(10, [8, 16, 16]), (250, [8, 3, 3]), (2000, [8, 1, 1])]
)
def test_so_many_records_are_read_at_once_as_their_size_allows(
    monkeypatch: pytest.MonkeyPatch, value_bytes: int, limits: list[int]
) -> None:
    monkeypatch.setattr(changes_module, "_CHUNK_BYTES", 1000)
    shelf = Shelf()
    for _ in range(12):
        shelf.put(bytes(value_bytes))
    assert shelf.seen(0)[0] == list(range(12))
    assert shelf.limits[:3] == limits


def test_the_size_of_a_batch_counts_what_its_rows_take_as_objects() -> None:
    shelf = Shelf()
    shelf.put(b"a", b"b" * 100)
    batch = shelf.read(0).batch
    assert batch is not None
    assert batch.size_bytes == 2 * (32 + 3) + 1 + 100 + 2 * 160


def test_who_listens_hears_of_each_commit_until_the_end() -> None:
    heard: list[StoredBatch] = []
    with World(timed=False, feed_bytes=1000) as world:
        source = world.database.feed_source()
        assert isinstance(source, ChangeSource)
        end = listen_for_changes(source.committers, heard.append)
        other = listen_for_changes(source.committers, heard.append)
        world.write("a", b"1")
        end()
        world.write("a", b"2")
        other()
        world.write("a", b"3")
    assert [batch.values for batch in heard] == [[b"1"], [b"1"], [b"2"]]
