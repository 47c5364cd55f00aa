"""Things in the data directory that nobody expects there: left alone, counted, never waited for."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path, PurePath

import pytest

import siltstone
from siltstone.errors import CorruptionError
from siltstone.fs.posix import PosixFileSystem
from siltstone.store.log.check.findings import Finding
from siltstone.store.log.check.verify import VerifyReport, verify_database
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.topiclog.client import TopicLogClient
from tests.support.broker_process import run_command
from tests.support.builders import read_topics
from tests.support.topiclog import log_port, served_by_process

NAME = "messages"
SMALL = DatabaseSettings(segment_bytes=64 * 1024)
ODD = "007777.log must be a regular file, not a pipe, link or device: move it away"
LEFT_ALONE = "not a file of the store; it stays as it is"


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


@pytest.mark.parametrize("content", [b"", b"sixsix", b"KA", b"x" * 70_000])
@pytest.mark.parametrize("serial", [1, 2, 7777])
def test_a_file_with_the_name_of_a_segment_and_no_magic_is_left_alone(
    data: Path, content: bytes, serial: int
) -> None:
    stranger = slab_of(data) / f"{serial:020d}.seg"
    stranger.write_bytes(content)
    note = Finding(path=PurePath(stranger), offset=0, problem=LEFT_ALONE, severity="note")
    assert check(data).findings == (note,)
    assert check(data, repair=True).findings == (note,)
    assert not (data / "quarantine").exists()
    with siltstone.open(data) as store:
        database = store.database(NAME)
        (report,) = database.reports
        assert report.foreign == (stranger.name,)
        # No serial is passed over because of it.
        assert database.append([Row("u", b"v")]).wait().first_serial() == 1
        with siltstone.open(data, read_only=True) as reader:
            assert read_topics(reader.database(NAME)) == ["t", "u"]
    assert stranger.read_bytes() == content


def test_it_keeps_its_contents_when_a_segment_takes_its_name(data: Path) -> None:
    (slab_of(data) / f"{2:020d}.seg").write_bytes(b"sixsix")
    (slab_of(data) / f"{2:020d}.idx").mkdir()
    with siltstone.open(data) as store:
        database = store.database(NAME)
        database.append([Row("u", bytes(60_000))]).wait()
        database.append([Row("w", bytes(60_000))]).wait()
        assert read_topics(database) == ["t", "u", "w"]
    assert (slab_of(data) / f"{2:020d}.seg.foreign").read_bytes() == b"sixsix"
    names = [f"{2:020d}.idx.foreign", f"{2:020d}.seg.foreign"]
    assert list(check(data).findings) == [
        Finding(path=PurePath(slab_of(data) / name), offset=0, problem=LEFT_ALONE, severity="note")
        for name in names
    ]


@pytest.mark.parametrize("content", [b"KASK", b"KASK" + bytes(4092)])
def test_the_magic_and_nothing_sound_behind_it_is_corruption_and_repair_loses_no_row(
    data: Path, content: bytes
) -> None:
    path = slab_of(data) / f"{7777:020d}.seg"
    path.write_bytes(content)
    with siltstone.open(data) as store, pytest.raises(CorruptionError):
        store.database(NAME)
    assert (path, "damage") in {(found.path, found.severity) for found in check(data).findings}
    (finding,) = check(data, repair=True).findings
    assert finding.repaired == f"kept as {data / 'quarantine' / path.name}"
    assert finding.problem.endswith("; no row is lost")
    assert (data / "quarantine" / path.name).read_bytes() == content
    with siltstone.open(data) as store:
        assert store.database(NAME).append([Row("u", b"v")]).wait().first_serial() == 1


def test_a_segment_of_another_slab_is_taken_out_and_no_row_is_lost(data: Path) -> None:
    with siltstone.open(data) as store:
        store.create("other", SMALL).append([Row("t", b"v")] * 3).wait()
    other = data / "data" / "other" / "0" / "1" / f"{0:020d}.seg"
    path = slab_of(data) / f"{7777:020d}.seg"
    path.write_bytes(other.read_bytes())
    with siltstone.open(data) as store, pytest.raises(CorruptionError):
        store.database(NAME)
    (finding,) = check(data, repair=True).findings
    assert finding.problem == (
        "the segment belongs to another slab: its database is 'other'; no row is lost"
    )
    assert finding.repaired == f"kept as {data / 'quarantine' / path.name}"
    with siltstone.open(data) as store:
        assert store.database(NAME).append([Row("u", b"v")]).wait().first_serial() == 1


@pytest.mark.parametrize("damage", ["emptied", "wiped"])
def test_the_last_segment_without_its_header_is_not_passed_over(data: Path, damage: str) -> None:
    with siltstone.open(data) as store:
        database = store.database(NAME)
        for topic in ("u", "w"):
            database.append([Row(topic, bytes(60_000))]).wait()
    last = max(slab_of(data).glob("*.seg"))
    assert last.name != f"{0:020d}.seg"
    size = last.stat().st_size
    last.write_bytes(b"" if damage == "emptied" else bytes(size))
    with siltstone.open(data) as store, pytest.raises(CorruptionError) as caught:
        store.database(NAME)
    assert caught.value.path == last
    with siltstone.open(data, read_only=True) as store, pytest.raises(CorruptionError) as caught:
        read_topics(store.database(NAME))
    assert caught.value.path == last
    assert (last, "damage") in {(found.path, found.severity) for found in check(data).findings}
    assert any(
        "number of rows is lost" in found.problem for found in check(data, repair=True).findings
    )


@pytest.mark.parametrize("kind", ["directory", "link", "pipe"])
def test_an_index_that_is_no_file_is_told_and_not_waited_for(data: Path, kind: str) -> None:
    path = slab_of(data) / f"{0:020d}.idx"
    match kind:
        case "directory":
            path.mkdir()
        case "link":
            path.symlink_to("/dev/zero")
        case _:
            os.mkfifo(path)
    mode = path.lstat().st_mode
    (finding,) = check(data, repair=True).findings
    assert (finding.path, finding.severity, finding.repaired) == (path, "damage", "")
    with siltstone.open(data) as store:
        database = store.database(NAME)
        assert read_topics(database) == ["t"]
        # The index takes its name, and what had it gets another.
        database.seal()
    assert path.is_file()
    assert path.with_name(path.name + ".foreign").lstat().st_mode == mode


def test_odd_entries_above_the_slabs_are_noted(data: Path) -> None:
    database = data / "data" / NAME
    (database / "7").mkdir()
    (database / "0" / "9").mkdir()
    (database / "0" / "x").touch()
    os.mkfifo(database / "pipe")
    (database / "manifest.tmp").write_bytes(b"half")
    notes = [
        (database / "0" / "9", "a slab that is not in the manifest"),
        (database / "0" / "x", LEFT_ALONE),
        (database / "7", LEFT_ALONE),
        (database / "manifest.tmp", "a file that a crash left; the next start removes it"),
        (database / "pipe", LEFT_ALONE),
    ]
    assert list(check(data).findings) == [
        Finding(path=PurePath(path), offset=0, problem=problem, severity="note")
        for path, problem in notes
    ]
    with siltstone.open(data) as store:
        assert read_topics(store.database(NAME)) == ["t"]


@pytest.mark.timeout(120)
def test_a_broker_starts_beside_foreign_files_in_every_database_and_names_them(
    tmp_path: Path,
) -> None:
    data = tmp_path / "d"
    with served_by_process(data) as broker:
        with TopicLogClient(port=log_port(broker)) as client:
            client.create_topic("t")
            client.send_many("t", [b"m"] * 60)
        broker.stop()
        slabs = [data / "data" / name / "0" / "1" for name in ("messages", "topics", "_retained")]
        for slab in slabs:
            (slab / f"{7777:020d}.seg").write_bytes(b"sixsix")
        # RocksDB would wait for it.
        os.mkfifo(data / "commits" / "007777.log")
        checked = run_command("verify", "--all", "--repair", "--data", str(data), "--json")
        problems = [
            (finding["path"], finding["problem"])
            for database in json.loads(checked.stdout)
            for finding in database["findings"]
        ]
        assert sorted(problems) == sorted(
            [
                *((str(slab / f"{7777:020d}.seg"), LEFT_ALONE) for slab in slabs),
                (
                    str(data / "commits"),
                    ODD,
                ),
            ]
        )
        broker.start()
        with TopicLogClient(port=log_port(broker)) as client:
            assert client.bounds("t") == range(60)
        told = broker.events("foreign_files_ignored")
        assert [(event["database"], event["names"]) for event in told] == [
            (slab.parent.parent.name, f"{7777:020d}.seg") for slab in (slabs[0], slabs[2], slabs[1])
        ]
        broker.stop()
    for slab in slabs:
        assert (slab / f"{7777:020d}.seg").read_bytes() == b"sixsix"
    assert (data / "commits" / "007777.log.foreign").is_fifo()
