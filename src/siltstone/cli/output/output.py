"""The output of commands: tables for users, JSON for programs, and notes on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final, TextIO

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from siltstone.cli.output.streams import is_terminal
from siltstone.errors import UsageError

# Lines that go to a file or a pipe are never cut to a width.
_UNBOUNDED: Final = 100_000


def console_on(file: TextIO) -> Console:
    """Return a console that cuts lines to the width of a terminal; elsewhere it cuts nothing."""
    return Console(file=file, width=None if file.isatty() else _UNBOUNDED, highlight=False)


def print_on(target: Console, renderable: RenderableType) -> None:
    """Print for users; in a file or pipe, lines have no trailing spaces."""
    if target.is_terminal:
        target.print(renderable)
        return
    with target.capture() as captured:
        target.print(renderable)
    lines = (line.rstrip() for line in captured.get().splitlines())
    target.file.write("".join(f"{line}\n" for line in lines))


def show(renderable: RenderableType) -> None:
    """Print an answer for users."""
    print_on(console_on(sys.stdout), renderable)


def say(sentence: str) -> None:
    """Print an answer of one line; markup in it has no effect."""
    sys.stdout.write(f"{printable(sentence)}\n")


def show_json(document: Any) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def note(text: str) -> None:
    """Print a note on stderr, separate from the answer."""
    sys.stderr.write(f"siltstone: {printable(text)}\n")


def confirm_drop(what: str, rows: int) -> None:
    """Ask before rows are lost. Raises: UsageError without a terminal; Exit if not confirmed."""
    lost = counted(rows, "row")
    if not is_terminal():
        raise UsageError(f"{what} has {lost}; pass --yes to drop it without a question")
    ask(f"Drop {what} with {lost}?")


def confirm(deed: str) -> None:
    """Ask before something is lost.

    Raises: UsageError without a terminal; Exit if not confirmed.
    """
    if not is_terminal():
        raise UsageError(f"this would {deed}; pass --yes to do it without a question")
    ask(f"{deed[:1].upper()}{deed[1:]}?")


def ask(question: str) -> None:
    """Ask the user on the terminal. Raises: Exit for any answer but yes."""
    sys.stderr.write(f"{printable(question)} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.Exit(1)


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    """Return an empty table; the columns in `right` are numbers."""
    numbers = set(right)
    made = Table(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold"
    )
    for column in columns:
        if column in numbers:
            made.add_column(column, justify="right", no_wrap=True)
        else:
            made.add_column(column, overflow="fold")
    return made


def add_row(target: Table, cells: Sequence[str]) -> None:
    """Add a row of plain text: markup and control characters in it have no effect."""
    target.add_row(*(Text(printable(cell)) for cell in cells))


def facts(pairs: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and values."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column()
    for name, value in pairs:
        made.add_row(*(Text(printable(cell)) for cell in (name, value)))
    return made


def printable(text: str) -> str:
    """Return text with escapes for control characters and invisible characters."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in the right form."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def were(number: int) -> str:
    """Return "was" or "were" for a number."""
    return "was" if number == 1 else "were"
