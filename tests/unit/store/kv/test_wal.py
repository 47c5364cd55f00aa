from __future__ import annotations

import struct
from pathlib import PurePath

import pytest
from crc32c import crc32c

from siltstone.errors import CorruptionError
from siltstone.fs.memory import MemoryFile, MemoryFileSystem
from siltstone.store.kv.wal import (
    BLOCK_BYTES,
    check_begin,
    check_live_logs,
    check_logs,
    has_begun,
    set_odd_aside,
)

DIRECTORY = PurePath("/kv")


def part(kind: int, data: bytes) -> bytes:
    crc = crc32c(bytes([kind]) + data)
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    return struct.pack("<IHB", masked, len(data), kind) + data


def log_of(*records: bytes) -> bytes:
    """Write records as RocksDB does: in blocks, and in parts where they do not fit."""
    log = bytearray()
    for record in records:
        left, first = record, True
        while True:
            room = BLOCK_BYTES - len(log) % BLOCK_BYTES
            if room < 7:
                log += bytes(room)
                continue
            taken, left = left[: room - 7], left[room - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}
            log += part(kind[first, not left], taken)
            first = False
            if not left:
                break
    return bytes(log)


def check(*logs: bytes) -> None:
    fs = MemoryFileSystem()
    fs.make_directory(DIRECTORY)
    for number, data in enumerate(logs):
        with fs.create(DIRECTORY / f"{number:06}.log") as file:
            file.write(data)
    fs.make_directory(DIRECTORY / "9.log")
    with fs.create(DIRECTORY / "LOG") as file:
        file.write(b"no log of records")
    check_logs(fs, DIRECTORY)


def damaged(log: bytes, offset: int) -> bytes:
    return log[:offset] + bytes([log[offset] ^ 1]) + log[offset + 1 :]


RECORDS = [b"%03d" % number * size for number, size in enumerate([5, 3_000, 40_000, 1, 700, 9_000])]
LOG = log_of(*RECORDS)
LAST = len(log_of(*RECORDS[:-1]))


def test_sound_logs_pass() -> None:
    check()
    check(b"")
    check(LOG)
    check(LOG, LOG, b"")
    check(LOG + bytes(3 * BLOCK_BYTES))


@pytest.mark.parametrize("size", [LAST + 1, LAST + 6, LAST + 7, len(LOG) - 1, LAST, 0, 3])
def test_a_log_that_was_cut_short_is_torn(size: int) -> None:
    check(LOG[:size])
    check(LOG[:size] + bytes(2 * BLOCK_BYTES))


@pytest.mark.parametrize("offset", [LAST, LAST + 4, LAST + 6, LAST + 7, len(LOG) - 1])
def test_a_last_record_that_does_not_check_out_is_torn(offset: int) -> None:
    check(damaged(LOG, offset))


def test_a_last_record_of_which_a_page_was_lost_is_torn_though_parts_of_it_follow() -> None:
    log = log_of(b"first", b"v" * (4 * BLOCK_BYTES))
    check(log[:BLOCK_BYTES] + bytes(BLOCK_BYTES) + log[2 * BLOCK_BYTES :])


@pytest.mark.parametrize("offset", [0, 4, 6, 8, 30, 2_000, 50_000, 100_000, LAST - 1])
def test_a_damaged_record_that_later_ones_follow_is_corruption(offset: int) -> None:
    # Where a length is damaged the rest of its block is not looked at: others must follow.
    log = log_of(*RECORDS, b"v" * BLOCK_BYTES, b"v" * BLOCK_BYTES)
    with pytest.raises(CorruptionError) as caught:
        check(damaged(log, offset))
    assert caught.value.path == DIRECTORY / "000000.log"
    assert caught.value.offset <= offset
    assert caught.value.reason == (
        "a record of the log is damaged before valid records: restore the file from a backup"
    )


def test_zeros_in_the_middle_are_corruption() -> None:
    log = log_of(*RECORDS, b"v" * BLOCK_BYTES, b"v" * BLOCK_BYTES)
    with pytest.raises(CorruptionError):
        check(log[:BLOCK_BYTES] + bytes(BLOCK_BYTES) + log[2 * BLOCK_BYTES :])


def test_records_of_a_later_log_show_damage_of_an_earlier_one() -> None:
    with pytest.raises(CorruptionError) as caught:
        check(LOG, damaged(LOG, LAST), LOG)
    assert (caught.value.path, caught.value.offset) == (DIRECTORY / "000001.log", LAST)
    with pytest.raises(CorruptionError):
        check(LOG[: LAST + 9], LOG)
    check(damaged(LOG, LAST), b"", bytes(BLOCK_BYTES))


def test_damaged_data_is_found_within_a_block() -> None:
    log = log_of(b"first", b"second", b"third")
    with pytest.raises(CorruptionError) as caught:
        check(damaged(log, 7 + 5 + 7 + 2))
    assert caught.value.offset == 7 + 5


def test_what_a_value_looks_like_is_nothing_to_go_by() -> None:
    log = log_of(b"first", b"x" + log_of(b"a log in a value"))
    check(damaged(log, 7 + 5 + 7))


def disk(**files: bytes) -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.make_directory(DIRECTORY)
    for name, contents in files.items():
        with fs.create(DIRECTORY / name.replace("_", ".")) as file:
            file.write_at(0, contents)
    return fs


def test_a_directory_with_keys_but_without_the_file_that_leads_to_them_is_refused() -> None:
    assert not has_begun(MemoryFileSystem(), DIRECTORY)
    for fs, begun in ((disk(), False), (disk(MANIFEST=b"x"), False), (disk(CURRENT=b"x"), True)):
        check_begin(fs, DIRECTORY)
        assert has_begun(fs, DIRECTORY) is begun
    for fs in (disk(a_sst=b"x"), disk(a_log=b"")):
        assert has_begun(fs, DIRECTORY)
        with pytest.raises(
            CorruptionError,
            match="the file CURRENT of RocksDB is missing: restore it from a backup",
        ):
            check_begin(fs, DIRECTORY)


def test_a_log_that_is_being_written_is_looked_at_again() -> None:
    class Growing(MemoryFileSystem):
        looks = 0

        def open(self, path: PurePath, *, writable: bool) -> MemoryFile:
            self.looks += 1
            file = super().open(path, writable=True)
            if self.looks == 2:
                file.write_at(0, log_of(b"one", b"two"))
            return file

    fs = Growing()
    fs.make_directory(DIRECTORY)
    fs.create(DIRECTORY / "CURRENT").close()
    with fs.create(DIRECTORY / "1.log") as file:
        damaged = bytearray(log_of(b"one", b"two"))
        damaged[8] ^= 1
        file.write_at(0, bytes(damaged))
    with pytest.raises(CorruptionError):
        check_logs(fs, DIRECTORY)
    check_live_logs(fs, DIRECTORY)


@pytest.mark.parametrize("name", ["000777.log", "000777.sst"])
def test_what_is_not_a_file_is_refused_to_readers_and_set_aside_by_the_writer(name: str) -> None:
    fs = MemoryFileSystem()
    fs.make_directory(DIRECTORY)
    fs.symlink(PurePath("nowhere"), DIRECTORY / name)
    fs.symlink(PurePath("nowhere"), DIRECTORY / "notes")
    with pytest.raises(CorruptionError, match=f"{name} must be a regular file") as caught:
        check_logs(fs, DIRECTORY)
    assert caught.value.path == DIRECTORY / name
    assert set_odd_aside(fs, DIRECTORY)
    assert not set_odd_aside(fs, DIRECTORY)
    check_logs(fs, DIRECTORY)
    assert [entry.name for entry in fs.list(DIRECTORY)] == [f"{name}.foreign", "notes"]
