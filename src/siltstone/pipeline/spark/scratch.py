"""A temporary directory for the files of Spark, removed when the process ends.

A killed process leaves its directory behind. Each directory is locked while its process lives, so
the next process can recognize the abandoned ones and removes them.
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
    """The temporary directory at `path`, with access for its owner only."""

    def __init__(self, fs: PosixFileSystem, parent: PurePath) -> None:
        self._fs = fs
        self.path = parent / f"siltstone-{secrets.token_hex(8)}"
        # Under this name, no other process takes it for an abandoned directory.
        unfinished = self.path.with_suffix(".new")
        create_directories(fs, unfinished)
        fs.set_mode(unfinished, 0o700)
        self._lock = fs.lock(unfinished / _LOCK)
        fs.rename(unfinished, self.path)

    def remove(self) -> None:
        """Remove the directory; files that another process writes or removes at the same time may
        stay.
        """
        with suppress(SiltstoneError):
            self._lock.release()
            remove_tree(self._fs, self.path)


def sweep_scratch(fs: PosixFileSystem, parent: PurePath) -> None:
    """Remove the directories of killed processes; keep those of running ones."""
    for entry in fs.list(parent):
        path = parent / entry.name
        if entry.kind is not EntryKind.DIRECTORY or not _NAME.fullmatch(entry.name):
            continue
        # The directory may belong to another user, be in use, or be removed by another process
        # right now.
        with suppress(SiltstoneError):
            if fs.exists(path / _LOCK):
                fs.lock(path / _LOCK).release()
                remove_tree(fs, path)
