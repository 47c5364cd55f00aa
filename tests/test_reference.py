"""The reference says what the code does: pages that are made from it are current, tables whole."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import siltstone
from siltstone.cli.main import build, execute
from tools.reference import ROOT, pages

LINE_MAX = 160
COMMANDS = ROOT / "docs" / "how-to" / "commands-beside-a-broker.md"


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_a_generated_page_is_the_one_that_the_code_makes(path: Path) -> None:
    assert path.read_text("utf-8") == pages()[path], "make it anew: python -m tools.reference"


def commands(command: Any, name: str = "") -> Iterator[str]:
    nested: dict[str, Any] = getattr(command, "commands", {})
    if not nested:
        yield name
    for child, inner in nested.items():
        yield from commands(inner, f"{name} {child}".strip())


def rows() -> dict[str, str]:
    """Return what the page says of each command."""
    table = re.findall(r"^\| (`.*`) \| (.*) \|$", COMMANDS.read_text("utf-8"), re.MULTILINE)
    return {name: text for names, text in table for name in re.findall(r"`([^`]+)`", names)}


def test_the_page_on_a_running_broker_has_every_command() -> None:
    known = set(commands(typer.main.get_command(build([]))))
    assert set(rows()) - known == {"verify --repair", "pipeline rollup --topics"}
    assert known - set(rows()) == set()


def test_commands_that_need_the_broker_to_be_stopped_are_refused_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {
        "serve": "--port 0",
        "verify --repair": "messages",
        "cluster export-local": "",
        "cluster import-local": "messages",
        "cluster refound": "",
    }
    stopped = [name for name, text in rows().items() if text == "Stop the broker first."]
    assert sorted(stopped) == sorted(arguments)
    with siltstone.open(tmp_path) as store:
        store.create("messages")
        for name in stopped:
            status = execute(shlex.split(f"{name} {arguments[name]} --data {tmp_path}"))
            said = capsys.readouterr().err
            assert (name, status, "is in use by" in said) == (name, 2, True), said


def test_lines_of_the_documentation_fit_a_screen() -> None:
    paths = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("packaging/*.md"),
    ]
    long = [
        f"{path.relative_to(ROOT)}: {line[:60]}"
        for path in sorted(paths)
        for line in without_code(path.read_text("utf-8")).splitlines()
        if len(line) > LINE_MAX and not line.lstrip().startswith(("|", "![", "    "))
    ]
    assert long == []


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
