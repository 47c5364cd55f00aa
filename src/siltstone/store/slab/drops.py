"""Slabs that were dropped, with the reason: logged and counted."""

from __future__ import annotations

import logging
from typing import Final, Literal, NamedTuple

from siltstone.logs import log
from siltstone.store.slab.manifest import SlabId

# By age, by size, needed by no session and no share group, or dropped by a command.
Why = Literal["age", "size", "delivered", "command"]

_LOG: Final = logging.getLogger("siltstone.store")


class DroppedSlab(NamedTuple):
    """A slab that was dropped, with its number of rows (None if unknown) and its disk space."""

    slab: SlabId
    why: Why
    rows: int | None
    size_bytes: int


class DropLog:
    """The drops of one database since it was opened. One thread at a time calls it."""

    def __init__(self, database: str) -> None:
        self._database = database
        # Only the drops with the reason "delivered".
        self.reclaimed_rows = 0
        self.reclaimed_bytes = 0

    def tell(self, dropped: DroppedSlab) -> None:
        """Log and count a slab that was removed from the manifest."""
        if dropped.why == "delivered":
            self.reclaimed_rows += dropped.rows or 0
            self.reclaimed_bytes += dropped.size_bytes
        log(
            _LOG,
            logging.INFO,
            "slab_dropped",
            database=self._database,
            slab=str(dropped.slab),
            rows=dropped.rows,
            bytes=dropped.size_bytes,
            why=dropped.why,
        )
