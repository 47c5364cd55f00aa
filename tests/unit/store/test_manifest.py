from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import PurePath

import pytest
from crc32c import crc32c

from siltstone.errors import CorruptionError, DiskError, NotFoundError, StorageFullError
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.manifest import (
    RESERVE_BYTES,
    Manifest,
    ManifestKeeper,
    SlabId,
    SlabRecord,
    SlabState,
    read_manifest,
)
from siltstone.store.settings import DatabaseSettings

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


def new_fs(capacity_bytes: int = 1 << 60) -> MemoryFileSystem:
    fs = MemoryFileSystem(page_bytes=4096, capacity_bytes=capacity_bytes)
    fs.make_directory(DIRECTORY)
    fs.sync_directory(DIRECTORY.parent)
    return fs


def renamed(name: str) -> Manifest:
    return replace(MANIFEST, database=name)


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
            "settings": MANIFEST.settings.to_json(),
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
        keeper = ManifestKeeper(fs, DIRECTORY, MANIFEST)
        changed = keeper.update(lambda manifest: replace(manifest, dropping=()))
        assert changed == replace(MANIFEST, dropping=())
        assert keeper.current == changed
        assert read_manifest(fs.crash_clone(), DIRECTORY) == changed

    def test_each_update_builds_on_the_last(self) -> None:
        keeper = ManifestKeeper(new_fs(), DIRECTORY, MANIFEST)
        for _ in range(2):
            keeper.update(lambda manifest: renamed(manifest.database + "x"))
        assert keeper.current == renamed("plantxx")

    def test_a_failed_update_changes_nothing(self) -> None:
        fs = FaultyFileSystem(new_fs())
        keeper = ManifestKeeper(fs, DIRECTORY, MANIFEST)
        keeper.update(lambda manifest: manifest)
        fs.add(Fault(operation="sync", errno=errno.EIO))
        with pytest.raises(DiskError):
            keeper.update(lambda _: renamed("other"))
        assert keeper.current == read_manifest(fs, DIRECTORY) == MANIFEST

    def test_on_a_full_disk_the_reserve_is_given_up_for_it(self) -> None:
        fs = new_fs(capacity_bytes=40 * 4096)
        keeper = ManifestKeeper(fs, DIRECTORY, MANIFEST)
        keeper.update(lambda manifest: manifest)
        keeper.keep_reserve()
        fill(fs)
        keeper.update(lambda _: renamed("other"))
        assert read_manifest(fs.crash_clone(), DIRECTORY) == renamed("other")
        assert not fs.exists(RESERVE)

    def test_on_a_full_disk_without_a_reserve_the_old_one_stays(self) -> None:
        fs = new_fs(capacity_bytes=40 * 4096)
        keeper = ManifestKeeper(fs, DIRECTORY, MANIFEST)
        keeper.update(lambda manifest: manifest)
        fill(fs)
        with pytest.raises(StorageFullError):
            keeper.update(lambda _: renamed("other"))
        assert keeper.current == read_manifest(fs, DIRECTORY) == MANIFEST


class TestReserve:
    def test_the_reserve_takes_its_space(self) -> None:
        fs = new_fs()
        ManifestKeeper(fs, DIRECTORY, MANIFEST).keep_reserve()
        (entry,) = fs.list(DIRECTORY)
        assert (entry.name, entry.size_bytes, entry.allocated_bytes) == (
            "reserve",
            RESERVE_BYTES,
            RESERVE_BYTES,
        )

    def test_a_reserve_that_is_there_is_left_alone(self) -> None:
        fs = new_fs()
        keeper = ManifestKeeper(fs, DIRECTORY, MANIFEST)
        keeper.keep_reserve()
        fs.operations.clear()
        keeper.keep_reserve()
        assert fs.operations == []

    def test_where_there_is_no_room_there_is_no_reserve(self) -> None:
        fs = new_fs(capacity_bytes=8192)
        ManifestKeeper(fs, DIRECTORY, MANIFEST).keep_reserve()
        assert fs.list(DIRECTORY) == []
        assert fs.free_bytes(DIRECTORY) == 8192

    def test_where_not_even_a_name_fits_there_is_no_reserve(self) -> None:
        fs = FaultyFileSystem(new_fs(), Fault(operation="create", errno=errno.ENOSPC))
        ManifestKeeper(fs, DIRECTORY, MANIFEST).keep_reserve()
        assert not fs.exists(RESERVE)

    def test_a_reserve_that_a_power_cut_emptied_is_filled_again(self) -> None:
        fs = new_fs()
        keeper = ManifestKeeper(fs, DIRECTORY, MANIFEST)
        keeper.keep_reserve()
        keeper.update(lambda manifest: manifest)
        survived = fs.crash_clone()
        ManifestKeeper(survived, DIRECTORY, MANIFEST).keep_reserve()
        sizes = {entry.name: entry.allocated_bytes for entry in survived.list(DIRECTORY)}
        assert sizes["reserve"] == RESERVE_BYTES
