"""Positions that RocksDB would lose without a word: a database that opens has all of them.

RocksDB opens what a damaged MANIFEST or a shortened log still names, and removes the rest. Every
case here damages a copy of a database that was closed, or whose process was killed, and then either
finds every key again or is told of the damage, by `verify` and when the database is opened.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from siltstone.cli.main import execute
from siltstone.errors import CorruptionError, DiskError
from siltstone.fs.paths import COMMITS
from siltstone.fs.posix import PosixFileSystem
from siltstone.store.directory import Store
from siltstone.store.keyvalue import KeyValueDatabase
from siltstone.store.kv.rocks import open_read_only
from siltstone.store.kv.witness import WITNESS
from siltstone.store.tx.verify import verify_keyvalue

REASON = ".reason.txt"
FS = PosixFileSystem()
SAVED = {f"position/{number}": b"position" * 20 for number in range(8)}
HEADER = struct.Struct("<IHB")
Damage = tuple[str, bytes]


def filled(path: Path) -> None:
    """Leave a database that was closed in `path`, and one whose process was killed in `killed`."""
    with Store(path) as store:
        keyvalue = store.keyvalue(COMMITS)
        save(keyvalue, list(SAVED)[:4])
    with Store(path) as store:
        keyvalue = store.keyvalue(COMMITS)
        save(keyvalue, list(SAVED)[4:])
        shutil.copytree(path, path.with_name("killed"))


def save(keyvalue: KeyValueDatabase, names: list[str]) -> None:
    for name in names:
        with keyvalue.transaction(key="all") as tx:
            tx.write(name, SAVED[name])


def records_of(data: bytes) -> list[tuple[int, int]]:
    """Return where the records of a MANIFEST or a log begin and end; all are in its first block."""
    found, place = [], 0
    while place + HEADER.size <= min(len(data), 32 * 1024):
        _, length, kind = HEADER.unpack_from(data, place)
        if kind == 0:
            break
        found.append((place, place + HEADER.size + length))
        place += HEADER.size + length
    return found


def flipped(data: bytes) -> Iterator[Damage]:
    """Yield the file with each bit of each record's header flipped."""
    for start, _ in records_of(data):
        for bit in range(HEADER.size * 8):
            place = start + bit // 8
            other = bytes([data[place] ^ 1 << bit % 8])
            yield f"bit {bit} of the record at {start}", data[:place] + other + data[place + 1 :]


def shortened(data: bytes) -> Iterator[Damage]:
    """Yield the file cut, and with zeros at its end, at and within each record."""
    for start, end in records_of(data):
        for place in {start, start + 3, start + HEADER.size, (start + end) // 2, end - 1}:
            yield f"cut at {place}", data[:place]
            yield f"zeros from {place}", data[:place] + bytes(len(data) - place)


def silent_losses(directory: Path, name: str, damages: list[Damage]) -> list[str]:
    """Return which damages lose keys without a word, from `verify` or from opening it."""
    (file,) = (directory / COMMITS).glob(name)
    spare = directory.with_name("spare")
    losses = []
    for what, data in damages:
        shutil.copytree(directory, spare)
        (spare / COMMITS / file.name).write_bytes(data)
        told, found = is_told(spare), found_in(spare)
        if (found is None and not told) or found not in (None, SAVED):
            losses.append(what)
        shutil.rmtree(spare)
    return losses


def is_told(directory: Path) -> bool:
    try:
        return verify_keyvalue(FS, directory / COMMITS, partial(open_read_only, FS)).damaged
    except DiskError:
        return True


def found_in(directory: Path) -> dict[str, bytes] | None:
    """Return what a database has, None where it is refused."""
    try:
        with Store(directory) as store:
            rows = store.keyvalue(COMMITS).read("position/+")
            return {str(row.topic): row.value for row in rows}
    except (CorruptionError, DiskError):
        return None


def contents(directory: Path, name: str) -> bytes:
    (file,) = (directory / COMMITS).glob(name)
    return file.read_bytes()


@pytest.fixture
def world(tmp_path: Path) -> Path:
    filled(tmp_path / "closed")
    return tmp_path


@pytest.mark.parametrize("state", ["closed", "killed"])
def test_some_damaged_manifests_are_told_or_lose_nothing(world: Path, state: str) -> None:
    data = contents(world / state, "MANIFEST-*")
    # The length of a record is in the bits from 32 on: RocksDB takes one that is too long for a
    # record that was being written.
    lengths = [damage for damage in flipped(data) if damage[0].startswith("bit 46")]
    damages = [*lengths, *list(flipped(data))[::29], *list(shortened(data))[::3]]
    assert silent_losses(world / state, "MANIFEST-*", damages) == []


@pytest.mark.soak
@pytest.mark.parametrize("state", ["closed", "killed"])
def test_every_damaged_manifest_is_told_or_loses_nothing(world: Path, state: str) -> None:
    data = contents(world / state, "MANIFEST-*")
    damages = [*flipped(data), *shortened(data)]
    assert silent_losses(world / state, "MANIFEST-*", damages) == []


def test_a_log_that_was_cut_at_any_record_is_told(world: Path) -> None:
    data = contents(world / "killed", "*.log")
    assert len(records_of(data)) == 5
    assert silent_losses(world / "killed", "*.log", list(shortened(data))) == []


def test_a_log_or_a_table_that_is_gone_is_told(world: Path) -> None:
    for name in ("*.log", "*.sst"):
        for file in (world / "killed" / COMMITS).glob(name):
            spare = world / "spare"
            shutil.copytree(world / "killed", spare)
            (spare / COMMITS / file.name).unlink()
            assert (file.name, is_told(spare), found_in(spare)) == (file.name, True, None)
            shutil.rmtree(spare)


def test_a_refused_database_stays_as_it_was_found(world: Path) -> None:
    data = contents(world / "closed", "MANIFEST-*")
    (manifest,) = (world / "closed" / COMMITS).glob("MANIFEST-*")
    manifest.write_bytes(data[: records_of(data)[-2][0]])
    assert found_in(world / "closed") is None
    manifest.write_bytes(data)
    assert found_in(world / "closed") == SAVED


def test_a_database_of_the_first_version_opens_and_has_a_witness_from_then_on(
    world: Path,
) -> None:
    (world / "closed" / COMMITS / WITNESS).unlink()
    assert not is_told(world / "closed")
    assert found_in(world / "closed") == SAVED
    data = contents(world / "closed", "MANIFEST-*")
    assert silent_losses(world / "closed", "MANIFEST-*", [("cut", data[:-1])]) == []


def test_repair_makes_the_list_of_files_anew_and_finds_every_key(world: Path) -> None:
    data = contents(world / "closed", "MANIFEST-*")
    (manifest,) = (world / "closed" / COMMITS).glob("MANIFEST-*")
    for start, _ in records_of(data)[::4]:
        spare = world / "spare"
        shutil.copytree(world / "closed", spare)
        (spare / COMMITS / manifest.name).write_bytes(data[:start])
        assert execute(["verify", COMMITS, "--repair", "--data", str(spare)]) == 1
        assert execute(["verify", COMMITS, "--data", str(spare)]) == 0
        assert found_in(spare) == SAVED
        kept = sorted(path.name for path in (spare / "quarantine" / COMMITS).iterdir())
        assert kept == [manifest.name, f"{manifest.name}{REASON}", WITNESS, f"{WITNESS}{REASON}"]
        shutil.rmtree(spare)


def test_repair_accepts_a_log_that_was_cut_and_keeps_the_rest(world: Path) -> None:
    data = contents(world / "killed", "*.log")
    (log,) = (world / "killed" / COMMITS).glob("*.log")
    log.write_bytes(data[: records_of(data)[-1][0]])
    assert found_in(world / "killed") is None
    assert execute(["verify", "--all", "--repair", "--data", str(world / "killed")]) == 1
    assert execute(["verify", "--all", "--data", str(world / "killed")]) == 0
    assert found_in(world / "killed") == dict(list(SAVED.items())[:-1])


def test_a_damaged_witness_is_told_and_written_anew(world: Path) -> None:
    witness = world / "closed" / COMMITS / WITNESS
    data = witness.read_bytes()
    witness.write_bytes(data[:33] + bytes([data[33] ^ 4]) + data[34:])
    assert (is_told(world / "closed"), found_in(world / "closed")) == (True, None)
    assert execute(["verify", COMMITS, "--repair", "--data", str(world / "closed")]) == 1
    assert found_in(world / "closed") == SAVED
    assert witness.exists()
