"""A shard that this process only reads: another process writes its files, or no process does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Final

from siltstone.errors import CorruptionError, SlabDroppedError
from siltstone.fs.api import FileSystem
from siltstone.store.log.opening import slab_directory
from siltstone.store.log.slab import Slab
from siltstone.store.log.slab_names import check_open, find_slab, open_slab
from siltstone.store.segment.chain import directory_bytes
from siltstone.store.shard.shard import Role, end_of
from siltstone.store.slab.manifest import SlabId, SlabRecord, SlabState
from siltstone.store.slab.settings import DatabaseSettings


class ReaderShard:
    """The slabs of a shard that another process writes."""

    role: Final = Role.READER

    def __init__(self, number: int, fs: FileSystem, directory: PurePath) -> None:
        self.number = number
        self._fs = fs
        self._directory = directory
        # Replaced and never changed: other threads iterate over it.
        self._slabs: dict[SlabId, Slab] = {}
        self._closed = False

    def slabs(self) -> tuple[Slab, ...]:
        """Return the slabs by generation. Raises: ClosedError."""
        check_open(closed=self._closed)
        return tuple(self._slabs.values())

    def has(self, slab: SlabId) -> bool:
        """Return whether a slab is known."""
        return slab in self._slabs

    def slab(self, slab: SlabId) -> Slab:
        """Return a slab. Raises: SlabDroppedError, NotFoundError, ClosedError."""
        check_open(closed=self._closed)
        return find_slab(self._slabs, slab)

    def ended(self, slab: SlabId) -> bool:
        """Return whether a slab accepts no more rows, and all its rows are known here."""
        return not self.slab(slab).is_growing

    def slab_bytes(self, slab: SlabId) -> int:
        """Return the disk space of a slab in bytes. Raises: NotFoundError."""
        return directory_bytes(self._fs, slab_directory(self._directory, slab))

    def end(self) -> int:
        """Return the serial after the last readable row."""
        return end_of(self.slabs())

    def newest_us(self) -> int:
        """Return the time of the last row, or 1 µs before the start of the current slab."""
        current = self.slabs()[-1]
        index = current.handles()[-1].segment().index
        times = index.last_times[index.frame_count - 1 : index.frame_count]
        return max([current.record.since_us - 1, *times])

    def adopt(self, records: Sequence[SlabRecord], settings: DatabaseSettings) -> None:
        """Adopt the slabs that the manifest names, and forget all others."""
        slabs: dict[SlabId, Slab] = {}
        for record in records:
            slab = self._slabs.get(record.id)
            if slab is None:
                slab = open_slab(self._fs, self._directory, record, settings)
                # The files are opened after the manifest was read, so they have all rows of the
                # slab.
                slab.is_growing = record.state is SlabState.CURRENT
            slab.record = record
            slabs[record.id] = slab
        self._slabs = slabs

    def refresh(self, read_manifest: Callable[[], None]) -> None:
        """Read new rows from the disk. The manifest was read before, so no sealed slab misses rows.

        `read_manifest` adopts the newest manifest, if a slab is dropped at this moment.
        """
        for slab in self._slabs.values():
            if slab.is_growing:
                ended = slab.record.state is not SlabState.CURRENT
                try:
                    slab.refresh()
                except (SlabDroppedError, CorruptionError):
                    read_manifest()
                    if slab.id in self._slabs:
                        raise
                slab.is_growing = not ended

    def close(self) -> None:
        """Release the maps."""
        self._closed = True
        self._slabs = {}
