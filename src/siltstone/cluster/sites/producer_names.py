"""The names of the producers of this site: never used twice, so that old ones can be retired.

A name is 8 random bytes of the directory of the site, and a number that only grows. A process takes
a block of numbers when it starts, durably, before it uses one. So the numbers below its block
belong to processes that have ended. A site that lost its directory has other random bytes.

A block begins at the wall time in microseconds, or behind the block before it if the clock was set
back. A directory may be restored from an older state, or copied from another site. The file alone
would then give out names again, and the leader would take new rows for repetitions of old ones.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from threading import Lock
from typing import Final

from siltstone.clock import Clock
from siltstone.errors import CorruptionError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import create_directories, replace_file
from siltstone.store.writer.replication.producers import PREFIX_BYTES, make_producer
from siltstone.store.writer.replication.sites.planning import Site, SiteRole

_FILE: Final = "producers"
_BLOCK: Final = 1 << 20


class ProducerNames:
    """The names of one process. From any thread."""

    def __init__(self, fs: FileSystem, directory: PurePath, clock: Clock) -> None:
        self._fs = fs
        self._clock = clock
        self._directory = directory
        self._lock = Lock()
        self._next = -1
        self.site = b""
        # The first number of this process; -1 before the first name.
        self.base = -1

    def take(self) -> bytes:
        """Return a name that was never used before. Raises: DiskError, CorruptionError."""
        with self._lock:
            if self.base < 0:
                self._begin()
            self._next += 1
            return make_producer(self.site, self._next - 1)

    def _begin(self) -> None:
        path, base = self._directory / _FILE, 0
        if self._fs.exists(path):
            try:
                values = json.loads(self._fs.read(path))
                site, base = bytes.fromhex(values["site"]), int(values["next"])
            except (ValueError, KeyError, TypeError) as exc:
                raise CorruptionError(f"the names of producers: {exc}", path=path) from exc
        else:
            create_directories(self._fs, self._directory)
            site = secrets.token_bytes(PREFIX_BYTES)
        base = max(base, self._clock.now_us())
        values = {"site": site.hex(), "next": base + _BLOCK}
        replace_file(self._fs, path, json.dumps(values).encode())
        self.site, self.base, self._next = site, base, base


def ended_producers(
    sites: Mapping[str, Site],
    own: Iterable[tuple[bytes, int]],
    heard: Iterable[tuple[bytes, int] | None],
) -> list[tuple[bytes, int | None]]:
    """Return the producers that are not used any more: the first bytes of their names, and the last
    number, or None for all of a site that is gone.

    `own` and `heard` have the first number of each process that is heard now. Sites whose
    directories are copies of one directory have the same first bytes. It is then unknown which of
    their processes have ended.
    """
    shared = Counter(site.producers for site in sites.values())
    running: dict[bytes, int] = {}
    for site, base in (*own, *(each for each in heard if each)):
        if base >= 0:
            running[site] = min(base, running.get(site, base))
    gone = {
        site.producers
        for site in sites.values()
        if site.role is SiteRole.GONE and site.producers and site.producers not in running
    }
    ended: list[tuple[bytes, int | None]] = [
        (site, base - 1) for site, base in sorted(running.items()) if base
    ]
    ended += [(site, None) for site in sorted(gone)]
    return [each for each in ended if shared[each[0]] <= 1]
