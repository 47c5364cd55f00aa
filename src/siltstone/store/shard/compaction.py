"""Compact sealed segments of the led shards: the files are replaced, the rows stay.

The order of a replacement, of which a crash may prevent any tail:

1. the new segment and its index are written beside, in the directory `compacting`, and synced;
2. the manifest names the segment as being compacted;
3. the new segment is renamed over the old one, then the new index over the old one;
4. the manifest names the segment as compacted.

After a crash the segment is the old or the new one. If it is new and the index is old, `settle`
finishes the replacement at the next start; until then readers see that the index belongs to other
frames and do without it. Everything else in `compacting` is removed.

Readers that have mapped the old file go on with it. Serials do not change, so no saved position
changes.

Invariant: a slab that is dropped meanwhile is not touched: steps 2 to 4 hold the lock that a drop
needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from threading import Lock
from typing import Final

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import create_directories, replace_file
from siltstone.store.log.compact.rewrite import Rewritten, rewrite_segment
from siltstone.store.log.opening import slab_directory
from siltstone.store.log.read.columns import contents_of
from siltstone.store.segment.chain import SegmentHandle
from siltstone.store.segment.index import DIGEST, encode_index
from siltstone.store.segment.segment import open_segment, segment_path
from siltstone.store.segment.sift import index_path, read_summary
from siltstone.store.shard.shard import Role
from siltstone.store.shard.writable import Leading, WritableShard
from siltstone.store.slab.manifest import COMPACTING, Manifest, SlabId, SlabRecord
from siltstone.store.writer.producers import ProducerTable
from siltstone.topic.structure import Structure
from siltstone.units import SECOND_US

# Segments whose frames have more rows on average are as fast as compacted ones.
SMALL_FRAME_ROWS: Final = 8192
_AGE_US: Final = 60 * SECOND_US
# A segment ends early and is compacted if it has at least this many frames with fewer rows than
# this on average. With fewer frames compaction gains little, and the number of segments grows.
SCATTERED_MIN: Final = 4096
_SCATTERED_ROWS: Final = 1024

# Writes a compacted segment and its index beside it.
Rewrite = Callable[[PurePath, PurePath], Rewritten]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A sealed segment of small frames."""

    slab: SlabId
    base_serial: int
    source: PurePath
    target: PurePath
    rows: int
    frames: int
    size_bytes: int
    # How often the files of the shard had been replaced by those of another site.
    installs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """A segment that was compacted."""

    job: Job
    rows: int
    frames: int
    size_bytes: int
    digest: bytes


class Compaction:
    """Compacts segments of the led shards, one at a time; from any thread."""

    def __init__(self, leading: Leading, leaders: Mapping[int, WritableShard]) -> None:
        self._running = Lock()
        self._leading = leading
        self._leaders = leaders
        self._directory = leading.directory / COMPACTING

    def end_segments(self) -> None:
        """End the active segments that hold many small frames and are older than a minute, so that
        they can be compacted.

        Raises: StorageFullError, PoisonedError, ClosedError.
        """
        manifest = self._leading.manifest.current
        if not _is_compactable(manifest):
            return
        before_us = self._leading.clock.now_us() - _AGE_US
        for shard in list(self._leading.opened):
            if shard.role is not Role.LEADER:
                # The leader decides where the segments of a replicated shard end.
                continue
            queue = shard.opened
            limits = SCATTERED_MIN, _SCATTERED_ROWS, before_us
            if queue is not None and queue.committer.is_scattered(*limits):
                queue.end_scattered(*limits)

    def jobs(self) -> list[Job]:
        """Return the sealed segments that consist of small frames, the newest first.

        Raises: CorruptionError, ClosedError.
        """
        manifest = self._leading.manifest.current
        if not _is_compactable(manifest):
            return []
        jobs: list[Job] = []
        for record in reversed(manifest.slabs):
            if record.shard in self._leaders:
                jobs += self._jobs_of(record)
        return sorted(jobs, key=lambda job: (-job.slab.generation, job.slab.shard))

    def _jobs_of(self, record: SlabRecord) -> list[Job]:
        done = set(record.compacted)
        leader = self._leaders[record.shard]
        slab = leader.slab(record.id)
        jobs: list[Job] = []
        for handle in reversed(slab.handles()):
            if handle.base_serial in done:
                continue
            summary = handle.summary
            if summary is None or summary.revision:
                continue
            rows = summary.next_serial - summary.first_serial
            # The first frame has the state and no rows.
            frames = max(1, summary.frame_count - 1)
            if rows and rows < SMALL_FRAME_ROWS * frames and frames > 1:
                jobs.append(
                    Job(
                        slab=record.id,
                        base_serial=handle.base_serial,
                        source=handle.path,
                        target=self._directory / _work_name(record.id, handle.base_serial),
                        rows=rows,
                        frames=summary.frame_count,
                        size_bytes=summary.end_position,
                        installs=leader.installs,
                    )
                )
        return jobs

    def run(self, job: Job, rewrite: Rewrite | None = None) -> Compacted | None:
        """Compact a segment; return None if its slab was dropped meanwhile, or the segment was
        compacted by another thread.

        Without `rewrite`, the new segment is written on this thread.

        Raises: UnfitError if the segment cannot be compacted; StorageFullError, CorruptionError,
        DiskError. The old segment stays then.
        """
        with self._running:
            return self._run(job, rewrite)

    def _run(self, job: Job, rewrite: Rewrite | None) -> Compacted | None:
        fs = self._leading.fs
        record = _record_of(self._leading.manifest.current, job.slab)
        if record is None or job.base_serial in record.compacted:
            return None
        create_directories(fs, self._directory)
        self._remove(job)
        try:
            made = (rewrite or partial(rewrite_segment, fs))(job.source, job.target)
            if not self._replace(job):
                return None
        except NotFoundError:
            # The slab was dropped while it was read.
            return None
        finally:
            self._remove(job)
        self._leaders[job.slab.shard].measure(job.slab)
        return Compacted(
            job=job,
            rows=made.rows,
            frames=made.frames,
            size_bytes=made.size_bytes,
            digest=made.digest,
        )

    def _replace(self, job: Job) -> bool:
        """Replace a segment by its compacted form; return False if its slab was dropped."""
        leading = self._leading
        fs, manifest = leading.fs, leading.manifest
        leader = self._leaders[job.slab.shard]
        with leading.lock:
            record = _record_of(manifest.current, job.slab)
            if record is None or leader.installs != job.installs:
                return False
            self._adopt(replace(record, compacting=job.base_serial))
            place = job.source.parent
            fs.rename(job.target, job.source)
            fs.sync_directory(place)
            fs.rename(index_path(job.target), index_path(job.source))
            fs.sync_directory(place)
            self._adopt(_finished(record, job.base_serial))
            for handle in leader.slab(job.slab).handles():
                if handle.base_serial == job.base_serial:
                    handle.reopen()
        return True

    def _adopt(self, record: SlabRecord) -> None:
        def change(manifest: Manifest) -> Manifest:
            # The settings may have changed since the record was read.
            known = _record_of(manifest, record.id)
            encoding = record.encoding if known is None else known.encoding
            return manifest.with_slab(replace(record, encoding=encoding))

        self._leading.manifest.update(change)
        self._leaders[record.shard].adopt(record)

    def _remove(self, job: Job) -> None:
        for path in (job.target, index_path(job.target)):
            with suppress(NotFoundError):
                self._leading.fs.remove(path)


def settle(leading: Leading, led: Mapping[int, WritableShard]) -> None:
    """Finish or undo the replacements that a crash interrupted, before the shards are opened."""
    fs, manifest = leading.fs, leading.manifest
    directory = leading.directory / COMPACTING
    if not fs.exists(directory):
        return
    settled = [
        _settle_slab(fs, leading, directory, record, record.compacting)
        for record in manifest.current.slabs
        if record.shard in led and record.compacting is not None
    ]
    if settled:
        manifest.update(lambda manifest: manifest.with_slabs(settled))
    for entry in fs.list(directory):
        shard = entry.name.partition("-")[0]
        if shard.isdecimal() and int(shard) in led:
            fs.remove(directory / entry.name)
    fs.sync_directory(directory)


def _settle_slab(
    fs: FileSystem, leading: Leading, directory: PurePath, record: SlabRecord, base: int
) -> SlabRecord:
    path = segment_path(slab_directory(leading.directory, record.id), base)
    try:
        segment = open_segment(fs, path)
    except CorruptionError:
        # Opening the slab reports it.
        return replace(record, compacting=None)
    # The last rename may not be on the disk yet.
    fs.sync_directory(path.parent)
    revision = segment.header.revision
    if not revision:
        return replace(record, compacting=None)
    if _revision_of(fs, path) != revision:
        made = directory / _work_name(record.id, base)
        if _revision_of(fs, made) == revision:
            fs.rename(index_path(made), index_path(path))
            fs.sync_directory(path.parent)
        else:
            _write_index(fs, path, leading.manifest.current.settings.thresholds)
    return _finished(record, base)


def _write_index(fs: FileSystem, path: PurePath, thresholds: tuple[int, ...]) -> None:
    """Write the index of a compacted segment from its frames. Raises: CorruptionError."""
    handle = SegmentHandle(fs, path)
    segment = handle.segment()
    segment.check_whole()
    structure = Structure(list(thresholds))
    for block in handle.edges():
        structure.apply(block)
    producers = ProducerTable()
    producers.apply(handle.producers())
    contents = contents_of(segment)
    segment.index.words = contents.words
    data = encode_index(
        segment.index,
        structure=structure.export(),
        producers=producers.encode(),
        revision=segment.header.revision,
        parts={DIGEST: contents.digest},
    )
    replace_file(fs, index_path(path), data)


def _is_compactable(manifest: Manifest) -> bool:
    """Return whether segments of a database may be replaced: rows of a topic log stay where a
    client wrote them. The sites of a replicated database compact at different times.
    """
    return not manifest.holds_logs and not manifest.logs


def _revision_of(fs: FileSystem, path: PurePath) -> int | None:
    summary = read_summary(fs, path)
    return None if summary is None else summary.revision


def _record_of(manifest: Manifest, slab: SlabId) -> SlabRecord | None:
    return next((record for record in manifest.slabs if record.id == slab), None)


def _finished(record: SlabRecord, base: int) -> SlabRecord:
    compacted = tuple(sorted({*record.compacted, base}))
    return replace(record, compacting=None, compacted=compacted)


def _work_name(slab: SlabId, base: int) -> str:
    return f"{slab.shard}-{slab.generation}-{base:020d}.seg"
