from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.broker.control.alarms import DISK, DISK_LOW, QUIET, Alarms
from siltstone.broker.control.disk_watch import (
    HELD_LOOKS,
    SCARCE,
    DiskWatch,
    retained_free_bytes,
)
from siltstone.errors import StorageFullError
from tests.support.broker_core import Core


@pytest.mark.parametrize(
    ("before", "free", "text", "takes_new_sessions"),
    [
        (QUIET, 800, QUIET, True),
        (QUIET, 799, DISK_LOW, True),
        (QUIET, 399, SCARCE, False),
        (DISK_LOW, 899, DISK_LOW, True),
        (SCARCE, 449, SCARCE, False),
        (SCARCE, 450, DISK_LOW, True),
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


def test_a_refused_publish_does_not_change_an_alarm_that_is_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    core = Core(automatic=False)
    watch = DiskWatch(core.broker.alarms, lambda: 399, keep_free_bytes=800)
    for _ in range(3):
        watch.look()
        refuse_a_publish(core, needed_bytes=801)
        assert core.broker.alarms.text(DISK) == SCARCE
    assert raised(caplog) == [SCARCE]


def test_an_alarm_stays_while_the_disk_has_no_room_for_a_write_that_was_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    free = 1_000
    core = Core(automatic=False)
    alarms = core.broker.alarms
    watch = DiskWatch(alarms, lambda: free, keep_free_bytes=800)
    for _ in range(3):
        # The publish needs a new block of the file, which is larger than the margin of the watch.
        refuse_a_publish(core, needed_bytes=1_600)
        watch.look()
        assert alarms.text(DISK) == DISK_LOW
    free = 1_799
    watch.look()
    assert alarms.text(DISK) == DISK_LOW
    free = 1_800
    watch.look()
    assert alarms.text(DISK) == QUIET
    free = 800
    watch.look()
    assert (alarms.text(DISK), raised(caplog)) == (QUIET, [DISK_LOW])


def test_one_large_write_that_was_refused_does_not_hold_the_alarm_for_ever() -> None:
    core = Core(automatic=False)
    alarms = core.broker.alarms
    watch = DiskWatch(alarms, lambda: 1_000, keep_free_bytes=800)
    refuse_a_publish(core, needed_bytes=1 << 40)
    for _ in range(HELD_LOOKS):
        watch.look()
        assert alarms.text(DISK) == DISK_LOW
    watch.look()
    assert alarms.text(DISK) == QUIET
    refuse_a_publish(core, needed_bytes=801)
    watch.look()
    assert alarms.text(DISK) == QUIET


def refuse_a_publish(core: Core, *, needed_bytes: int) -> None:
    core.connect("publisher").publish("a", "x", qos=1, packet_id=1)
    core.settle(StorageFullError(PurePath("/data"), needed_bytes=needed_bytes))


def raised(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.__dict__["facts"]["text"]
        for record in caplog.records
        if record.getMessage() == "alarm_raised"
    ]


def test_retained_messages_leave_less_free_than_messages_and_more_than_sessions_need() -> None:
    assert retained_free_bytes(800) == 600
