"""A tier job that is killed: `python -m tests.support.tier_process STORE`.

It prints a line before each sync of a directory, so that it can be killed at any of them.
"""

from __future__ import annotations

import sys
from pathlib import PurePath

from siltstone.fs.faulty import FaultyFileSystem
from siltstone.fs.posix import PosixFileSystem
from tests.support.lake import tier_all


class TellingFileSystem(FaultyFileSystem):
    """Prints the name of each directory before it is synced."""

    def sync_directory(self, path: PurePath) -> None:
        sys.stdout.write(f"{path.name}\n")
        sys.stdout.flush()
        super().sync_directory(path)


def main() -> None:
    """Tier everything, in batches of ten rows."""
    tier_all(sys.argv[1], TellingFileSystem(PosixFileSystem()), rows_per_batch=10)


if __name__ == "__main__":
    main()
