from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.cluster.secret import ensure_secret, read_secret
from siltstone.errors import UsageError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.fs.publish import create_directories, replace_file

PATH = PurePath("/config/siltstone/plant.secret")


def test_the_first_site_creates_the_secret_and_the_others_find_it() -> None:
    files = MemoryFileSystem()
    secret = ensure_secret(files, PATH)
    assert len(secret) == 64
    assert ensure_secret(files, PATH) == secret == read_secret(files, PATH)
    assert [entry.name for entry in files.list(PATH.parent)] == [PATH.name]


def test_a_secret_is_durable_before_it_is_used() -> None:
    files = MemoryFileSystem()
    secret = ensure_secret(files, PATH)
    assert read_secret(files.crash_clone(), PATH) == secret


def test_a_short_secret_is_refused() -> None:
    files = MemoryFileSystem()
    create_directories(files, PATH.parent)
    replace_file(files, PATH, b"short\n")
    with pytest.raises(UsageError, match="too short"):
        ensure_secret(files, PATH)
