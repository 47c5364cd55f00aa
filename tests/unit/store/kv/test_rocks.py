"""How errors are told apart; everything else needs a disk and is in tests/integration."""

from __future__ import annotations

from pathlib import PurePath

import pytest
from rocksdict import DbClosedError

from siltstone.errors import (
    ClosedError,
    CorruptionError,
    DiskError,
    LockedError,
    SiltstoneError,
    StorageFullError,
)
from siltstone.store.kv.rocks import translate

PATH = PurePath("/data/kv/test")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (DbClosedError("DB instance already closed"), ClosedError, "the database is closed"),
        (
            Exception("IO error: No space left on device: While appending to file: 1.log"),
            StorageFullError,
            "no space left on the disk: path=/data/kv/test needed_bytes=0",
        ),
        (
            Exception("IO error: Disk quota exceeded: While appending to file: 1.log"),
            StorageFullError,
            "no space left on the disk: path=/data/kv/test needed_bytes=0",
        ),
        (
            Exception("IO error: lock hold by current process, acquire time 1: /LOCK: none"),
            LockedError,
            "another process has the database open, stop that process: path=/data/kv/test",
        ),
        (
            Exception("IO error: While lock file: /LOCK: Resource temporarily unavailable"),
            LockedError,
            "another process has the database open, stop that process: path=/data/kv/test",
        ),
        (
            Exception("Corruption: checksum mismatch"),
            CorruptionError,
            "open failed: Corruption: checksum mismatch: path=/data/kv/test offset=0",
        ),
        (
            Exception("IO error: Input/output error"),
            DiskError,
            "open failed: IO error: Input/output error: path=/data/kv/test errno=0",
        ),
    ],
)
def test_errors_of_the_binding_become_ours_by_their_text(
    error: Exception, kind: type[SiltstoneError], text: str
) -> None:
    found = translate(error, "open", PATH)
    assert (type(found), str(found)) == (kind, text)
