"""A real disk that is small enough to be filled."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(path: Path, size_bytes: int) -> Iterator[Path]:
    """Mount a disk on a new directory; skip the test if that is not allowed."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "siltstone-test", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command: the real full disk is not tested")
    if done.returncode:
        pytest.skip("mounting is not allowed here: the real full disk is not tested")
    try:
        yield path
    finally:
        # Lazily: a map that Python has not freed yet keeps the disk busy.
        subprocess.run(["umount", "--lazy", str(path)], check=True)  # noqa: S607 - where mount was


def take_the_rest(path: Path) -> None:
    """Write a file until no page is left."""
    with path.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                return
