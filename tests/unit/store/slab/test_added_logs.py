from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.errors import CorruptionError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.slab.added_logs import (
    AddedLog,
    append_log,
    begin_journal,
    is_journal,
    journal_path,
    read_journal,
)

PATH = journal_path(PurePath("/"), 3)
LOGS = [
    AddedLog(shard=number, topic=f"plant/é {number}", since_us=number, created_us=number)
    for number in range(3)
]


def journal(logs: list[AddedLog]) -> MemoryFileSystem:
    fs = MemoryFileSystem()
    begin_journal(fs, PATH)
    with fs.open(PATH, writable=True) as file:
        for log in logs:
            append_log(file, log)
    return fs


def test_what_was_added_survives_a_power_cut_in_order() -> None:
    assert read_journal(journal(LOGS).crash_clone(), PATH) == LOGS


def test_a_journal_is_told_by_its_name() -> None:
    assert PATH.name == "added.3"
    names = ["added.3", "added.", "added.x", "added", "manifest"]
    assert [name for name in names if is_journal(name)] == ["added.3"]


def test_a_last_line_that_was_cut_anywhere_was_never_added() -> None:
    data = journal(LOGS).read(PATH)
    before = len(journal(LOGS[:2]).read(PATH))
    for end in range(before, len(data) - 1):
        fs = MemoryFileSystem()
        with fs.create(PATH) as file:
            file.write(data[:end] + bytes(len(data) - end))
        assert read_journal(fs, PATH) == LOGS[:2]


@pytest.mark.parametrize("at", ["first line", "title"])
def test_damage_before_the_last_line_is_told(at: str) -> None:
    fs = journal(LOGS)
    position = fs.read(PATH).index(b"shard") if at == "first line" else 3
    with fs.open(PATH, writable=True) as file:
        file.write_at(position, b"X")
    with pytest.raises(CorruptionError, match="a journal of topic logs"):
        read_journal(fs, PATH)
