from __future__ import annotations

import pytest

from siltstone.errors import UsageError
from siltstone.store.feed.position import NEVER, START, FeedPosition

OLD = bytes.fromhex("5346 01 02000000 00000000 0700000000000000 03000000 ffffffffffffffff")
SAVED = b"SF\x02" + OLD[3:] + bytes.fromhex("02000000 3565")


def test_a_position_goes_to_bytes_and_back() -> None:
    position = FeedPosition({3: NEVER, 0: 7}, "5e")
    assert position.to_bytes() == SAVED
    assert FeedPosition.from_bytes(SAVED) == position


def test_a_position_that_an_earlier_version_saved_has_no_identity() -> None:
    position = FeedPosition({3: NEVER, 0: 7}, "")
    assert FeedPosition.from_bytes(OLD) == position
    assert position.to_bytes() == OLD


def test_a_position_that_was_made_by_hand_stays_such() -> None:
    position = FeedPosition({3: NEVER, 0: 7})
    assert position.identity is None
    assert FeedPosition.from_bytes(position.to_bytes()) == position
    assert FeedPosition.from_bytes(START.to_bytes()) == START


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "invalid saved position: the bytes do not come from to_bytes"),
        (b"SI" + SAVED[2:], "invalid saved position: the bytes do not come from to_bytes"),
        (b"SF\x03" + SAVED[3:], "unknown version 3 of a saved position"),
        (OLD[:-1], "invalid saved position: wrong length"),
        (OLD + b"\0", "invalid saved position: wrong length"),
        (SAVED[:-1], "invalid saved position: wrong length"),
        (SAVED[:-3], "invalid saved position: wrong length"),
        (SAVED[:-2] + b"\xff\xff", "invalid saved position: the bytes do not come from to_bytes"),
        (SAVED + b"\0", "invalid saved position: wrong length"),
        (OLD[:7] + OLD[7:19] * 2, "invalid saved position: a shard is repeated"),
    ],
)
def test_other_bytes_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FeedPosition.from_bytes(data)


@pytest.mark.parametrize("serials", [{-1: 0}, {1 << 32: 0}, {0: -1}, {0: 1 << 64}])
def test_what_is_no_place_is_refused(serials: dict[int, int]) -> None:
    with pytest.raises(
        UsageError, match="a position needs a shard and a serial, both 0 or more: shard"
    ):
        FeedPosition(serials)


def test_a_shard_that_is_not_named_begins_at_its_first_row() -> None:
    assert FeedPosition({1: 5}).serial(0) == 0
    assert FeedPosition({1: 5}).serial(1) == 5


def test_a_place_changes_one_shard_of_a_copy() -> None:
    position = FeedPosition({0: 1, 1: 2})
    assert position.at(1, 9) == FeedPosition({0: 1, 1: 9})
    assert FeedPosition({}, "5e").at(0, 1) == FeedPosition({0: 1}, "5e")
    assert position.at(2, 3) == FeedPosition({0: 1, 1: 2, 2: 3})
    assert position == FeedPosition({0: 1, 1: 2})


def test_a_position_reaches_another_when_it_does_in_every_shard() -> None:
    here = FeedPosition({0: 5, 1: 5})
    assert here.reaches(here)
    assert here.reaches(FeedPosition({0: 4}))
    assert not here.reaches(FeedPosition({0: 4, 1: 6}))
    assert not here.reaches(FeedPosition({2: 1}))
    assert here.reaches(START)
