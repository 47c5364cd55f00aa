from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.errors import ExistsError, NotFoundError, UsageError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.fs.publish import replace_file
from siltstone.spool.layout import SpoolPaths, read_next_id, write_next_id

ROOT = PurePath("/s")


def laid_out() -> tuple[MemoryFileSystem, SpoolPaths]:
    fs, layout = MemoryFileSystem(), SpoolPaths(ROOT)
    layout.lay_out(fs)
    return fs, layout


def test_a_new_spool_has_its_directories_and_begins_at_zero() -> None:
    fs, layout = laid_out()
    assert [found.name for found in fs.list(ROOT)] == ["kept", "next", "q", "spool", "tmp"]
    layout.check(fs)
    assert read_next_id(fs, layout) == 0


def test_the_sentinel_is_the_last_name_of_all() -> None:
    fs, _ = laid_out()
    assert fs.operations[-2:] == ["rename /s/spool.tmp /s/spool", "sync_directory /s"]


def test_a_directory_without_the_sentinel_is_no_spool() -> None:
    fs, layout = laid_out()
    fs.remove(layout.sentinel)
    with pytest.raises(NotFoundError, match="the directory is not a spool: path=/s"):
        layout.check(fs)


def test_a_directory_that_is_missing_is_told_from_one_that_is_no_spool() -> None:
    fs, _ = laid_out()
    with pytest.raises(
        NotFoundError, match="the spool does not exist, create it first: path=/none"
    ):
        SpoolPaths(PurePath("/none")).check(fs)


def test_another_version_is_named() -> None:
    fs, layout = laid_out()
    replace_file(fs, layout.sentinel, b"siltstone spool 2\n")
    with pytest.raises(UsageError, match=r"path=/s/spool text=b'siltstone spool 2\\n'"):
        layout.check(fs)


def test_what_a_crash_left_is_told_from_what_others_have() -> None:
    fs, layout = laid_out()
    fs.remove(layout.sentinel)
    layout.check_remains(fs)
    fs.create(layout.entries / "0").close()
    with pytest.raises(ExistsError, match="has entries"):
        layout.check_remains(fs)
    fs.create(ROOT / "photo.jpg").close()
    with pytest.raises(ExistsError, match="the directory is neither empty nor a spool: path"):
        layout.check_remains(fs)


@pytest.mark.parametrize("text", [b"", b"12", b"-1\n", b"x\n", b"1\n2\n"])
def test_a_damaged_mark_lets_ids_begin_far_above_all_there_are(text: bytes) -> None:
    fs, layout = laid_out()
    for name in ("7-x", "12", "99x"):
        fs.create(layout.entries / name).close()
    fs.make_directory(layout.entries / "500")
    replace_file(fs, layout.next_id, text)
    assert read_next_id(fs, layout) == 13 + (1 << 32)
    write_next_id(fs, layout.next_id, 50)
    assert read_next_id(fs, layout) == 50


def test_the_sweep_takes_temporaries_and_nothing_else() -> None:
    fs, layout = laid_out()
    for path in (ROOT / "next.tmp", layout.temporary / "0.tmp", layout.temporary / "other"):
        fs.create(path).close()
    assert layout.sweep(fs) == ["next.tmp", "0.tmp"]
    assert [found.name for found in fs.list(layout.temporary)] == ["other"]
