from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from siltstone.cli.main import COMMANDS, PANELS, build
from siltstone.cli.output.help import examples, paragraphs
from tests.support.command_line import CommandLine
from tools.messages import BANNED

LINE_MAX = 70
ROOT = typer.main.get_command(build([]))
# Files that examples read while they are parsed.
FILES = ("invoice.xml",)


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    if isinstance(command, TyperGroup):
        for name, below in command.commands.items():
            yield from walk(below, (*path, name))


WALKED = list(walk(ROOT))
EVERY = [pytest.param(path, command, id=" ".join(path) or "siltstone") for path, command in WALKED]


def test_the_walk_reaches_every_command() -> None:
    assert len(WALKED) == 99
    assert [path[0] for path, _ in WALKED if len(path) == 1 and path[0] not in COMMANDS] == []
    assert all(isinstance(command, TyperCommand | TyperGroup) for _, command in WALKED)


@pytest.mark.parametrize(("path", "command"), EVERY)
def test_a_command_is_one_imperative_line(path: tuple[str, ...], command: Any) -> None:
    line = paragraphs(command.help)[0]
    limit = LINE_MAX if path else 79
    assert len(line) <= limit, line
    assert re.fullmatch(r"[A-Z][a-z]+,? .*\.", line), line
    # The third person says what a command does; the imperative what to do.
    assert not line.split()[0].endswith("s"), line


@pytest.mark.parametrize(("path", "command"), EVERY)
def test_no_help_has_banned_words(path: tuple[str, ...], command: Any) -> None:
    texts = [*paragraphs(command.help), *(each.help or "" for each in command.params)]
    assert [text for text in texts if BANNED.search(text)] == [], path


@pytest.mark.parametrize(("path", "command"), EVERY)
def test_every_parameter_has_a_sentence(path: tuple[str, ...], command: Any) -> None:
    wrong = [
        (parameter.name, parameter.help)
        for parameter in command.params
        if isinstance(parameter, TyperOption | TyperArgument)
        and not re.fullmatch(r"[A-Z].*[.]", parameter.help or "", re.DOTALL)
    ]
    assert wrong == [], path


def calls(example: str) -> Iterator[list[str]]:
    """Yield the words of each call of the command in a line of shell."""
    for part in example.split(" | "):
        words = shlex.split(part.partition(" < ")[0])
        if words[0] == "siltstone":
            yield words[1:]


@pytest.mark.parametrize(("path", "command"), EVERY)
def test_the_examples_can_be_parsed(
    path: tuple[str, ...], command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        (tmp_path / name).touch()
    shown = examples(command.help)
    assert shown, path
    for example in shown:
        assert len(example) < 99
        (words,) = calls(example)
        assert tuple(words[: len(path)]) == path, example
        parse(ROOT, words)


def parse(command: Any, words: list[str], parent: Any = None) -> None:
    """Parse words with the parsers of the commands, and run nothing."""
    with command.make_context(command.name or "siltstone", list(words), parent=parent) as context:
        if isinstance(command, TyperGroup):
            _, below, rest = command.resolve_command(context, words)
            parse(below, rest, context)


@pytest.mark.parametrize(("path", "command"), EVERY)
def test_the_help_fits_a_terminal_and_shows_no_types_on_flags(
    siltstone: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    path: tuple[str, ...],
    command: Any,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = siltstone(*path, "--help")
    assert (outcome.status, outcome.err) == (0, "")
    assert "bool" not in outcome.out
    assert "None" not in outcome.out
    shown = [f"  {example}" for example in examples(command.help)]
    wide = [line for line in outcome.lines if len(line) > 80 and line not in shown]
    assert wide == []


def test_commands_that_write_the_directory_say_so() -> None:
    alone = {" ".join(path) for path, command in WALKED if "for itself" in " ".join(flat(command))}
    assert alone == {
        "db info",
        "verify",
    }


def flat(command: Any) -> list[str]:
    return paragraphs(command.help)


def test_commands_stand_by_purpose(siltstone: CommandLine) -> None:
    lines = siltstone("--help").lines
    titles = [line.rstrip(":") for line in lines if line.rstrip(":") in PANELS]
    assert titles == ["Broker", "Messages", "Store", "Sessions", "Pipeline", "Maintenance"]
    start = lines.index("Broker:")
    names = [line.split()[0] for line in lines[start:] if line.startswith("  ")]
    assert names == COMMANDS


def test_without_arguments_five_commands_are_shown(siltstone: CommandLine) -> None:
    outcome = siltstone()
    shown = [line.strip() for line in outcome.lines if line.startswith("  siltstone")]
    commands = [line.partition("  ")[0] for line in shown]
    assert [shlex.split(command)[1] for command in commands] == [
        "serve",
        "sub",
        "pub",
        "read",
        "db",
    ]
    for command in commands:
        (words,) = calls(command)
        parse(ROOT, words)
    assert max(map(len, outcome.lines)) <= 80


def test_defaults_ranges_and_variables_are_shown(siltstone: CommandLine) -> None:
    shown = " ".join(siltstone("append", "--help").out.split())
    assert "--batch N Number of rows per batch. [1 to 1000000] [default: 10000]" in shown
    assert "[env: SILTSTONE_DATA] [default: siltstone-data]" in shown
    assert "--skip-bad Skip invalid lines, and report their number. --data" in shown


def test_a_long_name_stands_above_its_description(siltstone: CommandLine) -> None:
    lines = siltstone("append", "--help").lines
    at = lines.index("  --durability synced|written|none")
    assert lines[at + 1].startswith(" " * 22 + "What a stored row survives:")


def test_a_help_text_has_paragraphs_and_examples() -> None:
    text = "One.\nTwo.\n\nThree.\n\n$ siltstone a\n$ siltstone b"
    assert paragraphs(text) == ["One. Two.", "Three."]
    assert examples(text) == ["siltstone a", "siltstone b"]
