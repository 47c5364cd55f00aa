"""The journal of topic logs that were added since the manifest was replaced.

    added.<number>    line 1  `siltstone-added 1`
                      others  <CRC-32C of the rest of the line, 8 hex digits> <JSON>

A line holds the shard, the topic and the times of one log. It is synced before the log counts as
created, so the cost of creating a log does not depend on the number of logs. A manifest of version
2 names its journal; one of version 1 has no journal.

Invariant: only the last line may be torn. After a failed write nothing more is appended to a
journal, and no process appends to the journal of another process.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any, Final

from crc32c import crc32c

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.fs.api import File, FileSystem
from siltstone.fs.publish import replace_file

_PREFIX: Final = "added."
_TITLE: Final = b"siltstone-added 1\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedLog:
    """A topic log with the times of its first slab, in µs."""

    shard: int
    topic: str
    since_us: int
    created_us: int


def journal_path(directory: PurePath, number: int) -> PurePath:
    """Return the path of a journal of the database in this directory."""
    return directory / f"{_PREFIX}{number}"


def is_journal(name: str) -> bool:
    """Return whether a file in the directory of a database has the name of a journal."""
    return name.startswith(_PREFIX) and name[len(_PREFIX) :].isdecimal()


def begin_journal(fs: FileSystem, path: PurePath) -> None:
    """Create an empty journal, durably. Raises: StorageFullError."""
    replace_file(fs, path, _TITLE)


def append_log(journal: File, added: AddedLog) -> None:
    """Add a log to an open journal, durably.

    After an error the line may be in the journal or not. Never append to this journal again.

    Raises: StorageFullError, DiskError.
    """
    data = json.dumps(asdict(added)).encode()
    journal.write(b"%08x %b\n" % (crc32c(data), data))
    journal.sync()


def read_journal(fs: FileSystem, path: PurePath) -> list[AddedLog]:
    """Return the logs of a journal, in order. Raises: NotFoundError, CorruptionError."""
    data = fs.read(path)
    if not data.startswith(_TITLE):
        raise CorruptionError("a journal of topic logs has no title", path=path)
    found: list[AddedLog] = []
    offset = len(_TITLE)
    torn_at: int | None = None
    for line in data[offset:].split(b"\n"):
        added = _decode_line(line)
        if added is None:
            torn_at = offset if torn_at is None else torn_at
        elif torn_at is not None:
            raise CorruptionError("a journal of topic logs is damaged", path=path, offset=torn_at)
        else:
            found.append(added)
        offset += len(line) + 1
    return found


def sound_logs(fs: FileSystem, path: PurePath) -> list[AddedLog]:
    """Return the logs of all valid lines of a journal that may be damaged or missing."""
    with suppress(NotFoundError):
        return [log for line in fs.read(path).split(b"\n") if (log := _decode_line(line))]
    return []


def _decode_line(line: bytes) -> AddedLog | None:
    """Return the log of a line; None for a torn line, and for the empty one at the end."""
    checksum, _, content = line.partition(b" ")
    if not content or checksum != b"%08x" % crc32c(content):
        return None
    values: dict[str, Any] = json.loads(content)
    return AddedLog(**values)
