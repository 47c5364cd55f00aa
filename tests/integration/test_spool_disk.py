"""A spool on real disks: a tiny one that is really full, another device, two processes, threads."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest

from siltstone import spool
from siltstone.errors import SiltstoneError, StorageFullError
from siltstone.spool import Entry, NoSuchEntryError
from tests.support.broker_process import run_command
from tests.support.spool_model import contents

DISK_BYTES = 2 * 1024 * 1024


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 2 MiB; where that is not allowed the test cannot be had."""
    path = tmp_path / "tiny"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "siltstone-test", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command: spools on a tiny disk are not tested")
    if done.returncode:
        pytest.skip("mounting is not allowed here: spools on a tiny disk are not tested")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)  # noqa: S607 - where mount was


def fill(path: Path) -> None:
    """Take all space, in ever smaller writes."""
    with path.open("wb", buffering=0) as file:
        for size in (65_536, 1024, 1):
            with suppress(OSError):
                while file.write(bytes(size)):
                    continue


def tree(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*") if found.is_file())


def test_a_full_disk_refuses_and_leaves_a_valid_empty_spool(tiny_disk: Path) -> None:
    with spool.create(tiny_disk / "q") as opened:
        fill(tiny_disk / "ballast")
        with pytest.raises(SiltstoneError):
            spool.create(tiny_disk / "other")
        for data in (bytes(100_000), b"x"):
            with pytest.raises(StorageFullError):
                opened.store(data)
        assert list(opened) == []
    (tiny_disk / "ballast").unlink()
    with spool.open(tiny_disk / "q") as opened:
        assert list(opened) == []
        stored = opened.store(b"fits again")
        assert contents(opened) == {stored: b"fits again"}
    assert tree(tiny_disk / "q") == ["LOCK", "next", "q/0", "spool"]


def test_discarding_works_on_a_full_disk(tiny_disk: Path) -> None:
    with spool.create(tiny_disk / "q") as opened:
        entries = opened.store_many([(bytes(50_000), None)] * 10)
        fill(tiny_disk / "ballast")
        opened.discard(entries[0])
        opened.discard_many(entries[1:])
        assert list(opened) == []


@pytest.mark.parametrize("outwards", [True, False])
def test_an_entry_moves_to_another_disk(tiny_disk: Path, tmp_path: Path, outwards: bool) -> None:
    here, there = (tmp_path, tiny_disk) if outwards else (tiny_disk, tmp_path)
    assert os.stat(here).st_dev != os.stat(there).st_dev
    data = os.urandom(300_000)
    with spool.create(here / "q") as opened:
        opened.discard(opened.store(data), there / "moved", reason="no use")
        assert list(opened) == []
    assert (there / "moved").read_bytes() == data
    assert (there / "moved.reason.txt").read_text() == "no use\n"


def test_an_entry_that_does_not_fit_on_the_other_disk_stays(
    tiny_disk: Path, tmp_path: Path
) -> None:
    fill(tiny_disk / "ballast")
    with spool.create(tmp_path / "q") as opened:
        stored = opened.store(b"data")
        with pytest.raises(StorageFullError):
            opened.discard(stored, tiny_disk / "moved", reason="no use")
        assert contents(opened) == {stored: b"data"}
    assert [name for name in tree(tiny_disk) if name != "ballast"] == []


def test_a_large_entry_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    piece = os.urandom(1_000_000)
    with spool.create(tmp_path / "q") as opened:
        tracemalloc.start()
        stored = opened.store(piece for _ in range(50))
        with opened.stream(stored) as stream:
            size = 0
            while chunk := stream.read(65_536):
                size += len(chunk)
        opened.discard(stored, tmp_path / "moved")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert size == 50_000_000
    assert peak < 3_000_000
    assert (tmp_path / "moved").stat().st_size == 50_000_000


def test_opening_takes_the_same_memory_with_many_entries(tmp_path: Path) -> None:
    with spool.create(tmp_path / "q"):
        pass
    for number in range(5_000):
        os.mknod(tmp_path / "q" / "q" / f"{number}-metadata", 0o100644)
    tracemalloc.start()
    with spool.open(tmp_path / "q") as opened:
        count = opened.reduce(lambda so_far, _: so_far + 1, 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 5_000
    assert peak < 200_000


def test_another_process_reads_discards_and_puts(tmp_path: Path) -> None:
    with spool.create(tmp_path / "q") as opened:
        first, second = opened.store(b"one", "a/b"), opened.store(b"two")
        assert run_command("spool", "cat", str(tmp_path / "q"), str(first.id)).stdout == b"one"
        refused = run_command("spool", "discard", str(tmp_path / "q"), str(first.id))
        assert (
            refused.returncode,
            b"another process has the directory open for writing, stop it: path" in refused.stderr,
        ) == (2, True)
    assert run_command("spool", "discard", str(tmp_path / "q"), str(first.id)).returncode == 0
    put = run_command("spool", "put", str(tmp_path / "q"), stdin=b"three")
    with spool.open(tmp_path / "q") as opened:
        third = Entry(int(put.stdout))
        assert contents(opened) == {second: b"two", third: b"three"}
        assert third.id > second.id


def test_producers_a_reader_and_a_discarder_leave_no_trace(tmp_path: Path) -> None:
    total, producers = 300, 3
    stored: Queue[Entry] = Queue(maxsize=20)
    seen: list[bytes] = []
    ends: list[str] = []
    with spool.create(tmp_path / "q") as opened:

        def produce(number: int) -> None:
            for index in range(total // producers):
                below = opened.next_likely_id()
                entry = opened.store(b"%d %d" % (number, index), f"{number}")
                assert entry.id >= below
                stored.put(entry)
            ends.append("produced")

        def consume() -> None:
            for _ in range(total):
                entry = stored.get()
                with opened.stream(entry) as stream:
                    seen.append(stream.read())
                opened.discard(entry)
                with pytest.raises(NoSuchEntryError):
                    opened.stream(entry)
            ends.append("consumed")

        def look() -> None:
            while "consumed" not in ends:
                assert all(entry.metadata in {"0", "1", "2"} for entry in opened)
            ends.append("looked")

        threads = [Thread(target=produce, args=(n,)) for n in range(producers)]
        threads += [Thread(target=consume), Thread(target=look)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(ends) == ["consumed", "looked"] + ["produced"] * producers
        assert sorted(seen) == sorted(
            b"%d %d" % (n, i) for n in range(producers) for i in range(total // producers)
        )
    assert tree(tmp_path / "q") == ["LOCK", "next", "spool"]


def test_ids_partition_what_is_there_from_what_comes_later(tmp_path: Path) -> None:
    observed: list[tuple[int, set[int]]] = []
    with spool.create(tmp_path / "q") as opened:
        threads = [Thread(target=lambda: [opened.store(b"") for _ in range(60)]) for _ in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            partition = opened.next_likely_id()
            observed.append((partition, {entry.id for entry in opened}))
        for thread in threads:
            thread.join()
        every = {entry.id for entry in opened}
    assert every == set(range(180))
    # Nothing below the partition may appear after it was told.
    assert all(ids >= {i for i in every if i < partition} for partition, ids in observed)


MEASURED = """
import sys, tracemalloc
from pathlib import Path
from siltstone import spool
with spool.open(Path(sys.argv[1]), read_only=True) as opened:
    opened.stats()
    tracemalloc.start()
    print(opened.stats().entries, tracemalloc.get_traced_memory()[1])
"""


def test_statistics_take_no_memory_with_the_number_of_entries(tmp_path: Path) -> None:
    spool.create(tmp_path / "q").close()
    for number in range(4000):
        (tmp_path / "q" / "q" / f"{number}-{'m' * 60}").touch()
    # In a process of its own: threads of other tests allocate as well.
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path / "q")],
        capture_output=True,
        text=True,
        check=True,
    )
    entries, peak_bytes = map(int, done.stdout.split())
    assert entries == 4000
    assert peak_bytes < 200_000
