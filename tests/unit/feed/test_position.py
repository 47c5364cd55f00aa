from __future__ import annotations

import pytest

from siltstone.errors import UsageError
from siltstone.feed.position import NEVER, START, FeedPosition

SAVED = bytes.fromhex("5346 01 02000000 00000000 0700000000000000 03000000 ffffffffffffffff")


def test_a_position_goes_to_bytes_and_back() -> None:
    position = FeedPosition({3: NEVER, 0: 7})
    assert position.to_bytes() == SAVED
    assert FeedPosition.from_bytes(SAVED) == position
    assert FeedPosition.from_bytes(START.to_bytes()) == START


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "these bytes are no saved position"),
        (b"SI" + SAVED[2:], "these bytes are no saved position"),
        (b"SF\x02" + SAVED[3:], "saved position of an unknown version: version=2"),
        (SAVED[:-1], "saved position is not as long as it should be"),
        (SAVED + b"\0", "saved position is not as long as it should be"),
        (SAVED[:7] + SAVED[7:19] * 2, "saved position names a shard twice"),
    ],
)
def test_other_bytes_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FeedPosition.from_bytes(data)


@pytest.mark.parametrize("serials", [{-1: 0}, {1 << 32: 0}, {0: -1}, {0: 1 << 64}])
def test_what_is_no_place_is_refused(serials: dict[int, int]) -> None:
    with pytest.raises(UsageError, match="no such place"):
        FeedPosition(serials)


def test_a_shard_that_is_not_named_begins_at_its_first_row() -> None:
    assert FeedPosition({1: 5}).serial(0) == 0
    assert FeedPosition({1: 5}).serial(1) == 5


def test_a_place_changes_one_shard_of_a_copy() -> None:
    position = FeedPosition({0: 1, 1: 2})
    assert position.at(1, 9) == FeedPosition({0: 1, 1: 9})
    assert position.at(2, 3) == FeedPosition({0: 1, 1: 2, 2: 3})
    assert position == FeedPosition({0: 1, 1: 2})


def test_a_position_reaches_another_when_it_does_in_every_shard() -> None:
    here = FeedPosition({0: 5, 1: 5})
    assert here.reaches(here)
    assert here.reaches(FeedPosition({0: 4}))
    assert not here.reaches(FeedPosition({0: 4, 1: 6}))
    assert not here.reaches(FeedPosition({2: 1}))
    assert here.reaches(START)
