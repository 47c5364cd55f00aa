from __future__ import annotations

import json
from pathlib import PurePath

import pytest

from siltstone.errors import CorruptionError, UsageError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.fs.publish import create_directories, replace_file
from siltstone.pipeline.lake.ledger import (
    LEDGER,
    Ledger,
    lake_directory,
    read_ledger,
    write_ledger,
)
from siltstone.pipeline.lake.rules import Rules, TableRule
from siltstone.store.feed.position import Position

LAKE = lake_directory(PurePath("/data"), "messages")
RULES = Rules([TableRule(filter="a/+", table="a", levels=("a",))])


# As version 0.1.0 wrote it.
SAVED = b"""{
 "version": 1,
 "identity": "5eed",
 "batch": 12,
 "position": {
  "0": 1200,
  "1": 7
 },
 "slabs": {
  "0/1": 1180
 },
 "open": null
}
"""


def kept(ledger: Ledger) -> Ledger:
    fs = MemoryFileSystem()
    write_ledger(fs, LAKE, ledger)
    return read_ledger(fs, LAKE, ledger.identity)


def test_a_lake_without_a_ledger_is_empty() -> None:
    assert read_ledger(MemoryFileSystem(), LAKE, "i") == Ledger(position=Position({}, "i"))
    assert str(LAKE) == "/data/lake/messages"


def test_the_bytes_of_a_ledger_are_those_of_earlier_versions() -> None:
    fs = MemoryFileSystem()
    create_directories(fs, LAKE)
    replace_file(fs, LAKE / LEDGER, SAVED)
    ledger = read_ledger(fs, LAKE, "5eed")
    assert ledger == Ledger(
        position=Position({0: 1200, 1: 7}, "5eed"), batch=12, slabs={"0/1": 1180}
    )
    assert ledger.encode() == SAVED


def test_a_batch_is_opened_and_ended() -> None:
    opened = kept(
        Ledger(position=Position({0: 5, 1: 9}, "i"), batch=2, slabs={"0/1": 5}).opened(
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
    assert (opened.batch, opened.position.serials) == (2, {0: 5, 1: 9})
    ended = kept(opened.closed({"0/1": 1, "0/2": 2}))
    assert ended == Ledger(
        position=Position({0: 8, 1: 9}, "i"), batch=3, slabs={"0/1": 6, "0/2": 2}
    )
    assert ended.application == "siltstone-i"


def test_the_tables_of_another_database_are_not_taken_for_ours() -> None:
    fs = MemoryFileSystem()
    write_ledger(fs, LAKE, Ledger(position=Position({}, "i")))
    with pytest.raises(
        UsageError,
        match="of an earlier database of this name, which was dropped: rename",
    ):
        read_ledger(fs, LAKE, "j")


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"version": 1}', SAVED.replace(b"1200", b"-1")]
)
def test_a_ledger_that_cannot_be_read_is_damage(content: bytes) -> None:
    fs = MemoryFileSystem()
    write_ledger(fs, LAKE, Ledger(position=Position({}, "i")))
    fs.remove(LAKE / LEDGER)
    with fs.create(LAKE / LEDGER) as file:
        file.write(content)
    with pytest.raises(CorruptionError, match="ledger cannot be read"):
        read_ledger(fs, LAKE, "i")


def test_a_later_version_is_refused() -> None:
    fs = MemoryFileSystem()
    write_ledger(fs, LAKE, Ledger(position=Position({}, "i")))
    data = fs.read(LAKE / LEDGER).replace(b'"version": 1', b'"version": 2')
    fs.remove(LAKE / LEDGER)
    with fs.create(LAKE / LEDGER) as file:
        file.write(data)
    with pytest.raises(UsageError, match="unknown version 2 of"):
        read_ledger(fs, LAKE, "i")


def test_a_batch_that_an_earlier_version_opened_is_finished_by_its_own_rules() -> None:
    fs = MemoryFileSystem()
    rules = Rules([TableRule(filter="a", table="a", decode="json")])
    write_ledger(fs, LAKE, Ledger(position=Position({}, "i")).opened({}, {0: 1}, rules))
    content = json.loads(fs.read(LAKE / "ledger.json"))
    assert content["open"]["rules"][0].pop("drift") == "rescue"
    replace_file(fs, LAKE / "ledger.json", json.dumps(content).encode())
    opened = read_ledger(fs, LAKE, "i").open
    assert opened is not None
    assert [rule.drift for rule in opened.rules.rules] == ["dead_letter"]
