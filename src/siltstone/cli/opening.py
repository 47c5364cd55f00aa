"""How the commands open the store, and what that had to mend."""

from __future__ import annotations

from pathlib import Path

import siltstone
from siltstone.cli.output import note
from siltstone.errors import NotFoundError, UsageError


def open_reading(data: Path) -> siltstone.Store:
    """Open a data directory for reading, beside whoever writes it. Raises: UsageError."""
    try:
        return siltstone.open(data, read_only=True)
    except NotFoundError as exc:
        raise UsageError(
            f"no Siltstone data directory at {data}; "
            f"name one with --data, or create one with 'siltstone db create'"
        ) from exc


def open_writing(data: Path) -> siltstone.Store:
    """Open an existing data directory for writing; a misspelt one is not created.

    Raises: UsageError, LockedError.
    """
    open_reading(data).close()
    return siltstone.open(data)


def note_recovery(database: siltstone.Database) -> None:
    """Tell what opening for writing had to mend, if it had to."""
    for report in database.reports:
        if report.torn_bytes:
            note(
                f"recovery removed {report.torn_bytes} bytes of an incomplete write: "
                f"database={database.name} slab={report.slab}"
            )
