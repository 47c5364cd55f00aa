from __future__ import annotations

from siltstone.session.durable.progress import PASSED_LOOKS_MAX, PASSED_ROWS_MAX, SessionProgress


class TestLane:
    def test_the_position_is_the_first_row_that_is_open(self) -> None:
        progress = SessionProgress()
        lane = progress.start(0, 10, [])
        lane.come_by([10, 12], [])
        lane.pass_by(20)
        assert (progress.position(), progress.done()) == ({0: 10}, {})

    def test_without_open_rows_the_position_is_behind_all_that_were_looked_at(self) -> None:
        progress = SessionProgress()
        lane = progress.start(0, 10, [])
        lane.come_by([10], [])
        lane.pass_by(20)
        lane.complete(10)
        assert progress.position() == {0: 20}

    def test_rows_may_end_in_any_order_and_are_done_behind_the_position(self) -> None:
        progress = SessionProgress()
        lane = progress.start(0, 1, [])
        lane.come_by([5, 2, 1, 3], [])
        lane.pass_by(6)
        lane.complete(3)
        lane.complete(2)
        assert (progress.position(), progress.done()) == ({0: 1}, {0: [2, 3]})
        lane.complete(1)
        assert (progress.position(), progress.done()) == ({0: 5}, {})

    def test_what_was_done_before_is_left_out_and_keeps_its_place(self) -> None:
        progress = SessionProgress()
        lane = progress.start(0, 1, [2, 3])
        lane.come_by([1], [3, 2])
        lane.pass_by(4)
        assert (progress.position(), progress.done()) == ({0: 1}, {0: [2, 3]})
        lane.complete(1)
        assert (progress.position(), progress.done()) == ({0: 4}, {})

    def test_what_was_done_before_and_is_first_now_is_forgotten(self) -> None:
        progress = SessionProgress()
        lane = progress.start(0, 1, [1, 2])
        lane.come_by([], [1])
        lane.pass_by(2)
        assert (progress.position(), progress.done()) == ({0: 2}, {0: [2]})

    def test_rows_that_are_done_are_not_open(self) -> None:
        lane = SessionProgress().start(0, 1, [2, 90, 91])
        lane.come_by([3, 1], [2])
        assert lane.open_count() == 2
        lane.complete(3)
        assert lane.open_count() == 1

    def test_the_place_never_goes_back(self) -> None:
        progress = SessionProgress()
        progress.start(0, 10, []).pass_by(5)
        assert (progress.position(), progress.changed) == ({0: 10}, False)


class TestProgress:
    def test_a_shard_that_is_new_begins_with_its_first_row(self) -> None:
        progress = SessionProgress()
        progress.start(1, 7, [])
        assert progress.lane(0) is progress.lane(0)
        assert progress.position() == {0: 0, 1: 7}

    def test_every_end_frees_credit_and_is_to_be_saved(self) -> None:
        progress = SessionProgress()
        lane = progress.lane(0)
        lane.come_by([1, 2], [])
        assert (progress.freed, progress.changed) == (0, False)
        lane.complete(2)
        lane.complete(1)
        assert (progress.freed, progress.changed) == (2, True)

    def test_rows_that_only_pass_by_are_counted_and_not_saved_at_once(self) -> None:
        progress = SessionProgress()
        progress.lane(0).pass_by(3)
        progress.lane(1).pass_by(4)
        progress.lane(1).pass_by(2)
        assert (progress.freed, progress.changed, progress.passed) == (0, False, 7)
        progress.saved()
        assert (progress.passed, progress.position()) == (0, {0: 3, 1: 4})

    def test_it_is_far_when_many_rows_have_passed_by(self) -> None:
        progress = SessionProgress()
        assert not progress.is_far()
        progress.lane(0).pass_by(PASSED_ROWS_MAX - 1)
        assert not progress.is_far()
        progress.lane(0).pass_by(PASSED_ROWS_MAX)
        assert progress.is_far()
        progress.saved()
        assert not progress.is_far()

    def test_it_is_far_when_it_was_looked_at_often_since_the_first_row(self) -> None:
        progress = SessionProgress()
        assert [progress.is_far() for _ in range(PASSED_LOOKS_MAX + 1)] == (
            [False] * (PASSED_LOOKS_MAX + 1)
        )
        progress.lane(0).pass_by(1)
        assert [progress.is_far() for _ in range(PASSED_LOOKS_MAX)] == (
            [False] * (PASSED_LOOKS_MAX - 1) + [True]
        )
