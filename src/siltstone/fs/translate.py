"""Translation of error numbers of the operating system into the errors of Siltstone.

`posix.py` translates real errors. The other file systems build the same errors from a number, so
code that is tested on them sees the errors that a disk would raise.
"""

from __future__ import annotations

import errno
from pathlib import PurePath
from typing import Final

from siltstone.errors import (
    DiskError,
    ExistsError,
    LockedError,
    NotFoundError,
    OverloadedError,
    SiltstoneError,
    StorageFullError,
    UsageError,
)

# The errors of open(2), depending on its flags, for a symbolic link, a directory, a FIFO and a
# socket.
_NOT_REGULAR: Final = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO})


def translate(
    exc: OSError, operation: str, path: PurePath, *, needed_bytes: int = 0
) -> SiltstoneError:
    """Return the error to raise from exc."""
    number = exc.errno or 0
    match number:
        case errno.ENOENT:
            return NotFoundError(f"no such file or directory: path={path}")
        case errno.EEXIST:
            return ExistsError(f"the file exists already: path={path}")
        # After a failed sync of a directory the state of its names is unknown. StorageFullError
        # would claim that nothing changed.
        case errno.ENOSPC | errno.EDQUOT if operation != "sync_directory":
            return StorageFullError(path, needed_bytes=needed_bytes)
        # No file was opened, so nothing changed. This is not true for a directory sync after a
        # rename.
        case errno.EMFILE | errno.ENFILE if operation != "sync_directory":
            return OverloadedError(
                "too many open files, raise the limit (ulimit -n, LimitNOFILE) or lower "
                f"limits.connections_max: path={path}"
            )
        case errno.EWOULDBLOCK if operation == "lock":
            return locked(path)
        case _ if number in _NOT_REGULAR and operation in ("open", "lock"):
            return not_regular(path)
        case _:
            return DiskError(path, operation, exc.strerror or "unknown reason", errno=number)


def failed_sync(number: int, reason: str, path: PurePath) -> DiskError:
    """Return the error of a durable write that failed: the state on the disk is unknown.

    StorageFullError would claim that nothing changed.
    """
    return DiskError(path, "sync", reason, errno=number)


def failure(
    number: int, operation: str, path: PurePath, *, needed_bytes: int = 0
) -> SiltstoneError:
    """Return the error that `translate` makes from this number."""
    name = errno.errorcode.get(number, "unknown reason")
    return translate(OSError(number, name), operation, path, needed_bytes=needed_bytes)


def locked(path: PurePath, *, holder: str = "") -> LockedError:
    """Return the error for a lock that is held; holder is the text in the lock file, if any."""
    pid = f" pid={holder}" if holder else ""
    return LockedError(
        f"another process has the directory open for writing, stop it: path={path}{pid}"
    )


def not_a_link(path: PurePath) -> UsageError:
    """Return the error for a name that is not a symbolic link."""
    return UsageError(f"not a symbolic link: path={path}")


def not_regular(path: PurePath) -> UsageError:
    """Return the error for a name that is a link, a directory, a FIFO or a device."""
    return UsageError(f"not a regular file: path={path}")
