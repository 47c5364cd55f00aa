"""The slabs of a database on the disk that this process does not write."""

from __future__ import annotations

from pathlib import PurePath
from threading import Lock

from siltstone.errors import (
    CorruptionError,
    NotFoundError,
    SlabDroppedError,
)
from siltstone.fs.api import FileSystem
from siltstone.store.log.opening import (
    slab_directory,
)
from siltstone.store.log.slab import Slab
from siltstone.store.log.slab_names import check_open, find_slab, open_slab, ordered
from siltstone.store.segment.chain import directory_bytes
from siltstone.store.slab.manifest import (
    Manifest,
    SlabId,
    SlabState,
    read_manifest,
)
from siltstone.store.slab.marks import with_marks


class ReadableSlabs:
    """The slabs of a database that another process writes, or none."""

    def __init__(self, fs: FileSystem, directory: PurePath) -> None:
        self._fs = fs
        self._directory = directory
        self._lock = Lock()
        self._slabs: dict[SlabId, Slab] = {}
        self.closed = False
        self.manifest = read_manifest(fs, directory)
        self._adopt(self.manifest)

    def all(self) -> list[Slab]:
        """Return the slabs by generation, then shard. Raises: ClosedError."""
        check_open(closed=self.closed)
        return ordered(self._slabs)

    def slab(self, slab: SlabId) -> Slab:
        """Return a slab. Raises: SlabDroppedError, NotFoundError, ClosedError."""
        check_open(closed=self.closed)
        if slab not in self._slabs:
            self.refresh()
        return find_slab(self._slabs, slab)

    def newest_us(self) -> int:
        """Return the latest time in the current slabs: of a last row, or 1 µs before a start."""
        current = [slab for slab in self.all() if slab.record.state is SlabState.CURRENT]
        newest = [slab.record.since_us - 1 for slab in current]
        for slab in current:
            index = slab.handles()[-1].segment().index
            newest += index.last_times[index.frame_count - 1 : index.frame_count]
        return max(newest)

    def ended(self, slab: SlabId) -> bool:
        """Return whether a slab accepts no more rows, and all its rows are known here."""
        return not self.slab(slab).follows

    def refresh(self) -> bool:
        """Read new data from the disk, the manifest first, so that no sealed slab misses rows."""
        check_open(closed=self.closed)
        with self._lock:
            self._adopt(self._manifest_now())
            for slab in self._slabs.values():
                if slab.follows:
                    ended = slab.record.state is not SlabState.CURRENT
                    self._follow(slab)
                    slab.follows = not ended
        return True

    def _manifest_now(self) -> Manifest:
        manifest = read_manifest(self._fs, self._directory)
        if manifest.salt != self.manifest.salt:
            # The slabs of both databases have the same names.
            raise NotFoundError(
                f"database {manifest.database!r} was dropped and created again: open the new one"
            )
        return manifest

    def _follow(self, slab: Slab) -> None:
        """Refresh one slab, unless its writer drops it at this moment."""
        try:
            slab.refresh()
        except (SlabDroppedError, CorruptionError):
            self._adopt(self._manifest_now())
            if slab.id in self._slabs:
                raise

    def slab_bytes(self, slab: SlabId) -> int:
        """Return the disk space of a slab in bytes."""
        return directory_bytes(self._fs, slab_directory(self._directory, slab))

    def close(self) -> None:
        """Release the maps."""
        self.closed = True
        self._slabs = {}

    def _adopt(self, manifest: Manifest) -> None:
        slabs: dict[SlabId, Slab] = {}
        manifest = with_marks(self._fs, self._directory, manifest)
        for record in manifest.slabs:
            slab = self._slabs.get(record.id)
            if slab is None:
                slab = open_slab(self._fs, self._directory, record, manifest.settings)
                # Its files are opened after the manifest was read, so they have all its rows.
                slab.follows = record.state is SlabState.CURRENT
            slab.record = record
            slabs[record.id] = slab
        self.manifest = manifest
        self._slabs = slabs
