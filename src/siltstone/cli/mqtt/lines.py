"""Lines as messages: split a stream into lines, in a thread that feeds the event loop.

A line ends before a line feed. Text after the last line feed is a line too, if there is any.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Semaphore
from typing import Final

from siltstone.errors import UsageError
from siltstone.mqtt.wire import VARIABLE_MAX

_CHUNK_BYTES: Final = 65_536


class LineSplitter:
    """Splits chunks of any size into lines."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that a chunk completes.

        Raises: UsageError for a line that is too long.
        """
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines:
            lines[0] = b"".join([*self._pieces, lines[0]])
            self._pieces = []
            self._size = 0
        self._pieces.append(rest)
        self._size += len(rest)
        if self._size > VARIABLE_MAX:
            raise UsageError(f"the line is too long for a message: size_bytes={self._size}")
        return lines

    def end(self) -> list[bytes]:
        """Return the last line, if it does not end with a line feed."""
        rest = b"".join(self._pieces)
        return [rest] if rest else []


class LineFeed:
    """Reads lines in a thread, one chunk for each request.

    The thread runs `run`. `post` schedules a call on the event loop, where everything else runs.
    The thread must be a daemon, because it may still block in `read` when the loop has ended.
    """

    def __init__(
        self,
        read: Callable[[int], bytes],
        post: Callable[[Callable[[], None]], object],
        *,
        take: Callable[[list[bytes]], None],
        end: Callable[[Exception | None], None],
    ) -> None:
        self._read = read
        self._post = post
        self._take = take
        self._end = end
        self._asked = False
        self._wanted = Semaphore(0)

    def ask(self) -> None:
        """Request one more chunk, unless a request is pending."""
        if not self._asked:
            self._asked = True
            self._wanted.release()

    def run(self) -> None:
        """Read until the end; the last call is `end`, with the error of the input, if any."""
        lines = LineSplitter()
        error: Exception | None = None
        # The event loop or the input was closed meanwhile, so the rest is not needed.
        with suppress(RuntimeError, ValueError):
            try:
                while chunk := self._next_chunk():
                    self._post(partial(self._arrived, lines.feed(chunk)))
            except (OSError, UsageError) as exc:
                error = exc
            self._post(partial(self._ended, [] if error else lines.end(), error))

    def _next_chunk(self) -> bytes:
        self._wanted.acquire()
        return self._read(_CHUNK_BYTES)

    def _arrived(self, lines: list[bytes]) -> None:
        self._asked = False
        self._take(lines)

    def _ended(self, lines: list[bytes], error: Exception | None) -> None:
        self._take(lines)
        self._end(error)
