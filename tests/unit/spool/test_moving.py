from __future__ import annotations

import errno
from pathlib import PurePath

import pytest

from siltstone.errors import CorruptionError, ExistsError, StorageFullError
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.spool.contents import EntryStream
from siltstone.spool.drafts import write_draft
from siltstone.spool.moving import copy_out

SOURCE, OUT = PurePath("/0.tmp"), PurePath("/out")


def stored(data: bytes) -> MemoryFileSystem:
    fs = MemoryFileSystem()
    write_draft(fs, SOURCE, data).sync()
    fs.make_directory(OUT)
    return fs


def stream(fs: MemoryFileSystem) -> EntryStream:
    return EntryStream(fs.open(SOURCE, writable=False))


def found(fs: MemoryFileSystem) -> dict[str, bytes]:
    return {name.name: fs.read(OUT / name.name) for name in fs.list(OUT)}


def test_the_file_has_the_data_alone_and_the_reason_beside_it() -> None:
    fs = stored(b"data")
    copy_out(fs, stream(fs), OUT / "a", "refused")
    assert found(fs) == {"a": b"data", "a.reason.txt": b"refused\n"}


def test_doing_it_again_finishes_it_and_another_file_is_left_alone() -> None:
    fs = stored(b"data")
    copy_out(fs, stream(fs), OUT / "a")
    copy_out(fs, stream(fs), OUT / "a")
    for other in (b"", b"dat", b"data more", b"DATA"):
        fs.remove(OUT / "a")
        with fs.create(OUT / "a") as file:
            file.write(other)
        with pytest.raises(ExistsError, match="path=/out/a"):
            copy_out(fs, stream(fs), OUT / "a")
        assert found(fs) == {"a": other}


def test_what_a_crash_left_of_an_earlier_copy_is_replaced() -> None:
    fs = stored(b"data")
    fs.create(OUT / "a.tmp").close()
    copy_out(fs, stream(fs), OUT / "a")
    assert found(fs) == {"a": b"data"}


def test_a_full_disk_leaves_no_part_of_the_file() -> None:
    fs = stored(b"data")
    faulty = FaultyFileSystem(fs, Fault(operation="write_at", errno=errno.ENOSPC, keep_bytes=1))
    with pytest.raises(StorageFullError):
        copy_out(faulty, stream(fs), OUT / "a", "reason")
    assert found(fs) == {}


def test_damaged_data_are_not_passed_on() -> None:
    fs = stored(b"data")
    with fs.open(SOURCE, writable=True) as file:
        file.write_at(0, b"D")
    with pytest.raises(CorruptionError):
        copy_out(fs, stream(fs), OUT / "a")
    assert found(fs) == {}


def test_without_links_the_file_is_there_all_the_same() -> None:
    fs = stored(b"data")
    copy_out(
        FaultyFileSystem(fs, Fault(operation="link", errno=errno.EPERM)), stream(fs), OUT / "a"
    )
    assert found(fs) == {"a": b"data"}
