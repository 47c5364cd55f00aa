from __future__ import annotations

import errno
from pathlib import PurePath

import pytest

from siltstone.errors import (
    DiskError,
    ExistsError,
    LockedError,
    NotFoundError,
    SiltstoneError,
    StorageFullError,
    UsageError,
)
from siltstone.fs.translate import failure, locked, translate

PATH = PurePath("/d/a")


@pytest.mark.parametrize(
    ("number", "operation", "kind", "text"),
    [
        (errno.ENOENT, "open", NotFoundError, "no such file or directory: path=/d/a"),
        (errno.EEXIST, "create", ExistsError, "the file exists already: path=/d/a"),
        (errno.ELOOP, "open", UsageError, "not a regular file: path=/d/a"),
        (errno.EISDIR, "open", UsageError, "not a regular file: path=/d/a"),
        (errno.ENXIO, "lock", UsageError, "not a regular file: path=/d/a"),
        (
            errno.EWOULDBLOCK,
            "lock",
            LockedError,
            "another process has the directory open for writing, stop it: path=/d/a",
        ),
        (
            errno.ENOSPC,
            "write",
            StorageFullError,
            "no space left on the disk: path=/d/a needed_bytes=7",
        ),
        (
            errno.EDQUOT,
            "write",
            StorageFullError,
            "no space left on the disk: path=/d/a needed_bytes=7",
        ),
        (errno.EISDIR, "remove", DiskError, "remove failed: EISDIR: path=/d/a errno=21"),
        (errno.EAGAIN, "open", DiskError, "open failed: EAGAIN: path=/d/a errno=11"),
        (errno.EIO, "sync", DiskError, "sync failed: EIO: path=/d/a errno=5"),
        (12345, "sync", DiskError, "sync failed: unknown reason: path=/d/a errno=12345"),
    ],
)
def test_an_error_number_becomes_what_the_caller_must_do(
    number: int, operation: str, kind: type[SiltstoneError], text: str
) -> None:
    error = failure(number, operation, PATH, needed_bytes=7)
    assert (type(error), str(error)) == (kind, text)


def test_an_error_without_a_number_is_a_disk_error() -> None:
    error = translate(OSError("odd"), "sync", PATH)
    assert isinstance(error, DiskError)
    assert str(error) == "sync failed: unknown reason: path=/d/a errno=0"


def test_who_holds_a_lock_is_told_where_known() -> None:
    assert str(locked(PATH, holder="42")).endswith("path=/d/a pid=42")
