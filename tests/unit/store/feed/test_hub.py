from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.errors import CorruptionError, UsageError
from siltstone.store.feed.dispatch import Dispatch
from siltstone.store.feed.hub import FeedHub
from siltstone.store.feed.pool import ReadJob
from siltstone.store.feed.position import START, Position
from siltstone.store.feed.settings import FeedSettings
from tests.support.feed_builders import HubByHand, RowsInMemory, parsed


class TestLive:
    def test_a_feed_that_begins_at_the_end_gets_what_is_committed_without_a_read(self) -> None:
        hand = HubByHand("a", "b")
        feed = hand.add("all", "#", at=hand.now())
        assert feed.is_live(0)
        hand.announce("a", "c")
        hand.announce("b")
        assert hand.serials("all") == [2, 3, 4]
        assert (hand.source.reads, feed.serials(), feed.credit) == ([], {0: 5}, 997)

    def test_each_feed_gets_the_rows_of_its_filters_and_no_others(self) -> None:
        hand = HubByHand()
        for tag, filters in {
            "all": ["#"],
            "a": ["a/+"],
            "both": ["a/1", "b/#", "b/1"],
            "none": ["c"],
        }.items():
            hand.add(tag, *filters)
        hand.announce("a/1", "b/1", "a/2", "a/1", "$SYS/x")
        assert hand.got == {
            "all": [(0, 0), (0, 1), (0, 2), (0, 3)],
            "a": [(0, 0), (0, 2), (0, 3)],
            "both": [(0, 0), (0, 1), (0, 3)],
        }
        assert len(hand.dispatches) == 1

    def test_who_gets_all_rows_is_told_so_and_not_their_numbers(self) -> None:
        hand = HubByHand()
        hand.add("all", "#")
        hand.announce("a", "b", "a")
        assert [rows for _, rows in hand.dispatches[0].shares] == [None]

    def test_feeds_with_the_same_filters_get_the_same_list_of_rows(self) -> None:
        hand = HubByHand()
        for number in range(3):
            hand.add(f"feed {number}", "a", "b")
        hand.announce("a", "c", "b")
        (first, *others) = [rows for _, rows in hand.dispatches[0].shares]
        assert first == [0, 2]
        assert all(rows is first for rows in others)

    def test_a_batch_that_nobody_wants_is_not_delivered(self) -> None:
        hand = HubByHand()
        feed = hand.add("a", "a")
        hand.announce("b")
        assert (hand.dispatches, feed.serials()) == ([], {0: 1})

    def test_what_was_there_before_the_hub_is_not_delivered_again(self) -> None:
        hand = HubByHand()
        early = hand.commit("a")
        hub = FeedHub(hand.source, hand.dispatches.append, hand.jobs.append, FeedSettings())
        hub.add(parsed("#"), hand.now(), 10, None)
        hub.announce(early)
        assert hand.dispatches == []

    def test_shards_are_apart(self) -> None:
        hand = HubByHand("a", shards=2)
        feed = hand.add("all", "#")
        assert (feed.is_live(0), feed.is_live(1)) == (False, True)
        hand.announce("b", shard=1)
        assert hand.got == {"all": [(1, 0)]}
        hand.read()
        assert hand.got == {"all": [(1, 0), (0, 0)]}
        assert feed.position() == Position({0: 1, 1: 1})

    def test_shards_that_are_new_are_read_from_where_a_feed_began(self) -> None:
        hand = HubByHand("a")
        feed = hand.add("all", "#", at=Position({0: 1, 2: 1}))
        hand.source.topics += [[], []]
        hand.announce("x", shard=1)
        hand.commit("y", "z", shard=2)
        hand.hub.advance(hand.source.ends())
        late = hand.add("late", "#")
        hand.read_all()
        assert hand.got["all"] == [(1, 0), (2, 1)]
        assert sorted(hand.got["late"]) == [(0, 0), (1, 0), (2, 0), (2, 1)]
        assert feed.serials() == late.serials() == {0: 1, 1: 1, 2: 2}

    def test_a_position_beyond_the_end_is_waited_for(self) -> None:
        hand = HubByHand("a")
        feed = hand.add("all", "#", at=Position({0: 3}))
        hand.announce("a", "a", "a", "a")
        assert hand.serials("all") == [3, 4]
        assert feed.serials() == {0: 5}


class TestCatchUp:
    def test_a_feed_reads_what_was_before_it_and_then_is_live(self) -> None:
        hand = HubByHand("a", "b", "a", read_rows=2)
        feed = hand.add("a", "a")
        hand.read_all()
        assert (hand.serials("a"), feed.is_live(0)) == ([0, 2], True)
        hand.announce("a")
        assert hand.serials("a") == [0, 2, 3]

    def test_nothing_is_delivered_while_a_feed_is_added(self) -> None:
        hand = HubByHand()
        hand.add("early", "#")
        hand.announce("a")
        late = hand.add("late", "#")
        # The rows are in memory, and yet they wait for the owner's next turn.
        assert (hand.serials("late"), len(hand.jobs)) == ([], 1)
        hand.read()
        assert (hand.serials("late"), late.is_live(0)) == ([0], True)
        assert hand.source.reads == []

    @pytest.mark.parametrize("overtakes", [True, False])
    def test_rows_that_come_while_it_reads_come_once(self, *, overtakes: bool) -> None:
        hand = HubByHand("a", "a")
        feed = hand.add("all", "#")
        job = hand.jobs.pop()
        if overtakes:
            job.run()
            hand.announce("a")
        else:
            batch = hand.commit("a")
            job.run()
            hand.hub.finish(job)
            assert feed.is_live(0)
            hand.hub.announce(batch)
        if overtakes:
            hand.hub.finish(job)
        hand.read_all()
        assert hand.serials("all") == [0, 1, 2]
        assert len(hand.source.reads) == 1

    def test_feeds_at_one_place_share_one_read(self) -> None:
        hand = HubByHand(*["a", "b"] * 10, read_rows=5)
        for number in range(100):
            hand.add(f"feed {number}", "a")
        hand.read_all()
        assert all(hand.serials(f"feed {n}") == list(range(0, 20, 2)) for n in range(100))
        assert hand.source.reads == [(0, 0, ["a"]), (0, 9, ["a"]), (0, 19, ["a"])]

    def test_different_filters_at_one_place_share_one_read(self) -> None:
        hand = HubByHand("a", "b", "c", "a", filters_max=3)
        hand.add("x", "none")
        first = hand.jobs.pop()
        for tag, filters in {"a": ["a"], "b": ["b", "a"], "d": ["d"]}.items():
            hand.add(tag, *filters)
        first.run()
        hand.hub.finish(first)
        hand.read_all()
        assert (hand.serials("a"), hand.serials("b"), hand.serials("d")) == ([0, 3], [0, 1, 3], [])
        # The third would have been one filter too many.
        assert hand.source.reads == [(0, 0, ["none"]), (0, 0, ["a", "b"]), (0, 0, ["d"])]

    def test_who_comes_late_joins_what_was_read_before(self) -> None:
        hand = HubByHand(*"aaaaaa", read_rows=4)
        hand.add("early", "a", credit=1000)
        hand.read()
        hand.add("late", "a", at=Position({0: 2}))
        hand.read_all()
        assert (hand.serials("early"), hand.serials("late")) == ([0, 1, 2, 3, 4, 5], [2, 3, 4, 5])
        assert hand.source.reads == [(0, 0, ["a"]), (0, 4, ["a"])]

    def test_feeds_at_different_places_take_turns(self) -> None:
        hand = HubByHand(*"a" * 100, read_rows=10, held_bytes=0)
        hand.add("first", "a")
        hand.add("second", "a", at=Position({0: 50}))
        for _ in range(7):
            hand.read()
        assert [start for _, start, _ in hand.source.reads] == [0, 10, 50, 20, 60, 30, 70]

    def test_what_nobody_announces_is_read(self) -> None:
        hand = HubByHand("a")
        feed = hand.add("all", "#", at=hand.now())
        hand.commit("b", "c")
        hand.hub.advance(hand.source.ends())
        assert not feed.is_live(0)
        hand.read_all()
        assert (hand.serials("all"), feed.is_live(0)) == ([1, 2], True)

    def test_who_was_live_reads_what_nobody_announces_from_where_the_hub_was(self) -> None:
        hand = HubByHand()
        hand.add("all", "#")
        hand.announce("a", "b")
        hand.commit("c")
        hand.hub.advance(hand.source.ends())
        hand.hub.advance([0])
        hand.read_all()
        assert (hand.serials("all"), hand.source.reads) == ([0, 1, 2], [(0, 2, ["#"])])

    def test_what_an_announcement_leaves_out_is_read(self) -> None:
        hand = HubByHand()
        feed = hand.add("all", "#")
        hand.announce("a")
        hand.commit("b", "c")
        hand.announce("d")
        hand.read_all()
        assert (hand.serials("all"), feed.is_live(0)) == ([0, 1, 2, 3], True)
        assert hand.source.reads == [(0, 1, ["#"])]

    def test_what_came_while_there_was_no_feed_is_read(self) -> None:
        hand = HubByHand()
        first = hand.add("first", "#")
        hand.announce("a")
        hand.hub.remove(first)
        hand.announce("b")
        hand.add("between", "none", at=hand.now())
        hand.announce("c")
        hand.add("second", "#", at=Position({0: 1}))
        hand.read_all()
        assert (hand.serials("second"), hand.source.reads) == ([1, 2], [(0, 1, ["#"])])


class TestCredit:
    def test_a_read_is_cut_where_credit_ends_and_goes_on_with_more(self) -> None:
        hand = HubByHand(*"abababab")
        feed = hand.add("a", "a", credit=3)
        hand.read_all()
        assert (hand.serials("a"), feed.credit, feed.serials()) == ([0, 2, 4], 0, {0: 6})
        hand.hub.grant(feed, 5)
        hand.read_all()
        assert (hand.serials("a"), feed.credit, feed.serials()) == ([0, 2, 4, 6], 4, {0: 8})
        assert len(hand.source.reads) == 1

    def test_a_live_feed_without_credit_catches_up_later_from_memory(self) -> None:
        hand = HubByHand()
        feed = hand.add("all", "#", credit=2)
        hand.announce("a", "a")
        assert feed.is_live(0)
        hand.announce("a", "a", "a")
        assert (hand.serials("all"), feed.is_live(0), feed.serials()) == ([0, 1], False, {0: 2})
        hand.announce("a")
        hand.hub.grant(feed, 3)
        assert hand.serials("all") == [0, 1, 2, 3, 4]
        hand.hub.grant(feed, 1)
        assert (hand.serials("all"), feed.is_live(0)) == ([0, 1, 2, 3, 4, 5], True)
        assert hand.source.reads == []

    def test_rows_that_do_not_match_cost_no_credit_and_no_place(self) -> None:
        hand = HubByHand()
        feed = hand.add("a", "a", credit=0)
        hand.announce("b", "b")
        assert (feed.is_live(0), feed.serials()) == (True, {0: 2})
        hand.announce("b", "a")
        assert (feed.is_live(0), feed.serials()) == (False, {0: 3})

    def test_who_has_little_credit_lets_others_go_first_once(self) -> None:
        hand = HubByHand(*"a" * 40, read_rows=1, held_bytes=0)
        poor = hand.add("poor", "a", credit=8)
        rich = hand.add("rich", "a", at=Position({0: 20}), credit=8)
        hand.read_all()
        hand.source.reads.clear()
        hand.hub.grant(poor, 1)
        hand.hub.grant(poor, 0)
        hand.hub.grant(rich, 8)
        hand.read_all()
        # The first was wanted at once: nobody else waited.
        places = [start for _, start, _ in hand.source.reads]
        assert places == [8, 28, 29, 30, 31, 32, 33, 34, 35]

    def test_who_is_behind_is_known_by_the_first_row_that_is_still_to_be_read(self) -> None:
        hand = HubByHand()
        hand.add("live", "#")
        slow, slower = hand.add("slow", "#", credit=2), hand.add("slower", "#", credit=1)
        assert hand.hub.behind() == {}
        hand.announce("a", "a", "a")
        assert hand.hub.behind() == {0: 1}
        hand.hub.remove(slower)
        assert hand.hub.behind() == {0: 2}
        hand.hub.grant(slow, 5)
        assert hand.hub.behind() == {}

    def test_credit_cannot_be_taken_back(self) -> None:
        hand = HubByHand()
        feed = hand.add("a", "a")
        with pytest.raises(UsageError, match="credit cannot be negative: rows=-1"):
            hand.hub.grant(feed, -1)
        with pytest.raises(UsageError, match="credit must be 0 or more, got -1"):
            hand.hub.add(parsed("a"), START, -1, None)


class TestFilters:
    def test_new_filters_hold_for_what_was_not_delivered_yet(self) -> None:
        hand = HubByHand()
        feed = hand.add("x", "a")
        hand.announce("a", "b")
        hand.hub.filter(feed, parsed("b"))
        hand.announce("a", "b")
        assert hand.serials("x") == [0, 3]

    def test_a_read_that_is_under_way_for_other_filters_is_not_used(self) -> None:
        hand = HubByHand("a", "b", "a", "b")
        feed = hand.add("x", "a")
        job = hand.jobs.pop()
        job.run()
        hand.hub.filter(feed, parsed("b"))
        hand.hub.finish(job)
        hand.read_all()
        assert hand.serials("x") == [1, 3]

    def test_a_feed_without_filters_keeps_its_place(self) -> None:
        hand = HubByHand("a")
        feed = hand.add("x")
        hand.read_all()
        hand.announce("a")
        assert (hand.got, feed.serials()) == ({}, {0: 2})


class TestEnds:
    def test_a_feed_that_was_removed_gets_nothing_and_keeps_its_place(self) -> None:
        hand = HubByHand("a")
        feed = hand.add("live", "#", at=hand.now())
        waiting = hand.add("waiting", "#")
        assert len(hand.hub) == 2
        hand.hub.remove(feed)
        hand.hub.remove(waiting)
        hand.hub.remove(waiting)
        hand.read_all()
        hand.announce("a")
        hand.hub.grant(feed, 5)
        hand.hub.filter(feed, parsed("b"))
        assert (hand.got, len(hand.hub)) == ({}, 0)
        assert (feed.serials(), waiting.serials()) == ({0: 1}, {0: 0})

    def test_what_a_dropped_slab_took_is_told_once(self) -> None:
        hand = HubByHand(*"aaaaaa")
        hand.source.dropped = 4
        feed = hand.add("x", "a", at=Position({0: 1}))
        hand.read_all()
        assert [dispatch.lost for dispatch in hand.dispatches] == [[(feed, 3)]]
        assert (hand.serials("x"), feed.gaps) == ([4, 5], 3)

    def test_who_begins_with_the_first_row_there_is_has_lost_nothing(self) -> None:
        hand = HubByHand(*"aaaaaa")
        hand.source.dropped = 4
        feed = hand.add("x", "a")
        hand.read_all()
        assert (hand.serials("x"), feed.gaps) == ([4, 5], 0)

    def test_a_feed_that_was_placed_before_the_first_row_has_lost_all_that_is_gone(self) -> None:
        hand = HubByHand(*"aaaaaa")
        hand.source.dropped = 4
        feed = hand.add("x", "a", at=Position({0: 0}))
        hand.read_all()
        assert [dispatch.lost for dispatch in hand.dispatches] == [[(feed, 4)]]
        assert (hand.serials("x"), feed.gaps) == ([4, 5], 4)

    def test_loss_is_told_also_where_no_row_follows(self) -> None:
        hand = HubByHand(*"aaab")
        hand.source.dropped = 3
        feed = hand.add("x", "a", at=Position({0: 1}))
        hand.read_all()
        assert [(each.shares, each.lost) for each in hand.dispatches] == [([], [(feed, 2)])]

    def test_what_cannot_be_read_ends_those_who_stand_there(self) -> None:
        hand = HubByHand(*"aaaa")
        broken = hand.add("broken", "a")
        ahead = hand.add("ahead", "a", at=Position({0: 2}))
        error = CorruptionError("the frame does not match its checksum", path=PurePath("x"))
        hand.source.error = error
        hand.read()
        (dispatch,) = hand.dispatches
        assert (dispatch.error, dispatch.shares) == (error, [(broken, [])])
        assert (broken.error, broken.removed, broken.serials()) == (error, True, {0: 0})
        hand.source.error = None
        hand.read_all()
        assert (hand.serials("ahead"), ahead.is_live(0)) == ([2, 3], True)


class TestDelivery:
    def test_what_a_delivery_asks_for_is_delivered_after_it(self) -> None:
        events: list[str] = []
        source = RowsInMemory([list("aaaa")])
        jobs: list[ReadJob] = []

        def deliver(dispatch: Dispatch) -> None:
            events.append("begin")
            for each, _ in dispatch.shares:
                hub.grant(each, 1)
            events.append("end")

        hub = FeedHub(source, deliver, jobs.append, FeedSettings())
        feed = hub.add(parsed("#"), START, 1, None)
        jobs[0].run()
        hub.finish(jobs[0])
        assert events == ["begin", "end"] * 4
        assert feed.serials() == {0: 4}

    def test_a_read_may_be_done_at_once(self) -> None:
        source = RowsInMemory([list("aaaa")])
        got: list[int] = []

        def read(job: ReadJob) -> None:
            job.run()
            hub.finish(job)

        hub = FeedHub(
            source,
            lambda dispatch: got.extend(dispatch.batch.serials),
            read,
            FeedSettings(read_rows=1),
        )
        hub.add(parsed("#"), START, 10, None)
        assert got == [0, 1, 2, 3]

    def test_the_owner_gets_a_turn_between_many_deliveries_from_memory(self) -> None:
        hand = HubByHand(dispatches_max=3)
        feed = hand.add("x", "#", credit=0)
        for _ in range(10):
            hand.announce("a")
        hand.hub.grant(feed, 10)
        turns = [len(hand.serials("x"))]
        while hand.jobs:
            hand.read()
            turns.append(len(hand.serials("x")))
        assert (turns, hand.source.reads) == ([3, 6, 9, 10], [])
