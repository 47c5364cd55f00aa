"""What is wrong with the machine that the broker runs on, for its log and for `$SYS`."""

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
    """The alarms by their names; a text says what is wrong, and what the broker does about it."""

    def __init__(self) -> None:
        self._texts = dict.fromkeys(ALARMS, QUIET)
        # Whether the disk has room for sessions that are not there yet.
        self.takes_new_sessions = True

    def text(self, name: str) -> str:
        """Return what is wrong, "ok" when nothing is."""
        return self._texts[name]

    def set(self, name: str, text: str, level: int = logging.ERROR, **facts: object) -> None:
        """Say what is wrong, "ok" when nothing is any more; a change is logged, at this level."""
        if text == self._texts[name]:
            return
        self._texts[name] = text
        if text == QUIET:
            log(_LOG, logging.WARNING, "alarm_cleared", alarm=name, **facts)
        else:
            log(_LOG, level, "alarm_raised", alarm=name, text=text, **facts)
