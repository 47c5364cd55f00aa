from __future__ import annotations

from typing import Any

import pytest
import typer

from siltstone.broker.settings.broker import BrokerSettings
from siltstone.cli.main import build, execute
from siltstone.errors import (
    CorruptionError,
    DiskError,
    PoisonedError,
    StorageFullError,
    UsageError,
)
from siltstone.version import __version__, form
from tests.support.command_line import DATA, CommandLine
from tests.support.loaded_settings import load_settings

COMMANDS = [
    ("db", "create", "x"),
    ("db", "list"),
    ("db", "info", "x"),
    ("db", "drop", "x"),
    ("db", "set", "x", "retain=1d"),
    ("append", "x"),
    ("read", "x"),
    ("slabs", "x"),
    ("structure", "x"),
    ("seal", "x"),
    ("drop", "x", "0/1"),
    ("verify", "x"),
]


def test_the_version_says_whether_it_is_compiled(siltstone: CommandLine) -> None:
    outcome = siltstone("--version")
    assert (outcome.status, outcome.out) == (0, f"siltstone {__version__} ({form()})\n")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_takes_data_and_json_and_explains_itself(
    siltstone: CommandLine, command: tuple[str, ...]
) -> None:
    outcome = siltstone(*command, "--help")
    assert outcome.status == 0
    assert [option for option in ("--data", "--json") if option not in outcome.out] == []


def names(app: typer.Typer) -> list[str | None]:
    groups = [group.name for group in app.registered_groups]
    return groups + [command.name for command in app.registered_commands]


def variables(command: Any) -> set[str]:
    """Return the environment variables of a command and of its subcommands."""
    own = {each.envvar for each in command.params if each.envvar is not None}
    return own.union(*map(variables, getattr(command, "commands", {}).values()))


def test_the_broker_starts_with_the_variables_of_the_other_commands() -> None:
    found = variables(typer.main.get_command(build([])))
    assert found == {"SILTSTONE_DATA", "SILTSTONE_PASSWORD"}
    settings = load_settings(None, dict.fromkeys(found, "x"), {})
    assert settings == BrokerSettings(data="x")


def test_the_commands_are_those_that_are_documented(siltstone: CommandLine) -> None:
    assert names(build([])) == [
        "config",
        "cluster",
        "retained",
        "topic",
        "db",
        "kv",
        "spool",
        "sessions",
        "groups",
        "pipeline",
        "schema",
        "snapshot",
        "clock",
        "serve",
        "passwd",
        "pub",
        "sub",
        "read",
        "append",
        "slabs",
        "structure",
        "seal",
        "compact",
        "drop",
        "sql",
        "verify",
        "backup",
        "restore",
    ]
    assert siltstone("--help").status == 0


@pytest.mark.parametrize(("first", "built"), [("pub", ["pub"]), ("db", ["db"])])
def test_only_the_command_that_is_asked_for_is_built(first: str, built: list[str]) -> None:
    assert names(build([first, "x"])) == built


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c[:2] != ("db", "create")], ids=" ".join
)
def test_a_missing_directory_is_told_in_one_sentence_and_not_created(
    siltstone: CommandLine, command: tuple[str, ...]
) -> None:
    outcome = siltstone(*command)
    assert (outcome.status, outcome.out, outcome.err) == (
        2,
        "",
        (
            "siltstone: no Siltstone data directory at /data; "
            "name one with --data, or create one with 'siltstone serve' or 'siltstone db create'\n"
        ),
    )
    assert not siltstone.fs.exists(DATA)


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("frobnicate",), "No such command 'frobnicate'; see 'siltstone --help'"),
        (("serv",), "No such command 'serv'. Did you mean 'serve'? See 'siltstone --help'"),
        (("read",), "Missing argument 'NAME'; see 'siltstone read --help'"),
        (
            ("read", "x", "--limit", "0"),
            "'--limit': must be at least 1, got 0; see 'siltstone read --help'",
        ),
        (
            ("append", "x", "--batch", "1000001"),
            "'--batch': must be at most 1000000, got 1000001; see 'siltstone append --help'",
        ),
        (("read", "x", "--limit", "x"), "'--limit': expected a whole number, got 'x'; see"),
        (("topic", "poll", "t", "--wait", "-1"), "must be at least 0, got -1; see"),
        (("topic", "poll", "t", "--wait", "x"), "expected a number, got 'x'; see"),
        (
            ("append", "x", "--durability", "maybe"),
            "'--durability': 'maybe' is not one of 'synced', 'written', 'none'; see",
        ),
        (("db", "list", "--frob"), "No such option: --frob"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line_with_where_to_look(
    siltstone: CommandLine, args: tuple[str, ...], complaint: str
) -> None:
    outcome = siltstone(*args)
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert outcome.err.startswith("siltstone: ")
    assert complaint in outcome.err


@pytest.mark.parametrize("args", [(), ("db",)])
def test_no_command_shows_the_help_alone(siltstone: CommandLine, args: tuple[str, ...]) -> None:
    outcome = siltstone(*args)
    assert (outcome.status, outcome.err) == (2, "")
    assert "Usage: siltstone" in outcome.out


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (UsageError("do\nthis"), 2, "siltstone: do this\n"),
        (PoisonedError("a sync failed"), 3, "siltstone: a sync failed\n"),
        (
            StorageFullError(DATA, needed_bytes=7),
            3,
            "siltstone: no space left on the disk: path=/data needed_bytes=7\n",
        ),
        (
            DiskError(DATA, "sync", "I/O error", errno=5),
            3,
            "siltstone: sync failed: I/O error: path=/data errno=5\n",
        ),
        (
            CorruptionError("bad checksum", path=DATA, offset=64),
            3,
            "siltstone: bad checksum: path=/data offset=64\n",
        ),
        (
            PermissionError(13, "Permission denied", "rows.csv"),
            2,
            "siltstone: cannot open rows.csv: permission denied\n",
        ),
        (
            OSError(5, "Input/output error"),
            3,
            "siltstone: cannot read the input or write the output: input/output error\n",
        ),
        (OSError(28, "No space left"), 3, "siltstone: cannot write the output: no space left\n"),
        (OSError("odd"), 2, "siltstone: odd\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_becomes_a_sentence_and_a_status(
    siltstone: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    status: int,
    sentence: str,
) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr("siltstone.cli.store.slabs.open_reading", fail)
    outcome = siltstone("slabs", "metrics")
    assert (outcome.status, outcome.out, outcome.err) == (status, "", sentence)


def test_our_own_mistakes_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr("siltstone.cli.store.slabs.open_reading", fail)
    with pytest.raises(AssertionError, match="a bug"):
        execute(["slabs", "metrics"])
