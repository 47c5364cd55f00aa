"""What the commands print: rich tables for people, one JSON document for programs; notes go to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from siltstone.database import Database

# Lines that go to a file or a pipe are never cut to a width.
_UNBOUNDED: Final = 100_000


def console() -> Console:
    """Return a console on stdout."""
    width = None if sys.stdout.isatty() else _UNBOUNDED
    return Console(file=sys.stdout, width=width, highlight=False, soft_wrap=False)


def show(renderable: RenderableType) -> None:
    """Print for people; what goes into a file has no blanks at the ends of its lines."""
    target = console()
    if target.is_terminal:
        target.print(renderable)
        return
    with target.capture() as captured:
        target.print(renderable)
    lines = (line.rstrip() for line in captured.get().splitlines())
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def show_json(document: Any) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def note(text: str) -> None:
    """Tell something beside the answer."""
    sys.stderr.write(f"siltstone: {text}\n")


def note_recovery(database: Database) -> None:
    """Tell what opening for writing had to mend, if it had to."""
    for report in database.reports:
        if report.torn_bytes:
            note(
                f"a torn end of {report.torn_bytes} bytes was cut off: "
                f"database={database.name} slab={report.slab}"
            )


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    """Return an empty table; the columns named in `right` hold numbers."""
    numbers = set(right)
    made = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", no_wrap=True)
    return made


def add_row(target: Table, cells: Sequence[str]) -> None:
    """Add cells as they are: nothing in them is taken for markup or for an order to the terminal."""
    target.add_row(*(Text(printable(cell)) for cell in cells))


def facts(pairs: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and what they are."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column()
    for name, value in pairs:
        made.add_row(Text(name), Text(printable(value)))
    return made


def printable(text: str) -> str:
    """Return text in which characters that move the cursor or hide are written as escapes."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in the right form."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
