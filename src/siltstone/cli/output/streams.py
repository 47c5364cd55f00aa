"""The standard streams of the command, of which whoever starts it may have closed any.

Python has None for a stream that is closed. Here it becomes one that fails when it is written, as a
full disk does, and stdin is asked for through `standard_input`. The numbers 0 to 2 are held: else a
file of the store would get one, and what a library prints would go into it.
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
    """An output that takes nothing."""

    def writable(self) -> bool:
        """Say yes: who writes is told what is wrong."""
        return True

    def write(self, _data: object) -> int:
        """Fail, as the system does. Raises: OSError."""
        raise OSError(errno.EBADF, "standard output is closed")


@contextmanager
def standard_streams() -> Iterator[None]:
    """Make the streams of this process such that every command can use them, and hold them."""
    with ExitStack() as held:
        if None in (sys.stdin, sys.stdout, sys.stderr):
            _hold_numbers(held)
        if sys.stderr is None:
            sys.stderr = held.enter_context(open("/dev/null", "w", encoding="utf-8"))
        if sys.stdout is None:
            buffer = io.BufferedWriter(ClosedOutput())
            sys.stdout = io.TextIOWrapper(buffer, "utf-8", newline="\n")
        else:
            # What PYTHONUNBUFFERED gives loses the rest of a write that the pipe takes a part of.
            sys.stdout = open(  # noqa: SIM115 - it lives as long as the process
                sys.stdout.fileno(), "w", encoding="utf-8", newline="\n", closefd=False
            )
        yield


def _hold_numbers(held: ExitStack) -> None:
    """Open something under each number of a standard stream that is closed."""
    while True:
        file = open("/dev/null", "rb", buffering=0)  # noqa: SIM115 - held by the caller
        if file.fileno() > _STANDARD_MAX:
            file.close()
            return
        held.enter_context(file)


def standard_input() -> BinaryIO:
    """Return the bytes of stdin. Raises: UsageError where it is closed."""
    if sys.stdin is None:
        raise UsageError("standard input is closed; redirect a file or a pipe to it")
    return sys.stdin.buffer


def is_terminal() -> bool:
    """Tell whether somebody sits at stdin, who can be asked."""
    return sys.stdin is not None and sys.stdin.isatty()
