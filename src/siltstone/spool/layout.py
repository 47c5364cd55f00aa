"""The directory of a spool.

DIR/spool       `siltstone spool 1` and a newline; written last, so its spool is complete
DIR/LOCK        held by the one process that stores and discards
DIR/next        no entry with this id or a higher one was ever stored
DIR/q/          the entries, and nothing else
DIR/tmp/        data that is being written, and records of batches; swept when the spool is
                opened for writing. A name that does not end in `.tmp` or `.batch` stays: it is
                data that could not be kept elsewhere
DIR/kept/       data that was read and could not be stored
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePath
from typing import Final

from siltstone.errors import ExistsError, NotFoundError, UsageError
from siltstone.fs.api import EntryKind, FileSystem
from siltstone.fs.publish import create_directories, remove_tree, replace_file, sweep_temporaries
from siltstone.spool.arguments import require_kind
from siltstone.spool.names import Entry, file_name, parse_name

ENTRIES: Final = "q"
SENTINEL: Final = b"siltstone spool 1\n"
# If the file with the next id is damaged, new ids start this far above the highest id of an entry.
_LEAP: Final = 1 << 32


class SpoolPaths:
    """The paths in the directory of a spool."""

    def __init__(self, root: PurePath) -> None:
        self.root = root
        self.entries = root / ENTRIES
        self.temporary = root / "tmp"
        self.kept = root / "kept"
        self.sentinel = root / "spool"
        self.lock = root / "LOCK"
        self.next_id = root / "next"

    def lay_out(self, fs: FileSystem) -> None:
        """Create the missing parts of a new spool, the sentinel last."""
        for directory in (self.entries, self.temporary, self.kept):
            create_directories(fs, directory)
        if not fs.exists(self.next_id):
            write_next_id(fs, self.next_id, 0)
        replace_file(fs, self.sentinel, SENTINEL)

    def check(self, fs: FileSystem) -> None:
        """Check that this is a spool of a known version. Raises: NotFoundError, UsageError."""
        try:
            found = fs.read(self.sentinel)
        except NotFoundError as exc:
            if not fs.exists(self.root):
                raise NotFoundError(
                    f"the spool does not exist, create it first: path={self.root}"
                ) from exc
            raise NotFoundError(f"the directory is not a spool: path={self.root}") from exc
        if found != SENTINEL:
            raise UsageError(f"unknown version of a spool: path={self.sentinel} text={found!r}")

    def check_remains(self, fs: FileSystem) -> None:
        """Check that a directory without a sentinel is the result of a crash while a spool was
        created.

        Raises: ExistsError.
        """
        ours = {path.name for path in (self.entries, self.temporary, self.kept, self.lock)}
        ours |= {"next", "next.tmp", "spool.tmp"}
        if {name.name for name in fs.scan(self.root)} - ours:
            raise ExistsError(f"the directory is neither empty nor a spool: path={self.root}")
        with suppress(NotFoundError):
            for _ in fs.scan(self.entries):
                raise ExistsError(
                    f"the spool has entries but its sentinel file is missing: path={self.root}"
                )

    def remove(self, fs: FileSystem) -> None:
        """Remove all files of a new spool."""
        remove_tree(fs, self.root)

    def path_of(self, stored: Entry) -> PurePath:
        """Return the path of an entry's file, which need not exist. Raises: UsageError."""
        require_kind("entry", stored, Entry, "an Entry")
        return self.entries / file_name(stored)

    def sweep(self, fs: FileSystem) -> list[str]:
        """Remove the incomplete files that a crash left, and return their names."""
        return sweep_temporaries(fs, self.root) + sweep_temporaries(fs, self.temporary)


def write_next_id(fs: FileSystem, path: PurePath, number: int) -> None:
    """Record durably that no id from this number on was used."""
    replace_file(fs, path, b"%d\n" % number)


def read_next_id(fs: FileSystem, layout: SpoolPaths) -> int:
    """Return the first unused id; if the file is lost, one far above those of all entries."""
    with suppress(NotFoundError):
        text = fs.read(layout.next_id)
        if text.endswith(b"\n") and text[:-1].isdigit():
            return int(text)
    highest = max((found.id for found in scan_entries(fs, layout)), default=-1)
    return highest + 1 + _LEAP


def scan_entries(fs: FileSystem, layout: SpoolPaths) -> Iterator[Entry]:
    """Yield all entries; this reads only their names."""
    for name in fs.scan(layout.entries):
        found = parse_name(name.name) if name.kind is EntryKind.FILE else None
        if found is not None:
            yield found
