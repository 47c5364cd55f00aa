"""Opening of the store by commands, and reports of its recovery."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import siltstone
from siltstone.cli.output.output import note, printable
from siltstone.errors import LockedError, NotFoundError, UsageError
from siltstone.fs.paths import StorePaths

# The names of the command in a process list: as a program, and as a module.
_COMMANDS: Final = frozenset({"siltstone", "siltstone.cli.main"})
_BROKER: Final = "siltstone serve"


def open_reading(data: Path) -> siltstone.Store:
    """Open a data directory for reading, also while a process writes it. Raises: UsageError."""
    try:
        return siltstone.open(data, read_only=True)
    except NotFoundError as exc:
        raise UsageError(
            f"no Siltstone data directory at {data}; "
            f"name one with --data, or create one with 'siltstone serve' or 'siltstone db create'"
        ) from exc


def open_writing(data: Path) -> siltstone.Store:
    """Open an existing data directory for writing; a misspelled path is not created.

    Raises: UsageError, LockedError.
    """
    open_reading(data).close()
    return open_creating(data)


def open_creating(data: Path) -> siltstone.Store:
    """Open a data directory for writing; create it if it does not exist.

    Raises: UsageError, LockedError.
    """
    with holder_named(data):
        return siltstone.open(data)


@contextmanager
def holder_named(data: Path) -> Iterator[None]:
    """Add the process that uses the directory to a LockedError."""
    try:
        yield
    except LockedError as exc:
        raise LockedError(
            f"data directory {data} is in use by {_holder(data)}; stop it first"
        ) from exc


def is_held_by_broker(data: Path) -> bool:
    """Return whether a broker has a data directory open for writing; also one that starts or stops
    and does not accept commands.
    """
    found = _found_holder(data)
    return found is not None and found[1] == _BROKER


def _holder(data: Path) -> str:
    """Return a description of the process that has a data directory open for writing."""
    found = _found_holder(data)
    return "another process" if found is None else f"process {found[0]} ({printable(found[1])})"


def _found_holder(data: Path) -> tuple[str, str] | None:
    """Return the id and the command of the process that has a data directory open for writing."""
    try:
        pid = Path(StorePaths(data).lock).read_text("ascii").strip()
        words = Path("/proc", pid, "cmdline").read_bytes().decode(errors="replace").split("\0")
    except (OSError, ValueError):
        return None
    names = [Path(word).name for word in words]
    command = next((at for at, name in enumerate(names) if name in _COMMANDS), None)
    called = names[0] if command is None else f"siltstone {names[command + 1]}"
    return pid, called.strip()


def note_recovery(database: siltstone.Database) -> None:
    """Print a note about what recovery removed when the database was opened for writing."""
    for report in database.reports:
        if report.torn_bytes:
            note(
                f"recovery removed {report.torn_bytes} bytes of an incomplete write: "
                f"database={database.name} slab={report.slab}"
            )
