"""Several processes and one directory, on a real disk."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import siltstone
from siltstone import (
    CorruptionError,
    DatabaseSettings,
    InvalidTopicError,
    LockedError,
    OverloadedError,
    QuotaExceededError,
    Row,
    SlabDroppedError,
    SlabId,
    Status,
)

SMALL = DatabaseSettings(segment_bytes=64 * 1024)


def child(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


COUNT = """
import sys, siltstone
with siltstone.open(sys.argv[1], read_only=True) as store:
    print(store.database("one").count())
"""

OPEN = """
import sys, siltstone
try:
    siltstone.open(sys.argv[1])
except siltstone.LockedError as error:
    print("locked", error)
"""


def test_a_second_writer_is_refused_in_one_sentence_and_readers_are_not(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with siltstone.open(path) as store:
        store.create("one", SMALL).append([Row("t", b"1")] * 7).wait()
        refused = child(OPEN, str(path))
        assert refused.stdout.startswith("locked ")
        assert child(COUNT, str(path)).stdout == "7\n"
        with pytest.raises(LockedError):
            siltstone.open(path)
    assert child(OPEN, str(path)).stdout == ""
    assert child(COUNT, str(path)).stdout == "7\n"


def test_a_reader_follows_through_rolls_turns_and_drops(tmp_path: Path) -> None:
    with siltstone.open(tmp_path) as store, siltstone.open(tmp_path, read_only=True) as other:
        writer = store.create("one", SMALL)
        reader = other.database("one")
        writer.append([Row("t", b"first")]).wait()
        iterator = reader.iterator(reader.streams("t")[0], "t")
        found: list[bytes] = []
        for number in range(60):
            writer.append([Row("t", b"%d " % number + bytes(5000))]).wait()
            read = reader.next(iterator)
            iterator = read.iterator
            found += [row.value.split()[0] for row in read.batch.rows()]
        assert found == [b"first", *(b"%d" % number for number in range(60))]
        assert len(list((tmp_path / "data/one/0/1").glob("*.seg"))) > 3
        writer.seal()
        assert reader.next(iterator).status is Status.END
        (stream, *_) = reader.streams("t")
        writer.drop_slab(SlabId(0, 1))
        writer.append([Row("t", b"next")]).wait()
        read = reader.next(reader.iterator(reader.streams("t")[0]))
        assert [row.value for row in read.batch.rows()] == [b"next"]
        with pytest.raises(SlabDroppedError):
            reader.iterator(stream)


def test_a_quota_refuses_rows_until_a_slab_is_dropped(tmp_path: Path) -> None:
    settings = DatabaseSettings(segment_bytes=64 * 1024, quota_bytes=300 * 1024)
    with siltstone.open(tmp_path) as store:
        database = store.create("one", settings)
        # One after another: calls that wait together are one flush, with one look at the quota.
        for _ in range(4):
            database.append([Row("t", bytes(1000))] * 50).wait()
        database.seal()
        with pytest.raises(QuotaExceededError, match="drop sealed slabs or raise the quota"):
            database.append([Row("t", bytes(1000))] * 100).wait()
        database.drop_slab(SlabId(0, 1))
        database.append([Row("t", b"again")]).wait()
        database.configure(quota_bytes=None)


def test_too_much_pending_is_waited_for_or_refused_in_time(tmp_path: Path) -> None:
    settings = DatabaseSettings(segment_bytes=64 * 1024, pending_bytes_max=1000)
    with siltstone.open(tmp_path) as store:
        database = store.create("one", settings)
        rows = [Row("t", bytes(400))] * 2
        with ThreadPoolExecutor(8) as pool:
            tickets = list(pool.map(lambda _: database.append(rows), range(100)))
        assert len({serial for ticket in tickets for serial in ticket.serials()}) == 200
        refused = 0
        for _ in range(2000):
            try:
                database.append(rows, durability="none", timeout=0)
            except OverloadedError:
                refused += 1
        assert refused > 0
        database.sync()
        assert database.count() == 200 + 2 * (2000 - refused)


def test_a_bad_row_fails_its_own_call_and_none_of_its_neighbours(tmp_path: Path) -> None:
    settings = DatabaseSettings(
        segment_bytes=64 * 1024, flush_interval=60, idle_flush_interval=60, max_items=1000
    )
    with siltstone.open(tmp_path) as store:
        database = store.create("one", settings)
        good = [database.append([Row(f"good/{number}", b"")]) for number in range(3)]
        bad = database.append([Row("fine", b""), Row("not/+/fine", b"")])
        good.append(database.append([Row("good/3", b"")]))
        database.sync()
        with pytest.raises(InvalidTopicError, match="row=1"):
            bad.wait()
        assert sorted(ticket.serials()[0] for ticket in good) == [0, 1, 2, 3]
        assert database.count("fine") == 0
        patterns = {info.pattern for info in database.structure()}
        assert patterns == {f"good/{number}" for number in range(4)}


READ_AS_NOBODY = """
import os, sys, siltstone
siltstone.open  # loads the package, which nobody may not be allowed to read
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
with siltstone.open(sys.argv[1], read_only=True) as store:
    database = store.database("one")
    print(database.count(), sum(batch.num_rows for batch in database.read("t/+")))
try:
    siltstone.open(sys.argv[1])
except siltstone.DiskError as error:
    print("refused", error.errno)
"""


def test_a_tree_that_may_only_be_read_is_read(tmp_path: Path) -> None:
    # The tests' own directory is closed to others.
    with TemporaryDirectory() as place:
        path = Path(place) / "data"
        with siltstone.open(path) as store:
            database = store.create("one", SMALL)
            for number in range(30):
                database.append([Row(f"t/{number % 7}", bytes(5000))]).wait()
            database.seal()
            database.append([Row("t/1", b"last")]).wait()
        tree = [Path(place), path, *path.rglob("*")]
        for entry in tree:
            entry.chmod(0o555 if entry.is_dir() else 0o444)
        try:
            done = child(READ_AS_NOBODY, str(path))
        finally:
            for entry in tree:
                entry.chmod(0o755 if entry.is_dir() else 0o644)
    assert (done.stdout, done.stderr) == (f"31 31\nrefused {errno.EACCES}\n", "")


def test_a_database_that_cannot_be_opened_leaves_no_file_open(tmp_path: Path) -> None:
    with siltstone.open(tmp_path) as store:
        store.create("one", replace(SMALL, shards=4))
    (segment,) = (tmp_path / "data" / "one" / "3" / "1").glob("*.seg")
    segment.write_bytes(b"KA")
    with siltstone.open(tmp_path) as store:
        before = open_below(tmp_path)
        for _ in range(3):
            with pytest.raises(CorruptionError):
                store.database("one")
        assert open_below(tmp_path) == before


def open_below(directory: Path) -> list[str]:
    """Return the files of a directory that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(descriptor))
    return sorted(path for path in found if path.startswith(f"{directory}/"))
