from __future__ import annotations

from siltstone.session.archive.records import SerialRange
from siltstone.session.durable.progress import SessionProgress
from siltstone.session.durable.saved_progress import done_of, position_of, restore_progress
from siltstone.store.feed.position import Position


def test_what_is_saved_of_progress_is_restored() -> None:
    progress = SessionProgress()
    position = Position({0: 5, 2: 0})
    done = (SerialRange(0, 6, 8), SerialRange(0, 9, 10), SerialRange(2, 1, 2))
    restore_progress(progress, position, done)
    assert (position_of(progress), done_of(progress)) == (position, done)


def test_rows_that_are_done_are_joined_where_they_follow_each_other_in_a_shard() -> None:
    progress = SessionProgress()
    progress.start(1, 0, [4, 2, 3])
    progress.start(0, 0, [1, 5])
    assert done_of(progress) == (
        SerialRange(0, 1, 2),
        SerialRange(0, 5, 6),
        SerialRange(1, 2, 5),
    )


def test_what_is_done_of_a_shard_without_a_place_is_left_out() -> None:
    progress = SessionProgress()
    restore_progress(progress, Position({0: 1}), (SerialRange(3, 1, 2),))
    assert (position_of(progress), done_of(progress)) == (Position({0: 1}), ())
