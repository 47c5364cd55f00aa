"""The data directory that a job works on, looked at before Spark starts: that takes its time."""

from __future__ import annotations

from pathlib import Path

from siltstone.bulk.survey import find_database
from siltstone.cli.nodes import own_directory
from siltstone.cli.opening import open_reading


def checked_directory(data: Path, database: str) -> str:
    """Return the path of a data directory that has the database; without a name, one.

    Raises: UsageError, NotFoundError; CorruptionError where it cannot be opened.
    """
    path = own_directory(data)
    with open_reading(data) as store:
        find_database(store, database)
    return path
