from __future__ import annotations

import errno
from itertools import count
from pathlib import PurePath

import pytest

from siltstone.errors import OverloadedError, StorageFullError
from siltstone.fs.api import FileSystem
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.spool import Entry, UnableToCommitError, create
from siltstone.spool.gathering import Gathering
from siltstone.spool.packs import PACKED_BYTES_MAX, Pack
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


def test_where_there_is_no_room_to_keep_entries_apart_they_are_kept_together() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    with create(ROOT, fs=fs) as spool:
        fs.add(Fault(operation="sync_directory", errno=errno.EIO, path_suffix="/q"))
        fs.add(Fault(operation="create", errno=errno.ENOSPC, path_suffix="kept/0"))
        with pytest.raises(UnableToCommitError) as caught:
            spool.store_many([(b"one", None), (b"two", None)])
    (path,) = caught.value.paths
    assert (path.parent.name, fs.read(path)) == ("kept", b"onetwo")


def test_a_disk_that_is_full_takes_none() -> None:
    fs = MemoryFileSystem(page_bytes=512, capacity_bytes=20_000)
    with create(ROOT, fs=fs) as spool:
        with pytest.raises(StorageFullError):
            spool.store_many([(bytes(1000), None) for _ in range(30)])
        assert list(spool) == []
        assert fs.list(ROOT / "tmp") == fs.list(ROOT / "kept") == []
