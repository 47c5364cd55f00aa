"""Slabs that were dropped, and why: told in the log, and counted."""

from __future__ import annotations

import logging
from typing import Final, Literal, NamedTuple

from siltstone.logs import log
from siltstone.store.slab.manifest import SlabId

# Too old, too much, needed by no session and no share group, or asked for.
Why = Literal["age", "size", "delivered", "command"]

_LOG: Final = logging.getLogger("siltstone.store")


class Dropped(NamedTuple):
    """A slab that was dropped, with its rows, None where they are not counted, and the disk space
    that it took.
    """

    slab: SlabId
    why: Why
    rows: int | None
    size_bytes: int


class DropLog:
    """The drops of one database since it was opened; told by one thread at a time."""

    def __init__(self, database: str) -> None:
        self._database = database
        # What delivery alone has given back.
        self.reclaimed_rows = 0
        self.reclaimed_bytes = 0

    def tell(self, dropped: Dropped) -> None:
        """Take note of a slab that is gone from the manifest."""
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
