"""Lines as messages: chunks of a stream cut at line ends, and a thread's way to the loop.

A line is what stands before a line feed, without it; what follows the last one is a line if there
is anything.
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
    """Cuts chunks into lines, whichever way they were cut before."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that a chunk completes. Raises: UsageError for one that is endless."""
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
        """Return the last line, where no line feed follows it."""
        rest = b"".join(self._pieces)
        return [rest] if rest else []


class LineFeed:
    """Reads lines in a thread of its own, one chunk each time it is asked.

    The thread runs `run`; `post` brings a call from there to the loop, where all else happens. A
    thread that is stuck in `read` when the loop has ended must be a daemon.
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
        """Want one more chunk, unless one is on its way."""
        if not self._asked:
            self._asked = True
            self._wanted.release()

    def run(self) -> None:
        """Read until the end; the last call is that of `end`, with what broke the input."""
        lines = LineSplitter()
        error: Exception | None = None
        # A loop or an input that was closed under us: nobody wants the rest.
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
