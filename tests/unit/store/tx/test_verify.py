from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import PurePath

import pytest
from crc32c import crc32c

from siltstone.errors import CorruptionError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.kv.api import DEFAULT_FAMILY, Changes, Engine, View
from siltstone.store.kv.keys import STATE_KEY, encode_state
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.slab.manifest import SlabId
from siltstone.store.tx import catalog
from siltstone.store.tx.catalog import ShardState
from siltstone.store.tx.commit.changes import CHANGES_FAMILY, ChangeList, changes_key
from siltstone.store.tx.verify import KeyValueReport, verify_keyvalue
from tests.support.kv_suite import changes_of
from tests.support.tx_builders import World

PATH = PurePath("/data/kv/test")
FAMILY = "0.1"


def verified(engine: Engine) -> KeyValueReport:
    fs = MemoryFileSystem()
    for directory in (PATH.parent.parent, PATH.parent, PATH):
        fs.make_directory(directory)
    return verify_keyvalue(fs, PATH, lambda path: engine)


def found(engine: Engine) -> list[tuple[str, str]]:
    return [(one.severity, one.problem.split(": key=")[0]) for one in verified(engine).findings]


def filled(*, timed: bool = True) -> MemoryEngine:
    """Return what a database leaves that has rows in two generations, and remembers an id.

    A plain map has one generation, and the same topic is the same row there.
    """
    with World(timed=timed, thresholds=(1, 0)) as world:
        for topic in ("a/b", "a/c", "d", "e/f", "a"):
            world.write(topic, b"v")
        if timed:
            world.database.seal()
        world.database.transact(lambda tx: tx.write("a/b", b"new"), id="once")
        return world.memory.reopened()


def put(engine: Engine, family: str, key: bytes, value: bytes | None) -> None:
    engine.write(changes_of(family, {key: value}))


@pytest.mark.parametrize(("timed", "slabs", "rows"), [(True, 2, 6), (False, 1, 5)])
def test_what_a_database_leaves_is_whole(timed: bool, slabs: int, rows: int) -> None:
    engine = filled(timed=timed)
    report = verified(engine)
    assert (report.findings, report.slabs, report.rows, report.damaged) == ((), slabs, rows, False)
    assert report.bytes == filled(timed=timed).size_bytes()


def test_an_engine_without_a_database_is_a_note() -> None:
    report = verified(MemoryEngine())
    assert (report.damaged, len(report.findings), report.rows) == (False, 1, 0)


def test_a_family_of_no_slab_is_a_note_and_rows_that_are_missing_are_damage() -> None:
    engine = filled()
    engine.create_family("0.9")
    assert found(engine) == [
        ("note", "column family 0.9 belongs to a dropped slab; the next start removes it")
    ]
    engine = filled()
    engine.drop_family(FAMILY)
    assert found(engine) == [("damage", "the rows of slab 0/1 are missing")]


_STREAM = b"\x01" * 8
# What is learned in slab 0/1, the first piece of it.
_EDGES = b"edges\x00" + bytes(7) + b"\x01" + bytes(4)


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        (b"short", "a key is too short"),
        (_STREAM + b"word" + b"\x01" + bytes(8), "a key does not contain a whole topic"),
        (_STREAM + b"\x00" + b"\xff" * 8, "a row has an invalid time"),
        (_STREAM + b"\x00" + bytes(8), "a row belongs to an unknown stream"),
    ],
)
def test_keys_that_cannot_be_are_damage(key: bytes, problem: str) -> None:
    engine = filled()
    put(engine, FAMILY, key, b"")
    assert found(engine) == [("damage", f"slab 0/1: {problem}")]


def _varying_stream(engine: Engine) -> bytes:
    settings = catalog.read_settings(engine)
    slab, _ = catalog.open_slab(engine, SlabId(0, 1), settings)
    place = slab.place(b"a/b")
    assert place is not None
    return place[:8]


@pytest.mark.parametrize(
    ("varying", "problem"),
    [
        (b"one/two", "a row does not match its stream"),
        (b"#", "a row has an invalid topic"),
    ],
)
def test_rows_that_their_stream_cannot_have_are_damage(varying: bytes, problem: str) -> None:
    engine = filled()
    put(engine, FAMILY, _varying_stream(engine) + varying + b"\x00" + bytes(8), b"")
    assert found(engine) == [("damage", f"slab 0/1: {problem}")]


def test_a_row_that_nobody_would_look_for_there_is_damage() -> None:
    engine = filled()
    # The word `e` came after the first level had its one word: it varies, with `a` beside it.
    settings = catalog.read_settings(engine)
    slab, _ = catalog.open_slab(engine, SlabId(0, 1), settings)
    place = slab.place(b"e/f")
    assert place is not None
    put(engine, FAMILY, place.replace(b"e/f", b"a/f") + bytes(8), b"")
    assert found(engine) == [("damage", "slab 0/1: the key of a row does not match its topic")]


def test_many_bad_rows_are_told_in_few_lines() -> None:
    engine = filled()
    for number in range(15):
        put(engine, FAMILY, b"x%d" % number, b"")
    *some, last = found(engine)
    assert some == [("damage", "slab 0/1: a key is too short")] * 10
    assert last == ("damage", "slab 0/1: 5 more rows are damaged")


def _states(engine: Engine, state: ShardState) -> None:
    changes = Changes()
    catalog.put_state(changes, 0, state)
    engine.write(changes)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda engine: put(engine, "0.2", STATE_KEY, b"x"), "its counters are damaged"),
        (
            lambda engine: put(engine, "0.2", STATE_KEY, encode_state(5, 0)),
            "its last serial does not match its shard: serial=5 shard=6",
        ),
        (
            lambda engine: put(engine, FAMILY, STATE_KEY, encode_state(9, 0)),
            "its last serial does not match its shard: serial=9 shard=6",
        ),
        (
            lambda engine: put(engine, FAMILY, STATE_KEY, encode_state(5, 1 << 60)),
            "its last time is after that of its shard",
        ),
        (
            lambda engine: _states(engine, ShardState(term=1, serial=1, timestamp_us=1 << 60)),
            "a transaction id has a serial after the last one of its shard: serial=6",
        ),
        (
            lambda engine: put(engine, DEFAULT_FAMILY, b"id\x00" + bytes(20), b"x"),
            "a transaction id is damaged or belongs to an unknown shard",
        ),
        (
            lambda engine: put(engine, DEFAULT_FAMILY, b"id\x00" + bytes(20), bytes(16)),
            "a transaction id has no expiry entry",
        ),
        (
            lambda engine: put(engine, DEFAULT_FAMILY, b"id at\x00" + bytes(28), b""),
            "expiry entries name transaction ids that do not exist: count=1",
        ),
        (
            lambda engine: put(engine, DEFAULT_FAMILY, b"shard\x00" + bytes(4), None),
            "the state of shard 0 is missing",
        ),
        (
            lambda engine: put(engine, DEFAULT_FAMILY, _EDGES, b"x"),
            "learned structure is damaged",
        ),
        (
            lambda engine: put(engine, DEFAULT_FAMILY, b"slab\x00" + bytes(7) + b"\x02", None),
            "shard 0 must have one current slab, the newest",
        ),
    ],
)
def test_what_is_known_of_the_database_is_held_against_itself(
    damage: Callable[[Engine], None], problem: str
) -> None:
    engine = filled()
    damage(engine)
    assert any(problem in text for severity, text in found(engine) if severity == "damage")


class DamagedEngine(MemoryEngine):
    """Finds a block damaged when rows are read, as RocksDB does by its checksums."""

    def view(self, family: str) -> View:  # type: ignore[override]
        if family == FAMILY:
            raise CorruptionError("block checksum mismatch", path=PATH)
        return super().view(family)


def test_damage_that_the_engine_meets_is_told_and_the_rest_is_checked() -> None:
    damaged = DamagedEngine()
    damaged._families = filled()._families  # noqa: SLF001
    report = verified(damaged)
    assert [one.problem for one in report.findings] == ["block checksum mismatch"]
    assert (report.slabs, report.rows, report.damaged) == (2, 1, True)


def _record(data: bytes) -> bytes:
    """Return a whole record as RocksDB writes it into its log."""
    crc = crc32c(b"\x01" + data)
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    return struct.pack("<IHB", masked, len(data), 1) + data


def test_a_damaged_log_is_told_and_the_engine_is_not_opened() -> None:
    def refuse(path: PurePath) -> Engine:
        raise AssertionError("opened")

    fs = MemoryFileSystem()
    for directory in (PATH.parent.parent, PATH.parent, PATH):
        fs.make_directory(directory)
    with fs.create(PATH / "000001.log") as file:
        file.write(_record(b"first").replace(b"first", b"worst") + _record(b"second"))
    report = verify_keyvalue(fs, PATH, refuse)
    assert [one.problem.split(",")[0] for one in report.findings] == [
        "a record of the log is damaged before valid records: restore the file from a backup"
    ]
    assert report.damaged


def record_of(first: int, *topics: bytes) -> Changes:
    """Return a write of one record of changes."""
    changes = ChangeList(1)
    for topic in topics:
        changes.put(topic, 0, b"v", 1)
    return changes_of(CHANGES_FAMILY, {changes_key(0, first): changes.encode(0)})


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (record_of(1, b"c"), "the changes of shard 0 are out of order: change=1"),
        (record_of(2, b"c"), "the changes of shard 0 go beyond their end: change=3 end=2"),
        (
            changes_of(CHANGES_FAMILY, {changes_key(0, 2): b"short"}),
            "the changes for feeds are damaged: too short",
        ),
        (
            changes_of(CHANGES_FAMILY, {changes_key(0, 2): struct.pack(">IIQ", 1, 1, 0)}),
            "the changes for feeds are damaged: cut short",
        ),
        (
            changes_of(CHANGES_FAMILY, {changes_key(0, 2): struct.pack(">IIQ", 1, 0, 0) + b"x"}),
            "the changes for feeds are damaged: extra bytes at the end",
        ),
    ],
)
def test_changes_that_cannot_be_are_damage(damage: Changes, problem: str) -> None:
    with World(timed=False, feed_bytes=1 << 20) as world, world.database.transaction() as tx:
        tx.write("a", b"v")
        tx.write("b", b"v")
    engine = world.memory.reopened()
    assert found(engine) == []
    engine = world.memory.reopened()
    engine.write(damage)
    assert found(engine) == [("damage", problem)]
