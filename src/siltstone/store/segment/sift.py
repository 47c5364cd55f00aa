"""Decide which files in the directory of a slab are its segments.

A segment is a regular file with the name of a segment and the magic at its start. All other files
are foreign: their names are returned to the caller, and they are not touched.

A file with the name of a segment but without the magic may be foreign, or a segment with a damaged
header. It counts as a segment, so that the damage is reported, if one of these facts proves that it
had rows:

- it has a valid index file;
- it contains a valid frame of this slab: only the writer of the slab knows the seed;
- the slab needs a segment at that serial: its first one, or the one after a sealed segment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from siltstone.errors import CorruptionError, NotFoundError, UsageError
from siltstone.fs.api import DirectoryEntry, EntryKind, FileSystem
from siltstone.store.segment.index import SUMMARY_BYTES, SegmentSummary, decode_summary
from siltstone.store.segment.segment import (
    MAGIC,
    SEGMENT_BYTES_MIN,
    SEGMENT_HEADER_BYTES,
    open_segment,
)
from siltstone.store.segment.walker import whole_frames

_NAME: Final = re.compile(r"\d{20}\.seg")
_PAGE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabBounds:
    """Facts about a slab that are not in its files: its first and end serial, and the seed."""

    first_serial: int | None = None
    until_serial: int | None = None
    seed: int | None = None


UNKNOWN: Final = SlabBounds()


def is_segment(entry: DirectoryEntry) -> bool:
    """Return whether a directory entry has the name and the kind of a segment."""
    return entry.kind is EntryKind.FILE and _NAME.fullmatch(entry.name) is not None


def index_path(path: PurePath) -> PurePath:
    """Return the path of the index file of a segment."""
    return path.with_suffix(".idx")


def read_summary(fs: FileSystem, path: PurePath) -> SegmentSummary | None:
    """Return the totals in the index file of a segment, or None if there is no valid one."""
    path = index_path(path)
    try:
        with fs.open(path, writable=False) as file:
            return decode_summary(file.read_at(0, SUMMARY_BYTES), path)
    except (NotFoundError, CorruptionError, UsageError):
        return None


def list_segments(
    fs: FileSystem,
    directory: PurePath,
    entries: Sequence[DirectoryEntry],
    bounds: SlabBounds = UNKNOWN,
) -> tuple[list[DirectoryEntry], list[str]]:
    """Return the segments among the entries of a slab's directory, and the names of all other
    files.

    Raises: NotFoundError when a file is deleted meanwhile.
    """
    named = [entry for entry in entries if is_segment(entry)]
    marked = [entry for entry in named if has_magic(fs, directory / entry.name)]
    segments = marked
    if len(marked) < len(named):
        segments = _with_damaged(fs, directory, named, marked, bounds)
    ours = {entry.name for entry in segments}
    ours |= {f"{name[:-4]}.idx" for name in ours}
    return segments, [entry.name for entry in entries if entry.name not in ours]


def has_magic(fs: FileSystem, path: PurePath) -> bool:
    """Return whether a regular file begins with the magic. Raises: NotFoundError."""
    with fs.open(path, writable=False) as file:
        return file.read_at(0, len(MAGIC)) == MAGIC


def holds_frames(fs: FileSystem, path: PurePath, seed: int) -> bool:
    """Return whether a file contains a valid frame with this seed."""
    with fs.open(path, writable=False) as file:
        if file.size() <= SEGMENT_HEADER_BYTES:
            return False
        view = file.map(writable=False)
        stop = file.data_end(SEGMENT_HEADER_BYTES)
        frames = whole_frames(view, SEGMENT_HEADER_BYTES, stop, seed)
        found = next(frames, None)
        # The file may be resized later, and no map may exist then.
        frames.close()
        view.release()
        return found is not None


def _with_damaged(
    fs: FileSystem,
    directory: PurePath,
    named: Sequence[DirectoryEntry],
    marked: Sequence[DirectoryEntry],
    bounds: SlabBounds,
) -> list[DirectoryEntry]:
    """Return the files with the magic, and those without it that are damaged segments."""
    seed = bounds.seed if bounds.seed is not None else _seed_of(fs, directory, marked)
    has_mark = {entry.name for entry in marked}
    segments: list[DirectoryEntry] = []
    for entry in named:
        path = directory / entry.name
        summary = read_summary(fs, path)
        if (
            entry.name in has_mark
            or (summary is not None and summary.first_serial == int(path.stem))
            or (seed is not None and holds_frames(fs, path, seed))
            or _is_needed(fs, directory, entry, segments, bounds)
        ):
            segments.append(entry)
    return segments


def _seed_of(fs: FileSystem, directory: PurePath, marked: Sequence[DirectoryEntry]) -> int | None:
    """Return the seed of the first segment with a valid header."""
    for entry in marked:
        try:
            return open_segment(fs, directory / entry.name).header.seed
        except CorruptionError:
            continue
    return None


def _is_needed(
    fs: FileSystem,
    directory: PurePath,
    entry: DirectoryEntry,
    before: Sequence[DirectoryEntry],
    bounds: SlabBounds,
) -> bool:
    """Return whether rows of the slab are lost unless this file is one of its segments."""
    base = int(PurePath(entry.name).stem)
    if bounds.until_serial is not None and base >= bounds.until_serial:
        return False
    if not before:
        return base == bounds.first_serial
    last = directory / before[-1].name
    summary = read_summary(fs, last)
    if summary is not None:
        # Behind a segment without rows one serial is skipped, because the file name is taken.
        empty = summary.next_serial == int(last.stem)
        return base in (summary.next_serial, summary.next_serial + empty)
    # The segment before accepts rows, or lost its index too. Then only the size is evidence.
    has_size = entry.size_bytes >= SEGMENT_BYTES_MIN and entry.size_bytes % _PAGE_BYTES == 0
    return has_size and base == _end_of(fs, last)


def _end_of(fs: FileSystem, path: PurePath) -> int | None:
    """Return the serial after the last row of a segment without an index."""
    try:
        segment = open_segment(fs, path)
    except CorruptionError:
        return None
    segment.follow()
    return max(segment.index.next_serial, segment.credible_reserved())
