"""What a start found in a database, told in the log."""

from __future__ import annotations

import logging
from typing import Final

from siltstone.database import Database
from siltstone.logs import log

_LOG: Final = logging.getLogger("siltstone.server")
_NAMES_MAX: Final = 10


def tell_recovered(database: Database) -> None:
    """Log what was mended after a crash, and the files that are not the store's own."""
    for report in database.reports:
        if report.torn_bytes or report.rebuilt:
            log(
                _LOG,
                logging.WARNING,
                "slab_recovered",
                database=database.name,
                slab=report.slab,
                torn_bytes=report.torn_bytes,
                indexes_rebuilt=len(report.rebuilt),
            )
        if report.foreign:
            log(
                _LOG,
                logging.WARNING,
                "foreign_files_ignored",
                database=database.name,
                slab=report.slab,
                count=len(report.foreign),
                names=", ".join(report.foreign[:_NAMES_MAX]),
            )
