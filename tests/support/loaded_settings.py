"""Settings of the broker as it loads them, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from siltstone.broker.settings.broker import BrokerSettings
from siltstone.broker.settings.load import read_settings
from siltstone.fs.api import FileSystem
from siltstone.fs.posix import PosixFileSystem


def load_settings(
    file: PurePath | None,
    environment: Mapping[str, str],
    overrides: Mapping[str, str],
    *,
    fs: FileSystem | None = None,
) -> BrokerSettings:
    """Read the settings, by default from the disk."""
    return read_settings(file, environment, overrides, fs=fs or PosixFileSystem()).settings
