"""Writing and loading take a buffer and some bytes for each content, however much there is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker_process import clean_environment

MIB = 1024 * 1024


def growth(action: str, path: Path, count: int) -> int:
    """Return by how much the memory of a process grew."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.snapshot_memory", action, str(path), str(count)],
        capture_output=True,
        check=True,
        env=clean_environment(),
    )
    return int(done.stdout)


def check(tmp_path: Path, count: int, limit_bytes: int) -> None:
    path = tmp_path / "x.gz"
    assert growth("write", path, count) < limit_bytes
    assert subprocess.run(["gzip", "-t", path], check=False).returncode == 0  # noqa: S607
    assert growth("load", path, count) < limit_bytes


def test_fifty_megabytes_of_payloads_take_a_few(tmp_path: Path) -> None:
    check(tmp_path, 50_000, 12 * MIB)


@pytest.mark.soak
def test_500_megabytes_of_payloads_take_less_than_64(tmp_path: Path) -> None:
    check(tmp_path, 500_000, 64 * MIB)
