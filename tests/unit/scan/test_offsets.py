from __future__ import annotations

import pytest

from siltstone.errors import UsageError
from siltstone.scan.offsets import Loss, bounds_of, find_losses, resolve
from siltstone.store.feed.position import EARLIEST, END, LATEST, START, Position
from siltstone.store.log.read.selection import SlabExtent
from siltstone.store.slab.manifest import SlabId


def extent(shard: int, generation: int, start: int, stop: int) -> SlabExtent:
    return SlabExtent(
        slab=SlabId(shard, generation), serials=range(start, stop), since_us=0, until_us=None
    )


# Of shard 0 the second generation was dropped; shard 1 is empty.
EXTENTS = [extent(0, 1, 5, 10), extent(0, 3, 20, 30), extent(1, 1, 0, 0)]


def test_a_shard_reaches_from_its_oldest_slab_to_its_newest() -> None:
    assert bounds_of(EXTENTS) == {0: range(5, 30), 1: range(0)}


@pytest.mark.parametrize(
    ("offsets", "serials"),
    [
        (START, {0: 5, 1: 0}),
        (END, {0: 30, 1: 0}),
        (Position({0: 12}, default=LATEST), {0: 12, 1: 0}),
        (Position({0: LATEST, 1: 4}), {0: 30, 1: 4}),
        (Position({0: EARLIEST}, default=LATEST), {0: 5, 1: 0}),
    ],
    ids=str,
)
def test_words_become_serials_of_what_there_is(offsets: Position, serials: dict[int, int]) -> None:
    assert resolve(offsets, EXTENTS) == serials


def test_a_shard_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="shard that is not in the database: shard=7 shards=2"):
        resolve(Position({7: 1}), EXTENTS)


@pytest.mark.parametrize(
    ("start", "end", "lost"),
    [
        ({0: 5, 1: 0}, {0: 10, 1: 0}, []),
        ({0: 0}, {0: 7}, [(0, range(5))]),
        ({0: 0}, {0: 3}, [(0, range(3))]),
        ({0: 8}, {0: 25}, [(0, range(10, 20))]),
        ({0: 0}, {0: 30}, [(0, range(5)), (0, range(10, 20))]),
        ({0: 12}, {0: 15}, [(0, range(12, 15))]),
        ({0: 25}, {0: 40}, [(0, range(30, 40))]),
        ({0: 20, 1: 0}, {0: 30, 1: 2}, [(1, range(2))]),
        ({0: 12}, {0: 12}, []),
        ({}, {0: 30}, []),
        # Exactly one: the last serial, the first, one in a gap; and none on either side of that.
        ({0: 29}, {0: 31}, [(0, range(30, 31))]),
        ({0: 30}, {0: 31}, [(0, range(30, 31))]),
        ({0: 29}, {0: 30}, []),
        ({0: 30}, {0: 30}, []),
        ({1: 0}, {1: 1}, [(1, range(1))]),
        ({0: 4}, {0: 6}, [(0, range(4, 5))]),
        ({0: 5}, {0: 6}, []),
        ({0: 19}, {0: 21}, [(0, range(19, 20))]),
        ({0: 19}, {0: 20}, [(0, range(19, 20))]),
        ({0: 9}, {0: 11}, [(0, range(10, 11))]),
        ({0: 9}, {0: 10}, []),
    ],
)
def test_serials_that_no_slab_has_are_lost(
    start: dict[int, int], end: dict[int, int], lost: list[tuple[int, range]]
) -> None:
    assert find_losses(start, end, EXTENTS) == [
        Loss(shard=shard, serials=serials) for shard, serials in lost
    ]


def test_a_loss_names_the_first_and_the_last_serial() -> None:
    assert str(Loss(shard=3, serials=range(10, 20))) == "shard 3, serials 10 to 19"
