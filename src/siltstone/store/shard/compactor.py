"""Compacts a database in the background, on a thread of its own.

From time to time it ends the segments that hold many small frames and are older than a minute, and
then compacts sealed segments, the newest first. The work itself is done in another process. The
setting `compaction` of the database turns it on and off at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePath
from threading import Event, Thread
from typing import Final, Protocol

from siltstone.errors import ClosedError, CorruptionError, SiltstoneError, StorageFullError
from siltstone.logs import log
from siltstone.store.log.compact.encode import UnfitError
from siltstone.store.log.compact.rewrite import Rewritten
from siltstone.store.shard.compaction import Compacted, Compaction, Job

_LOG: Final = logging.getLogger("siltstone.store")
LOOK_SECONDS: Final = 5.0
# The process ends after this many checks that found no work.
_IDLE_LOOKS: Final = 24


class CompactionRunner(Protocol):
    """Writes compacted segments in another process."""

    def __call__(self, source: PurePath, target: PurePath) -> Rewritten:
        """Write a compacted segment and its index."""

    def rest(self) -> None:
        """End the process; the next segment starts another one."""

    def close(self) -> None:
        """End the process, also in the middle of a segment."""


class Compactor:
    """Compacts a database until it is closed."""

    def __init__(
        self,
        database: str,
        compaction: Callable[[], Compaction],
        rewriter: CompactionRunner,
        *,
        is_on: Callable[[], bool],
        seconds: float = LOOK_SECONDS,
    ) -> None:
        self._database = database
        self._compaction = compaction
        self._rewriter = rewriter
        self._is_on = is_on
        self._seconds = seconds
        self._closing = Event()
        # Segments that cannot be compacted; they are not tried again before the next start.
        self._left: set[Job] = set()
        self._idle = 0
        self.segments = self.rows = self.saved_bytes = 0
        self._thread = Thread(target=self._run, name=f"siltstone-compact-{database}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and the process; a segment that is being compacted stays as it was."""
        self._closing.set()
        self._rewriter.close()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._seconds):
            if not self._is_on():
                continue
            try:
                self._look()
            except ClosedError:
                # The database or the process was closed, or the process was killed.
                continue
            except SiltstoneError as exc:
                log(
                    _LOG,
                    logging.WARNING,
                    "compaction_failed",
                    database=self._database,
                    error=str(exc),
                )
        with suppress(SiltstoneError):
            self._rewriter.rest()

    def _look(self) -> None:
        compaction = self._compaction()
        compaction.end_segments()
        jobs = [job for job in compaction.jobs() if job not in self._left]
        self._idle = 0 if jobs else self._idle + 1
        if self._idle == _IDLE_LOOKS:
            self._rewriter.rest()
        for job in jobs:
            if self._closing.is_set() or not self._is_on():
                return
            try:
                done = compaction.run(job, self._rewriter)
            except StorageFullError:
                # There may be space later.
                return
            except (UnfitError, CorruptionError) as exc:
                self._left.add(job)
                log(
                    _LOG,
                    logging.WARNING,
                    "segment_not_compacted",
                    database=self._database,
                    path=str(job.source),
                    error=str(exc),
                )
            else:
                if done is not None:
                    self._tell(done)

    def _tell(self, done: Compacted) -> None:
        job = done.job
        self.segments += 1
        self.rows += done.rows
        self.saved_bytes += job.size_bytes - done.size_bytes
        log(
            _LOG,
            logging.INFO,
            "segment_compacted",
            database=self._database,
            slab=str(job.slab),
            rows=done.rows,
            frames=f"{job.frames} to {done.frames}",
            bytes=f"{job.size_bytes} to {done.size_bytes}",
        )
