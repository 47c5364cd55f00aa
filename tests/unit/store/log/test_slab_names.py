from __future__ import annotations

import pytest

from siltstone.errors import ClosedError, CorruptionError, NotFoundError, SlabDroppedError
from siltstone.store.log.slab import Slab
from siltstone.store.log.slab_names import check_open, find_slab, holds_rows, open_slab, ordered
from siltstone.store.slab.manifest import SlabId, SlabRecord, SlabState
from siltstone.store.slab.settings import DatabaseSettings
from tests.support.builders import NOW_US, World
from tests.support.damage import CURRENT, DATABASE, frames_of, patch, small_world


def slabs_of(*names: tuple[int, int]) -> dict[SlabId, Slab]:
    records = [
        SlabRecord(
            shard=shard,
            generation=generation,
            state=SlabState.SEALED,
            since_us=NOW_US,
            until_us=NOW_US,
            created_us=NOW_US,
        )
        for shard, generation in names
    ]
    fs = World().fs
    return {record.id: open_slab(fs, DATABASE, record, DatabaseSettings()) for record in records}


def test_slabs_come_by_generation_and_then_by_shard() -> None:
    slabs = slabs_of((1, 2), (0, 2), (1, 1))
    assert [slab.id for slab in ordered(slabs)] == [SlabId(1, 1), SlabId(0, 2), SlabId(1, 2)]


def test_a_slab_lies_below_its_shard_and_generation() -> None:
    (slab,) = slabs_of((3, 7)).values()
    assert slab.chain.directory == DATABASE / "3" / "7"


def test_one_that_was_dropped_is_told_from_one_that_never_was() -> None:
    slabs = slabs_of((0, 3))
    assert find_slab(slabs, SlabId(0, 3)) is slabs[SlabId(0, 3)]
    with pytest.raises(SlabDroppedError, match="slab 0/2 was dropped"):
        find_slab(slabs, SlabId(0, 2))
    with pytest.raises(NotFoundError, match="unknown slab 0/4"):
        find_slab(slabs, SlabId(0, 4))
    # The first generation is 1.
    with pytest.raises(NotFoundError, match="unknown slab 0/0"):
        find_slab(slabs, SlabId(0, 0))


def test_what_was_closed_says_so() -> None:
    check_open(closed=False)
    with pytest.raises(ClosedError, match="the database is closed"):
        check_open(closed=True)


def test_rows_are_found_whatever_the_manifest_says() -> None:
    world = World()
    with world.database():
        pass
    assert not holds_rows(world.fs, DATABASE)
    assert holds_rows(small_world().fs, DATABASE)


def test_a_damaged_segment_is_not_taken_for_one_without_rows() -> None:
    damaged = small_world()
    for entry in damaged.fs.list(DATABASE / "0" / "1"):
        damaged.fs.remove(DATABASE / "0" / "1" / entry.name)
    patch(damaged.fs, CURRENT, frames_of(damaged.fs, CURRENT)[1].start, b"XXXX")
    with pytest.raises(CorruptionError, match="a frame does not begin at this offset"):
        holds_rows(damaged.fs, DATABASE)
