"""Finds damage in the sealed segments of a shard, and remembers it until it is repaired.

A site reads all its sealed segments again from time to time, and compares their rows with those of
the other sites. `verify --repair` at a stopped site writes a list of the damaged segments
(`replication/<shard>.damaged`). The site copies them from another one after its next start.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePath
from typing import Final

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import create_directories, remove_file, replace_file
from siltstone.store.log.check.findings import Finding
from siltstone.store.log.opening import slab_directory
from siltstone.store.log.read.columns import RowDigest, columns_of, columns_of_frame, table_rows
from siltstone.store.log.read.scan import read_frames
from siltstone.store.segment.frame import ROWS, STATE
from siltstone.store.segment.index import decode_index
from siltstone.store.segment.segment import open_segment
from siltstone.store.segment.sift import index_path, is_segment
from siltstone.store.segment.table import FrameTable
from siltstone.store.slab.manifest import REPLICATION, Manifest, SlabState, read_manifest

_SUFFIX: Final = "damaged"
# The only entry in the list of a damaged key-value shard, which is replaced as a whole.
DAMAGED_MAP: Final = "map"
# SHARD/GENERATION/SERIAL.seg
_DEPTH: Final = 3
_LATER: Final = "the site copies it from another one when it starts"


def sealed_segments(
    fs: FileSystem, directory: PurePath, manifest: Manifest, shard: int
) -> list[str]:
    """Return the sealed segments of a shard, as GENERATION/SERIAL.seg."""
    found: list[str] = []
    for record in manifest.slabs_of(shard):
        place = slab_directory(directory, record.id)
        if not fs.exists(place):
            # The slab was dropped meanwhile.
            continue
        names = sorted(entry.name for entry in fs.list(place) if is_segment(entry))
        if record.state is SlabState.CURRENT:
            del names[-1:]
        found += [f"{record.generation}/{name}" for name in names]
    return found


def digest_of_rows(fs: FileSystem, place: PurePath, path: str) -> bytes:
    """Read a sealed segment; return the digest of its rows.

    Raises: CorruptionError if it is damaged; NotFoundError if it is gone.
    """
    where = place / path
    segment = open_segment(fs, where)
    segment.follow()
    segment.check_whole()
    with fs.open(index_path(where), writable=False) as file:
        sealed = decode_index(file.map(writable=False), index_path(where))
    if sealed.index.next_serial < segment.index.next_serial:
        raise CorruptionError("the index has fewer rows than the segment", path=where)
    if sealed.index.frame_count != segment.index.frame_count:
        raise CorruptionError("the segment has fewer frames than its index", path=where)
    digest = RowDigest()
    for found in read_frames(segment, range(segment.index.frame_count), 0):
        if isinstance(found, FrameTable):
            digest.add(columns_of(table_rows(found)))
        elif found.header.kind == ROWS:
            digest.add(columns_of_frame(found))
        elif found.header.kind != STATE:
            raise CorruptionError("rows of the segment are lost", path=where)
    return digest.value()


def write_damaged(fs: FileSystem, directory: PurePath, shard: int, paths: Iterable[str]) -> None:
    """Remember durably which segments of a shard are damaged."""
    path = _path(directory, shard)
    if not fs.exists(path.parent):
        create_directories(fs, path.parent)
    known = read_damaged(fs, directory, shard) | set(paths)
    replace_file(fs, path, json.dumps(sorted(known)).encode())


def read_damaged(fs: FileSystem, directory: PurePath, shard: int) -> frozenset[str]:
    """Return which segments of a shard are known to be damaged."""
    path = _path(directory, shard)
    if not fs.exists(path):
        return frozenset()
    try:
        return frozenset(map(str, json.loads(fs.read(path))))
    except ValueError as exc:
        raise CorruptionError(f"a list of damaged segments: {exc}", path=path) from exc


def forget_damaged(fs: FileSystem, directory: PurePath, shard: int) -> None:
    """Forget the damage of a shard: it is repaired."""
    path = _path(directory, shard)
    if fs.exists(path):
        remove_file(fs, path)


def _path(directory: PurePath, shard: int) -> PurePath:
    return directory / REPLICATION / f"{shard}.{_SUFFIX}"


def remember_findings(
    fs: FileSystem, directory: PurePath, findings: Iterable[Finding]
) -> list[Finding]:
    """Remember the segments that `verify --repair` could not restore: the site copies them from
    another one after its next start. Return the findings, which then say so.
    """
    damaged: dict[int, set[str]] = {}
    told: list[Finding] = []
    for each in findings:
        finding = each
        parts: tuple[str, ...] = ()
        if directory in finding.path.parents:
            parts = finding.path.relative_to(directory).parts
        if finding.severity == "damage" and len(parts) == _DEPTH and parts[0].isdecimal():
            damaged.setdefault(int(parts[0]), set()).add(f"{parts[1]}/{parts[2][:20]}.seg")
            finding = _left_to_others(finding)
        told.append(finding)
    for shard, paths in damaged.items():
        write_damaged(fs, directory, shard, paths)
    return told


def remember_map(
    fs: FileSystem, directory: PurePath, shards: int, findings: Iterable[Finding]
) -> list[Finding]:
    """Remember that a key-value database is damaged, so that the site copies it from the others
    after its next start. Return the findings, which then say so.
    """
    told = list(findings)
    if any(finding.severity == "damage" for finding in told):
        for shard in range(shards):
            write_damaged(fs, directory, shard, {DAMAGED_MAP})
    return [_left_to_others(each) if each.severity == "damage" else each for each in told]


def _left_to_others(finding: Finding) -> Finding:
    done = f"{finding.repaired}; " if finding.repaired else ""
    return replace(finding, repaired=f"{done}{_LATER}")


def is_replicated(fs: FileSystem, directory: PurePath) -> bool:
    """Return whether a database has copies at other sites; one without a manifest is not known."""
    try:
        return read_manifest(fs, directory).settings.backend == "replicated"
    except (NotFoundError, CorruptionError):
        return False
