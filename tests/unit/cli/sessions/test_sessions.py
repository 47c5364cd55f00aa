from __future__ import annotations

from dataclasses import replace

import pytest

from siltstone.session.archive.records import SavedSession, SavedSubscription
from siltstone.store.feed.position import Position
from tests.support.archive_builders import WHOLE
from tests.support.command_line import START_US, CommandLine
from tests.support.session_commands import SessionCommands

AWAY = SavedSession(
    client_id="away",
    user="ann",
    expiry_seconds=3600,
    away_since_us=START_US,
    dropped=7,
    subscriptions=(SavedSubscription(filter="t/+", qos=1, identifier=3),),
    position=Position({0: 1}),
)
HERE = SavedSession(client_id="here", connected=True)


@pytest.fixture
def commands(siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch) -> SessionCommands:
    return SessionCommands(siltstone, monkeypatch)


@pytest.fixture
def filled(commands: SessionCommands) -> SessionCommands:
    commands.append(b"0", b"1", b"2")
    with commands.archive() as archive:
        archive.create(HERE)
        archive.create(AWAY)
    return commands


def documents(*, is_served: bool = False) -> list[dict[str, object]]:
    return [
        {
            "client_id": "away",
            "user": "ann",
            "connected": False,
            "away_seconds": 3.0,
            "expires_in_seconds": 3597.0,
            "behind": 2,
            "behind_is_more": False,
            "behind_seconds": 2.0,
            "inflight": 0,
            "has_will": False,
            "dropped": 7,
            "position": {"0": 1},
            "subscriptions": [{"filter": "t/+", "qos": 1, "identifier": 3}],
        },
        {
            "client_id": "here",
            "user": "",
            "connected": is_served,
            "away_seconds": None,
            "expires_in_seconds": None,
            "behind": 0,
            "behind_is_more": False,
            "behind_seconds": None,
            "inflight": 0,
            "has_will": False,
            "dropped": 0,
            "position": {},
            "subscriptions": [],
        },
    ]


def test_the_list_tells_who_is_away_how_far_behind_and_when_it_ends(
    siltstone: CommandLine, filled: SessionCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siltstone.cli.sessions.sessions.is_served", lambda _: True)
    assert siltstone("sessions", "list", "--json").document == documents(is_served=True)
    *_, first, second = siltstone("sessions", "list").lines
    assert first.split() == ["away", "away", "1", "2", "2.0", "s", "0", "7", "60", "min"]
    assert second.split() == ["here", "connected", "0", "0", "-", "0", "0", "-"]


def test_nobody_is_connected_to_a_broker_that_was_killed(
    siltstone: CommandLine, filled: SessionCommands
) -> None:
    assert siltstone("sessions", "list", "--json").document == documents()
    assert siltstone("sessions", "show", "here", "--json").document == documents()[1]


def test_a_list_of_one_that_is_very_far_behind_counts_no_further(
    siltstone: CommandLine, filled: SessionCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siltstone.cli.sessions.sessions.COUNT_MAX", 1)
    first, _ = siltstone("sessions", "list", "--json").document
    assert (first["behind"], first["behind_is_more"]) == (1, True)
    assert "1+" in siltstone("sessions", "list").out


def test_one_session_is_shown_with_all_that_is_known(
    siltstone: CommandLine, filled: SessionCommands
) -> None:
    assert siltstone("sessions", "show", "away", "--json").document == documents()[0]
    shown = siltstone("sessions", "show", "away")
    # No head, no rule and no field for one mark of a number.
    assert shown.lines[0].split() == ["client", "id", "away"]
    assert "behind is more" not in shown.out
    lines = [line.split() for line in shown.lines]
    assert ["subscription", "t/+", "(QoS", "1)"] in lines
    assert ["behind", "2"] in lines
    assert ["away", "for", "3.0", "s"] in lines
    assert ["has", "will", "no"] in lines
    assert ["in", "flight", "0"] in lines
    assert ["position", "shard", "0:", "1"] in lines


def test_a_session_is_exported_whole_with_its_bytes_in_base64(
    siltstone: CommandLine, commands: SessionCommands
) -> None:
    with commands.archive() as archive:
        archive.create(WHOLE)
    document = siltstone("sessions", "export", "client/1").document
    assert (document["client_id"], document["will"]["payload"], document["extra"]) == (
        "client/1",
        "Z29uZQ==",
        [[3, "cg==", "cmV0YWluZWQ=", 5, "AQE=", 4_000_000]],
    )


def test_without_a_broker_a_session_is_dropped_here(
    siltstone: CommandLine, filled: SessionCommands
) -> None:
    assert siltstone("sessions", "drop", "away", "--yes").lines == ["dropped the session of away"]
    assert [each["client_id"] for each in siltstone("sessions", "list", "--json").document] == [
        "here"
    ]


def test_a_session_is_not_dropped_before_somebody_says_yes(
    siltstone: CommandLine, filled: SessionCommands
) -> None:
    unasked = siltstone("sessions", "drop", "away")
    assert (unasked.status, unasked.out) == (2, "")
    assert "drop the session of 'away' with its queued messages; pass --yes" in unasked.err
    assert siltstone("sessions", "drop", "away", stdin=b"n\n", terminal=True).status == 1
    yes = siltstone("sessions", "drop", "away", "--json", stdin=b"y\n", terminal=True)
    assert yes.document == {"client_id": "away", "dropped": True}


def test_a_move_is_told_as_json(siltstone: CommandLine, filled: SessionCommands) -> None:
    moved = siltstone("sessions", "move", "away", "--to", "earliest", "--json")
    assert moved.document == {"client_id": "away", "moved": True, "to": "earliest"}


@pytest.mark.parametrize(
    ("to", "serial"), [("earliest", 0), ("latest", 3), ("2023-11-14T22:13:21Z", 1)]
)
def test_without_a_broker_a_session_is_moved_here(
    siltstone: CommandLine, filled: SessionCommands, to: str, serial: int
) -> None:
    outcome = siltstone("sessions", "move", "away", "--to", to)
    assert outcome.lines == ["moved the session of away"]
    place = Position({0: serial})
    with filled.archive() as archive:
        assert archive.peek("away") == replace(
            AWAY,
            position=place.of(filled.identity),
            subscriptions=(replace(AWAY.subscriptions[0], since=place),),
        )


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("show", "nobody"), "client 'nobody' has no durable session"),
        (("export", "nobody"), "client 'nobody' has no durable session"),
        (("drop", "nobody", "--yes"), "client 'nobody' has no durable session"),
        (("move", "nobody", "--to", "latest"), "client 'nobody' has no durable session"),
        (("kick", "away"), "no broker is running on /data"),
        (("move", "away", "--to", "noon"), "noon"),
        (("move", "away"), "--to"),
        (("list", "--database", "other"), "other"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    siltstone: CommandLine, filled: SessionCommands, args: tuple[str, ...], sentence: str
) -> None:
    outcome = siltstone("sessions", *args)
    assert (outcome.status, outcome.out) == (2, "")
    assert sentence in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    "args", [("list",), ("drop", "a", "--yes"), ("move", "a", "--to", "latest")]
)
def test_a_directory_that_is_none_is_not_made_one(
    siltstone: CommandLine, commands: SessionCommands, args: tuple[str, ...]
) -> None:
    outcome = siltstone("sessions", *args)
    assert (outcome.status, outcome.out) == (2, "")
    assert "no Siltstone data directory at /data" in outcome.err


def test_where_there_never_was_a_session_the_list_says_so(
    siltstone: CommandLine, commands: SessionCommands
) -> None:
    commands.append(b"0")
    assert "/data has no durable sessions" in siltstone("sessions", "list").err
    with commands.archive():
        pass
    assert siltstone("sessions", "list").lines == ["no durable sessions in /data"]
    assert siltstone("sessions", "list", "--json").document == []
