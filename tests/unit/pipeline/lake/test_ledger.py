from __future__ import annotations

import json
from pathlib import PurePath

import pytest

from siltstone.errors import CorruptionError, UsageError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.fs.publish import replace_file
from siltstone.pipeline.lake.ledger import (
    LEDGER,
    Ledger,
    lake_directory,
    read_ledger,
    write_ledger,
)
from siltstone.pipeline.lake.rules import Rule, Rules

LAKE = lake_directory(PurePath("/data"), "messages")
RULES = Rules([Rule(filter="a/+", table="a", levels=("a",))])


def kept(ledger: Ledger) -> Ledger:
    fs = MemoryFileSystem()
    write_ledger(fs, LAKE, ledger)
    return read_ledger(fs, LAKE, ledger.identity)


def test_a_lake_without_a_ledger_is_empty() -> None:
    assert read_ledger(MemoryFileSystem(), LAKE, "i") == Ledger(identity="i")
    assert str(LAKE) == "/data/lake/messages"


def test_a_batch_is_opened_and_ended() -> None:
    opened = kept(
        Ledger(identity="i", batch=2, position={0: 5, 1: 9}, slabs={"0/1": 5}).opened(
            {0: 5, 1: 9}, {0: 8, 1: 9}, RULES
        )
    )
    assert opened.open is not None
    assert (opened.open.number, opened.open.start, opened.open.stop) == (
        3,
        {0: 5, 1: 9},
        {0: 8, 1: 9},
    )
    assert opened.open.rules.to_json() == RULES.to_json()
    assert (opened.batch, opened.position) == (2, {0: 5, 1: 9})
    ended = kept(opened.closed({"0/1": 1, "0/2": 2}))
    assert ended == Ledger(identity="i", batch=3, position={0: 8, 1: 9}, slabs={"0/1": 6, "0/2": 2})
    assert ended.application == "siltstone-i"


def test_the_tables_of_another_database_are_not_taken_for_ours() -> None:
    fs = MemoryFileSystem()
    write_ledger(fs, LAKE, Ledger(identity="i"))
    with pytest.raises(
        UsageError,
        match="of an earlier database of this name, which was dropped: rename",
    ):
        read_ledger(fs, LAKE, "j")


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"version": 1}'])
def test_a_ledger_that_cannot_be_read_is_damage(content: bytes) -> None:
    fs = MemoryFileSystem()
    write_ledger(fs, LAKE, Ledger(identity="i"))
    fs.remove(LAKE / LEDGER)
    with fs.create(LAKE / LEDGER) as file:
        file.write(content)
    with pytest.raises(CorruptionError, match="ledger cannot be read"):
        read_ledger(fs, LAKE, "i")


def test_a_later_version_is_refused() -> None:
    fs = MemoryFileSystem()
    write_ledger(fs, LAKE, Ledger(identity="i"))
    data = fs.read(LAKE / LEDGER).replace(b'"version": 1', b'"version": 2')
    fs.remove(LAKE / LEDGER)
    with fs.create(LAKE / LEDGER) as file:
        file.write(data)
    with pytest.raises(UsageError, match="unknown version 2 of"):
        read_ledger(fs, LAKE, "i")


def test_a_batch_that_an_earlier_version_opened_is_finished_by_its_own_rules() -> None:
    fs = MemoryFileSystem()
    rules = Rules([Rule(filter="a", table="a", decode="json")])
    write_ledger(fs, LAKE, Ledger(identity="i").opened({}, {0: 1}, rules))
    content = json.loads(fs.read(LAKE / "ledger.json"))
    assert content["open"]["rules"][0].pop("drift") == "rescue"
    replace_file(fs, LAKE / "ledger.json", json.dumps(content).encode())
    opened = read_ledger(fs, LAKE, "i").open
    assert opened is not None
    assert [rule.drift for rule in opened.rules.rules] == ["dead_letter"]
