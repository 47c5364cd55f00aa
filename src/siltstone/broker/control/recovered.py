"""Log messages about the recovery of a database."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from siltstone.logs import log
from siltstone.store.database import Database
from siltstone.store.log.opening import RecoveryReport

_LOG: Final = logging.getLogger("siltstone.server")
_NAMES_MAX: Final = 10


def tell_recovered(database: Database) -> None:
    """Log the repairs after a crash, and the files that do not belong to the store.

    Shards that are opened later are included.
    """
    database.when_recovered(partial(_tell, database.name))


def _tell(database: str, report: RecoveryReport) -> None:
    if report.torn_bytes or report.rebuilt:
        log(
            _LOG,
            logging.WARNING,
            "slab_recovered",
            database=database,
            slab=report.slab,
            torn_bytes=report.torn_bytes,
            indexes_rebuilt=len(report.rebuilt),
        )
    if report.foreign:
        log(
            _LOG,
            logging.WARNING,
            "foreign_files_ignored",
            database=database,
            slab=report.slab,
            count=len(report.foreign),
            names=", ".join(report.foreign[:_NAMES_MAX]),
        )
