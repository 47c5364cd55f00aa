"""The free space of the disk: when it runs low, publishes are refused, then new durable sessions.

Returning sessions, acknowledgements and deletes always have room: `commits` can use the space that
publishers must leave free, and it has a reserve of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from siltstone.broker.control.alarms import DISK, DISK_LOW, QUIET, Alarms
from siltstone.errors import SiltstoneError

# For this many checks after a refused write, the alarm ends only when the space that the write
# needed is free.
HELD_LOOKS: Final = 60
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
        self._refused_writes = 0
        self._held_looks = 0

    def look(self) -> None:
        """Read the free space, and update the alarm."""
        try:
            free = self._free_bytes()
        except SiltstoneError:
            # The store itself reports a disk that does not answer.
            return
        keep, needed = self._keep_free_bytes, self._needed_bytes()
        before = self._alarms.text(DISK)
        # An alarm improves only with some space above its limit, so that it is not set and cleared
        # again and again.
        is_scarce = free < (_with_margin(keep // 2) if before == SCARCE else keep // 2)
        enough = keep if before == QUIET else _with_margin(max(keep, needed))
        text = SCARCE if is_scarce else DISK_LOW if free < enough else QUIET
        self._alarms.set(DISK, text, free_bytes=free, keep_free_bytes=keep)
        self._alarms.takes_new_sessions = not is_scarce

    def _needed_bytes(self) -> int:
        """Return the free space that recently refused writes needed; 0 if there are none."""
        alarms = self._alarms
        self._held_looks -= 1
        if alarms.refused_writes != self._refused_writes:
            self._refused_writes = alarms.refused_writes
            self._held_looks = HELD_LOOKS
        elif self._held_looks <= 0 or alarms.text(DISK) == QUIET:
            alarms.needed_bytes = 0
        return alarms.needed_bytes


def _with_margin(size_bytes: int) -> int:
    return size_bytes * 9 // 8
