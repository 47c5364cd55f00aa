"""The standard streams of the command, each of which may be closed at the start.

Python uses None for a closed stream. Here a closed output becomes a stream that fails on each
write, as a full disk does, and `standard_input` checks stdin. The descriptors 0 to 2 are kept open:
otherwise a file of the store could get one of them, and the output of a library would go into it.
"""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO, Final

from siltstone.errors import UsageError

_STANDARD_MAX: Final = 2


class ClosedOutput(io.RawIOBase):
    """An output that fails on each write."""

    def writable(self) -> bool:
        """Return True: the error is raised by `write`."""
        return True

    def write(self, _data: object) -> int:
        """Fail as the operating system does. Raises: OSError."""
        raise OSError(errno.EBADF, "standard output is closed")


@contextmanager
def standard_streams() -> Iterator[None]:
    """Make the standard streams usable for every command, and keep their descriptors open."""
    with ExitStack() as held:
        if None in (sys.stdin, sys.stdout, sys.stderr):
            _hold_numbers(held)
        if sys.stderr is None:
            sys.stderr = held.enter_context(open("/dev/null", "w", encoding="utf-8"))
        if sys.stdout is None:
            buffer = io.BufferedWriter(ClosedOutput())
            sys.stdout = io.TextIOWrapper(buffer, "utf-8", newline="\n")
        else:
            # The stream of PYTHONUNBUFFERED loses data if a pipe accepts only part of a write.
            sys.stdout = open(  # noqa: SIM115 - it lives as long as the process
                sys.stdout.fileno(), "w", encoding="utf-8", newline="\n", closefd=False
            )
        yield


def _hold_numbers(held: ExitStack) -> None:
    """Open /dev/null under each closed descriptor of a standard stream."""
    while True:
        file = open("/dev/null", "rb", buffering=0)  # noqa: SIM115 - held by the caller
        if file.fileno() > _STANDARD_MAX:
            file.close()
            return
        held.enter_context(file)


def standard_input() -> BinaryIO:
    """Return the binary stdin. Raises: UsageError if it is closed."""
    if sys.stdin is None:
        raise UsageError("standard input is closed; redirect a file or a pipe to it")
    return sys.stdin.buffer


def is_terminal() -> bool:
    """Return whether stdin is a terminal, so that the user can be asked."""
    return sys.stdin is not None and sys.stdin.isatty()
