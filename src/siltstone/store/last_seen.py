"""The state of the clocks at the last write to a data directory: one small file, replaced whole.

    line 1  `siltstone-clock 1 <CRC-32C of the rest, 8 hex digits>`
    rest    JSON, the fields of a Sighting

A lost or damaged file does little harm: the time of the newest row is a lower bound of the time.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import PurePath
from typing import Final

from crc32c import crc32c

from siltstone.clock import Sighting
from siltstone.errors import NotFoundError, SiltstoneError
from siltstone.fs.api import FileSystem
from siltstone.fs.paths import StorePaths
from siltstone.fs.publish import replace_file
from siltstone.store.shard.reader import ReaderShard
from siltstone.store.slab.manifest import read_manifest

_TITLE: Final = b"siltstone-clock 1 "


def write_last_seen(fs: FileSystem, directory: PurePath, seen: Sighting) -> None:
    """Store a sighting, durably."""
    content = json.dumps(asdict(seen)).encode() + b"\n"
    replace_file(fs, StorePaths(directory).clock, _TITLE + b"%08x\n" % crc32c(content) + content)


def read_last_seen(fs: FileSystem, directory: PurePath) -> Sighting | None:
    """Return the last sighting; None if there is none that can be read."""
    try:
        title, _, content = fs.read(StorePaths(directory).clock).partition(b"\n")
    except NotFoundError:
        return None
    if title != _TITLE + b"%08x" % crc32c(content):
        return None
    return Sighting(**json.loads(content))


def newest_row_us(fs: FileSystem, databases: list[PurePath]) -> int | None:
    """Return the approximate time of the newest row of databases; None if there is no database.

    A damaged database is ignored here; opening it reports the error.
    """
    newest: list[int] = []
    for directory in databases:
        with suppress(SiltstoneError):
            manifest = read_manifest(fs, directory)
            for number in range(manifest.settings.shards):
                shard = ReaderShard(number, fs, directory)
                shard.adopt(manifest.slabs_of(number), manifest.settings)
                newest.append(shard.newest_us())
    return max(newest, default=None)
