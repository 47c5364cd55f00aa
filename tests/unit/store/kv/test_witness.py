from __future__ import annotations

from pathlib import PurePath
from random import Random

import pytest

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.fs.faulty import FaultyFile, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.fs.publish import create_directories, replace_file
from siltstone.store.kv.witness import (
    WITNESS,
    WITNESS_BYTES,
    Evidence,
    Witness,
    check_manifest,
    check_sequence,
    is_manifest_of,
    read_evidence,
)

DIRECTORY = PurePath("/kv")
MANIFEST = DIRECTORY / "MANIFEST-000005"
EDITS = b"the edits of a manifest"


def new_disk() -> MemoryFileSystem:
    fs = MemoryFileSystem(capacity_bytes=64 * 1024)
    create_directories(fs, DIRECTORY)
    replace_file(fs, MANIFEST, EDITS)
    replace_file(fs, DIRECTORY / "CURRENT", b"MANIFEST-000005\n")
    return fs


def add(fs: MemoryFileSystem, data: bytes) -> None:
    with fs.open(MANIFEST, writable=True) as file:
        file.write(data)


def test_the_bytes_are_as_documented() -> None:
    evidence = Evidence(manifest=5, manifest_bytes=23, manifest_crc=0x01020304, sequence=600)
    data = evidence.encode()
    assert len(data) == WITNESS_BYTES
    assert data[:40].hex() == (
        "53494c5457495431" + "0500000000000000" + "1700000000000000" + "0403020100000000"
        "5802000000000000"
    )
    assert data[256:264].hex() == "5802000000000000"


def test_a_directory_of_an_older_version_has_no_witness() -> None:
    assert read_evidence(new_disk(), DIRECTORY) is None
    check_sequence(DIRECTORY, None, 0)


def test_what_was_covered_and_noted_is_what_is_read() -> None:
    fs = new_disk()
    witness = Witness(fs, DIRECTORY)
    witness.note(3)
    witness.cover(7)
    witness.note(9)
    witness.note(8)
    found = read_evidence(fs, DIRECTORY)
    assert found is not None
    assert (found.manifest, found.manifest_bytes, found.sequence) == (5, len(EDITS), 9)
    check_manifest(fs, DIRECTORY, found)
    check_sequence(DIRECTORY, found, 9)
    with pytest.raises(CorruptionError, match="acknowledged writes are missing: 1 of 9 keys"):
        check_sequence(DIRECTORY, found, 8)
    witness.close()
    witness.close()


def test_a_manifest_that_grew_is_covered_with_the_next_write_and_may_have_grown_since() -> None:
    fs = new_disk()
    witness = Witness(fs, DIRECTORY)
    witness.cover(1)
    add(fs, b" and more")
    witness.note(2)
    found = read_evidence(fs, DIRECTORY)
    assert found is not None
    assert found.manifest_bytes == len(EDITS) + 9
    add(fs, b" and yet more")
    assert is_manifest_of(fs, DIRECTORY, found)


@pytest.mark.parametrize("data", [EDITS[:-1], EDITS[:-1] + b"\0", b"", b"T" + EDITS[1:]])
def test_a_manifest_that_is_cut_or_another_is_refused(data: bytes) -> None:
    fs = new_disk()
    Witness(fs, DIRECTORY).cover(1)
    replace_file(fs, MANIFEST, data)
    found = read_evidence(fs, DIRECTORY)
    assert found is not None
    with pytest.raises(
        CorruptionError,
        match=r"the list of files \(MANIFEST\) differs from the one that was written",
    ):
        check_manifest(fs, DIRECTORY, found)


def test_a_newer_manifest_is_unknown_and_an_older_one_refused() -> None:
    fs = new_disk()
    Witness(fs, DIRECTORY).cover(1)
    found = read_evidence(fs, DIRECTORY)
    assert found is not None
    replace_file(fs, DIRECTORY / "CURRENT", b"MANIFEST-000009\n")
    assert is_manifest_of(fs, DIRECTORY, found)
    replace_file(fs, DIRECTORY / "MANIFEST-000004", EDITS)
    replace_file(fs, DIRECTORY / "CURRENT", b"MANIFEST-000004\n")
    assert not is_manifest_of(fs, DIRECTORY, found)


def test_a_missing_manifest_is_damage_unless_it_was_replaced_meanwhile() -> None:
    fs = new_disk()
    Witness(fs, DIRECTORY).cover(1)
    found = read_evidence(fs, DIRECTORY)
    assert found is not None
    replace_file(fs, DIRECTORY / "CURRENT", b"MANIFEST-000003\n")
    with pytest.raises(CorruptionError, match="is missing; restore a backup, or keep the rest"):
        check_manifest(fs, DIRECTORY, found)

    class Replacing(FaultyFileSystem):
        def open(self, path: PurePath, *, writable: bool) -> FaultyFile:
            if path.name == "MANIFEST-000003":
                replace_file(fs, DIRECTORY / "MANIFEST-000009", EDITS)
                replace_file(fs, DIRECTORY / "CURRENT", b"MANIFEST-000009\n")
            return super().open(path, writable=writable)

    with pytest.raises(NotFoundError):
        check_manifest(Replacing(fs), DIRECTORY, found)


def test_without_a_name_in_current_rocksdb_itself_refuses() -> None:
    fs = new_disk()
    Witness(fs, DIRECTORY).cover(1)
    found = read_evidence(fs, DIRECTORY)
    assert found is not None
    for current in (b"nonsense", b"MANIFEST-x", b"\xff"):
        replace_file(fs, DIRECTORY / "CURRENT", current)
        assert is_manifest_of(fs, DIRECTORY, found)
    fs.remove(DIRECTORY / "CURRENT")
    Witness(fs, DIRECTORY).cover(2)
    assert read_evidence(fs, DIRECTORY) == found


def test_a_torn_running_number_does_not_count_and_a_damaged_head_is_told() -> None:
    fs = new_disk()
    witness = Witness(fs, DIRECTORY)
    witness.cover(7)
    witness.note(9)
    data = fs.read(DIRECTORY / WITNESS)
    replace_file(fs, DIRECTORY / WITNESS, data[:256] + b"\xff" + data[257:])
    found = read_evidence(fs, DIRECTORY)
    assert found is not None
    assert found.sequence == 7
    for bad in (b"", data[:-1], data[:9] + b"\xff" + data[10:]):
        replace_file(fs, DIRECTORY / WITNESS, bad)
        with pytest.raises(
            CorruptionError, match="the file with the last sequence number is damaged"
        ):
            read_evidence(fs, DIRECTORY)


def test_a_full_disk_leaves_the_witness_from_before_and_its_number_goes_on() -> None:
    fs = new_disk()
    Witness(fs, DIRECTORY).cover(7)
    with fs.create(DIRECTORY / "big") as file:
        file.write(bytes(fs.free_bytes(DIRECTORY)))
    witness = Witness(fs, DIRECTORY)
    witness.cover(8)
    witness.note(9)
    found = read_evidence(fs, DIRECTORY)
    assert found is not None
    assert found.sequence == 9


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("operations", range(24))
def test_a_power_cut_at_any_step_leaves_a_witness_that_says_no_more_than_is_durable(
    operations: int, seed: int
) -> None:
    fs = new_disk()
    witness = Witness(fs, DIRECTORY)
    witness.cover(1)
    fs.operations_left = operations
    written = 1
    try:
        for number in range(2, 8):
            written = number
            witness.note(number)
            if number % 3 == 0:
                # As RocksDB does it, whose sync has not come yet when the next write looks.
                add(fs, b"edit %d" % number)
    except PowerCut:
        pass
    left = fs.crash_clone(Random(seed))
    found = read_evidence(left, DIRECTORY)
    assert found is not None
    assert is_manifest_of(left, DIRECTORY, found)
    assert found.sequence <= written
