"""`siltstone` on a disk that fails on demand.

`serve` fails every sync of a segment from the moment when a file named `fail` appears beside the
data directory.
"""

from __future__ import annotations

import errno
import sys
import threading
from pathlib import Path, PurePath

from siltstone.broker import server
from siltstone.cli.main import execute
from siltstone.clock import Clock
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.posix import PosixFileSystem
from siltstone.store.directory import Store

COMMAND = (sys.executable, "-m", "tests.support.faulty_broker")
TRIGGER = "fail"


def _open_faulty(path: str, *, clock: Clock, cluster: object) -> Store:
    assert cluster is None, "a broker alone"
    disk = FaultyFileSystem(PosixFileSystem())
    never = threading.Event()
    trigger = Path(path).parent / TRIGGER

    def watch() -> None:
        while not trigger.exists():
            never.wait(0.005)
        disk.add(Fault(operation="sync", errno=errno.EIO, path_suffix=".seg", repeat=True))
        trigger.unlink()

    threading.Thread(target=watch, daemon=True).start()
    return Store(PurePath(path), fs=disk, clock=clock)


if __name__ == "__main__":
    server.open_store = _open_faulty  # type: ignore[assignment, attr-defined]
    sys.exit(execute(sys.argv[1:]))
