"""Create the first slab of a shard, and the directory of every slab, before the manifest names it.

The order is: directory, first segment, manifest. A slab that the manifest names is complete.
"""

from __future__ import annotations

from pathlib import PurePath

from siltstone.clock import Clock
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import create_directories, remove_tree
from siltstone.store.log.opening import begin_slab, identity_of, slab_directory
from siltstone.store.log.write.committer import Committer
from siltstone.store.slab.manifest import Manifest, SlabRecord, SlabState
from siltstone.topic.structure import Structure


def create_slabs(
    fs: FileSystem,
    clock: Clock,
    directory: PurePath,
    manifest: Manifest,
    created_us: int | None = None,
) -> Manifest:
    """Create the first slab of every shard; return the manifest that makes the database exist.

    `created_us` is given if the slabs exist at other sites too, since then.
    """
    records: list[SlabRecord] = []
    for number in range(manifest.settings.shards):
        record, committer = first_slab(
            fs, clock, directory, manifest, number, created_us=created_us
        )
        committer.close()
        records.append(record)
    return manifest.with_slabs(records)


def first_slab(
    fs: FileSystem,
    clock: Clock,
    directory: PurePath,
    manifest: Manifest,
    number: int,
    *,
    created_us: int | None = None,
) -> tuple[SlabRecord, Committer]:
    """Begin the first slab of a shard; it exists once the manifest contains its record."""
    since_us = clock.now_us() if created_us is None else created_us
    record = SlabRecord(
        shard=number,
        generation=1,
        state=SlabState.CURRENT,
        since_us=since_us,
        until_us=None,
        created_us=since_us,
    )
    committer = begin_in_place(
        fs,
        clock,
        directory,
        manifest,
        record,
        structure=Structure(list(manifest.settings.thresholds)).export(),
        producers=b"",
        serial=0,
    )
    return record, committer


def begin_in_place(
    fs: FileSystem,
    clock: Clock,
    directory: PurePath,
    manifest: Manifest,
    record: SlabRecord,
    *,
    structure: bytes,
    producers: bytes,
    serial: int,
) -> Committer:
    """Create the directory of a slab and its first segment; remove the remains of a crash."""
    place = slab_directory(directory, record.id)
    if fs.exists(place):
        # A crash left it before the manifest named it. No reader has seen a row of it.
        remove_tree(fs, place)
    create_directories(fs, place)
    return begin_slab(
        fs,
        clock,
        place,
        record,
        identity_of(manifest, record.id),
        manifest.settings,
        structure=structure,
        producers=producers,
        serial=serial,
        timestamp_us=record.since_us - 1,
    )
