from __future__ import annotations

import errno
from random import Random
from typing import Any

import pytest

import siltstone
from siltstone import KeyValueSettings, Row
from siltstone.testing import SMALL, Fault, MemoryDisk, PowerCut

ROWS = [Row("plant/1", b"21"), Row("plant/2", b"22")]


def rows_of(store: siltstone.Store) -> list[dict[str, Any]]:
    found = store.database("sensors").read(columns=["topic", "timestamp"])
    return [row for batch in found for row in batch.to_pylist()]


def topics(disk: MemoryDisk) -> list[str]:
    with disk.open() as store:
        return [row["topic"] for row in rows_of(store)]


def test_a_store_in_memory_is_found_again_by_the_next() -> None:
    disk = MemoryDisk()
    with disk.open() as store:
        store.create("sensors", SMALL).append(ROWS)
        with pytest.raises(siltstone.LockedError):
            disk.open()
    assert topics(disk) == ["plant/1", "plant/2"]
    with disk.open(read_only=True) as store:
        assert store.database("sensors").count() == 2


def test_a_power_cut_leaves_what_was_synced_and_a_kill_all_that_was_written() -> None:
    disk = MemoryDisk()
    with disk.open() as store:
        sensors = store.create("sensors", SMALL)
        sensors.append(ROWS[:1], durability="synced").wait()
        sensors.append(ROWS[1:], durability="written").wait()
        cut, killed = disk.after_power_cut(), disk.after_kill()
    assert topics(cut) == ["plant/1"]
    assert topics(killed) == ["plant/1", "plant/2"]
    assert topics(disk) == ["plant/1", "plant/2"]


def test_a_power_cut_with_a_random_part_keeps_what_was_synced() -> None:
    disk = MemoryDisk()
    with disk.open() as store:
        sensors = store.create("sensors", SMALL)
        sensors.append(ROWS[:1], durability="synced").wait()
        sensors.append(ROWS[1:], durability="written").wait()
        found = {tuple(topics(disk.after_power_cut(Random(seed)))) for seed in range(20)}
    assert found <= {("plant/1",), ("plant/1", "plant/2")}


def test_a_full_disk_refuses_rows_until_it_has_space() -> None:
    disk = MemoryDisk()
    with disk.open() as store:
        sensors = store.create("sensors", SMALL)
        disk.files.capacity_bytes = 0
        with pytest.raises(siltstone.StorageFullError):
            sensors.append(ROWS).wait()
        disk.files.capacity_bytes = 1 << 30
        sensors.append(ROWS).wait()
    assert topics(disk) == ["plant/1", "plant/2"]


def test_a_failed_sync_poisons_the_database() -> None:
    disk = MemoryDisk()
    store = disk.open()
    sensors = store.create("sensors", SMALL)
    disk.fail(Fault(operation="sync", errno=errno.EIO))
    with pytest.raises(siltstone.SiltstoneError):
        sensors.append(ROWS).wait()
    with pytest.raises(siltstone.PoisonedError):
        sensors.append(ROWS).wait()
    store.close()


def test_the_power_goes_after_a_number_of_operations() -> None:
    """What was acknowledged before the cut is there after it, wherever the cut is."""
    for operations in range(40):
        disk = MemoryDisk()
        acknowledged = 0
        store = disk.open()
        sensors = store.create("sensors", SMALL)
        disk.faults.operations_left = operations
        try:
            for number in range(10):
                sensors.append([Row(f"n/{number}", b"")]).wait()
                acknowledged += 1
        except (siltstone.SiltstoneError, PowerCut):
            pass
        found = topics(disk.after_power_cut())
        assert found[:acknowledged] == [f"n/{number}" for number in range(acknowledged)]


def test_time_passes_when_the_test_says_so() -> None:
    disk = MemoryDisk()
    with disk.open() as store:
        sensors = store.create("sensors", SMALL)
        sensors.append(ROWS[:1]).wait()
        disk.clock.advance(60)
        sensors.append(ROWS[1:]).wait()
        first, second = (row["timestamp"] for row in rows_of(store))
    assert (second - first).total_seconds() == 60


def test_transactions_work_and_survive() -> None:
    disk = MemoryDisk()
    with disk.open() as store:
        bank = store.keyvalue("bank", KeyValueSettings(timed=False))
        bank.transact(lambda tx: tx.write("account/ann", b"100"))
        after = disk.after_power_cut()
    for each in (disk, after):
        with each.open() as store:
            assert store.keyvalue("bank").get("account/ann") == b"100"
