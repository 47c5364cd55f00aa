"""The data directory of a job, checked before Spark starts, because that takes long."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import siltstone
from siltstone.cli.nodes import own_directory
from siltstone.cli.opening import open_reading
from siltstone.errors import LockedError, NotFoundError, UsageError
from siltstone.fs.paths import FLIGHT
from siltstone.manage.running import is_served
from siltstone.scan.survey import find_database


def checked_directory(data: Path, database: str) -> str:
    """Return the path of a data directory that has the database, or one if there is no name.

    Raises: UsageError, NotFoundError; CorruptionError if it cannot be opened.
    """
    path = own_directory(data)
    with open_reading(data) as store:
        chosen_database(store, data, database)
    return path


def check_target(data: Path) -> None:
    """Check that a job can append rows to a data directory.

    Raises: LockedError if a broker uses the directory and does not serve Flight.
    """
    if is_served(data) and not is_served(data, FLIGHT):
        raise LockedError(
            f"the broker of {data} does not accept rows from this job; set flight.enabled = true "
            f"in its settings and start it again, or stop it first"
        )


def lake_directory(data: Path, database: str) -> str:
    """Return the path of a data directory, for a job that needs only its Delta tables.

    Raises: UsageError, also if there are several databases and none is named.
    """
    path = own_directory(data)
    with suppress(NotFoundError), siltstone.open(data, read_only=True) as store:
        if not database and len(_own_names(store)) > 1:
            chosen_database(store, data, database)
    return path


def database_name(data: Path, name: str) -> str | None:
    """Return the name of a database, or of the only one; None if there is no data directory.

    Raises: UsageError.
    """
    try:
        store = siltstone.open(data, read_only=True)
    except NotFoundError:
        return None
    with store:
        return chosen_database(store, data, name).name


def chosen_database(store: siltstone.Store, data: Path, name: str) -> siltstone.Database:
    """Return a database by its name, or the only one if there is no name. Raises: UsageError."""
    names = _own_names(store)
    if not name and not names:
        raise UsageError(
            f"{data} has no database; create one with 'siltstone db create', or start the broker"
        )
    if not name and len(names) > 1:
        raise UsageError(
            f"several databases exist ({', '.join(names)}); choose one with --database"
        )
    return find_database(store, name)


def _own_names(store: siltstone.Store) -> list[str]:
    """Return the databases of the user; names of the broker's own begin with an underscore."""
    return [name for name in store.names() if not name.startswith("_")]
