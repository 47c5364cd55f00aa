"""The secret of a cluster: a file that all sites have."""

from __future__ import annotations

import secrets
from pathlib import PurePath
from typing import Final

from siltstone.errors import DiskError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import create_directories

_BYTES: Final = 32
_BYTES_MIN: Final = 16


def read_secret(fs: FileSystem, path: PurePath) -> bytes:
    """Return the secret in a file. Raises: UsageError, NotFoundError."""
    secret = fs.read(path).strip()
    if len(secret) < _BYTES_MIN:
        raise UsageError(f"the secret in {path} is too short: it needs {_BYTES_MIN} bytes")
    return secret


def ensure_secret(fs: FileSystem, path: PurePath) -> bytes:
    """Return the secret in a file; if there is no file, create it with a random secret.

    Several sites of one machine may do this at the same time: all return the same secret.
    """
    if not fs.exists(path):
        create_directories(fs, path.parent)
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
        with fs.create(temporary) as file:
            file.write(secrets.token_hex(_BYTES).encode() + b"\n")
            file.sync()
        try:
            fs.link(temporary, path)
        except DiskError:
            # Another site was first.
            if not fs.exists(path):
                raise
        finally:
            fs.remove(temporary)
        fs.sync_directory(path.parent)
    return read_secret(fs, path)
