"""Drop slabs: by command, by retention, and when all their rows are delivered.

The order is: the manifest names the slab under `dropping`, readers forget it, the files are
removed, the manifest forgets it. The next start finishes a drop that a crash interrupted.

Invariant: a leader drops only slabs of shards that it leads, although retention counts the bytes of
all shards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from threading import Lock
from typing import Final, NamedTuple

from siltstone.errors import UsageError
from siltstone.fs.publish import remove_tree
from siltstone.store.log.opening import slab_directory
from siltstone.store.log.records import DropRecord
from siltstone.store.shard.manifest_change import ManifestChange
from siltstone.store.shard.writable import Leading, WritableShard
from siltstone.store.slab.drops import DropLog, DroppedSlab, Why
from siltstone.store.slab.manifest import Manifest, SlabId, SlabState
from siltstone.store.slab.marks import read_tiered, tiered_slabs
from siltstone.store.slab.retention import (
    RECLAIM_SEAL_BYTES,
    due_for_drop,
    due_for_reclaim,
    sets_rotation,
)

# The context in which a slab is dropped; its value says whether the drop is allowed.
Dropping = Callable[[], AbstractContextManager[bool]]
# Greater than every serial.
_END: Final = 1 << 64


class Reclaimable(NamedTuple):
    """The ends of slabs that may be dropped once all their rows are delivered.

    `sealed` has for each shard the serials after its sealed slabs, in order. `current` has the
    serial after the current slab of a shard, if that slab may be sealed for this purpose.
    """

    sealed: dict[int, list[int]]
    current: dict[int, int]


class Upkeep:
    """Drops the slabs of the led shards. From any thread, as long as the database is open."""

    def __init__(self, leading: Leading, leaders: Mapping[int, WritableShard]) -> None:
        self._leading = leading
        self._leaders = leaders
        self._drop_lock = Lock()
        self.drops = DropLog(leading.manifest.current.database)

    @property
    def _manifest(self) -> Manifest:
        return self._leading.manifest.current

    def drop(self, slab: SlabId) -> None:
        """Delete a sealed slab: first from the manifest, then from the disk."""
        if slab.shard not in self._leaders:
            raise UsageError(f"this process only reads shard {slab.shard}: ask its leader")
        with self._leading.lock:
            self._drop({slab: "command"})
        self.finish_drops()

    def enforce_retention(
        self, slab_bytes: Callable[[SlabId], int], *, only: int | None = None
    ) -> list[SlabId]:
        """Drop the slabs that exceed the retention by age or size; return their ids.

        `slab_bytes` returns the disk space of any slab of the database. With `only`, just those of
        one shard are dropped, on its thread.
        """
        # The threads of all shards do this: two of them must not drop the same slab.
        with self._leading.lock:
            tiering = self._adopt_tiered()
            due = due_for_drop(
                self._manifest.settings,
                self._manifest.slabs,
                {record.id: slab_bytes(record.id) for record in self._manifest.slabs},
                passed_us=self._leading.clock.passed_us,
                tiering=tiering,
            )
            dropped = {
                slab: why
                for slab, why in due.items()
                if slab.shard in self._leaders and only in (None, slab.shard)
            }
            if dropped:
                self._drop(dropped)
        self.finish_drops()
        return list(dropped)

    def reclaimable(self) -> Reclaimable:
        """Return the ends of the slabs that may be dropped once all rows are delivered.

        Raises: CorruptionError.
        """
        led = dict.fromkeys(self._leaders, _END)
        with self._leading.lock:
            due = due_for_reclaim(self._manifest.slabs, led, tiering=self._adopt_tiered())
        sealed: dict[int, list[int]] = {}
        for record in due:
            assert record.until_serial is not None
            sealed.setdefault(record.shard, []).append(record.until_serial)
        current: dict[int, int] = {}
        if not sets_rotation(self._manifest.settings):
            for shard in list(self._leading.opened):
                queue = shard.opened
                if queue is not None:
                    committer = queue.committer
                    if committer.rows and committer.size_bytes() >= RECLAIM_SEAL_BYTES:
                        current[shard.number] = committer.next_serial
        return Reclaimable(sealed, current)

    def reclaim(self, needed: Mapping[int, int], dropping: Dropping) -> list[SlabId]:
        """Drop the sealed slabs without a needed row; return their ids.

        `needed` has for each shard the serial from which on rows are needed. Each slab is dropped
        in a `dropping` context, whose value says whether the drop is allowed.
        """
        dropped: list[SlabId] = []
        led = {shard: serial for shard, serial in needed.items() if shard in self._leaders}
        with self._leading.lock:
            due = due_for_reclaim(self._manifest.slabs, led, tiering=self._adopt_tiered())
            for record in due:
                with dropping() as may_drop:
                    if not may_drop:
                        break
                    self._drop({record.id: "delivered"})
                dropped.append(record.id)
        self.finish_drops()
        return dropped

    def seal_delivered(self, needed: Mapping[int, int]) -> bool:
        """Seal the generations that have RECLAIM_SEAL_BYTES or more and no needed row, unless the
        settings say when they end; return whether there was any.
        """
        if sets_rotation(self._manifest.settings):
            return False
        sealed = [
            queue.seal_before(needed[shard.number], RECLAIM_SEAL_BYTES)
            for shard in list(self._leading.opened)
            if shard.number in needed and (queue := shard.opened) is not None
        ]
        return any(sealed)

    def adopt_tiered(self) -> None:
        """Mark the sealed slabs that are in the lake as tiered. Raises: CorruptionError."""
        with self._leading.lock:
            self._adopt_tiered()

    def adopt_drop(self, record: DropRecord) -> None:
        """Drop the slabs that another site of the cluster has dropped, unless they are gone."""
        with self._leading.lock:
            known = {each.id: each for each in self._manifest.slabs}
            gone = [known[slab] for slab in record.slabs if slab in known]
            if not gone:
                return
            change = ManifestChange(self._leading.manifest)
            change.store(record)
            change.sync()
            why: Why = "command" if record.reclaimed is None else "delivered"
            for each in gone:
                size_bytes = self._leaders[each.shard].forget(each.id)
                rows = (each.until_serial or each.first_serial) - each.first_serial
                self.drops.tell(DroppedSlab(each.id, why, rows, size_bytes))
        self.finish_drops()

    def finish_drops(self) -> None:
        """Remove the files of slabs that are listed under `dropping`."""
        leading = self._leading
        # The threads of all shards do this: two must not remove the same files.
        with self._drop_lock:
            led = (slab for slab in self._manifest.dropping if slab.shard in self._leaders)
            dropping = dict.fromkeys(led)
            if not dropping:
                return
            for slab in dropping:
                # A crash may have happened between the removal and this update of the manifest.
                if leading.fs.exists(place := slab_directory(leading.directory, slab)):
                    remove_tree(leading.fs, place)
            leading.manifest.update(
                lambda manifest: replace(
                    manifest,
                    dropping=tuple(slab for slab in manifest.dropping if slab not in dropping),
                )
            )
            leading.manifest.keep_reserve()

    def close(self) -> None:
        """Refuse changes of the manifest, after those of other threads that are in progress."""
        with self._leading.lock, self._drop_lock:
            self._leading.manifest.close()

    def _drop(self, slabs: Mapping[SlabId, Why]) -> None:
        """Remove slabs from the manifest, by one change of it; their files are removed later."""
        ends: dict[SlabId, tuple[int, int]] = {}
        for slab in slabs:
            known = self._leaders[slab.shard].slab(slab)
            if known.record.state is SlabState.CURRENT:
                raise UsageError(f"slab {slab} is current: seal it, then drop it")
            until = known.record.until_serial
            ends[slab] = (
                known.record.first_serial,
                known.next_serial() if until is None else until,
            )
        by_shard: dict[int, list[SlabId]] = {}
        for slab in slabs:
            by_shard.setdefault(slab.shard, []).append(slab)
        change = ManifestChange(self._leading.manifest)
        committed: list[SlabId] = []
        try:
            for number, gone in by_shard.items():
                delivered = [ends[slab][1] for slab in gone if slabs[slab] == "delivered"]
                record = DropRecord(gone, max(delivered, default=None))
                self._leaders[number].log.commit(record, change, sync=False)
                committed += gone
        finally:
            # Drop the slabs whose records are committed, even if the log refuses the record of
            # another shard.
            change.sync()
            for slab in committed:
                size_bytes = self._leaders[slab.shard].forget(slab)
                first, until = ends[slab]
                self.drops.tell(DroppedSlab(slab, slabs[slab], until - first, size_bytes))

    def _adopt_tiered(self) -> bool:
        """Mark the slabs in the lake as tiered; return whether this database is tiered at all."""
        leading = self._leading
        serials = read_tiered(leading.fs, leading.directory)
        led = {shard: at for shard, at in (serials or {}).items() if shard in self._leaders}
        records = tiered_slabs(self._manifest, led)
        if records:
            leading.manifest.update(lambda manifest: manifest.with_slabs(records))
            for record in records:
                self._leaders[record.shard].adopt(record)
        return serials is not None
