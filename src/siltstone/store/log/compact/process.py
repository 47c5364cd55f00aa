"""Compact segments in a child process, so that this process goes on undisturbed."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import PurePath
from threading import Lock
from typing import Any, Final

from siltstone.errors import ClosedError, CorruptionError, NotFoundError, StorageFullError
from siltstone.store.log.compact.encode import UnfitError
from siltstone.store.log.compact.rewrite import Rewritten

_MODULE: Final = "siltstone.store.log.compact.worker"


class ChildRewriter:
    """Rewrites segments in a process that is started with the first one. Called by one thread.

    `rest` is how long the process rests, relative to the time that it works.
    """

    def __init__(self, rest: float = 1.0) -> None:
        self._rest = rest
        self._lock = Lock()
        self._child: subprocess.Popen[str] | None = None
        self._closed = False

    def __call__(self, source: PurePath, target: PurePath) -> Rewritten:
        """Write a compacted segment and its index.

        Raises: UnfitError, CorruptionError, StorageFullError, NotFoundError; ClosedError if the
        process ended.
        """
        child = self._started()
        assert child.stdin is not None
        assert child.stdout is not None
        request = {"source": str(source), "target": str(target), "rest": self._rest}
        line = ""
        # A process that has ended does not answer.
        with suppress(OSError, ValueError):
            child.stdin.write(json.dumps(request) + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
        if not line:
            self.rest()
            raise ClosedError("the process that compacts segments has ended")
        return _result(json.loads(line))

    def rest(self) -> None:
        """End the process; the next segment starts another one."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            _end(child)

    def close(self) -> None:
        """End the process, also in the middle of a segment. From any thread."""
        with self._lock:
            self._closed = True
            child = self._child
        if child is not None:
            child.kill()

    def _started(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._closed:
                raise ClosedError("the database is closed")
            if self._child is None:
                self._child = subprocess.Popen(  # noqa: S603 - our own module
                    [sys.executable, "-m", _MODULE],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            return self._child


def _end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()


def _result(values: dict[str, Any]) -> Rewritten:
    """Return the result of a process. Raises: the error that it reports."""
    match values.get("error"):
        case None:
            return Rewritten(
                rows=values["rows"],
                frames=values["frames"],
                size_bytes=values["size_bytes"],
                digest=bytes.fromhex(values["digest"]),
            )
        case "unfit":
            raise UnfitError(values["text"])
        case "missing":
            raise NotFoundError(values["text"])
        case "full":
            raise StorageFullError(PurePath(values["path"]))
        case "damaged":
            path = PurePath(values["path"])
            raise CorruptionError(values["text"], path=path, offset=values["offset"])
        case _:
            raise UnfitError(values["text"])
