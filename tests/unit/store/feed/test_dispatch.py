from __future__ import annotations

import pytest

from siltstone.store.feed.dispatch import Dispatch, hand_over
from siltstone.store.feed.pool import Feed, FilterGroup
from siltstone.store.feed.position import START
from tests.support.feed_builders import batch_of, parsed

# Serials 2, 5 and 9 of up to 12.
SERIALS = (2, 5, 9)


def feed_of(credit: int) -> Feed:
    return Feed(FilterGroup(parsed("#"), 1), START, credit, "tag")


@pytest.mark.parametrize(
    ("rows", "place", "credit", "given", "stop", "left"),
    [
        (None, 0, 10, None, 12, 7),
        (None, 2, 10, None, 12, 7),
        (None, 3, 10, [1, 2], 12, 8),
        (None, 10, 10, None, 12, 10),
        ([0, 2], 0, 10, [0, 2], 12, 8),
        ([0, 2], 5, 10, [2], 12, 9),
        (None, 0, 3, None, 12, 0),
        (None, 0, 2, [0, 1], 9, 0),
        (None, 3, 1, [1], 9, 0),
        ([0, 2], 0, 1, [0], 9, 0),
        ([0, 2], 0, 0, None, 2, 0),
        (None, 0, 0, None, 2, 0),
    ],
)
def test_a_feed_gets_what_lies_behind_its_place_as_far_as_its_credit_goes(
    rows: list[int] | None,
    place: int,
    credit: int,
    given: list[int] | None,
    stop: int,
    left: int,
) -> None:
    dispatch = Dispatch(batch_of(0, SERIALS, ["a"] * 3, 12))
    feed = feed_of(credit)
    assert (hand_over(dispatch, feed, rows, place, 12), feed.credit) == (stop, left)
    assert dispatch.shares == ([(feed, given)] if credit != left else [])


def test_a_dispatch_begins_with_nothing_but_its_batch() -> None:
    batch = batch_of(0, SERIALS, ["a"] * 3, 12)
    dispatch = Dispatch(batch)
    assert (dispatch.batch, dispatch.shares, dispatch.lost, dispatch.error) == (batch, [], [], None)
