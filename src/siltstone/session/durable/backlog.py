"""The limits on the messages that wait when a client returns, and which messages are dropped."""

from __future__ import annotations


class Backlog:
    """Limits for one return of a client, in messages and bytes; 0 means no limit.

    With `totals` (all waiting messages and bytes), the oldest messages beyond the limits are
    dropped. Without it, the newest are dropped.
    """

    def __init__(
        self, messages_max: int, bytes_max: int, totals: tuple[int, int] | None = None
    ) -> None:
        self._messages_left = messages_max or -1
        self._bytes_left = bytes_max or -1
        self._is_old_first = totals is not None
        self._skip_messages = 0
        self._skip_bytes = 0
        if totals is not None:
            if messages_max:
                self._skip_messages = max(0, totals[0] - messages_max)
            if bytes_max:
                self._skip_bytes = max(0, totals[1] - bytes_max)
        self._is_full = False

    def admits(self, size_bytes: int) -> bool:
        """Tell whether the next message is kept; call it once for each message, in order."""
        if self._is_old_first:
            if self._skip_messages <= 0 and self._skip_bytes <= 0:
                return True
            self._skip_messages -= 1
            self._skip_bytes -= size_bytes
            return False
        if self._is_full:
            return False
        if self._messages_left == 0 or 0 <= self._bytes_left < size_bytes:
            # No later message is kept either, so that the kept messages have no gaps.
            self._is_full = True
            return False
        if self._messages_left > 0:
            self._messages_left -= 1
        if self._bytes_left > 0:
            self._bytes_left -= size_bytes
        return True
