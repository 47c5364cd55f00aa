"""The power goes before any one operation of a spool's life; what it had acknowledged is there."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from pathlib import PurePath
from random import Random

import pytest

from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.fs.publish import create_directories
from siltstone.spool import Entry, Spool, ensure
from siltstone.spool.packs import PACKED_BYTES_MAX
from tests.support.spool_model import SpoolModel, contents

ROOT, OUT = PurePath("/data/spool/s"), PurePath("/data/dead")
# More than the life below has; the last ones must then be found not to cut it short.
OPERATIONS = 140


def store(spool: Spool, model: SpoolModel, *items: tuple[bytes, str | None]) -> list[Entry]:
    model.perhaps_stored += [(metadata, data) for data, metadata in items]
    stored = spool.store_many(items)
    for (data, metadata), entry in zip(items, stored, strict=True):
        model.stored[entry] = data
        model.perhaps_stored.remove((metadata, data))
        model.highest_id = max(model.highest_id, entry.id)
    return stored


def discard(
    spool: Spool, model: SpoolModel, entry: Entry, destination: PurePath | None = None
) -> None:
    model.perhaps_discarded.add(entry)
    if destination is None:
        spool.discard(entry)
    else:
        model.perhaps_moved[entry] = destination
        spool.discard(entry, destination, reason="because")
        model.moved[destination] = model.stored[entry]
        del model.perhaps_moved[entry]
    model.perhaps_discarded.remove(entry)
    del model.stored[entry]


def live(fs: MemoryFileSystem, model: SpoolModel) -> None:
    """Make a spool and use all that it can do, over two openings."""
    create_directories(fs, OUT)
    with ensure(ROOT, fs=fs) as spool:
        [first] = store(spool, model, (b"first" * 300, None))
        many = store(spool, model, (b"a", "A/1"), (b"", "empty"), (b"c" * 2000, None))
        discard(spool, model, many[0])
        discard(spool, model, first, OUT / "first")
    with ensure(ROOT, fs=fs) as spool:
        [again] = store(spool, model, (b"again", "again"))
        discard(spool, model, again)
        discard(spool, model, many[1], OUT / "empty")
        store(spool, model, (b"last", None))


def test_the_life_has_fewer_operations_than_are_cut() -> None:
    fs = MemoryFileSystem()
    live(fs, SpoolModel())
    assert 80 < len(fs.operations) < OPERATIONS


@pytest.mark.parametrize("operations", range(OPERATIONS))
def test_a_power_cut_at_any_step_loses_nothing_acknowledged(operations: int) -> None:
    for seed in range(6):
        fs, model = MemoryFileSystem(), SpoolModel()
        fs.operations_left = operations
        try:
            live(fs, model)
        except PowerCut:
            pass
        else:
            assert operations > 80
        match seed:
            case 0:
                left = fs.crash_clone()
            case 1:
                left = fs.kill_clone()
            case _:
                left = fs.crash_clone(Random(seed), in_order=seed % 2 == 0)
        begun = len(model.perhaps_stored)
        with ensure(ROOT, fs=left) as spool:
            # A call stores all of its items, or none.
            assert sum(entry not in model.stored for entry in spool) in (0, begun)
            model.check(spool, left)
            [new] = spool.store_many([(b"new", None)])
            assert new.id > model.highest_id
            assert left.list(ROOT / "tmp") == []


def cut_batch(
    operations: int, batch: list[tuple[bytes, str | None]] | None = None
) -> MemoryFileSystem:
    """Return a disk on which the power went while a batch was stored."""
    fs = MemoryFileSystem()
    with ensure(ROOT, fs=fs) as spool:
        before = len(fs.operations)
        fs.operations_left = operations
        try:
            spool.store_many(batch or BATCH)
        except PowerCut:
            return fs
    assert len(fs.operations) - before <= operations
    fs.operations_left = None
    return fs


BATCH: list[tuple[bytes, str | None]] = [(b"%d" % number, None) for number in range(3)]
BATCH_OPERATIONS = 33


def test_a_batch_has_fewer_operations_than_are_cut() -> None:
    assert contents(ensure(ROOT, fs=cut_batch(BATCH_OPERATIONS))) == {
        Entry(number): b"%d" % number for number in range(3)
    }


@pytest.mark.parametrize("operations", range(BATCH_OPERATIONS))
def test_power_cuts_in_a_batch_and_in_the_opening_that_finishes_it_leave_all_or_none(
    operations: int,
) -> None:
    for opened, seed in product(range(12), range(2)):
        left = cut_batch(operations).crash_clone(Random(seed + opened) if seed else None)
        left.operations_left = opened
        with suppress(PowerCut), ensure(ROOT, fs=left):
            pass
        found = contents(ensure(ROOT, fs=left.crash_clone(Random(seed) if seed else None)))
        assert sorted(found.values()) in ([], [b"0", b"1", b"2"])


LARGE = b"L" * (PACKED_BYTES_MAX + 1)
MIXED: list[tuple[bytes, str | None]] = [(b"0", None), (LARGE, "l"), (b"2", "m"), (b"3", None)]


def test_a_power_cut_in_a_batch_of_small_and_large_entries_leaves_all_or_none() -> None:
    all_of_it = sorted(data for data, _ in MIXED)
    outcomes = []
    for operations, seed in product(range(BATCH_OPERATIONS), range(2)):
        left = cut_batch(operations, MIXED).crash_clone(Random(operations) if seed else None)
        with ensure(ROOT, fs=left) as spool:
            outcomes.append(sorted(contents(spool).values()))
    assert outcomes[0] == []
    assert outcomes[-1] == all_of_it
    assert [each for each in outcomes if each not in ([], all_of_it)] == []


@pytest.mark.parametrize("operations", range(14))
def test_a_power_cut_while_it_is_opened_changes_nothing(operations: int) -> None:
    fs, model = MemoryFileSystem(), SpoolModel()
    live(fs, model)
    fs.create(ROOT / "tmp" / "9.tmp").close()
    fs.operations_left = operations
    try:
        with ensure(ROOT, fs=fs) as spool:
            store(spool, model, (b"one more", None))
    except PowerCut:
        pass
    left = fs.crash_clone(Random(operations))
    with ensure(ROOT, fs=left) as spool:
        model.check(spool, left)
