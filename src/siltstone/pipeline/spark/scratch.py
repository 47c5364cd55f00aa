"""A directory of this process for what Spark needs on disk, gone with it.

A process that is killed leaves its own behind. Each is locked for as long as its process lives, so
that whoever comes next can tell which those are, and removes them.
"""

from __future__ import annotations

import re
import secrets
from contextlib import suppress
from pathlib import PurePath
from typing import Final

from siltstone.errors import SiltstoneError
from siltstone.fs.api import EntryKind
from siltstone.fs.posix import PosixFileSystem
from siltstone.fs.publish import create_directories, remove_tree

_NAME: Final = re.compile(r"siltstone-[0-9a-f]{16}")
_LOCK: Final = "LOCK"


class Scratch:
    """The directory, for its owner only; `path` is where it is."""

    def __init__(self, fs: PosixFileSystem, parent: PurePath) -> None:
        self._fs = fs
        self.path = parent / f"siltstone-{secrets.token_hex(8)}"
        # Under this name nobody takes it for one whose process has ended.
        unfinished = self.path.with_suffix(".new")
        create_directories(fs, unfinished)
        fs.set_mode(unfinished, 0o700)
        self._lock = fs.lock(unfinished / _LOCK)
        fs.rename(unfinished, self.path)

    def remove(self) -> None:
        """Remove it; what another process removes or writes there at the same time may stay."""
        with suppress(SiltstoneError):
            self._lock.release()
            remove_tree(self._fs, self.path)


def sweep_scratch(fs: PosixFileSystem, parent: PurePath) -> None:
    """Remove what processes that were killed have left; that of others is left alone."""
    for entry in fs.list(parent):
        path = parent / entry.name
        if entry.kind is not EntryKind.DIRECTORY or not _NAME.fullmatch(entry.name):
            continue
        # Somebody else's, one in use, or one that another process is just removing.
        with suppress(SiltstoneError):
            if fs.exists(path / _LOCK):
                fs.lock(path / _LOCK).release()
                remove_tree(fs, path)
