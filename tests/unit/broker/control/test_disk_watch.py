from __future__ import annotations

import pytest

from siltstone.broker.control.alarms import DISK, DISK_LOW, QUIET, Alarms
from siltstone.broker.control.disk_watch import SCARCE, DiskWatch, retained_free_bytes


@pytest.mark.parametrize(
    ("before", "free", "text", "takes_new_sessions"),
    [
        (QUIET, 800, QUIET, True),
        (QUIET, 799, DISK_LOW, True),
        (QUIET, 399, SCARCE, False),
        (DISK_LOW, 899, DISK_LOW, True),
        (SCARCE, 400, DISK_LOW, True),
        (SCARCE, 900, QUIET, True),
    ],
)
def test_publishers_stop_first_and_then_new_sessions(
    before: str, free: int, text: str, *, takes_new_sessions: bool
) -> None:
    alarms = Alarms()
    alarms.set(DISK, before)
    watch = DiskWatch(alarms, lambda: free, keep_free_bytes=800)
    watch.look()
    assert (alarms.takes_new_sessions, alarms.text(DISK)) == (takes_new_sessions, text)


def test_retained_messages_leave_less_free_than_messages_and_more_than_sessions_need() -> None:
    assert retained_free_bytes(800) == 600
