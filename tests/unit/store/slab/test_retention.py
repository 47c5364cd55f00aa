from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from siltstone.store.slab.manifest import SlabId, SlabRecord, SlabState
from siltstone.store.slab.retention import (
    RECLAIM_ROTATE_BYTES,
    due_for_drop,
    due_for_reclaim,
    due_for_turn,
)
from siltstone.store.slab.settings import DatabaseSettings

SECOND = 1_000_000


def current(since_us: int = 0, shard: int = 0) -> SlabRecord:
    return SlabRecord(
        shard=shard,
        generation=9,
        state=SlabState.CURRENT,
        since_us=since_us,
        until_us=None,
        created_us=since_us,
    )


def sealed(generation: int, until_us: int, shard: int = 0) -> SlabRecord:
    return SlabRecord(
        shard=shard,
        generation=generation,
        state=SlabState.SEALED,
        since_us=0,
        until_us=until_us,
        created_us=0,
    )


def before(now_us: int) -> Callable[[int], int]:
    """Return a clock of that time: how long ago a time was."""
    return lambda since_us: now_us - since_us


def turns(
    settings: DatabaseSettings,
    *,
    rows: int = 1,
    size_bytes: int = 0,
    now_us: int = 0,
    reclaims: bool = False,
) -> bool:
    return due_for_turn(
        settings,
        current(since_us=10 * SECOND),
        rows=rows,
        size_bytes=size_bytes,
        now_us=now_us,
        reclaims=reclaims,
    )


class TestTurn:
    def test_without_limits_a_slab_goes_on_for_ever(self) -> None:
        assert not turns(DatabaseSettings(), size_bytes=1 << 60, now_us=1 << 60)

    @pytest.mark.parametrize(("size_bytes", "due"), [(99, False), (100, True), (101, True)])
    def test_a_slab_has_had_its_size(self, size_bytes: int, due: bool) -> None:
        assert turns(DatabaseSettings(rotate_bytes=100), size_bytes=size_bytes) is due

    @pytest.mark.parametrize(
        ("now_us", "due"), [(0, False), (12_499_999, False), (12_500_000, True), (1 << 60, True)]
    )
    def test_a_slab_has_had_its_time(self, now_us: int, due: bool) -> None:
        assert turns(DatabaseSettings(rotate_seconds=2.5), now_us=now_us) is due

    def test_either_limit_is_enough(self) -> None:
        settings = DatabaseSettings(rotate_seconds=2.5, rotate_bytes=100)
        assert turns(settings, size_bytes=1, now_us=1 << 60)
        assert turns(settings, size_bytes=100, now_us=0)

    @pytest.mark.parametrize(("now_us", "due"), [(20 * SECOND - 1, False), (20 * SECOND, True)])
    def test_a_retention_by_age_without_a_rotation_ends_slabs_at_an_eighth_of_it(
        self, now_us: int, due: bool
    ) -> None:
        assert turns(DatabaseSettings(retain_seconds=80.0), now_us=now_us) is due

    @pytest.mark.parametrize(("retain", "size"), [(8 << 20, 1 << 20), (200 * 1024, 65_536)])
    def test_a_retention_by_bytes_without_a_rotation_ends_slabs_at_an_eighth_of_it(
        self, retain: int, size: int
    ) -> None:
        settings = DatabaseSettings(retain_bytes=retain)
        assert not turns(settings, size_bytes=size - 1)
        assert turns(settings, size_bytes=size)

    def test_all_shards_together_keep_the_size(self) -> None:
        settings = DatabaseSettings(retain_bytes=8 << 20, shards=4)
        assert not turns(settings, size_bytes=(1 << 18) - 1)
        assert turns(settings, size_bytes=1 << 18)

    def test_a_rotation_that_is_set_is_not_replaced_by_one_of_the_retention(self) -> None:
        settings = DatabaseSettings(retain_bytes=8 << 20, retain_seconds=80.0, rotate_seconds=40.0)
        assert not turns(settings, size_bytes=1 << 20, now_us=49 * SECOND)

    def test_what_reclaims_has_a_size_of_its_own_where_nothing_else_says_when(
        self,
    ) -> None:
        size = RECLAIM_ROTATE_BYTES
        plain = DatabaseSettings(reclaim="delivered")
        assert not turns(plain, size_bytes=size)
        assert [turns(plain, size_bytes=at, reclaims=True) for at in (size - 1, size)] == [
            False,
            True,
        ]
        retained = replace(plain, retain_bytes=8 << 20)
        assert turns(retained, size_bytes=1 << 20, reclaims=True)
        assert turns(replace(plain, retain_bytes=1 << 40), size_bytes=size, reclaims=True)
        assert not turns(replace(plain, rotate_seconds=40.0), size_bytes=size, reclaims=True)

    def test_an_empty_slab_goes_on(self) -> None:
        settings = DatabaseSettings(rotate_seconds=2.5, rotate_bytes=100)
        assert not turns(settings, rows=0, size_bytes=1 << 60, now_us=1 << 60)


class TestDrop:
    def test_without_limits_nothing_is_dropped(self) -> None:
        sizes = {SlabId(0, 1): 1 << 60}
        assert (
            due_for_drop(DatabaseSettings(), [sealed(1, 5)], sizes, passed_us=before(1 << 60)) == {}
        )

    def test_a_slab_is_too_old_when_its_last_moment_is(self) -> None:
        records = [sealed(1, 5 * SECOND), sealed(2, 5 * SECOND + 1), current()]
        sizes = {record.id: 1 for record in records}
        settings = DatabaseSettings(retain_seconds=2)
        assert due_for_drop(settings, records, sizes, passed_us=before(7 * SECOND)) == {
            SlabId(0, 1): "age"
        }

    def test_the_oldest_are_dropped_until_the_rest_fits(self) -> None:
        records = [sealed(1, 300), sealed(2, 100), sealed(3, 200), current()]
        sizes = {SlabId(0, 1): 10, SlabId(0, 2): 20, SlabId(0, 3): 30, SlabId(0, 9): 40}
        due = {
            limit: [
                *due_for_drop(
                    DatabaseSettings(retain_bytes=limit), records, sizes, passed_us=before(0)
                )
            ]
            for limit in (100, 99, 80, 79, 1)
        }
        assert due == {
            100: [],
            99: [SlabId(0, 2)],
            80: [SlabId(0, 2)],
            79: [SlabId(0, 2), SlabId(0, 3)],
            1: [SlabId(0, 2), SlabId(0, 3), SlabId(0, 1)],
        }

    def test_slabs_of_one_time_go_in_the_order_of_their_shards(self) -> None:
        records = [sealed(1, 100, shard=1), sealed(1, 100, shard=0)]
        sizes = {record.id: 10 for record in records}
        settings = DatabaseSettings(retain_bytes=10)
        assert due_for_drop(settings, records, sizes, passed_us=before(0)) == {SlabId(0, 1): "size"}

    def test_what_age_drops_counts_for_the_bytes(self) -> None:
        records = [sealed(1, 1 * SECOND), sealed(2, 9 * SECOND)]
        sizes = {record.id: 10 for record in records}
        settings = DatabaseSettings(retain_seconds=5, retain_bytes=10)
        assert due_for_drop(settings, records, sizes, passed_us=before(10 * SECOND)) == {
            SlabId(0, 1): "age"
        }

    def test_the_current_slab_is_never_dropped(self) -> None:
        settings = DatabaseSettings(retain_seconds=1, retain_bytes=1)
        assert (
            due_for_drop(settings, [current()], {SlabId(0, 9): 99}, passed_us=before(1 << 60)) == {}
        )


class TestReclaim:
    RECORDS = (
        replace(sealed(1, 5), until_serial=10),
        replace(sealed(2, 9), first_serial=10, until_serial=20),
        replace(sealed(1, 7, shard=1), until_serial=3),
        replace(current(), first_serial=20),
    )

    @pytest.mark.parametrize(
        ("needed", "due"),
        [
            ({}, []),
            ({0: 9, 1: 2}, []),
            ({0: 10}, ["0/1"]),
            ({0: 19, 1: 3}, ["0/1", "1/1"]),
            ({0: 1 << 60}, ["0/1", "0/2"]),
        ],
    )
    def test_sealed_slabs_are_due_that_end_before_what_is_needed(
        self, needed: dict[int, int], due: list[str]
    ) -> None:
        found = due_for_reclaim(self.RECORDS, needed)
        assert [str(record.id) for record in found] == due

    def test_of_a_database_that_is_tiered_only_what_is_in_the_lake(self) -> None:
        first, *others = self.RECORDS
        records = [replace(first, state=SlabState.TIERED), *others]
        found = due_for_reclaim(records, {0: 99, 1: 99}, tiering=True)
        assert [str(record.id) for record in found] == ["0/1"]

    def test_a_slab_of_an_early_version_without_its_end_stays(self) -> None:
        assert due_for_reclaim([sealed(1, 5)], {0: 1 << 60}) == []
