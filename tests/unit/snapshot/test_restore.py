from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import partial
from pathlib import PurePath

import pytest

from siltstone.clock import ManualClock
from siltstone.errors import CorruptionError, ExistsError, StorageFullError, UsageError
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.fs.publish import remove_tree
from siltstone.snapshot.backup import BackupSource
from siltstone.snapshot.directory import SnapshotDirectory
from siltstone.snapshot.format.contents import ContentsInMemory
from siltstone.snapshot.format.records import (
    FilePart,
    KeyValueFamily,
    Record,
    StoredFile,
)
from siltstone.snapshot.restore import restore_directory
from siltstone.snapshot.writer import publish_snapshot
from siltstone.store.directory import Store
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.settings import DatabaseSettings
from tests.support.engines import Engines
from tests.support.snapshots import ABOUT, ListSink, names_in, queued, retained, session

DATA, COPY, FILE = PurePath("/data"), PurePath("/copy"), PurePath("/backup.gz")
SMALL = DatabaseSettings(segment_bytes=64 * 1024, shards=2)


def restored(records: Sequence[Record], engines: Engines | None = None) -> MemoryFileSystem:
    """Return a disk on which a file of these records was restored."""
    fs = MemoryFileSystem()
    publish_snapshot(fs, FILE, ABOUT, records)
    with fs.open(FILE, writable=False) as source:
        restore_directory(fs, ManualClock(), source, COPY, (engines or Engines()).open_writing)
    return fs


def rows_of(store: Store) -> list[tuple[object, ...]]:
    columns = ("shard", "generation", "serial", "topic", "timestamp", "value")
    return [
        tuple(row[name] for name in columns)
        for batch in store.database("m").read(columns=columns)
        for row in batch.to_pylist()
    ]


def test_a_store_comes_back_with_its_serials_generations_and_pairs() -> None:
    fs, engines = MemoryFileSystem(), Engines()
    with Store(DATA, fs=fs, clock=ManualClock(), open_engine=engines.open_writing) as store:
        database = store.create("m", SMALL)
        for number in range(200):
            database.append([Row(topic=f"a/{number % 7}", value=bytes(500))]).wait()
            if number % 80 == 79:
                database.seal()
        with store.keyvalue("s").transaction() as transaction:
            transaction.write("x/y", b"1")
            transaction.commit()
        expected = rows_of(store)
        records = list(BackupSource(fs, DATA, engines.open_reading).records())
    copies = Engines()
    copy = restored(records, copies)
    after = copy.crash_clone()
    with Store(COPY, fs=after, clock=ManualClock(), open_engine=copies.open_writing) as store:
        database = store.database("m")
        assert rows_of(store) == expected
        assert all(report.torn_bytes == 0 for report in database.reports)
        assert store.keyvalue("s").get("x/y") == b"1"
        database.append([Row(topic="a/1", value=b"next")]).wait()
        assert len(rows_of(store)) == len(expected) + 1
    assert names_in(after, COPY) == ["LOCK", "VERSION", "commits", "data", "kv"]


def test_a_slab_that_its_manifest_does_not_name_is_removed() -> None:
    fs, engines = MemoryFileSystem(), Engines()
    with Store(DATA, fs=fs, clock=ManualClock(), open_engine=engines.open_writing) as store:
        store.create("m", DatabaseSettings(segment_bytes=64 * 1024))
        records = list(BackupSource(fs, DATA, engines.open_reading).records())
    dropped = StoredFile(path=f"data/m/0/0/{0:020d}.seg", size_bytes=64 * 1024)
    copy = restored([dropped, *records])
    assert names_in(copy, COPY / "data" / "m" / "0") == ["1"]


def test_the_state_of_a_broker_becomes_its_first_snapshot() -> None:
    state: list[Record] = [retained("a", b"1"), session("c"), queued("a", b"1")]
    fs = restored([*state[:1], StoredFile(path="spool/q/e", size_bytes=0), *state[1:]])
    keeper, sink = (
        SnapshotDirectory(fs, ManualClock(), COPY / "snapshots", COPY / "quarantine"),
        ListSink(),
    )
    loaded = keeper.load(sink, ContentsInMemory())
    assert sink.records == state
    assert loaded.summary is not None
    assert (loaded.summary.about.serial, loaded.summary.about.source) == (1, "broker")
    assert fs.read(COPY / "spool" / "q" / "e") == b""


def test_what_a_file_leaves_out_is_a_hole() -> None:
    fs = restored([StoredFile(path="spool/x", size_bytes=10_000), FilePart(offset=5, data=b"abc")])
    assert fs.read(COPY / "spool" / "x") == bytes(5) + b"abc" + bytes(9_992)
    assert fs.list(COPY / "spool")[0].allocated_bytes == 512


@pytest.mark.parametrize(
    "record",
    [
        StoredFile(path="../x", size_bytes=0),
        StoredFile(path="/etc/x", size_bytes=0),
        StoredFile(path="data/../../x", size_bytes=0),
        StoredFile(path="VERSION", size_bytes=0),
        StoredFile(path="", size_bytes=0),
        KeyValueFamily(database="../x", family="default"),
        KeyValueFamily(database="data/x", family="default"),
    ],
)
def test_no_record_leads_out_of_the_new_directory(record: Record) -> None:
    with pytest.raises(CorruptionError, match="the path is not part of a data directory"):
        restored([record])


@pytest.mark.parametrize("left", ["VERSION", "file"])
def test_a_directory_that_is_not_empty_is_left_alone(left: str) -> None:
    fs = MemoryFileSystem()
    publish_snapshot(fs, FILE, ABOUT, [session("c")])
    fs.make_directory(COPY)
    fs.create(COPY / left).close()
    with fs.open(FILE, writable=False) as source, pytest.raises(ExistsError, match="/copy is not"):
        restore_directory(fs, ManualClock(), source, COPY, Engines().open_writing)
    assert names_in(fs, COPY) == [left]


def test_a_damaged_backup_makes_nothing() -> None:
    fs = MemoryFileSystem()
    publish_snapshot(fs, FILE, ABOUT, [session("c")])
    with fs.open(FILE, writable=True) as source:
        source.truncate(source.size() - 1)
        with pytest.raises(CorruptionError, match="the snapshot is cut short"):
            restore_directory(fs, ManualClock(), source, COPY, Engines().open_writing)
    assert not fs.exists(COPY)


def test_a_full_disk_leaves_no_data_directory_and_lets_go_of_the_lock() -> None:
    fs = MemoryFileSystem()
    records: list[Record] = [
        StoredFile(path="spool/x", size_bytes=50_000),
        FilePart(offset=0, data=bytes(range(250)) * 200),
    ]
    publish_snapshot(fs, FILE, ABOUT, records)
    # Others have filled it meanwhile.
    full = Fault(operation="write_at", errno=errno.ENOSPC, path_suffix="spool/x")
    with fs.open(FILE, writable=False) as source, pytest.raises(StorageFullError):
        restore_directory(
            FaultyFileSystem(fs, full), ManualClock(), source, COPY, Engines().open_writing
        )
    assert not fs.exists(COPY / "VERSION")
    fs.lock(COPY / "LOCK").release()


def same_parts(count: int) -> list[Record]:
    """Return a file of many parts that are the same: little in a backup, much on a disk."""
    parts = [FilePart(offset=1000 * number, data=b"x" * 1000) for number in range(count)]
    return [StoredFile(path="spool/x", size_bytes=1000 * count), *parts]


@pytest.mark.parametrize(
    ("records", "size_max", "message"),
    [
        (
            [StoredFile(path="spool/x", size_bytes=50_000), FilePart(offset=0, data=bytes(50_000))],
            49_999,
            "the backup has more data than allowed; raise the limit, or free disk space: max=49999",
        ),
        (
            same_parts(100),
            99_999,
            "the backup has more data than allowed; raise the limit, or free disk space: max=99999",
        ),
    ],
)
def test_a_backup_with_more_data_than_allowed_is_refused(
    records: list[Record], size_max: int, message: str
) -> None:
    fs = MemoryFileSystem()
    publish_snapshot(fs, FILE, ABOUT, records)
    for limit in (size_max, size_max + 200_000):
        with fs.open(FILE, writable=False) as source:
            restoring = partial(restore_directory, fs, ManualClock(), source, COPY)
            if limit == size_max:
                with pytest.raises(UsageError, match=message):
                    restoring(Engines().open_writing, size_bytes_max=limit)
                assert not fs.exists(COPY / "VERSION")
                if fs.exists(COPY):
                    remove_tree(fs, COPY)
            else:
                restoring(Engines().open_writing, size_bytes_max=limit)
    assert fs.exists(COPY / "VERSION")


def test_a_disk_without_room_for_all_is_told_before_anything_is_made() -> None:
    fs = MemoryFileSystem()
    records: list[Record] = [
        StoredFile(path="spool/x", size_bytes=50_000),
        FilePart(offset=0, data=bytes(50_000)),
    ]
    publish_snapshot(fs, FILE, ABOUT, records)
    fs.capacity_bytes = fs.capacity_bytes - fs.free_bytes(PurePath("/")) + 80_000
    with fs.open(FILE, writable=False) as source, pytest.raises(StorageFullError) as caught:
        restore_directory(fs, ManualClock(), source, COPY, Engines().open_writing)
    assert caught.value.needed_bytes > 100_000
    assert not fs.exists(COPY)
