"""The source of the rows of a query, for its planner: a local directory, or a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from siltstone.errors import NotFoundError
from siltstone.fs.api import FileSystem
from siltstone.fs.posix import absolute_path
from siltstone.scan.options import ReadOptions, StartTimes
from siltstone.scan.plan import Admitted
from siltstone.scan.portion import Readable
from siltstone.scan.survey import (
    Plan,
    admit_from,
    find_database,
    plan_batch,
    plan_micro_batch,
    require_read,
    seek,
    waits_for,
)
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.feed.position import START, Position
from siltstone.store.log.read.selection import SlabExtent
from siltstone.store.slab.identity import DatabaseIdentity


class Origin(Protocol):
    """A database, and the options of a query on it."""

    def extents(self, reached: Position = START) -> list[SlabExtent]:
        """Return the current serials of every slab. A site of a cluster that has not read up to the
        position `reached` waits for these rows.

        Raises: RetryError if no site has them.
        """
        ...

    def identity(self) -> DatabaseIdentity:
        """Return the identity of the database of the last call of `extents`."""
        ...

    def seek(self, times: StartTimes) -> dict[int, int]:
        """Return for each shard the serial of the first row at or after its time."""
        ...

    def plan_batch(self) -> Plan[Readable]:
        """Plan a batch query up to the current end of each shard. Raises: SiltstoneError."""
        ...

    def plan_micro_batch(self, start: Mapping[int, int], end: Mapping[int, int]) -> Plan[Readable]:
        """Plan a read of the rows between two positions. Raises: SlabDroppedError."""
        ...

    def admit(
        self, sought: Mapping[int, range], *, rows_max: int | None, bytes_max: int | None
    ) -> Admitted:
        """Return the end of the next step of a stream, within these serials of each shard."""
        ...

    def close(self) -> None:
        """Close what is open; a later call opens it again."""
        ...


class DatabaseOrigin:
    """A database that the caller has opened."""

    def __init__(self, database: Database, options: ReadOptions) -> None:
        self.database = database
        self._options = options

    def extents(self, reached: Position = START) -> list[SlabExtent]:
        if reached.is_of(self.database.origin):
            if self._options.fails_on_loss:
                # If they do not come, the caller finds that the database ends before the position.
                waits_for(self.database, reached.serials)
            else:
                # A query that accepts losses would go back, and read rows again that come later.
                require_read(self.database, reached.serials)
        return self.database.extents()

    def identity(self) -> DatabaseIdentity:
        return self.database.origin

    def seek(self, times: StartTimes) -> dict[int, int]:
        return seek(self.database, self._options, times)

    def plan_batch(self) -> Plan[Readable]:
        return plan_batch(self.database, self._options)

    def plan_micro_batch(self, start: Mapping[int, int], end: Mapping[int, int]) -> Plan[Readable]:
        return plan_micro_batch(self.database, self._options, start, end)

    def admit(
        self, sought: Mapping[int, range], *, rows_max: int | None, bytes_max: int | None
    ) -> Admitted:
        return admit_from(
            self.database, self._options, sought, rows_max=rows_max, bytes_max=bytes_max
        )

    def close(self) -> None:
        pass


class DirectoryOrigin:
    """A data directory, opened for reading on first use; this takes no lock."""

    def __init__(self, fs: FileSystem, options: ReadOptions) -> None:
        self._fs = fs
        self._options = options
        self._store: Store | None = None

    def extents(self, reached: Position = START) -> list[SlabExtent]:
        try:
            return self._opened().extents(reached)
        except NotFoundError:
            # The database may have been dropped and created again: open the new one.
            self.close()
            return self._opened().extents(reached)

    def identity(self) -> DatabaseIdentity:
        return self._opened().identity()

    def seek(self, times: StartTimes) -> dict[int, int]:
        return self._opened().seek(times)

    def plan_batch(self) -> Plan[Readable]:
        return self._opened().plan_batch()

    def plan_micro_batch(self, start: Mapping[int, int], end: Mapping[int, int]) -> Plan[Readable]:
        return self._opened().plan_micro_batch(start, end)

    def admit(
        self, sought: Mapping[int, range], *, rows_max: int | None, bytes_max: int | None
    ) -> Admitted:
        return self._opened().admit(sought, rows_max=rows_max, bytes_max=bytes_max)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _opened(self) -> DatabaseOrigin:
        if self._store is None:
            self._store = Store(absolute_path(self._options.path), read_only=True, fs=self._fs)
        return DatabaseOrigin(find_database(self._store, self._options.database), self._options)
