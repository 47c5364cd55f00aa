"""Alarms about the machine of the broker, for the log and for `$SYS`."""

from __future__ import annotations

import logging
from typing import Final

from siltstone.logs import log

DISK: Final = "disk"
CLOCK: Final = "clock"
ALARMS: Final = (DISK, CLOCK)
QUIET: Final = "ok"
DISK_LOW: Final = "the disk is nearly full: publishes are refused"

_LOG: Final = logging.getLogger("siltstone.alarms")


class Alarms:
    """The alarms by name; the text describes the problem and what the broker does about it."""

    def __init__(self) -> None:
        self._texts = dict.fromkeys(ALARMS, QUIET)
        # Whether the disk has room for new sessions.
        self.takes_new_sessions = True
        # The number of refused writes, and the free space that the largest of them needed. The
        # watch of the disk forgets the space.
        self.refused_writes = 0
        self.needed_bytes = 0

    def text(self, name: str) -> str:
        """Return the text of an alarm, "ok" if there is no problem."""
        return self._texts[name]

    def refuse_write(self, needed_bytes: int) -> None:
        """Raise the alarm of the disk if it is quiet: a write did not fit.

        A raised alarm keeps its text, which depends on the free space alone.
        """
        self.refused_writes += 1
        self.needed_bytes = max(self.needed_bytes, needed_bytes)
        if self._texts[DISK] == QUIET:
            self.set(DISK, DISK_LOW)

    def set(self, name: str, text: str, level: int = logging.ERROR, **facts: object) -> None:
        """Set the text of an alarm, "ok" to clear it; log a change.

        A new alarm is logged at `level`, a cleared one as a warning.
        """
        if text == self._texts[name]:
            return
        self._texts[name] = text
        if text == QUIET:
            log(_LOG, logging.WARNING, "alarm_cleared", alarm=name, **facts)
        else:
            log(_LOG, level, "alarm_raised", alarm=name, text=text, **facts)
