"""The epoch of the cluster that a data directory belongs to: a number in `cluster/epoch`.

A site does not start if its directory and its settings have different epochs: seeds that return
after the cluster has begun again must not bring back rows that it has given up. A directory without
the file has epoch 1.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

from siltstone.errors import CorruptionError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import create_directories, replace_file

_FILE: Final = "epoch"


def read_epoch(fs: FileSystem, directory: PurePath) -> int | None:
    """Return the epoch of a directory; None if no site has used it. Raises: CorruptionError."""
    if not fs.exists(directory):
        return None
    path = directory / _FILE
    if not fs.exists(path):
        return 1
    text = fs.read(path).strip()
    if not text.isdigit():
        raise CorruptionError("not the number of an epoch", path=path)
    return int(text)


def write_epoch(fs: FileSystem, directory: PurePath, epoch: int) -> None:
    """Let a directory belong to an epoch, durably."""
    create_directories(fs, directory)
    replace_file(fs, directory / _FILE, b"%d\n" % epoch)


def enter_epoch(fs: FileSystem, directory: PurePath, epoch: int) -> None:
    """Check that a directory belongs to an epoch; a new one does from now on.

    Raises: UsageError if it belongs to another one; CorruptionError.
    """
    known = read_epoch(fs, directory)
    if known is None:
        write_epoch(fs, directory, epoch)
    elif known != epoch:
        raise UsageError(
            f"this site belongs to epoch {known} of the cluster, and cluster.epoch is {epoch}: see "
            f"'siltstone cluster refound --help'"
        )
