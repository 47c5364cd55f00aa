from __future__ import annotations

from contextlib import suppress
from pathlib import PurePath

import pytest

from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.store.log.check.quarantine import Quarantine
from siltstone.store.segment.chain import SlabIdentity

PLACE = PurePath("/quarantine")
SEGMENT = PurePath("/00000000000000000007.seg")
NAME = "plant-3-1-00000000000000000007"


def quarantine(fs: MemoryFileSystem) -> Quarantine:
    return Quarantine(fs, PLACE, SlabIdentity(database="plant", shard=3, generation=1, seed=0))


def files(fs: MemoryFileSystem) -> dict[str, bytes]:
    return {entry.name: fs.read(PLACE / entry.name) for entry in fs.list(PLACE)}


def test_bytes_are_kept_with_their_reason_and_survive_a_power_cut() -> None:
    fs = MemoryFileSystem()
    kept = quarantine(fs).keep(SEGMENT, 4096, b"bytes", "damaged")
    assert kept == PLACE / f"{NAME}-4096.frame"
    assert files(fs.crash_clone()) == {
        f"{NAME}-4096.frame": b"bytes",
        f"{NAME}-4096.frame.reason.txt": f"{SEGMENT} offset=4096: damaged\n".encode(),
    }


def test_the_same_bytes_are_kept_once_and_others_beside_them() -> None:
    fs = MemoryFileSystem()
    made = [quarantine(fs).keep(SEGMENT, 4096, data, "damaged") for data in (b"1", b"1", b"2")]
    first, second = PLACE / f"{NAME}-4096.frame", PLACE / f"{NAME}-4096.frame.1"
    assert made == [first, first, second]
    assert (fs.read(first), fs.read(second)) == (b"1", b"2")


def test_a_file_is_kept_under_a_second_name() -> None:
    fs = MemoryFileSystem()
    with fs.create(SEGMENT) as file:
        file.write(b"whole")
        file.sync()
    fs.sync_directory(SEGMENT.parent)
    kept = quarantine(fs).keep_file(SEGMENT, "of another slab")
    after = fs.crash_clone()
    assert (after.read(kept), after.read(SEGMENT)) == (b"whole", b"whole")
    assert files(after) == {
        f"{NAME}.seg": b"whole",
        f"{NAME}.seg.reason.txt": f"{SEGMENT}: of another slab\n".encode(),
    }


@pytest.mark.parametrize("operations", range(14))
def test_a_power_cut_leaves_nothing_here_without_its_reason(operations: int) -> None:
    fs = MemoryFileSystem()
    fs.operations_left = operations
    with suppress(PowerCut):
        quarantine(fs).keep(SEGMENT, 4096, b"bytes", "damaged")
    after = fs.crash_clone()
    if after.exists(PLACE / f"{NAME}-4096.frame"):
        assert after.read(PLACE / f"{NAME}-4096.frame") == b"bytes"
        assert after.exists(PLACE / f"{NAME}-4096.frame.reason.txt")
