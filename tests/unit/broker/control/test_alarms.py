from __future__ import annotations

import logging

import pytest

from siltstone.broker.control.alarms import CLOCK, DISK, DISK_LOW, QUIET, Alarms


def test_a_change_is_logged_once_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    alarms = Alarms()
    assert (alarms.text(DISK), alarms.text(CLOCK)) == (QUIET, QUIET)
    for text in (QUIET, DISK_LOW, DISK_LOW, QUIET):
        alarms.set(DISK, text)
    assert (alarms.text(DISK), alarms.text(CLOCK)) == (QUIET, QUIET)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "alarm_raised"),
        ("WARNING", "alarm_cleared"),
    ]
