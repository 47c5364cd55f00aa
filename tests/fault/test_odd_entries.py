"""Things in the data directory that nobody expects there: left alone, counted, never waited for."""

from __future__ import annotations

import os
import socket
from pathlib import Path, PurePath

import pytest

import siltstone
from siltstone.errors import CorruptionError, UsageError
from siltstone.fs.posix import PosixFileSystem
from siltstone.segment.segment import segment_path
from siltstone.store.findings import Finding
from siltstone.store.rows import Row
from siltstone.store.settings import DatabaseSettings
from siltstone.store.verify import VerifyReport, verify_database
from tests.support.builders import read_topics

NAME = "messages"
SMALL = DatabaseSettings(segment_bytes=64 * 1024)
LEFT_ALONE = "not a file of this store, left alone"


def slab_of(data: Path) -> Path:
    return data / "data" / NAME / "0" / "1"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Make a data directory with one row; its slab's directory is `slab_of`."""
    place = tmp_path / "d"
    with siltstone.open(place) as store:
        store.create(NAME, SMALL).append([Row("t", b"v")]).wait()
    return place


def make_odd(slab: Path) -> list[str]:
    """Put one of each kind beside the segment; return their names, sorted."""
    outside = slab.parent / "outside"
    outside.write_bytes(b"KASK")
    (slab / "directory").mkdir()
    (slab / "empty").touch()
    (slab / "short").write_bytes(b"KA")
    (slab / "007.seg").write_bytes(b"KASK")
    (slab / "notes.txt").write_text("of the administrator")
    (slab / f"{5:020d}.idx").write_bytes(b"no index at all")
    (slab / f"{1:020d}.seg").mkdir()
    (slab / f"{2:020d}.seg").symlink_to(outside)
    (slab / f"{3:020d}.seg").symlink_to(slab / "nowhere")
    os.mkfifo(slab / f"{4:020d}.seg")
    os.mkfifo(slab / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        # A name of 108 bytes is the most that a socket takes.
        here = Path.cwd()
        os.chdir(slab)
        listener.bind("socket")
        os.chdir(here)
    return sorted({entry.name for entry in slab.iterdir()} - {f"{0:020d}.seg", f"{0:020d}.idx"})


def kinds(slab: Path) -> dict[str, tuple[int, int]]:
    """Return what each name is and how large, links not followed."""
    states = {entry.name: entry.lstat() for entry in slab.iterdir()}
    return {name: (state.st_mode, state.st_size) for name, state in states.items()}


def check(data: Path, *, repair: bool = False) -> VerifyReport:
    return verify_database(
        PosixFileSystem(),
        PurePath(data / "data" / NAME),
        repair=repair,
        quarantine=PurePath(data / "quarantine"),
    )


def test_odd_entries_are_counted_and_left_alone_by_an_open(data: Path) -> None:
    names = make_odd(slab_of(data))
    before = kinds(slab_of(data))
    with siltstone.open(data) as store:
        database = store.database(NAME)
        (report,) = database.reports
        database.append([Row("u", b"v")]).wait()
        assert read_topics(database) == ["t", "u"]
    assert list(report.foreign) == names
    assert kinds(slab_of(data)) == before


def test_readers_do_not_see_them(data: Path) -> None:
    make_odd(slab_of(data))
    with siltstone.open(data, read_only=True) as store:
        assert read_topics(store.database(NAME)) == ["t"]


@pytest.mark.parametrize("repair", [False, True])
def test_verify_notes_them_and_repair_leaves_them_alone(data: Path, repair: bool) -> None:
    names = make_odd(slab_of(data))
    before = kinds(slab_of(data))
    outside = slab_of(data).parent / "outside"
    findings = [
        Finding(path=PurePath(path), offset=0, problem=LEFT_ALONE, severity="note")
        for path in (*(slab_of(data) / name for name in names), outside)
    ]
    assert list(check(data, repair=repair).findings) == findings
    assert kinds(slab_of(data)) == before
    assert not (data / "quarantine").exists()


@pytest.mark.parametrize("content", [b"", b"KA", b"KASK" + bytes(4092)])
def test_a_file_with_the_name_of_a_segment_that_is_none_is_corruption(
    data: Path, content: bytes
) -> None:
    (slab_of(data) / f"{1:020d}.seg").write_bytes(content)
    with siltstone.open(data) as store, pytest.raises(CorruptionError) as caught:
        store.database(NAME)
    path = segment_path(slab_of(data), 1)
    assert caught.value.path == path
    assert (path, "damage") in {(found.path, found.severity) for found in check(data).findings}


@pytest.mark.parametrize("kind", ["directory", "link", "pipe"])
def test_an_index_that_is_no_file_is_refused_by_name_and_not_waited_for(
    data: Path, kind: str
) -> None:
    path = slab_of(data) / f"{0:020d}.idx"
    match kind:
        case "directory":
            path.mkdir()
        case "link":
            path.symlink_to("/dev/zero")
        case _:
            os.mkfifo(path)
    with siltstone.open(data) as store, pytest.raises(UsageError, match="not a regular file"):
        store.database(NAME)
    (finding,) = check(data, repair=True).findings
    assert (finding.path, finding.severity, finding.repaired) == (path, "damage", "")


def test_odd_entries_above_the_slabs_are_noted(data: Path) -> None:
    database = data / "data" / NAME
    (database / "7").mkdir()
    (database / "0" / "9").mkdir()
    (database / "0" / "x").touch()
    os.mkfifo(database / "pipe")
    (database / "manifest.tmp").write_bytes(b"half")
    notes = [
        (database / "0" / "9", "slab that the manifest does not name"),
        (database / "0" / "x", LEFT_ALONE),
        (database / "7", LEFT_ALONE),
        (database / "manifest.tmp", "left by a crash, removed at the next start"),
        (database / "pipe", LEFT_ALONE),
    ]
    assert list(check(data).findings) == [
        Finding(path=PurePath(path), offset=0, problem=problem, severity="note")
        for path, problem in notes
    ]
    with siltstone.open(data) as store:
        assert read_topics(store.database(NAME)) == ["t"]
