from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from siltstone.errors import CorruptionError
from siltstone.store.kv.api import Changes
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.tx.commit.changes import (
    CHANGES_FAMILY,
    WRITTEN,
    ChangeList,
    ChangeLog,
    changes_end,
    changes_key,
    decode_changes,
    decode_state,
    head_of,
)
from siltstone.store.tx.settings import KeyValueSettings
from tests.support.tx_builders import World


def lists_of(changes: ChangeList) -> list[list[object]]:
    return [
        [*changes.topics],
        [*changes.times],
        [*changes.untils],
        [*changes.values],
        [*changes.streams],
    ]


def test_the_bytes_are_those_of_the_example_in_the_documentation() -> None:
    text = Path("docs/formats.md").read_text("utf-8")
    example = text.split("### Changes")[1].split("```text\n")[1].split("```")[0]
    key, record = example.split("generation 1, one change")[0], example.split("change 0\n")[1]
    words = r"\b(?:[0-9a-f]{2}){1,16}\b"
    stored_key = bytes.fromhex("".join(re.findall(words, key.split("key:")[0])))
    stored = bytes.fromhex(
        "".join(word for line in record.splitlines() for word in re.findall(words, line))
    )
    changes = ChangeList(1)
    changes.put(b"a", 0, b"1", 5)
    assert (changes_key(0, 0), changes.encode(0)) == (stored_key, stored)


def test_a_record_is_read_as_it_was_written() -> None:
    changes = ChangeList(7)
    changes.put(b"a/b", (1 << 63) - 1, b"value", (1 << 64) - 1)
    changes.delete(b"c", 3, 1 << 63, 2)
    changes.put(b"d", 0, b"", 0)
    record = changes.encode(1 << 40)
    head = head_of(changes_key(9, 100), record)
    assert (head.first, head.stop, head.generation, head.bytes_before) == (100, 103, 7, 1 << 40)
    again = decode_changes(record)
    assert (again.generation, lists_of(again)) == (7, lists_of(changes))
    assert again.untils == [WRITTEN, 1 << 63, WRITTEN]
    assert again.size_bytes == changes.size_bytes == len(record) - 16


@pytest.mark.parametrize("stored", [b"", bytes(31), bytes(33)])
def test_a_state_of_another_length_is_damaged(stored: bytes) -> None:
    with pytest.raises(CorruptionError, match="the state is damaged"):
        decode_state(stored)


def test_a_commit_without_a_changed_row_writes_no_record_and_loses_none() -> None:
    with World(timed=False, feed_bytes=1000) as world:
        world.write("a", b"1")
        before = world.database.end_position()
        with world.database.transaction() as tx:
            tx.delete("nothing/#")
        assert world.database.end_position() == before
        world.reopen()
        assert world.database.end_position() == before


def test_records_are_stored_in_the_write_of_their_commit() -> None:
    with World(timed=False, feed_bytes=1000) as world:
        writes = world.engine.writes
        world.write("a", b"1")
        assert world.engine.writes == writes + 1
        assert isinstance(world.memory, MemoryEngine)
        view = world.memory.view(CHANGES_FAMILY)
        assert [key for key, _ in view.items(b"", b"\xff", 9)] == [changes_key(0, 0)]


def test_a_commit_keeps_no_changes_by_default() -> None:
    assert KeyValueSettings().feed_bytes == 0
    with World() as world:
        world.write("a", b"1")
        assert CHANGES_FAMILY not in world.memory.families()


@pytest.mark.parametrize("seed", range(5))
def test_the_oldest_records_go_and_all_others_stay(seed: int) -> None:
    rng = Random(seed)
    engine = MemoryEngine()
    engine.create_family(CHANGES_FAMILY)
    log = ChangeLog(engine, 3, None)
    # The number of the first change of each record that is kept, and the bytes before it.
    kept: list[tuple[int, int]] = []
    number = total = first = serial = 0
    for _ in range(200):
        missed = rng.choice([0, 0, 0, 2])
        serial += missed
        number += missed
        log.resume(serial)
        serial += 1
        group = ChangeList(1)
        for _ in range(rng.randrange(4)):
            group.put(b"a", 1, bytes(rng.randrange(60)), 5)
        if total - first > 500 + 500 // 4:
            kept = [record for record in kept if record[1] >= total - 500]
            first = kept[0][1] if kept else total
        changes = Changes()
        state = log.stage(changes, group, serial, 500)
        engine.write(changes)
        log.publish()
        if group.topics:
            kept.append((number, total))
            number += len(group.topics)
            total += len(group.encode(0))
        view = engine.view(CHANGES_FAMILY)
        items = view.items(changes_key(3, 0), changes_end(3), 1000)
        view.release()
        assert [key for key, _ in items] == [changes_key(3, begin) for begin, _ in kept]
        assert [head_of(*item).bytes_before for item in items] == [before for _, before in kept]
        found = decode_state(state)
        assert (found.next_number, found.total_bytes) == (number, total)
        assert (found.first_bytes, found.serial) == (first, serial)
        if rng.random() < 0.1:
            log = ChangeLog(engine, 3, found)
        assert log.end == number


def test_what_is_cleared_is_gone_once_and_numbers_go_on() -> None:
    engine = MemoryEngine()
    engine.create_family(CHANGES_FAMILY)
    log = ChangeLog(engine, 3, None)
    group = ChangeList(1)
    group.put(b"a", 1, b"v", 5)
    changes = Changes()
    assert log.clear(changes) is None
    log.stage(changes, group, 1, 500)
    engine.write(changes)
    log.publish()
    cleared = Changes()
    stored = log.clear(cleared)
    assert stored is not None
    engine.write(cleared)
    log.publish()
    found = decode_state(stored)
    size = len(group.encode(0))
    assert (found.next_number, found.total_bytes, found.first_bytes) == (1, size, size)
    assert engine.view(CHANGES_FAMILY).items(b"", b"\xff", 9) == []
    assert log.clear(Changes()) is None
    # Two commits whose changes were not kept take numbers, and nothing takes them back.
    log.resume(3)
    log.publish()
    assert log.end == 3
