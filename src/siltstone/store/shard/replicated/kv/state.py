"""The digest of everything that a site has of a key-value shard, at one index of its log.

All sites write the same bytes for each record, so two sites have the same digest at the same index.
The mark does not count: it also moves between records. Families without a record of a slab do not
count either, because a dropped one is removed a moment after its record.

Another site asks for an index that is a little ahead. The views are taken on the thread of the
shard when it has just this index, or after some seconds if no more is committed. The digest is
computed by a thread of its own, at the rate that the asking site names, and waits to be fetched.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from math import inf
from threading import Event, Lock, Thread
from time import monotonic
from typing import Final

from siltstone.errors import ClosedError, CorruptionError, RetryError, SiltstoneError
from siltstone.store.kv.api import DEFAULT_FAMILY, Engine, View
from siltstone.store.tx import catalog
from siltstone.store.tx.commit.changes import CHANGES_FAMILY, changes_end, changes_key
from siltstone.store.writer.replication.sites.scrubbing import CopyState

DIGEST_BYTES: Final = 16
# The number of digests that wait to be fetched.
_KEPT: Final = 4
# A shard that does not begin within this time has stopped reading its log.
_BEGIN_SECONDS: Final = 10.0
_ITEMS: Final = 512
_END: Final = b"\xff" * 64
_LENGTHS_BYTES: Final = 8

# Lets a function be called on the thread of the shard at an index, with the index that it has.
AtIndex = Callable[[int, Callable[[int | None], None]], None]
_Part = tuple[str, bytes, bytes, View]


class CopyStates:
    """The digests of one shard, for the sites that compare it."""

    def __init__(self, engine: Engine, shard: int, at_index: AtIndex) -> None:
        self._engine = engine
        self._shard = shard
        self._at_index = at_index
        self._lock = Lock()
        # With the time until which each must have begun.
        self._under_way: dict[int, float] = {}
        # The newest is last.
        self._found: dict[int, CopyState | SiltstoneError] = {}
        self._closed = Event()

    def fetch(self, index: int, bytes_per_second: int) -> CopyState | None:
        """Return the state at an index, or at a later one if that has passed; None while it is
        being computed: ask again. From any thread.

        Raises: RetryError while this site has not stored all that it has read; DiskError,
        ClosedError.
        """
        with self._lock:
            found = self._found.get(index)
            if isinstance(found, SiltstoneError):
                del self._found[index]
                raise found
            if found is not None:
                return found
            until = self._under_way.get(index)
            if until is not None:
                if monotonic() < until:
                    return None
                del self._under_way[index]
                raise RetryError("this site does not read the shard at this moment")
            self._under_way[index] = monotonic() + _BEGIN_SECONDS

        def begin(current: int | None) -> None:
            self._begin(index, current, bytes_per_second)

        self._at_index(index, begin)
        return None

    def close(self) -> None:
        """Stop the digests under way."""
        self._closed.set()

    def _begin(self, asked: int, index: int | None, bytes_per_second: int) -> None:
        """Take views of the shard. On its thread."""
        with self._lock:
            self._under_way[asked] = inf
        if index is None:
            self._end(asked, RetryError("this site has not stored all that it has read"))
            return
        parts: list[_Part] = []
        try:
            parts = _parts(self._engine, self._shard)
        except CorruptionError:
            self._end(asked, CopyState(index, b""))
            return
        except SiltstoneError as exc:
            self._end(asked, exc)
            return

        def compute() -> None:
            found: CopyState | SiltstoneError = ClosedError("the database is closed")
            try:
                found = CopyState(index, self._digest(parts, bytes_per_second))
            except CorruptionError:
                found = CopyState(index, b"")
            except SiltstoneError as exc:
                found = exc
            finally:
                _release(parts)
                self._end(asked, found)

        Thread(target=compute, daemon=True).start()

    def _end(self, asked: int, found: CopyState | SiltstoneError) -> None:
        with self._lock:
            self._under_way.pop(asked, None)
            self._found[asked] = found
            if len(self._found) > _KEPT:
                del self._found[next(iter(self._found))]

    def _digest(self, parts: list[_Part], bytes_per_second: int) -> bytes:
        digest = blake2b(digest_size=DIGEST_BYTES)
        for family, start, stop, view in parts:
            digest.update(family.encode() + b"\x00")
            at = start
            while items := view.items(at, stop, _ITEMS):
                size = 0
                for key, value in items:
                    lengths = len(key).to_bytes(4, "little") + len(value).to_bytes(4, "little")
                    digest.update(lengths + key + value)
                    size += _LENGTHS_BYTES + len(key) + len(value)
                at = items[-1][0] + b"\x00"
                self._closed.wait(size / bytes_per_second)
        return digest.digest()


def _parts(engine: Engine, shard: int) -> list[_Part]:
    """Return views of the data of a shard that all sites share, in a fixed order."""
    records = catalog.read_slabs(engine)
    slabs = [catalog.family_of(slab) for slab in sorted(records) if slab.shard == shard]
    ranges = [(DEFAULT_FAMILY, start, stop) for start, stop in catalog.shared_ranges_of(shard)]
    if shard == 0:
        # Settings are committed through shard 0.
        ranges.append((DEFAULT_FAMILY, *catalog.settings_range()))
    if CHANGES_FAMILY in engine.families():
        ranges.append((CHANGES_FAMILY, changes_key(shard, 0), changes_end(shard)))
    ranges += [(family, b"", _END) for family in slabs]
    parts: list[_Part] = []
    try:
        for family, start, stop in ranges:
            parts.append((family, start, stop, engine.view(family)))
    except BaseException:
        _release(parts)
        raise
    return parts


def _release(parts: list[_Part]) -> None:
    for *_, view in parts:
        view.release()
