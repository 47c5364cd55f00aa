"""Where the clocks stood when a data directory was written last: one small file, replaced whole.

    line 1  `siltstone-clock 1 <CRC-32C of the rest, 8 hex digits>`
    rest    JSON, the fields of a Sighting

A file that is lost or damaged costs little: the newest row tells a time that has passed.
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
from siltstone.fs.publish import replace_file
from siltstone.store.shard.readable_slabs import ReadableSlabs

CLOCK: Final = "CLOCK"
_TITLE: Final = b"siltstone-clock 1 "


def write_last_seen(fs: FileSystem, directory: PurePath, seen: Sighting) -> None:
    """Keep a sighting, durably."""
    content = json.dumps(asdict(seen)).encode() + b"\n"
    replace_file(fs, directory / CLOCK, _TITLE + b"%08x\n" % crc32c(content) + content)


def read_last_seen(fs: FileSystem, directory: PurePath) -> Sighting | None:
    """Return the sighting that was kept last; None where there is none that can be read."""
    try:
        title, _, content = fs.read(directory / CLOCK).partition(b"\n")
    except NotFoundError:
        return None
    if title != _TITLE + b"%08x" % crc32c(content):
        return None
    return Sighting(**json.loads(content))


def newest_row_us(fs: FileSystem, databases: list[PurePath]) -> int | None:
    """Return the time of the newest row of databases, about; None where there is no database.

    A damaged one tells nothing here: opening it tells what is wrong.
    """
    newest: list[int] = []
    for directory in databases:
        with suppress(SiltstoneError):
            newest.append(ReadableSlabs(fs, directory).newest_us())
    return max(newest, default=None)
