from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import PurePath

import pytest
from crc32c import crc32c

from siltstone.errors import (
    ClosedError,
    CorruptionError,
    DiskError,
    NotFoundError,
    OverloadedError,
    StorageFullError,
)
from siltstone.fs.faulty import Fault, FaultyFileSystem, Operation
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.slab.added_logs import AddedLog, append_log
from siltstone.store.slab.manifest import (
    RESERVE_BYTES,
    Manifest,
    ManifestFile,
    SlabId,
    SlabRecord,
    SlabState,
    read_manifest,
)
from siltstone.store.slab.settings import DatabaseSettings

DIRECTORY = PurePath("/plant")
PATH = DIRECTORY / "manifest"
RESERVE = DIRECTORY / "reserve"

SEALED = SlabRecord(
    shard=0, generation=1, state=SlabState.SEALED, since_us=5, until_us=9, created_us=4
)
CURRENT = SlabRecord(
    shard=0, generation=2, state=SlabState.CURRENT, since_us=9, until_us=None, created_us=8
)
MANIFEST = Manifest(
    database="plant",
    salt=2**63 - 1,
    settings=DatabaseSettings(thresholds=(5, -1), retain_seconds=1.5),
    slabs=(SEALED, CURRENT),
    dropping=(SlabId(0, 0), SlabId(1, 3)),
)

LOGS = Manifest(
    database="plant",
    salt=7,
    settings=DatabaseSettings(shard_by="topic"),
    slabs=(replace(CURRENT, generation=1),),
    logs=("t0",),
    holds_logs=True,
)
JOURNAL = DIRECTORY / "added.1"


def new_fs(capacity_bytes: int = 1 << 60) -> MemoryFileSystem:
    fs = MemoryFileSystem(page_bytes=4096, capacity_bytes=capacity_bytes)
    fs.make_directory(DIRECTORY)
    fs.sync_directory(DIRECTORY.parent)
    return fs


def renamed(name: str) -> Manifest:
    return replace(MANIFEST, database=name)


def known_before(manifest: Manifest) -> dict[str, object]:
    """Return the settings without those that earlier readers do not know, at their defaults."""
    values = manifest.settings.to_json()
    return {name: values[name] for name in values if name not in {"backend", "reclaim"}}


def added(shard: int) -> AddedLog:
    return AddedLog(shard=shard, topic=f"t{shard}", since_us=10 + shard, created_us=shard)


def new_fs_with(
    manifest: Manifest, *, capacity_bytes: int = 1 << 60
) -> tuple[MemoryFileSystem, ManifestFile]:
    fs = new_fs(capacity_bytes)
    keeper = ManifestFile(fs, DIRECTORY, manifest)
    keeper.update(lambda manifest: manifest)
    return fs, keeper


def fill(fs: MemoryFileSystem) -> None:
    """Take all the space that is left."""
    with fs.create(DIRECTORY / "filler") as file:
        file.write(bytes(fs.free_bytes(DIRECTORY)))


class TestFile:
    def test_the_file_is_a_title_with_a_checksum_and_json(self) -> None:
        title, _, content = MANIFEST.encode().partition(b"\n")
        assert title == b"siltstone-manifest 1 %08x" % crc32c(content)
        assert json.loads(content) == {
            "database": "plant",
            "salt": 2**63 - 1,
            "settings": known_before(MANIFEST),
            "slabs": [
                {
                    "shard": 0,
                    "generation": 1,
                    "state": "sealed",
                    "since_us": 5,
                    "until_us": 9,
                    "created_us": 4,
                    "first_serial": 0,
                    "until_serial": None,
                },
                {
                    "shard": 0,
                    "generation": 2,
                    "state": "current",
                    "since_us": 9,
                    "until_us": None,
                    "created_us": 8,
                    "first_serial": 0,
                    "until_serial": None,
                },
            ],
            "dropping": [[0, 0], [1, 3]],
            "identified": True,
        }

    def test_a_manifest_of_an_earlier_version_owns_positions_without_identity(self) -> None:
        _, _, content = MANIFEST.encode().partition(b"\n")
        content = content.replace(b',\n "identified": true', b"")
        old = Manifest.decode(b"siltstone-manifest 1 %08x\n%b" % (crc32c(content), content), PATH)
        assert old == replace(MANIFEST, identified=False)
        assert (old.identity.owns(""), MANIFEST.identity.owns("")) == (True, False)
        assert old.identity.text == MANIFEST.identity.text
        assert Manifest.decode(old.encode(), PATH) == old

    def test_a_manifest_comes_back_from_its_file(self) -> None:
        assert Manifest.decode(MANIFEST.encode(), PATH) == MANIFEST

    def test_what_was_reclaimed_and_that_it_is_comes_back_too(self) -> None:
        settings = replace(MANIFEST.settings, reclaim="delivered")
        manifest = replace(MANIFEST, settings=settings, reclaimed={0: 7, 3: 1 << 40})
        assert Manifest.decode(manifest.encode(), PATH) == manifest

    def test_no_flipped_bit_goes_unnoticed(self) -> None:
        sound = MANIFEST.encode()
        unnoticed = []
        for bit in range(len(sound) * 8):
            data = bytearray(sound)
            data[bit // 8] ^= 1 << bit % 8
            try:
                Manifest.decode(bytes(data), PATH)
            except CorruptionError:
                continue
            unnoticed.append(bit)
        assert unnoticed == []

    @pytest.mark.parametrize("data", [b"", b"\n", MANIFEST.encode()[:-1]])
    def test_a_file_that_was_cut_is_refused(self, data: bytes) -> None:
        with pytest.raises(
            CorruptionError, match="the manifest does not match its checksum"
        ) as caught:
            Manifest.decode(data, PATH)
        assert caught.value.path == PATH

    def test_the_manifest_of_a_directory_is_read(self) -> None:
        fs = new_fs()
        with fs.create(PATH) as file:
            file.write(MANIFEST.encode())
        assert read_manifest(fs, DIRECTORY) == MANIFEST

    def test_a_directory_without_a_manifest_is_no_database(self) -> None:
        with pytest.raises(NotFoundError):
            read_manifest(new_fs(), DIRECTORY)


class TestSlabs:
    def test_a_slab_is_named_by_shard_and_generation(self) -> None:
        assert (CURRENT.id, str(CURRENT.id)) == (SlabId(0, 2), "0/2")

    def test_slabs_sort_by_shard_then_generation(self) -> None:
        assert sorted([SlabId(1, 1), SlabId(0, 2), SlabId(0, 1)]) == [
            SlabId(0, 1),
            SlabId(0, 2),
            SlabId(1, 1),
        ]

    def test_a_new_slab_takes_its_place_in_order(self) -> None:
        between = replace(SEALED, generation=0)
        assert MANIFEST.with_slab(between).slabs == (between, SEALED, CURRENT)

    def test_a_known_slab_is_replaced(self) -> None:
        sealed = replace(CURRENT, state=SlabState.SEALED, until_us=20)
        assert MANIFEST.with_slab(sealed) == replace(MANIFEST, slabs=(SEALED, sealed))


class TestUpdate:
    def test_an_update_is_durable_and_current(self) -> None:
        fs = new_fs()
        keeper = ManifestFile(fs, DIRECTORY, MANIFEST)
        changed = keeper.update(lambda manifest: replace(manifest, dropping=()))
        assert changed == replace(MANIFEST, dropping=())
        assert keeper.current == changed
        assert read_manifest(fs.crash_clone(), DIRECTORY) == changed

    def test_each_update_builds_on_the_last(self) -> None:
        keeper = ManifestFile(new_fs(), DIRECTORY, MANIFEST)
        for _ in range(2):
            keeper.update(lambda manifest: renamed(manifest.database + "x"))
        assert keeper.current == renamed("plantxx")

    def test_a_failed_update_changes_nothing(self) -> None:
        fs = FaultyFileSystem(new_fs())
        keeper = ManifestFile(fs, DIRECTORY, MANIFEST)
        keeper.update(lambda manifest: manifest)
        fs.add(Fault(operation="sync", errno=errno.EIO))
        with pytest.raises(DiskError):
            keeper.update(lambda _: renamed("other"))
        assert keeper.current == read_manifest(fs, DIRECTORY) == MANIFEST

    @pytest.mark.parametrize("operation", ["rename", "sync_directory"])
    def test_settled_the_disk_says_what_is_in_memory(self, operation: Operation) -> None:
        disk, _ = new_fs_with(LOGS)
        fs = FaultyFileSystem(disk, Fault(operation=operation, errno=errno.EIO))
        keeper = ManifestFile(fs, DIRECTORY, LOGS)
        with pytest.raises(DiskError):
            keeper.update(lambda manifest: replace(manifest, dropping=(SlabId(0, 9),)))
        found = read_manifest(disk, DIRECTORY).dropping
        assert found == (() if operation == "rename" else (SlabId(0, 9),))
        keeper.settle()
        assert read_manifest(disk, DIRECTORY) == keeper.current == LOGS
        assert read_manifest(disk.crash_clone(), DIRECTORY) == LOGS

    def test_what_is_settled_is_not_written_again(self) -> None:
        disk, keeper = new_fs_with(LOGS)
        disk.operations.clear()
        keeper.settle()
        assert disk.operations == []
        keeper.close()
        with pytest.raises(ClosedError):
            keeper.settle()

    def test_a_close_settles(self) -> None:
        disk, _ = new_fs_with(LOGS)
        fs = FaultyFileSystem(disk, Fault(operation="sync_directory", errno=errno.EIO))
        keeper = ManifestFile(fs, DIRECTORY, LOGS)
        with pytest.raises(DiskError):
            keeper.update(lambda manifest: replace(manifest, dropping=(SlabId(0, 9),)))
        keeper.close()
        assert read_manifest(disk.crash_clone(), DIRECTORY) == LOGS

    def test_on_a_full_disk_the_reserve_is_given_up_for_it(self) -> None:
        fs = new_fs(capacity_bytes=40 * 4096)
        keeper = ManifestFile(fs, DIRECTORY, MANIFEST)
        keeper.update(lambda manifest: manifest)
        keeper.keep_reserve()
        fill(fs)
        keeper.update(lambda _: renamed("other"))
        assert read_manifest(fs.crash_clone(), DIRECTORY) == renamed("other")
        assert not fs.exists(RESERVE)

    def test_on_a_full_disk_without_a_reserve_the_old_one_stays(self) -> None:
        fs = new_fs(capacity_bytes=40 * 4096)
        keeper = ManifestFile(fs, DIRECTORY, MANIFEST)
        keeper.update(lambda manifest: manifest)
        fill(fs)
        with pytest.raises(StorageFullError):
            keeper.update(lambda _: renamed("other"))
        assert keeper.current == read_manifest(fs, DIRECTORY) == MANIFEST


class TestAddedLogs:
    """Topic logs that are in the journal, and not yet in the manifest."""

    def test_the_first_begins_a_journal_and_the_others_are_lines_of_it(self) -> None:
        fs, keeper = new_fs_with(LOGS)
        keeper.add_log(added(1))
        before = fs.read(PATH)
        for shard in (2, 3):
            keeper.add_log(added(shard))
        assert fs.read(PATH) == before
        assert before.startswith(b"siltstone-manifest 2 ")
        assert fs.read(JOURNAL).count(b"\n") == 3
        found = read_manifest(fs.crash_clone(), DIRECTORY)
        assert found == keeper.current
        assert found.logs == ("t0", "t1", "t2", "t3")
        assert (found.settings.shards, [slab.shard for slab in found.slabs]) == (4, [0, 1, 2, 3])

    def test_an_update_between_leaves_the_journal_in_use(self) -> None:
        fs, keeper = new_fs_with(LOGS)
        for shard in (1, 2):
            keeper.add_log(added(shard))
        keeper.update(lambda manifest: replace(manifest, dropping=(SlabId(0, 9),)))
        keeper.add_log(added(3))
        found = read_manifest(fs.crash_clone(), DIRECTORY)
        assert (found.logs, found.dropping) == (("t0", "t1", "t2", "t3"), (SlabId(0, 9),))

    def test_folded_it_is_a_manifest_of_version_1_and_the_journal_is_gone(self) -> None:
        fs, keeper = new_fs_with(LOGS)
        for shard in (1, 2):
            keeper.add_log(added(shard))
        keeper.fold()
        assert fs.read(PATH).startswith(b"siltstone-manifest 1 ")
        assert [entry.name for entry in fs.list(DIRECTORY)] == ["manifest"]
        assert read_manifest(fs, DIRECTORY).logs == ("t0", "t1", "t2")

    def test_a_journal_has_another_number_than_those_before_it(self) -> None:
        fs, keeper = new_fs_with(LOGS)
        keeper.add_log(added(1))
        keeper.fold()
        ManifestFile(fs, DIRECTORY, read_manifest(fs, DIRECTORY)).add_log(added(2))
        assert fs.exists(DIRECTORY / "added.2")
        assert read_manifest(fs, DIRECTORY).logs == ("t0", "t1", "t2")

    @pytest.mark.parametrize("operation", ["write", "sync", "close"])
    def test_a_log_that_could_not_be_added_gives_its_number_to_the_next(
        self, operation: Operation
    ) -> None:
        disk, _ = new_fs_with(LOGS)
        fs = FaultyFileSystem(disk)
        keeper = ManifestFile(fs, DIRECTORY, LOGS)
        keeper.add_log(added(1))
        fs.add(Fault(operation=operation, errno=errno.EIO, path_suffix="added.1"))
        with pytest.raises(DiskError):
            keeper.add_log(replace(added(2), topic="lost"))
        assert keeper.current.logs == ("t0", "t1")
        assert read_manifest(disk, DIRECTORY) == keeper.current
        assert read_manifest(disk.crash_clone(), DIRECTORY) == keeper.current
        keeper.add_log(added(2))
        keeper.add_log(added(3))
        assert read_manifest(disk, DIRECTORY).logs == ("t0", "t1", "t2", "t3")

    def test_a_line_whose_sync_found_the_disk_full_does_not_count(self) -> None:
        disk, _ = new_fs_with(LOGS)
        fs = FaultyFileSystem(disk)
        keeper = ManifestFile(fs, DIRECTORY, LOGS)
        keeper.add_log(added(1))
        fs.add(Fault(operation="sync", errno=errno.ENOSPC, path_suffix="added.1"))
        with pytest.raises(StorageFullError):
            keeper.add_log(added(2))
        assert read_manifest(disk, DIRECTORY) == keeper.current
        assert keeper.current.logs == ("t0", "t1")
        keeper.close()
        assert [entry.name for entry in disk.list(DIRECTORY)] == ["manifest"]

    @pytest.mark.parametrize("then", ["settle", "update", "add", "close"])
    def test_a_line_that_could_not_be_superseded_at_once_is_superseded_by_what_follows(
        self, then: str
    ) -> None:
        disk, _ = new_fs_with(LOGS)
        fs = FaultyFileSystem(disk)
        keeper = ManifestFile(fs, DIRECTORY, LOGS)
        keeper.add_log(added(1))
        fs.add(Fault(operation="sync", errno=errno.EIO, repeat=True))
        with pytest.raises(DiskError, match=r"sync failed.*added\.1"):
            keeper.add_log(replace(added(2), topic="lost"))
        fs.clear()
        assert read_manifest(disk, DIRECTORY).logs == ("t0", "t1", "lost")
        acts: dict[str, Callable[[], object]] = {
            "settle": keeper.settle,
            "update": lambda: keeper.update(lambda manifest: manifest),
            "add": lambda: keeper.add_log(added(2)),
            "close": keeper.close,
        }
        acts[then]()
        assert read_manifest(disk.crash_clone(), DIRECTORY) == keeper.current
        assert keeper.current.logs == ("t0", "t1", *(["t2"] if then == "add" else []))

    def test_a_journal_that_could_not_be_opened_stays_in_use(self) -> None:
        disk, _ = new_fs_with(LOGS)
        fs = FaultyFileSystem(disk)
        keeper = ManifestFile(fs, DIRECTORY, LOGS)
        keeper.add_log(added(1))
        fs.add(Fault(operation="open", errno=errno.EMFILE, path_suffix="added.1"))
        with pytest.raises(OverloadedError):
            keeper.add_log(added(2))
        before = disk.read(PATH)
        keeper.add_log(added(2))
        assert disk.read(PATH) == before
        assert read_manifest(disk, DIRECTORY).logs == ("t0", "t1", "t2")

    def test_a_journal_that_the_manifest_never_named_is_removed(self) -> None:
        disk, _ = new_fs_with(LOGS)
        fs = FaultyFileSystem(disk)
        keeper = ManifestFile(fs, DIRECTORY, LOGS)
        keeper.fold()
        fs.add(Fault(operation="create", errno=errno.EIO, path_suffix="manifest.tmp"))
        with pytest.raises(DiskError):
            keeper.add_log(added(1))
        assert read_manifest(disk, DIRECTORY) == keeper.current == LOGS
        keeper.close()
        assert [entry.name for entry in disk.list(DIRECTORY)] == ["manifest"]

    def test_on_a_full_disk_what_is_in_the_journal_stays_there(self) -> None:
        fs, keeper = new_fs_with(LOGS, capacity_bytes=40 * 4096)
        for shard in (1, 2):
            keeper.add_log(added(shard))
        fill(fs)
        keeper.fold()
        assert read_manifest(fs.crash_clone(), DIRECTORY).logs == ("t0", "t1", "t2")

    def test_a_journal_that_is_missing_or_has_a_gap_is_told(self) -> None:
        fs, keeper = new_fs_with(LOGS)
        keeper.add_log(added(1))
        with fs.open(JOURNAL, writable=True) as journal:
            append_log(journal, added(7))
        with pytest.raises(CorruptionError, match="journal of topic logs has a gap"):
            read_manifest(fs, DIRECTORY)
        fs.remove(JOURNAL)
        with pytest.raises(CorruptionError, match="journal of topic logs is missing"):
            read_manifest(fs, DIRECTORY)


class TestReserve:
    def test_thousands_of_topic_logs_have_a_reserve_that_is_as_large_as_their_manifest(
        self,
    ) -> None:
        fs = new_fs()
        many = LOGS.with_logs([added(shard) for shard in range(1, 5000)])
        keeper = ManifestFile(fs, DIRECTORY, many)
        keeper.keep_reserve()
        (entry,) = fs.list(DIRECTORY)
        assert len(many.encode()) <= entry.allocated_bytes <= 4 * len(many.encode())

    @pytest.mark.parametrize("way", ["journal", "manifest"])
    def test_the_reserve_grows_with_the_manifest(self, way: str) -> None:
        fs = new_fs()
        keeper = ManifestFile(fs, DIRECTORY, LOGS)
        keeper.keep_reserve()
        for shard in range(1, 400):
            if way == "journal":
                keeper.add_log(added(shard))
            else:
                keeper.update(partial(Manifest.with_logs, added=[added(shard)]))
        sizes = {entry.name: entry.allocated_bytes for entry in fs.list(DIRECTORY)}
        assert sizes["reserve"] == 3 * RESERVE_BYTES >= len(keeper.current.encode())

    def test_a_reserve_that_cannot_grow_stays_as_it_was(self) -> None:
        faulty = FaultyFileSystem(new_fs())
        keeper = ManifestFile(faulty, DIRECTORY, LOGS)
        keeper.keep_reserve()
        full = Fault(operation="allocate", errno=errno.ENOSPC, path_suffix="reserve", repeat=True)
        faulty.add(full)
        keeper.update(lambda manifest: manifest.with_logs([added(n) for n in range(1, 400)]))
        sizes = {entry.name: entry.allocated_bytes for entry in faulty.list(DIRECTORY)}
        assert sizes["reserve"] == RESERVE_BYTES

    def test_the_reserve_takes_its_space(self) -> None:
        fs = new_fs()
        ManifestFile(fs, DIRECTORY, MANIFEST).keep_reserve()
        (entry,) = fs.list(DIRECTORY)
        assert (entry.name, entry.size_bytes, entry.allocated_bytes) == (
            "reserve",
            RESERVE_BYTES,
            RESERVE_BYTES,
        )

    def test_a_reserve_that_is_there_is_left_alone(self) -> None:
        fs = new_fs()
        keeper = ManifestFile(fs, DIRECTORY, MANIFEST)
        keeper.keep_reserve()
        fs.operations.clear()
        keeper.keep_reserve()
        assert fs.operations == []

    def test_where_there_is_no_room_there_is_no_reserve(self) -> None:
        fs = new_fs(capacity_bytes=8192)
        ManifestFile(fs, DIRECTORY, MANIFEST).keep_reserve()
        assert fs.list(DIRECTORY) == []
        assert fs.free_bytes(DIRECTORY) == 8192

    def test_where_not_even_a_name_fits_there_is_no_reserve(self) -> None:
        fs = FaultyFileSystem(new_fs(), Fault(operation="create", errno=errno.ENOSPC))
        ManifestFile(fs, DIRECTORY, MANIFEST).keep_reserve()
        assert not fs.exists(RESERVE)

    def test_a_reserve_that_a_power_cut_emptied_is_filled_again(self) -> None:
        fs = new_fs()
        keeper = ManifestFile(fs, DIRECTORY, MANIFEST)
        keeper.keep_reserve()
        keeper.update(lambda manifest: manifest)
        survived = fs.crash_clone()
        ManifestFile(survived, DIRECTORY, MANIFEST).keep_reserve()
        sizes = {entry.name: entry.allocated_bytes for entry in survived.list(DIRECTORY)}
        assert sizes["reserve"] == RESERVE_BYTES


def test_a_slab_that_was_never_stamped_ahead_is_written_as_before() -> None:
    record = SlabRecord(
        shard=0, generation=1, state=SlabState.SEALED, since_us=1, until_us=9, created_us=1
    )
    ahead = replace(record, generation=2, closed_us=4)
    manifest = Manifest(database="d", salt=1, settings=DatabaseSettings(), slabs=(record, ahead))
    written = json.loads(manifest.encode().partition(b"\n")[2])["slabs"]
    assert ["closed_us" in slab for slab in written] == [False, True]
    assert Manifest.decode(manifest.encode(), PATH).slabs == (record, ahead)
    assert (record.ended_us, ahead.ended_us) == (9, 4)


def test_a_keeper_that_is_closed_changes_nothing_any_more() -> None:
    fs, keeper = new_fs_with(LOGS)
    keeper.add_log(added(1))
    keeper.close()
    before = fs.read(DIRECTORY / "manifest")
    with pytest.raises(ClosedError):
        keeper.update(lambda manifest: replace(manifest, salt=1))
    with pytest.raises(ClosedError):
        keeper.add_log(added(2))
    assert fs.read(DIRECTORY / "manifest") == before
    assert read_manifest(fs, DIRECTORY).logs == ("t0", "t1")
