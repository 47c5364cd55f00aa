from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

import pytest

from siltstone.cli.files import snapshot as command
from siltstone.fs.api import Lock
from siltstone.snapshot.directory import SnapshotDirectory, name_of
from siltstone.snapshot.format.records import Record
from tests.support.command_line import DATA, CommandLine
from tests.support.engines import Engines
from tests.support.snapshots import queued, retained, session

SNAPSHOTS = DATA / "snapshots"


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch, siltstone: CommandLine) -> None:
    """Let the commands see the disk and the time of the test."""
    engines = Engines()
    monkeypatch.setattr("siltstone.cli.files.snapshot.PosixFileSystem", lambda: siltstone.fs)
    monkeypatch.setattr("siltstone.cli.files.snapshot.SystemClock", lambda: siltstone.clock)
    monkeypatch.setattr(
        "siltstone.cli.files.snapshot.open_read_only", lambda _, path: engines.open_writing(path)
    )


def save(siltstone: CommandLine, *states: list[Record], source: str = "broker") -> None:
    siltstone.store().close()
    keeper = SnapshotDirectory(siltstone.fs, siltstone.clock, SNAPSHOTS, DATA / "quarantine")
    for state in states:
        keeper.save(state, source=source)
    keeper.close()


def damage(siltstone: CommandLine, serial: int) -> None:
    with siltstone.fs.open(SNAPSHOTS / name_of(serial), writable=True) as file:
        file.truncate(5)


def test_where_there_are_none_the_list_says_so(siltstone: CommandLine) -> None:
    assert siltstone("snapshot", "list").out == "no snapshots in /data\n"
    assert siltstone("snapshot", "list", "--json").document == []


@pytest.mark.parametrize(
    ("which", "told"),
    [
        ("7", "/data has no snapshot 7; 'siltstone snapshot list' shows all"),
        ("/elsewhere.gz", "cannot read /elsewhere.gz: the file does not exist"),
    ],
)
def test_a_snapshot_that_does_not_exist_is_named(
    siltstone: CommandLine, which: str, told: str
) -> None:
    save(siltstone, [session("a")])
    for verb in ("show", "verify"):
        outcome = siltstone("snapshot", verb, which)
        assert (outcome.status, outcome.err) == (2, f"siltstone: {told}\n")


def test_the_list_tells_serial_time_size_and_which_one_is_loaded(siltstone: CommandLine) -> None:
    save(siltstone, [session("a")], [session("b")])
    damage(siltstone, 1)
    documents = siltstone("snapshot", "list", "--json").document
    assert documents == [
        {
            "serial": 1,
            "file": name_of(1),
            "created": None,
            "size_bytes": 5,
            "state": False,
        },
        {
            "serial": 2,
            "file": name_of(2),
            "created": "2023-11-14 22:13:20",
            "size_bytes": documents[1]["size_bytes"],
            "state": True,
        },
    ]
    _, _, first, second = siltstone("snapshot", "list").lines
    assert first.split() == ["1", "damaged", "5", "B"]
    assert second.split()[:3] == ["2", "2023-11-14", "22:13:20"]
    assert second.endswith("<- state")


@pytest.mark.parametrize("which", [[], ["state"], ["1"], [str(SNAPSHOTS / name_of(1))]])
def test_a_snapshot_is_shown_by_link_serial_or_file(
    siltstone: CommandLine, which: list[str]
) -> None:
    save(siltstone, [retained("a", b"1"), session("c"), queued("a", b"1")])
    document = siltstone("snapshot", "show", *which, "--json").document
    assert (document["serial"], document["source"], document["contents"]) == (1, "broker", 1)
    assert document["records"] == {"RetainedMessage": 1, "SessionState": 1, "QueuedMessage": 1}
    assert "QueuedMessage" in siltstone("snapshot", "show", *which).out


@pytest.mark.parametrize("which", ["state", "7", "/nowhere.gz"])
def test_what_is_not_there_is_status_2(siltstone: CommandLine, which: str) -> None:
    siltstone.store().close()
    for name in ("show", "verify"):
        assert siltstone("snapshot", name, which).status == 2


def test_verify_looks_at_all_and_tells_which_is_damaged(siltstone: CommandLine) -> None:
    save(siltstone, [session("a")], [session("b")])
    assert siltstone("snapshot", "verify").lines == ["1: whole", "2: whole", "2 snapshots checked"]
    damage(siltstone, 1)
    found = siltstone("snapshot", "verify")
    assert (found.status, found.lines[1:]) == (1, ["2: whole", "2 snapshots checked"])
    assert found.lines[0].startswith("1: the snapshot is cut short: path=/data/snapshots/")
    assert siltstone("snapshot", "verify", "2", "--json").document == [
        {"snapshot": "2", "problem": None}
    ]


def test_verify_of_nothing_checks_nothing(siltstone: CommandLine) -> None:
    assert siltstone("snapshot", "verify").lines == ["0 snapshots checked"]


@pytest.mark.parametrize("arguments", [[], ["state"]])
def test_verify_reports_a_link_to_a_file_that_does_not_exist(
    siltstone: CommandLine, arguments: list[str]
) -> None:
    save(siltstone, [session("a")])
    siltstone.fs.remove(SNAPSHOTS / name_of(1))
    found = siltstone("snapshot", "verify", *arguments)
    problem = f"the file that the link names does not exist: path={SNAPSHOTS / name_of(1)}"
    assert (found.status, found.lines) == (1, [f"state: {problem}", "1 snapshot checked"])
    found = siltstone("snapshot", "verify", *arguments, "--json")
    assert (found.status, found.document) == (1, [{"snapshot": "state", "problem": problem}])


def test_verify_reports_a_broken_link_beside_whole_snapshots(siltstone: CommandLine) -> None:
    save(siltstone, [session("a")], [session("b")])
    siltstone.fs.remove(SNAPSHOTS / name_of(2))
    found = siltstone("snapshot", "verify")
    assert (found.status, found.lines[0], found.lines[2]) == (1, "1: whole", "2 snapshots checked")
    assert found.lines[1].startswith("state: the file that the link names does not exist")


def test_diff_tells_what_is_not_the_same(siltstone: CommandLine) -> None:
    save(
        siltstone,
        [session("gone"), session("same"), retained("a", b"1")],
        [session("same"), session("new"), retained("a", b"2")],
    )
    found = siltstone("snapshot", "diff", "1", "state")
    assert (found.status, found.lines) == (
        1,
        ["~ retained message a", "- session gone", "+ session new"],
    )
    assert siltstone("snapshot", "diff", "1", "2", "--json").document[0] == {
        "kind": "retained message",
        "name": "a",
        "change": "changed",
    }
    same = siltstone("snapshot", "diff", "2", "2")
    assert (same.status, same.out) == (0, "")


def test_now_writes_a_store_that_nobody_has_open(siltstone: CommandLine) -> None:
    siltstone.create("m")
    assert siltstone("snapshot", "now").out == f"wrote {name_of(1)}\n"
    assert siltstone("snapshot", "now", "--json").document == {"file": name_of(2)}
    assert siltstone("snapshot", "show", "--json").document["source"] == "store"
    siltstone.store().close()


def test_now_leaves_the_last_state_of_a_broker_alone(siltstone: CommandLine) -> None:
    save(siltstone, [session("c")])
    refused = siltstone("snapshot", "now")
    assert (refused.status, "its last snapshot is current" in refused.err) == (2, True)


class Holder:
    """A process that has the directory open, and what it does when it is asked."""

    def __init__(self, siltstone: CommandLine, act: Callable[[], object]) -> None:
        siltstone.store().close()
        self.lock: Lock = siltstone.fs.lock(DATA / "LOCK")
        with siltstone.fs.open(DATA / "LOCK", writable=True) as file:
            file.write_at(0, b"4711\n")
        self.asked: list[tuple[int, int]] = []
        self._act = act

    def signal(self, pid: int, number: int) -> None:
        self.asked.append((pid, number))
        self._act()


def test_now_asks_the_broker_that_has_it_open(
    siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(siltstone, [session("old")])
    holder = Holder(siltstone, lambda: save_beside(siltstone))
    monkeypatch.setattr(command, "catches_signal", lambda pid, number: True)
    monkeypatch.setattr(command, "send_signal", holder.signal)
    assert siltstone("snapshot", "now").out == f"wrote {name_of(2)}\n"
    assert holder.asked == [(4711, 10)]


def save_beside(siltstone: CommandLine) -> None:
    keeper = SnapshotDirectory(siltstone.fs, siltstone.clock, SNAPSHOTS, PurePath("/quarantine"))
    keeper.save([session("new")], source="broker")
    keeper.close()


def test_a_broker_that_writes_none_is_not_waited_for_without_end(
    siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = Holder(siltstone, lambda: None)
    monkeypatch.setattr(command, "catches_signal", lambda pid, number: True)
    monkeypatch.setattr(command, "send_signal", holder.signal)
    refused = siltstone("snapshot", "now", "--timeout", "0")
    assert (refused.status, "the broker wrote no snapshot within 0 s" in refused.err) == (3, True)


def test_a_process_that_would_be_ended_by_the_signal_gets_none(
    siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = Holder(siltstone, lambda: None)
    monkeypatch.setattr(command, "catches_signal", lambda pid, number: False)
    monkeypatch.setattr(command, "send_signal", holder.signal)
    refused = siltstone("snapshot", "now")
    assert (refused.status, holder.asked) == (2, [])
    assert "in use by process 4711, which is not a broker" in refused.err
