"""A process that compacts segments for a broker: `python -m siltstone.store.log.compact.worker`.

It reads one request from a line of stdin, as JSON, and writes the answer as a line to stdout. It
has the lowest priority and rests after each frame, so that publishers do not wait for it. It ends
with its stdin, also in the middle of a segment, so it does not outlive the broker.
"""

from __future__ import annotations

import json
import select
import sys
import time
from io import FileIO
from pathlib import PurePath
from typing import Any

from siltstone.errors import CorruptionError, NotFoundError, SiltstoneError, StorageFullError
from siltstone.fs.posix import PosixFileSystem
from siltstone.fs.process import lower_priority
from siltstone.store.log.compact.encode import UnfitError
from siltstone.store.log.compact.rewrite import rewrite_segment


class _Pace:
    """Rests after each frame for `rest` times the time that the frame took."""

    def __init__(self, rest: float) -> None:
        self._rest = rest
        self._since = time.monotonic()

    def __call__(self, _rows: int) -> None:
        # The broker sends nothing while a request runs, so only the end of stdin makes it readable.
        seconds = (time.monotonic() - self._since) * self._rest
        if select.select([sys.stdin], [], [], seconds)[0]:
            raise SystemExit
        self._since = time.monotonic()


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Compact one segment; return the result, or the error."""
    source, target = PurePath(request["source"]), PurePath(request["target"])
    try:
        made = rewrite_segment(PosixFileSystem(), source, target, _Pace(request["rest"]))
    except UnfitError as exc:
        return {"error": "unfit", "text": str(exc)}
    except NotFoundError as exc:
        return {"error": "missing", "text": str(exc)}
    except StorageFullError as exc:
        return {"error": "full", "path": str(exc.path)}
    except CorruptionError as exc:
        path = str(exc.path)
        return {"error": "damaged", "text": exc.reason, "path": path, "offset": exc.offset or 0}
    except SiltstoneError as exc:
        return {"error": "failed", "text": str(exc)}
    return {
        "rows": made.rows,
        "frames": made.frames,
        "size_bytes": made.size_bytes,
        "digest": made.digest.hex(),
    }


def main() -> None:
    """Answer requests until stdin ends, or until the broker does not read the answers."""
    lower_priority()
    # Without a buffer nothing is left to write when the pipe breaks.
    answers = FileIO(sys.stdout.fileno(), "w", closefd=False)
    while line := sys.stdin.readline():
        try:
            answers.write(f"{json.dumps(answer(json.loads(line)))}\n".encode())
        except BrokenPipeError:
            # The broker was killed. Its next start finishes or removes the written files.
            return


if __name__ == "__main__":
    main()
