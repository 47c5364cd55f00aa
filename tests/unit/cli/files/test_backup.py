from __future__ import annotations

import gzip
import re
from pathlib import PurePath

import pytest

from siltstone.fs.memory import MemoryFileSystem
from tests.support.command_line import CommandLine
from tests.support.engines import Engines


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch, siltstone: CommandLine) -> MemoryFileSystem:
    """Let the commands see the disk of the test."""
    engines = Engines()
    monkeypatch.setattr("siltstone.cli.files.backup.PosixFileSystem", lambda: siltstone.fs)
    monkeypatch.setattr("siltstone.cli.files.backup.RocksEngine", engines.open_writing)
    monkeypatch.setattr(
        "siltstone.cli.files.backup.open_read_only", lambda _, path: engines.open_writing(path)
    )
    return siltstone.fs


def append(siltstone: CommandLine, *topics: str) -> None:
    lines = "".join(f'{{"topic": "{topic}", "value": "x"}}\n' for topic in topics)
    assert siltstone("append", "m", stdin=lines.encode()).status == 0


def filled(siltstone: CommandLine) -> None:
    siltstone.create("m")
    append(siltstone, "a/b", "a/b")


def test_what_a_killed_backup_left_is_no_hindrance(siltstone: CommandLine) -> None:
    filled(siltstone)
    for name in ("/b.gz.contents.tmp", "/b.gz.tmp"):
        siltstone.fs.create(PurePath(name)).close()
    assert siltstone("backup", "/b.gz").status == 0
    assert sorted(entry.name for entry in siltstone.fs.list(PurePath("/"))) == ["b.gz", "data"]


def test_a_backup_is_restored_to_a_new_directory(siltstone: CommandLine) -> None:
    filled(siltstone)
    made = siltstone("backup", "/b.gz")
    assert (made.status, made.err, made.out[:13]) == (0, "", "wrote /b.gz, ")
    restored = siltstone("restore", "/b.gz", "--data", "/copy")
    assert (restored.status, restored.out[:42]) == (0, "restored data directory /copy from /b.gz, ")
    before = siltstone("read", "m").out
    assert siltstone("read", "m", "--data", "/copy").out == before != ""
    assert [entry.name for entry in siltstone.fs.list(PurePath("/"))] == ["b.gz", "copy", "data"]


def test_answers_come_as_json_too(siltstone: CommandLine) -> None:
    filled(siltstone)
    made = siltstone("backup", "/b.gz", "--json").document
    restored = siltstone("restore", "/b.gz", "--data", "/copy", "--json").document
    assert made == {
        "file": "/b.gz",
        "size_bytes": siltstone.fs.list(PurePath("/"))[0].size_bytes,
        "digest": restored["digest"],
    }
    assert restored["records"] == {"LearnedStructure": 1, "StoredFile": 2, "FilePart": 3}


def test_a_file_that_is_there_is_replaced_only_when_told_to(siltstone: CommandLine) -> None:
    filled(siltstone)
    assert siltstone("backup", "/b.gz").status == 0
    before = siltstone.fs.read(PurePath("/b.gz"))
    refused = siltstone("backup", "/b.gz")
    assert (refused.status, refused.err) == (
        2,
        "siltstone: /b.gz exists; pass --force to replace it\n",
    )
    assert siltstone.fs.read(PurePath("/b.gz")) == before
    append(siltstone, "c")
    assert siltstone("backup", "/b.gz", "--force").status == 0
    assert siltstone.fs.read(PurePath("/b.gz")) != before


def test_nothing_is_restored_over_data_that_is_there(siltstone: CommandLine) -> None:
    filled(siltstone)
    assert siltstone("backup", "/b.gz").status == 0
    refused = siltstone("restore", "/b.gz")
    assert refused.status == 2
    assert refused.err == (
        "siltstone: data directory /data is not empty; name a new one with --data\n"
    )


def test_a_directory_that_is_none_is_not_backed_up(siltstone: CommandLine) -> None:
    refused = siltstone("backup", "/b.gz", "--data", "/nowhere")
    assert refused.status == 2
    assert "no Siltstone data directory at /nowhere" in refused.err
    assert not siltstone.fs.exists(PurePath("/b.gz"))


@pytest.mark.parametrize("contents", [b"", b"topic,value\n", gzip.compress(b"other data", mtime=0)])
def test_another_file_is_not_restored(siltstone: CommandLine, contents: bytes) -> None:
    with siltstone.fs.create(PurePath("/rows.csv")) as file:
        file.write(contents)
    refused = siltstone("restore", "/rows.csv", "--data", "/copy")
    assert (refused.status, refused.err) == (2, "siltstone: /rows.csv is not a Siltstone backup\n")
    assert not siltstone.fs.exists(PurePath("/copy"))


def test_paths_that_do_not_exist_are_named(siltstone: CommandLine) -> None:
    filled(siltstone)
    backup = siltstone("backup", "/nosuch/b.gz")
    assert (backup.status, backup.err) == (
        2,
        "siltstone: cannot write /nosuch/b.gz: directory /nosuch does not exist\n",
    )
    restore = siltstone("restore", "/nosuch", "--data", "/copy")
    assert (restore.status, restore.err) == (
        2,
        "siltstone: cannot read /nosuch: the file does not exist\n",
    )


def test_a_damaged_backup_is_status_3(siltstone: CommandLine) -> None:
    filled(siltstone)
    assert siltstone("backup", "/b.gz").status == 0
    with siltstone.fs.open(PurePath("/b.gz"), writable=True) as file:
        file.truncate(100)
    restore = siltstone("restore", "/b.gz", "--data", "/copy")
    assert (restore.status, restore.out) == (3, "")
    assert re.fullmatch(
        r"siltstone: /b\.gz is damaged: the snapshot is cut short at byte \d+; "
        r"restore another backup\n",
        restore.err,
    )
    assert not siltstone.fs.exists(PurePath("/copy"))
