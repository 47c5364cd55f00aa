"""Marks: small files in which a pipeline passes values to the writer of a database.

    <database>/marks/tiered   for each shard the serial up to which its rows are in the lake
    <database>/marks/seed     structures and thresholds that the next generation begins with

    line 1  `siltstone-mark 1 <CRC-32C of the rest, 8 hex digits>`
    rest    JSON

Other processes replace these files. The writer reads them and never changes them, so no process
needs its lock. They have a directory of their own, which no cleanup touches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Final

from crc32c import crc32c

from siltstone.errors import CorruptionError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import create_directories, replace_file
from siltstone.store.slab.manifest import Manifest, SlabRecord, SlabState
from siltstone.topic.grammar import check_pattern
from siltstone.topic.structure import Structure

MARKS: Final = "marks"
_TIERED: Final = "tiered"
_SEED: Final = "seed"
_TITLE: Final = b"siltstone-mark 1 "


@dataclass(frozen=True, slots=True)
class Seed:
    """Structures to know before their topics arrive, and thresholds (None: unchanged)."""

    patterns: tuple[str, ...]
    thresholds: tuple[int, ...] | None = None


def write_tiered(fs: FileSystem, directory: PurePath, serials: Mapping[int, int]) -> None:
    """Record the serial up to which the rows of each shard are in the lake, durably."""
    _write(fs, directory, _TIERED, {str(shard): serial for shard, serial in serials.items()})


def read_tiered(fs: FileSystem, directory: PurePath) -> dict[int, int] | None:
    """Return the serial after the last tiered row of each shard, or None if nothing is tiered.

    Raises: CorruptionError.
    """
    values = _read(fs, directory, _TIERED)
    return None if values is None else {int(shard): serial for shard, serial in values.items()}


def tiered_slabs(manifest: Manifest, serials: Mapping[int, int]) -> list[SlabRecord]:
    """Return new records, with the state TIERED, for sealed slabs that are fully in the lake."""
    return [
        replace(record, state=SlabState.TIERED)
        for record in manifest.slabs
        if record.state is SlabState.SEALED
        and record.until_serial is not None
        and record.until_serial <= serials.get(record.shard, 0)
    ]


def with_marks(fs: FileSystem, directory: PurePath, manifest: Manifest) -> Manifest:
    """Return the manifest as its writer will change it: slabs that are in the lake are tiered."""
    with suppress(CorruptionError):
        serials = read_tiered(fs, directory)
        if serials is not None:
            return manifest.with_slabs(tiered_slabs(manifest, serials))
    return manifest


def write_seed(fs: FileSystem, directory: PurePath, seed: Seed) -> None:
    """Record the seed of the next generation, durably. Raises: InvalidTopicError."""
    for pattern in seed.patterns:
        check_pattern(pattern.encode())
    thresholds = None if seed.thresholds is None else list(seed.thresholds)
    _write(fs, directory, _SEED, {"patterns": list(seed.patterns), "thresholds": thresholds})


def read_seed(fs: FileSystem, directory: PurePath) -> Seed | None:
    """Return the seed of the next generation, or None if there is none. Raises: CorruptionError."""
    values = _read(fs, directory, _SEED)
    if values is None:
        return None
    thresholds = values["thresholds"]
    return Seed(
        tuple(values["patterns"]), None if thresholds is None else tuple(map(int, thresholds))
    )


def sow(structure: Structure, seed: Seed) -> None:
    """Insert the patterns of a seed into a structure, and leave none of them pending."""
    for pattern in seed.patterns:
        structure.insert_pattern(pattern.encode())
    structure.take_pending()


def _write(fs: FileSystem, directory: PurePath, name: str, content: Any) -> None:
    create_directories(fs, directory / MARKS)
    data = json.dumps(content, indent=1).encode() + b"\n"
    replace_file(fs, directory / MARKS / name, _TITLE + b"%08x\n" % crc32c(data) + data)


def _read(fs: FileSystem, directory: PurePath, name: str) -> Any:
    path = directory / MARKS / name
    if not fs.exists(path):
        return None
    title, _, content = fs.read(path).partition(b"\n")
    if title != _TITLE + b"%08x" % crc32c(content):
        raise CorruptionError("the mark does not match its checksum: remove the file", path=path)
    return json.loads(content)
