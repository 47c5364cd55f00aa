from __future__ import annotations

import errno
from collections import Counter
from pathlib import PurePath

import pytest

from siltstone.clock import ManualClock
from siltstone.errors import CorruptionError, NotFoundError, UsageError
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.snapshot.backup import BackupSource
from siltstone.snapshot.directory import SnapshotDirectory
from siltstone.snapshot.format.records import (
    FilePart,
    KeyValueFamily,
    KeyValuePair,
    LearnedStructure,
    Record,
    StoredFile,
)
from siltstone.spool import Entry, create, ensure
from siltstone.store.directory import Store
from siltstone.store.log.read.pieces import Row
from siltstone.store.segment.segment import SEGMENT_HEADER_BYTES
from siltstone.store.slab.manifest import Manifest
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.tx.settings import KeyValueSettings
from tests.support.engines import Engines
from tests.support.snapshots import retained, session

DATA = PurePath("/data")
SMALL = DatabaseSettings(segment_bytes=64 * 1024)


class Source:
    """A data directory in memory."""

    def __init__(self) -> None:
        self.fs = MemoryFileSystem()
        self.engines = Engines()
        self.store = Store(
            DATA, fs=self.fs, clock=ManualClock(), open_engine=self.engines.open_writing
        )

    def records(self, fs: MemoryFileSystem | FaultyFileSystem | None = None) -> list[Record]:
        source = BackupSource(fs or self.fs, DATA, self.engines.open_reading)
        return list(source.records())


def paths(records: list[Record]) -> list[str]:
    return [record.path for record in records if isinstance(record, StoredFile)]


def manifest_of(records: list[Record]) -> Manifest:
    """Return the one manifest, which must be the last file of its database."""
    part = records[-1]
    assert isinstance(part, FilePart)
    assert paths(records)[-1] == "data/m/manifest"
    return Manifest.decode(part.data, PurePath("manifest"))


def test_a_directory_without_anything_has_no_records() -> None:
    source = Source()
    assert source.records() == []


def test_where_there_is_no_data_directory_there_is_nothing_to_back_up() -> None:
    with pytest.raises(NotFoundError):
        BackupSource(MemoryFileSystem(), DATA, Engines().open_reading)


def test_key_value_databases_come_before_the_rows_that_they_may_refer_to() -> None:
    source = Source()
    database = source.store.create("m", SMALL)
    database.append([Row(topic="a", value=b"1")]).wait()
    with source.store.keyvalue("s").transaction() as transaction:
        transaction.write("x", b"1")
        transaction.commit()
    kinds = [type(record) for record in source.records()]
    assert kinds.index(KeyValueFamily) < kinds.index(KeyValuePair) < kinds.index(StoredFile)
    assert Counter(kinds)[KeyValueFamily] == 2


def test_rows_of_a_segment_that_lost_its_name_in_a_power_cut_are_not_left_out() -> None:
    source = Source()
    place = DATA / "data" / "m" / "0" / "1"
    database = source.store.create("m", SMALL)
    segments: list[str] = []
    while len(segments) < 2:
        database.append([Row(topic="a", value=bytes(5000))]).wait()
        segments = [each.name for each in source.fs.list(place) if each.name.endswith(".seg")]
    last = place / max(segments)
    prepared = place / "next.prepared"
    disk = source.fs.crash_clone()
    if disk.exists(prepared):
        disk.remove(prepared)
    disk.rename(last, prepared)
    with pytest.raises(UsageError, match="a power cut left rows that only the next start finds"):
        source.records(disk)
    with Store(DATA, fs=disk, clock=ManualClock()) as store:
        assert store.database("m").count() == database.count()
    assert source.records(disk)


def test_a_database_that_lost_its_manifest_is_not_left_out() -> None:
    source = Source()
    source.store.create("m", SMALL).append([Row(topic="a", value=b"1")]).wait()
    source.fs.remove(DATA / "data" / "m" / "manifest")
    with pytest.raises(CorruptionError, match="database m has lost its manifest"):
        source.records()


def test_a_segment_is_taken_up_to_where_readers_may_read() -> None:
    source = Source()
    database = source.store.create("m", SMALL)
    database.append([Row(topic="a/b", value=b"first")]).wait()
    records = source.records()
    (name,) = [path for path in paths(records) if path.endswith(".seg")]
    at = records.index(StoredFile(path=name, size_bytes=64 * 1024))
    head, frames = records[at + 1 : at + 3]
    assert isinstance(head, FilePart)
    assert isinstance(frames, FilePart)
    assert (head.offset, len(head.data)) == (0, SEGMENT_HEADER_BYTES)
    end = SEGMENT_HEADER_BYTES + len(frames.data)
    assert [int.from_bytes(head.data[at : at + 8], "little") for at in (2048, 2112)] == [end, end]
    assert source.fs.read(DATA / name)[SEGMENT_HEADER_BYTES:end] == frames.data


def test_structure_is_told_and_what_has_no_meaning_elsewhere_is_left_out() -> None:
    source = Source()
    database = source.store.create("m", SMALL)
    database.append([Row(topic="a/b", value=b"1"), Row(topic="a/b", value=b"2")]).wait()
    source.fs.make_directory(DATA / "data" / "m" / "marks")
    source.fs.create(DATA / "data" / "m" / "marks" / "tiered").close()
    source.fs.create(DATA / "data" / "m" / "marks" / "half.tmp").close()
    records = source.records()
    (structure,) = [record for record in records if isinstance(record, LearnedStructure)]
    assert (structure.pattern, structure.rows) == ("a/b", 2)
    assert [path.rpartition("/")[2] for path in paths(records)] == [
        f"{0:020d}.seg",
        "tiered",
        "manifest",
    ]


def test_a_sealed_segment_comes_with_its_index() -> None:
    source = Source()
    database = source.store.create("m", SMALL)
    database.append([Row(topic="a", value=b"1")]).wait()
    database.seal()
    found = [path.removeprefix("data/m/0/") for path in paths(source.records())]
    assert found == [
        f"1/{0:020d}.seg",
        f"1/{0:020d}.idx",
        f"2/{1:020d}.seg",
        "data/m/manifest",
    ]


class DroppingFileSystem(FaultyFileSystem):
    """Drops a slab just before its segments are listed."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.fs)
        self._source = source

    def list(self, path: PurePath) -> list[object]:  # type: ignore[override]
        if path == DATA / "data" / "m" / "0" / "1":
            database = self._source.store.database("m")
            for info in database.slabs()[:1]:
                if info.slab.generation == 1:
                    database.drop_slab(info.slab)
        return super().list(path)  # type: ignore[return-value]


def test_a_slab_that_is_dropped_meanwhile_is_left_out_of_the_manifest() -> None:
    source = Source()
    database = source.store.create("m", SMALL)
    database.append([Row(topic="a", value=b"1")]).wait()
    database.seal()
    records = source.records(DroppingFileSystem(source))
    assert [slab.generation for slab in manifest_of(records).slabs] == [2]


def test_files_that_are_gone_without_a_drop_are_an_error() -> None:
    source = Source()
    source.store.create("m", SMALL)
    fs = FaultyFileSystem(
        source.fs,
        Fault(operation="list", errno=errno.ENOENT, path_suffix="/m/0/1", repeat=True),
    )
    with pytest.raises(CorruptionError, match="files of slab 0/1 are missing, run") as caught:
        source.records(fs)
    assert caught.value.path == DATA / "data" / "m" / "0" / "1"


def test_the_newest_state_of_a_broker_and_the_spool_are_part_of_it() -> None:
    source = Source()
    keeper = SnapshotDirectory(source.fs, ManualClock(), DATA / "snapshots", DATA / "quarantine")
    keeper.save([session("old")], source="broker")
    keeper.save([retained("a", b"1"), session("new")], source="broker")
    source.fs.make_directory(DATA / "spool")
    source.fs.make_directory(DATA / "spool" / "q")
    with source.fs.create(DATA / "spool" / "q" / "entry") as file:
        file.write(b"waits")
    assert source.records() == [
        StoredFile(path="spool/q/entry", size_bytes=5),
        FilePart(offset=0, data=b"waits"),
        retained("a", b"1"),
        session("new"),
    ]


def test_entries_of_a_spool_that_share_a_file_are_taken_apart() -> None:
    source = Source()
    source.store.close()
    with ensure(DATA / "spool" / "peer", fs=source.fs) as spool:
        spool.store_many([(b"%d" % number * 1000, None) for number in range(3)])
    with create(PurePath("/alone"), fs=source.fs) as spool:
        for number in range(3):
            spool.store(b"%d" % number * 1000)
    parts = [record for record in source.records() if isinstance(record, FilePart)]
    alone = [source.fs.read(PurePath("/alone/q") / str(number)) for number in range(3)]
    assert [part.data for part in parts if len(part.data) > 500] == alone


def test_a_damaged_entry_of_a_spool_is_taken_as_it_is() -> None:
    source = Source()
    source.store.close()
    with ensure(DATA / "spool" / "peer", fs=source.fs) as spool:
        spool.store_many([(b"%d" % number * 1000, None) for number in range(2)])
    path = DATA / "spool" / "peer" / "q" / "0"
    with source.fs.open(path, writable=True) as file:
        file.write_at(2005, b"X")
    parts = [record.data for record in source.records() if isinstance(record, FilePart)]
    assert parts.count(source.fs.read(path)) == 2


def test_damaged_data_in_a_shared_file_are_found_in_the_copy_too() -> None:
    source = Source()
    source.store.close()
    with ensure(DATA / "spool" / "peer", fs=source.fs) as spool:
        spool.store_many([(b"%d" % number * 1000, None) for number in range(2)])
    with source.fs.open(DATA / "spool" / "peer" / "q" / "0", writable=True) as file:
        whole = file.read_at(0, 1000)
        file.write_at(5, b"X")
    assert whole == b"0" * 1000
    parts = [record.data for record in source.records() if isinstance(record, FilePart)]
    (copy,) = [data for data in parts if data.startswith(b"00000X")]
    other = PurePath("/copy")
    with create(other, fs=source.fs) as spool:
        spool.store(b"0" * 1000)
    with source.fs.open(other / "q" / "0", writable=True) as file:
        file.write_at(0, copy)
    with (
        ensure(other, fs=source.fs) as spool,
        spool.stream(Entry(0)) as stream,
        pytest.raises(CorruptionError),
    ):
        stream.readall()


def test_a_snapshot_of_a_store_is_no_part_of_the_next_one() -> None:
    source = Source()
    keeper = SnapshotDirectory(source.fs, ManualClock(), DATA / "snapshots", DATA / "quarantine")
    keeper.save([session("c")], source="store")
    assert source.records() == []


def test_rows_stored_behind_the_cut_are_left_out_of_every_database() -> None:
    source = Source()
    names = ("a", "b")
    for name in names:
        source.store.create(name, SMALL).append([Row(topic="t", value=b"1" * 100)] * 20).wait()
    before = source.records()
    cut = BackupSource(source.fs, DATA, source.engines.open_reading)
    cut.cut()
    for name in names:
        database = source.store.database(name)
        # Enough for another segment, which seals the first one, and another generation.
        for _ in range(4):
            database.append([Row(topic="t", value=b"2" * 1000)] * 30).wait()
        database.seal()
        database.append([Row(topic="t", value=b"3")]).wait()
    source.store.keyvalue("late")
    stored = [record for record in cut.records() if not isinstance(record, LearnedStructure)]
    assert stored == [record for record in before if not isinstance(record, LearnedStructure)]


def test_a_key_value_database_is_read_as_it_was_cut() -> None:
    source = Source()
    bank = source.store.keyvalue("bank", KeyValueSettings(timed=False))
    with bank.transaction() as tx:
        tx.write("a", b"before")
    cut = BackupSource(source.fs, DATA, source.engines.open_reading)
    cut.cut()
    cut.cut()
    with bank.transaction() as tx:
        tx.write("a", b"behind")
    values = [record.value for record in cut.records() if isinstance(record, KeyValuePair)]
    assert (b"before" in values, b"behind" in values) == (True, False)
