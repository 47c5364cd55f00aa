"""What is left of the disk, and who must stop: publishers first, then those with new sessions.

Sessions that return, acknowledgements and deletes always have room: `commits` has what publishers
must leave free, and a reserve of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from siltstone.broker.control.alarms import DISK, DISK_LOW, QUIET, Alarms
from siltstone.errors import SiltstoneError

SCARCE: Final = "the disk is full: publishes and new durable sessions are refused"


def retained_free_bytes(keep_free_bytes: int) -> int:
    """Return what the log of retained messages leaves free: less than messages do, for it takes
    back what they were refused.
    """
    return keep_free_bytes * 3 // 4


class DiskWatch:
    """Looks at the disk now and then, and raises the alarm."""

    def __init__(
        self, alarms: Alarms, free_bytes: Callable[[], int], *, keep_free_bytes: int
    ) -> None:
        self._alarms = alarms
        self._free_bytes = free_bytes
        self._keep_free_bytes = keep_free_bytes

    def look(self) -> None:
        """Ask the disk how much is left."""
        try:
            free = self._free_bytes()
        except SiltstoneError:
            # The store itself will tell of a disk that does not answer.
            return
        is_scarce = free < self._keep_free_bytes // 2
        # The alarm is not over before there is room for more than the next message.
        was_quiet = self._alarms.text(DISK) == QUIET
        enough = self._keep_free_bytes if was_quiet else self._keep_free_bytes * 9 // 8
        text = SCARCE if is_scarce else DISK_LOW if free < enough else QUIET
        self._alarms.set(DISK, text, free_bytes=free, keep_free_bytes=self._keep_free_bytes)
        self._alarms.takes_new_sessions = not is_scarce
