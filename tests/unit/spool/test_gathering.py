from __future__ import annotations

import errno
from itertools import count
from pathlib import PurePath
from random import Random

import pytest

from siltstone.errors import OverloadedError, PoisonedError, StorageFullError
from siltstone.fs.api import FileSystem
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.spool import Entry, UnableToCommitError, create
from siltstone.spool.gathering import Gathering
from siltstone.spool.packs import PACKED_BYTES_MAX, Pack, find_part
from siltstone.spool.spool import open_spool

ROOT = PurePath("/s")
SMALL, LARGE = b"small", b"L" * (PACKED_BYTES_MAX + 1)


def gather(fs: FileSystem, *sources: bytes, room_bytes: int | None = None) -> Gathering:
    numbers = count()
    made = Gathering(fs, lambda: PurePath(f"/{next(numbers)}.tmp"), room_bytes=room_bytes)
    for source in sources:
        made.add(source)
    made.finish()
    return made


def kinds(gathering: Gathering) -> list[str]:
    """Return which file each entry has: one of its own, or the number of its pack."""
    packs = list(dict.fromkeys(each for each in gathering.files if isinstance(each, Pack)))
    return [str(packs.index(each)) if isinstance(each, Pack) else "own" for each in gathering.files]


def test_small_entries_of_a_batch_share_a_file_and_others_have_their_own() -> None:
    fs = MemoryFileSystem()
    assert kinds(gather(fs)) == []
    assert kinds(gather(MemoryFileSystem(), SMALL)) == ["own"]
    assert kinds(gather(MemoryFileSystem(), SMALL, b"")) == ["0", "0"]
    assert kinds(gather(MemoryFileSystem(), LARGE, SMALL, LARGE, SMALL)) == ["own", "0", "own", "0"]
    assert kinds(gather(MemoryFileSystem(), SMALL, LARGE, SMALL)) == ["own", "own", "0"]
    many = kinds(gather(MemoryFileSystem(), *[SMALL] * 130))
    assert many == ["0"] * 128 + ["1"] * 2


def test_where_a_file_has_one_name_only_every_entry_has_its_own() -> None:
    fs = FaultyFileSystem(
        MemoryFileSystem(), Fault(operation="link", errno=errno.EPERM, repeat=True)
    )
    assert kinds(gather(fs, SMALL, SMALL, SMALL)) == ["own"] * 3
    with create(ROOT, fs=fs) as spool:
        stored = spool.store_many([(b"%d" % number, None) for number in range(3)])
        assert [spool.stream(entry).read() for entry in stored] == [b"0", b"1", b"2"]


def test_entries_beyond_the_room_are_refused_and_nothing_is_left() -> None:
    assert gather(MemoryFileSystem(), SMALL, SMALL, room_bytes=42).size_bytes == 42
    for last in (SMALL, LARGE):
        fs = MemoryFileSystem()
        made = Gathering(fs, map(PurePath, ("/0.tmp", "/1.tmp", "/2.tmp")).__next__, room_bytes=43)
        made.add(SMALL)
        made.add(SMALL)
        with pytest.raises(OverloadedError, match="the spool is full"):
            made.add(last)
        made.remove(OverloadedError(""))
        assert fs.list(PurePath("/")) == []


def test_large_and_small_entries_of_a_batch_are_stored_in_order() -> None:
    fs = MemoryFileSystem()
    data = [SMALL, LARGE, b"", LARGE + b"2", b"end"]
    with create(ROOT, fs=fs) as spool:
        stored = spool.store_many([(each, f"m{number}") for number, each in enumerate(data)])
    with open_spool(ROOT, fs=fs.crash_clone()) as spool:
        assert sorted(spool) == stored == [Entry(n, f"m{n}") for n in range(5)]
        assert [spool.stream(entry).read() for entry in stored] == data
        assert spool.stats().size_bytes == sum(len(each) + 16 for each in data)
        assert spool.swept == ()


def test_what_is_discarded_is_gone_and_the_others_of_its_file_stay() -> None:
    fs = MemoryFileSystem()
    with create(ROOT, fs=fs) as spool:
        stored = spool.store_many([(b"%d" % number, None) for number in range(3)])
        spool.discard(stored[1])
    with open_spool(ROOT, fs=fs.crash_clone(), size_bytes_max=34) as spool:
        assert sorted(spool) == [stored[0], stored[2]]
        assert spool.stream(stored[2]).read() == b"2"
        with pytest.raises(OverloadedError):
            spool.store(b"")
        spool.discard(stored[2])
        spool.store(b"x")
    free = fs.free_bytes(PurePath("/"))
    with open_spool(ROOT, fs=fs) as spool:
        spool.discard_many([stored[0], stored[2]])
    assert fs.free_bytes(PurePath("/")) > free


NO_SYNC = Fault(operation="sync_directory", errno=errno.EIO, path_suffix="/q")


def fail_to_store(fs: FaultyFileSystem, data: list[bytes], *faults: Fault) -> UnableToCommitError:
    with create(ROOT, fs=fs) as spool:
        for fault in faults:
            fs.add(fault)
        with pytest.raises(UnableToCommitError) as caught:
            spool.store_many([(each, None) for each in data])
    return caught.value


def pieces(fs: FileSystem, error: UnableToCommitError) -> list[bytes]:
    """Return the data of each item from where the error says that they are."""
    spans = zip(error.paths, error.spans, strict=True)
    return [fs.read(path)[start:end] for path, (start, end) in spans]


def test_what_is_kept_has_the_order_of_the_items() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    data = [b"one", b"two", LARGE, b"three", LARGE + b"2", b"four"]
    error = fail_to_store(fs, data, NO_SYNC)
    assert [fs.read(path) for path in error.paths] == data
    assert error.spans == tuple((0, len(each)) for each in data)
    assert {path.parent for path in error.paths} == {ROOT / "kept"}


def test_items_that_are_kept_together_can_be_told_apart() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    data = [b"one", b"two", LARGE, b"three"]
    full = Fault(operation="create", errno=errno.ENOSPC, path_suffix="kept/0")
    error = fail_to_store(fs, data, NO_SYNC, full)
    pack = ROOT / "kept" / "0.pack"
    assert (error.paths, error.at_risk) == ((pack, pack, ROOT / "kept" / "2", pack), ())
    assert pieces(fs, error) == data
    # The table at its end tells the same when the error is forgotten.
    fs.rename(pack, ROOT / "3")
    with fs.open(ROOT / "3", writable=False) as file:
        part = find_part(file)
    assert part is not None
    assert (part.offset, part.offset + part.length) == error.spans[3]


def test_a_pack_without_room_for_its_table_is_at_risk_and_is_gone_with_the_next_opening() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    full = Fault(operation="create", errno=errno.ENOSPC, path_suffix="kept/0")
    # The third write to the pack, and every later one: its table.
    table = Fault(operation="write_at", errno=errno.ENOSPC, path_suffix="0.tmp", nth=3, repeat=True)
    error = fail_to_store(fs, [b"one", b"two"], table, full)
    assert error.paths == (ROOT / "tmp" / "0.tmp",) * 2
    assert error.at_risk == (ROOT / "tmp" / "0.tmp",)
    assert pieces(fs, error) == [b"one", b"two"]
    with open_spool(ROOT, fs=fs) as spool:
        assert (list(spool), spool.swept) == ([], ("0.tmp",))
        assert fs.list(ROOT / "kept") == fs.list(ROOT / "tmp") == []


def test_no_name_of_a_batch_that_failed_comes_back_with_a_power_cut() -> None:
    memory = MemoryFileSystem()
    fs = FaultyFileSystem(memory)
    with create(ROOT, fs=fs) as spool:
        fs.add(Fault(operation="link", errno=errno.EIO, path_suffix="/2"))
        with pytest.raises(UnableToCommitError):
            spool.store_many([(b"%d" % number, None) for number in range(3)])
        assert list(spool) == []
        for seed in range(20):
            with open_spool(ROOT, fs=memory.crash_clone(Random(seed))) as again:
                assert list(again) == []
        assert spool.store(b"next") in list(spool)


def test_a_name_that_cannot_be_taken_back_poisons_the_spool() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    with create(ROOT, fs=fs) as spool:
        fs.add(Fault(operation="link", errno=errno.EIO, path_suffix="q/1"))
        fs.add(Fault(operation="remove", errno=errno.EIO, path_suffix="q/0"))
        with pytest.raises(UnableToCommitError) as caught:
            spool.store_many([(b"one", None), (b"two", None)])
        assert pieces(fs, caught.value) == [b"one", b"two"]
        with pytest.raises(PoisonedError):
            spool.store(b"more")


def test_a_disk_that_is_full_takes_none() -> None:
    fs = MemoryFileSystem(page_bytes=512, capacity_bytes=20_000)
    with create(ROOT, fs=fs) as spool:
        with pytest.raises(StorageFullError):
            spool.store_many([(bytes(1000), None) for _ in range(30)])
        assert list(spool) == []
        assert fs.list(ROOT / "tmp") == fs.list(ROOT / "kept") == []
