from __future__ import annotations

from dataclasses import replace

import pytest

from siltstone.session.archive.records import SavedGroup, SerialRange
from siltstone.store.feed.position import Position
from tests.support.command_line import START_US, CommandLine
from tests.support.session_commands import SessionCommands

EMPTY = SavedGroup(
    name="g",
    filter="t/#",
    expiry_seconds=3600,
    empty_since_us=START_US,
    position=Position({0: 0}),
    done=(SerialRange(0, 1, 2),),
)
FULL = replace(EMPTY, name="h", strategy="sticky", empty_since_us=None, done=())
TEXT = "$share/g/t/#"
NOT_STORED = (
    "share group '$share/g/u' is not stored: a group without durable sessions exists only in the "
    "memory of the running broker"
)


@pytest.fixture
def commands(siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch) -> SessionCommands:
    return SessionCommands(siltstone, monkeypatch)


@pytest.fixture
def filled(commands: SessionCommands) -> SessionCommands:
    commands.append(b"0", b"1", b"2")
    with commands.archive() as archive:
        archive.create_groups([FULL])
        archive.create_groups([EMPTY])
    return commands


def documents() -> list[dict[str, object]]:
    return [
        {
            "group": TEXT,
            "strategy": "least-loaded",
            "kept": True,
            "behind": 2,
            "behind_is_more": False,
            "behind_seconds": 3.0,
            "empty_seconds": 3.0,
            "expires_in_seconds": 3597.0,
            "position": {"0": 0},
        },
        {
            "group": "$share/h/t/#",
            "strategy": "sticky",
            "kept": True,
            "behind": 3,
            "behind_is_more": False,
            "behind_seconds": 3.0,
            "empty_seconds": None,
            "expires_in_seconds": None,
            "position": {"0": 0},
        },
    ]


def test_the_list_tells_how_far_behind_each_group_is_and_when_it_ends(
    siltstone: CommandLine, filled: SessionCommands
) -> None:
    assert siltstone("groups", "list", "--json").document == documents()
    *_, first, second = siltstone("groups", "list").lines
    assert first.split() == [TEXT, "least-loaded", "yes", "none", "2", "3.0", "s", "60", "min"]
    assert second.split() == ["$share/h/t/#", "sticky", "yes", "some", "3", "3.0", "s", "-"]


def test_one_group_is_shown(siltstone: CommandLine, filled: SessionCommands) -> None:
    assert siltstone("groups", "show", TEXT, "--json").document == documents()[0]
    lines = [line.split() for line in siltstone("groups", "show", TEXT).lines]
    assert ["behind", "2"] in lines


@pytest.mark.parametrize(
    ("to", "serial"), [("earliest", 0), ("latest", 3), ("2023-11-14T22:13:21Z", 1)]
)
def test_without_a_broker_a_group_is_moved_here(
    siltstone: CommandLine, filled: SessionCommands, to: str, serial: int
) -> None:
    assert siltstone("groups", "reset", TEXT, "--to", to).lines == [f"moved {TEXT}"]
    with filled.archive() as archive:
        assert archive.peek_group("g", "t/#") == replace(
            EMPTY, position=Position({0: serial}, filled.identity), done=()
        )


def test_without_a_broker_a_group_is_dropped_here(
    siltstone: CommandLine, filled: SessionCommands
) -> None:
    assert siltstone("groups", "drop", TEXT, "--yes").lines == [f"dropped {TEXT}"]
    assert siltstone("groups", "list", "--json").document == documents()[1:]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("show", "t/#"), "a share group has the form $share/NAME/FILTER, got 't/#'"),
        (("reset", "t", "--to", "latest"), "a share group has the form $share/NAME/FILTER"),
        (("drop", "t"), "a share group has the form $share/NAME/FILTER"),
        (("show", "$share/g"), "$share/g"),
        (("show", "$share/g/u"), "share group '$share/g/u' does not exist"),
        (("reset", "$share/g/u", "--to", "latest"), NOT_STORED),
        (("drop", "$share/g/u", "--yes"), NOT_STORED),
        (("reset", TEXT), "--to"),
        (("reset", TEXT, "--to", "noon"), "noon"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    siltstone: CommandLine, filled: SessionCommands, args: tuple[str, ...], sentence: str
) -> None:
    outcome = siltstone("groups", *args)
    assert (outcome.status, outcome.out) == (2, "")
    assert sentence in outcome.err
    assert "Traceback" not in outcome.err


def test_where_there_is_no_group_the_list_says_so(
    siltstone: CommandLine, commands: SessionCommands
) -> None:
    commands.append(b"0")
    with commands.archive():
        pass
    assert siltstone("groups", "list").lines == ["no share groups in /data"]
    assert siltstone("groups", "list", "--json").document == []
