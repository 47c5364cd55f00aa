"""RocksDB on a real disk does what every engine must do, and what only a disk can show."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from siltstone.errors import CorruptionError, LockedError
from siltstone.fs.posix import PosixFileSystem
from siltstone.store.kv.api import DEFAULT_FAMILY, Changes, Engine
from siltstone.store.kv.rocks import RocksEngine
from siltstone.store.kv.wal import check_logs
from siltstone.store.kv.witness import WITNESS
from tests.support import kv_suite
from tests.support.kv_suite import changes_of


@pytest.mark.parametrize(
    "check",
    [
        kv_suite.check_families,
        kv_suite.check_values,
        kv_suite.check_views,
        kv_suite.check_bounds,
        kv_suite.check_ranges,
        kv_suite.check_size,
    ],
)
def test_rocksdb_passes_the_suite(tmp_path: Path, check: Callable[[Engine], None]) -> None:
    engine = RocksEngine(tmp_path)
    try:
        check(engine)
    finally:
        engine.close()


def test_what_was_written_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    kv_suite.check_reopening(RocksEngine(tmp_path), lambda engine: RocksEngine(tmp_path))


def test_views_that_are_left_do_not_keep_the_directory_locked(tmp_path: Path) -> None:
    engine = kv_suite.filled(RocksEngine(tmp_path))
    views = [engine.view("f") for _ in range(3)]
    engine.close()
    again = RocksEngine(tmp_path)
    assert again.get("f", b"b1") == b"v1"
    again.close()
    assert len(views) == 3


def test_a_second_opening_is_refused_here_and_in_another_process(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path)
    text = f"another process has the database open, stop that process: path={tmp_path}"
    with pytest.raises(LockedError) as caught:
        RocksEngine(tmp_path)
    assert str(caught.value) == text
    program = (
        "import sys; from pathlib import PurePath\n"
        "from siltstone.store.kv.rocks import RocksEngine\n"
        "RocksEngine(PurePath(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines()[-1] == f"siltstone.errors.LockedError: {text}"
    engine.close()


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    kv_suite.filled(RocksEngine(tmp_path)).close()
    (tmp_path / "CURRENT").write_bytes(b"nonsense")
    with pytest.raises(CorruptionError, match="open failed: Corruption"):
        RocksEngine(tmp_path)


def test_threads_write_families_and_create_others_at_once(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path)

    def work(number: int) -> None:
        for generation in range(3):
            family = f"{number}.{generation}"
            engine.create_family(family)
            for count in range(50):
                engine.write(changes_of(family, {b"%d" % count: b"v"}))
            if generation:
                engine.drop_family(f"{number}.{generation - 1}")

    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert engine.families() == ["0.2", "1.2", "2.2", "3.2", DEFAULT_FAMILY]
    assert all(len(engine.view(f"{n}.2").items(b"", b"z", 100)) == 50 for n in range(4))
    engine.write(Changes())
    engine.close()


def written(path: Path) -> bytes:
    """Leave what a killed process leaves of sixty writes, the last of which was not acknowledged;
    return the log of them.
    """
    engine = RocksEngine(path / "live")
    engine.create_family("f")
    for number in range(59):
        engine.write(changes_of("f", {b"%02d" % number: b"v" * 3_000}))
    acknowledged = (path / "live" / WITNESS).read_bytes()
    engine.write(changes_of("f", {b"59": b"v" * 3_000}))
    shutil.copytree(path / "live", path / "left")
    (path / "left" / WITNESS).write_bytes(acknowledged)
    engine.close()
    (log,) = (path / "left").glob("*.log")
    return log.read_bytes()


def keys_left(path: Path, log: bytes) -> int:
    """Return how many keys are found when the log was this."""
    (place,) = (path / "left").glob("*.log")
    place.write_bytes(log)
    check_logs(PosixFileSystem(), path / "left")
    engine = RocksEngine(path / "left")
    count = len(engine.view("f").items(b"", b"z", 100))
    engine.close()
    return count


def test_a_torn_record_at_the_end_is_left_out_and_nothing_else(tmp_path: Path) -> None:
    log = written(tmp_path)
    assert keys_left(tmp_path, log[:-1_000]) == 59


def test_damage_in_the_middle_of_the_log_is_refused_and_not_taken_for_its_end(
    tmp_path: Path,
) -> None:
    log = written(tmp_path)
    middle = len(log) // 2
    with pytest.raises(
        CorruptionError,
        match="a record of the log is damaged before valid records: restore the file from a backup",
    ):
        keys_left(tmp_path, log[:middle] + bytes([log[middle] ^ 1]) + log[middle + 1 :])


def test_who_only_reads_sees_what_was_written_while_the_writer_goes_on(tmp_path: Path) -> None:
    writer = RocksEngine(tmp_path)
    writer.create_family("f")
    writer.write(changes_of("f", {b"1": b"first"}))
    reader = RocksEngine(tmp_path, read_only=True)
    writer.write(changes_of("f", {b"2": b"later"}))
    assert reader.families() == [DEFAULT_FAMILY, "f"]
    assert reader.view("f").items(b"", b"z", 10) == [(b"1", b"first")]
    reader.close()
    assert writer.view("f").items(b"", b"z", 10) == [(b"1", b"first"), (b"2", b"later")]
    writer.close()


def test_every_write_is_synced_before_it_returns(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path)
    engine.create_family("f")
    counts = []
    for number in range(3):
        engine.write(changes_of("f", {b"%d" % number: b"v"}))
        counts.append(log_writes_and_syncs(engine))
    engine.close()
    assert counts == [(1, 1), (2, 2), (3, 3)]


def log_writes_and_syncs(engine: RocksEngine) -> tuple[int, int]:
    """Return how often RocksDB has written to its log, and synced it, as it counts itself."""
    root = engine._root  # noqa: SLF001 - no call of ours tells it
    assert root is not None
    told = re.search(
        r"Cumulative WAL: (\d+) writes, (\d+) syncs", root.property_value("rocksdb.dbstats") or ""
    )
    assert told is not None
    return int(told[1]), int(told[2])
