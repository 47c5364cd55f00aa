"""The free space of the disk: when it runs low, publishes are refused, then new durable sessions.

Returning sessions, acknowledgements and deletes always have room: `commits` can use the space that
publishers must leave free, and it has a reserve of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from siltstone.broker.control.alarms import DISK, DISK_LOW, QUIET, Alarms
from siltstone.errors import SiltstoneError

SCARCE: Final = "the disk is full: publishes and new durable sessions are refused"


def retained_free_bytes(keep_free_bytes: int) -> int:
    """Return the bytes that the log of retained messages leaves free.

    This is less than for messages, because the log must be able to undo the changes of messages
    that were refused.
    """
    return keep_free_bytes * 3 // 4


class DiskWatch:
    """Checks the free space of the disk, and sets the alarm."""

    def __init__(
        self, alarms: Alarms, free_bytes: Callable[[], int], *, keep_free_bytes: int
    ) -> None:
        self._alarms = alarms
        self._free_bytes = free_bytes
        self._keep_free_bytes = keep_free_bytes

    def look(self) -> None:
        """Read the free space, and update the alarm."""
        try:
            free = self._free_bytes()
        except SiltstoneError:
            # The store itself reports a disk that does not answer.
            return
        is_scarce = free < self._keep_free_bytes // 2
        # The alarm is cleared only with some space above the limit, so that it does not flap.
        was_quiet = self._alarms.text(DISK) == QUIET
        enough = self._keep_free_bytes if was_quiet else self._keep_free_bytes * 9 // 8
        text = SCARCE if is_scarce else DISK_LOW if free < enough else QUIET
        self._alarms.set(DISK, text, free_bytes=free, keep_free_bytes=self._keep_free_bytes)
        self._alarms.takes_new_sessions = not is_scarce
