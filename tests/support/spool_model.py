"""A naive model of the contents of a spool, with which tests compare it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath

from siltstone.errors import NotFoundError
from siltstone.fs.api import FileSystem
from siltstone.spool import Entry, Spool


def contents(spool: Spool) -> dict[Entry, bytes]:
    """Return every entry with its data."""
    found = {}
    for entry in spool:
        with spool.stream(entry) as stream:
            found[entry] = stream.read()
    return found


@dataclass
class SpoolModel:
    """The acknowledged operations, and those that may or may not have happened."""

    stored: dict[Entry, bytes] = field(default_factory=dict)
    # Data whose entries may exist under any id.
    perhaps_stored: list[tuple[str | None, bytes]] = field(default_factory=list)
    perhaps_discarded: set[Entry] = field(default_factory=set)
    moved: dict[PurePath, bytes] = field(default_factory=dict)
    perhaps_moved: dict[Entry, PurePath] = field(default_factory=dict)
    highest_id: int = -1

    def check(self, spool: Spool, fs: FileSystem) -> None:
        """Check a spool against the model after a crash, then adopt its contents."""
        found = contents(spool)
        for entry, data in self.stored.items():
            if entry not in self.perhaps_discarded:
                assert found[entry] == data, f"lost {entry}"
        begun = list(self.perhaps_stored)
        for entry, data in found.items():
            if entry in self.stored:
                assert data == self.stored[entry]
            else:
                assert entry.id > self.highest_id
                begun.remove((entry.metadata, data))
        for path, data in self.moved.items():
            assert fs.read(path) == data
        for entry, path in self.perhaps_moved.items():
            self._check_moved(entry, path, found, fs)
        assert spool.next_likely_id() > max([self.highest_id, *(entry.id for entry in found)])
        self.stored = found
        self.perhaps_stored = []
        self.perhaps_discarded = set()
        self.perhaps_moved = {}

    def _check_moved(
        self, entry: Entry, path: PurePath, found: dict[Entry, bytes], fs: FileSystem
    ) -> None:
        try:
            assert fs.read(path) == self.stored[entry], "a file was seen in part"
        except NotFoundError:
            assert entry in found, f"neither {entry} nor {path}"
