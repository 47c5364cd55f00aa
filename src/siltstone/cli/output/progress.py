"""The progress of a long command: a bar on stderr if it is a terminal, otherwise nothing.

The bar shows the amount done, the rate, and the time left if the end is known. It disappears when
the work ends, so that only the answer stays.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePath
from typing import Any, Final, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from siltstone.cli.output.output import console_on
from siltstone.errors import SiltstoneError
from siltstone.fs.api import DirectoryEntry, EntryKind, File, FileSystem
from siltstone.settings.quantities import format_size

BYTES: Final = "bytes"
ROWS: Final = "rows"
_BAR_WIDTH: Final = 20


class _TimeLeft(TimeRemainingColumn):
    """The time left, if the end is known."""

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text()
        return super().render(task).append(" left")


class Meter:
    """Receives the amount of work done."""

    def __init__(self, bar: Progress, task: TaskID, unit: str) -> None:
        self._bar = bar
        self._task = task
        self._unit = unit
        self._started = time.monotonic()
        self._count = 0

    def tell(self, count: int, *, done: float | None = None, total: float | None = None) -> None:
        """Show a count; `done` of `total` is the progress, if it is not the count itself."""
        self._count = count
        rate = count / max(time.monotonic() - self._started, 1e-6)
        self._bar.update(
            self._task,
            completed=count if done is None else done,
            total=total,
            count=_amount(count, self._unit),
            rate=f"{_amount(int(rate), self._unit)}/s",
        )

    def add(self, amount: int) -> None:
        """Add to the amount done."""
        self.tell(self._count + amount)


def _amount(count: int, unit: str) -> str:
    return format_size(count) if unit == BYTES else f"{count:,} {unit}"


@contextmanager
def progress(text: str, unit: str = ROWS, total: float | None = None) -> Iterator[Meter]:
    """Show a bar during a long operation."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(_BAR_WIDTH),
        TextColumn("{task.fields[count]}"),
        TextColumn("{task.fields[rate]}"),
        _TimeLeft(compact=True),
        console=Console(file=sys.stderr),
        disable=not sys.stderr.isatty(),
        transient=True,
    )
    task = bar.add_task(text, total=total or None, count="", rate="")
    with bar:
        yield Meter(bar, task, unit)


@contextmanager
def counting(text: str, *, by_rows: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show the steps of a job; yield a function that takes the rows of a step, and the rest.

    The rest is a number of rows if by_rows is set, otherwise of steps.
    """
    with progress(text) as meter:
        rows = steps = 0

        def tell(stored: int, left: int) -> None:
            nonlocal rows, steps
            rows, steps = rows + stored, steps + 1
            done = rows if by_rows else steps
            meter.tell(rows, done=done, total=done + left)

        yield tell


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show on a terminal that an operation of unknown length is running."""
    if not sys.stderr.isatty():
        yield
        return
    with console_on(sys.stderr).status(text):
        yield


def tree_size(fs: FileSystem, directory: PurePath) -> int:
    """Return the size of all readable files below a directory."""
    total = 0
    with suppress(SiltstoneError):
        for entry in fs.list(directory):
            below = entry.kind is EntryKind.DIRECTORY
            total += tree_size(fs, directory / entry.name) if below else _used(entry)
    return total


def _used(entry: DirectoryEntry) -> int:
    # A segment that is being written has its full size from the start, with a hole at its end.
    return min(entry.size_bytes, entry.allocated_bytes)


class _WatchedFile:
    """A file that reports how much of it was read."""

    def __init__(self, file: File, tell: Callable[[int], None]) -> None:
        self._file = file
        self._tell = tell

    def read_at(self, offset: int, length: int) -> bytes:
        data = self._file.read_at(offset, length)
        self._tell(len(data))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def watched(file: File, tell: Callable[[int], None]) -> File:
    """Return a file for reading that reports the size of each read."""
    return cast("File", _WatchedFile(file, tell))
