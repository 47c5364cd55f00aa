"""Begin a slab, and open one again after a stop or a crash.

The order of creation is: directory, first segment, manifest. A slab that the manifest names is
complete. When a slab is opened again, every segment except the last gets its index if a crash
prevented it. The last segment is recovered and written further.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import PurePath

from siltstone.clock import Clock
from siltstone.errors import CorruptionError, StorageFullError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import sweep_temporaries
from siltstone.store.log.slab import Slab, bounds_of
from siltstone.store.log.write.committer import Committer
from siltstone.store.segment.ahead import settle_prepared
from siltstone.store.segment.body import encode_state
from siltstone.store.segment.chain import (
    ChainWriter,
    SegmentHandle,
    SlabIdentity,
    directory_bytes,
    refuse_lost,
    seal_segment,
    state_header,
)
from siltstone.store.segment.recovery import Recovered, recover_segment
from siltstone.store.segment.segment import Segment
from siltstone.store.segment.sift import list_segments
from siltstone.store.slab.manifest import Manifest, SlabId, SlabRecord
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.writer.producers import ProducerTable
from siltstone.topic.structure import Structure


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """The result of the recovery of a slab."""

    slab: SlabId
    torn_bytes: int
    rebuilt: tuple[str, ...]
    foreign: tuple[str, ...]


def slab_directory(directory: PurePath, slab: SlabId) -> PurePath:
    """Return the directory of a slab of the database in this directory."""
    return directory / str(slab.shard) / str(slab.generation)


def identity_of(manifest: Manifest, slab: SlabId) -> SlabIdentity:
    """Return the fields that all segments of a slab have in their headers."""
    logs = manifest.logs
    seed = manifest.seeds.get(str(slab))
    return SlabIdentity(
        database=manifest.database,
        shard=slab.shard,
        generation=slab.generation,
        seed=seed_of(manifest.salt, slab) if seed is None else seed,
        salt=manifest.salt,
        topic=logs[slab.shard] if slab.shard < len(logs) else "",
    )


def seed_of(salt: int, slab: SlabId) -> int:
    """Return the seed of the frames of a slab."""
    return int.from_bytes(blake2b(f"{salt}/{slab}".encode(), digest_size=4).digest(), "little")


def begin_slab(
    fs: FileSystem,
    clock: Clock,
    directory: PurePath,
    record: SlabRecord,
    identity: SlabIdentity,
    settings: DatabaseSettings,
    *,
    structure: bytes,
    producers: bytes,
    serial: int,
    timestamp_us: int,
) -> Committer:
    """Create the first segment of a slab in an empty directory, durably.

    The structure and the producers are encoded, as in the state frame of a segment.
    """
    slab = Slab(fs, directory, record, Structure(list(settings.thresholds)))
    slab.publish([structure])
    table = ProducerTable()
    table.apply(producers)
    writer = _chain_writer(fs, slab, identity, settings, sealed_bytes=0)
    writer.start(
        serial=serial,
        timestamp_us=timestamp_us,
        structure=structure,
        producers=producers,
        created_us=record.created_us,
        segment_bytes=settings.segment_bytes,
    )
    return Committer(
        clock,
        settings,
        slab,
        writer,
        producers=table,
        next_serial=serial,
        last_timestamp_us=timestamp_us,
    )


def _chain_writer(
    fs: FileSystem,
    slab: Slab,
    identity: SlabIdentity,
    settings: DatabaseSettings,
    *,
    sealed_bytes: int,
) -> ChainWriter:
    # The sites of a cluster write the same bytes, and may have different versions. The frames of
    # topic logs are blocks.
    packs = settings.backend == "local" and not identity.topic
    return ChainWriter(fs, slab.chain, identity, sealed_bytes=sealed_bytes, packs=packs)


def reopen_slab(
    fs: FileSystem,
    clock: Clock,
    directory: PurePath,
    record: SlabRecord,
    identity: SlabIdentity,
    settings: DatabaseSettings,
) -> tuple[Committer, RecoveryReport]:
    """Open the current slab of a shard for writing, with recovery. Raises: CorruptionError."""
    sweep_temporaries(fs, directory)
    settle_prepared(fs, directory, identity.seed, identity.owns)
    listed = fs.list(directory)
    bounds = bounds_of(record, identity.seed)
    entries, foreign = list_segments(fs, directory, listed, bounds)
    refuse_lost(fs, directory, listed)
    if not entries:
        raise CorruptionError("the slab does not have a segment", path=directory)
    slab = Slab(fs, directory, record, Structure(list(settings.thresholds)))
    handles = [SegmentHandle(fs, directory / entry.name) for entry in entries]
    rebuilt = tuple(
        handle.path.name for handle in handles[:-1] if _rebuild_index(fs, handle, settings)
    )
    slab.chain.handles = tuple(handles)
    slab.check_first()
    for before, after in pairwise(handles):
        before.check_reaches(after.base_serial)
    last_name = handles[-1].path.name
    sealed_bytes = directory_bytes(fs, directory, but=last_name)
    writer = _chain_writer(fs, slab, identity, settings, sealed_bytes=sealed_bytes)
    if handles[-1].mark_sealed():
        committer, torn_bytes = _after_sealed(clock, settings, slab, writer), 0
    else:
        recovered = recover_segment(fs, handles[-1].path, allocated=entries[-1].allocated_bytes)
        committer, torn_bytes = (
            _after_recovery(clock, settings, slab, writer, recovered),
            recovered.torn_bytes,
        )
    _check_identity(slab.chain.handles[-1].segment(), identity)
    report = RecoveryReport(
        slab=slab.id, torn_bytes=torn_bytes, rebuilt=rebuilt, foreign=tuple(foreign)
    )
    return committer, report


def _after_sealed(
    clock: Clock, settings: DatabaseSettings, slab: Slab, writer: ChainWriter
) -> Committer:
    """Continue after a segment that was sealed just before the stop; begin the next one when it is
    needed.
    """
    last = slab.chain.handles[-1]
    slab.publish(last.edges())
    producers = ProducerTable()
    producers.apply(last.producers())
    return Committer(
        clock,
        settings,
        slab,
        writer,
        producers=producers,
        # An empty segment was too small for the next frame. Its name must not be used again.
        next_serial=max(last.next_serial, last.base_serial + 1),
        last_timestamp_us=max(last.segment().index.last_times, default=0),
    )


def _after_recovery(
    clock: Clock,
    settings: DatabaseSettings,
    slab: Slab,
    writer: ChainWriter,
    recovered: Recovered,
) -> Committer:
    writer.adopt(recovered.writer)
    slab.publish(recovered.edges)
    producers = ProducerTable()
    for block in recovered.producers:
        producers.apply(block)
    if recovered.next_serial > recovered.writer.segment.index.next_serial:
        # On a full disk the gap is written with the first frame. Until then the reserved serial in
        # the header stays.
        with suppress(StorageFullError):
            _leave_gap(slab, writer, producers, recovered)
    return Committer(
        clock,
        settings,
        slab,
        writer,
        producers=producers,
        next_serial=recovered.next_serial,
        last_timestamp_us=recovered.last_timestamp_us,
    )


def _leave_gap(
    slab: Slab, writer: ChainWriter, producers: ProducerTable, recovered: Recovered
) -> None:
    """Skip, durably, the serials that readers may have seen before a crash lost their rows."""
    structure = slab.export()
    body, sections = encode_state(structure, producers.encode())
    active = recovered.writer
    if active.has_room(len(body)):
        header = state_header(
            body,
            sections,
            serial=recovered.next_serial,
            timestamp_us=recovered.last_timestamp_us,
        )
        active.write(header, body, ())
        active.release()
        active.publish()
    else:
        active.segment.index.next_serial = recovered.next_serial
        writer.seal(structure=structure, producers=producers.encode())


def _rebuild_index(fs: FileSystem, handle: SegmentHandle, settings: DatabaseSettings) -> bool:
    """Write the index of a segment that is not the last; return False if it has one already."""
    if handle.mark_sealed():
        return False
    entry = next(item for item in fs.list(handle.path.parent) if item.name == handle.path.name)
    recovered = recover_segment(fs, handle.path, allocated=entry.allocated_bytes)
    structure = Structure(list(settings.thresholds))
    for block in recovered.edges:
        structure.apply(block)
    producers = ProducerTable()
    for block in recovered.producers:
        producers.apply(block)
    recovered.writer.close()
    segment = recovered.writer.segment
    segment.index.next_serial = recovered.next_serial
    seal_segment(fs, segment, structure=structure.export(), producers=producers.encode())
    handle.mark_sealed()
    return True


def _check_identity(segment: Segment, identity: SlabIdentity) -> None:
    """Raise CorruptionError if the header of a segment names another slab."""
    header = segment.header
    if not identity.owns(header):
        raise CorruptionError(
            f"the segment belongs to another slab: database={header.database!r} "
            f"shard={header.shard} "
            f"generation={header.generation}",
            path=segment.path,
        )
