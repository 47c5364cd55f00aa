from __future__ import annotations

import logging

import pytest

from siltstone.broker.control.sparse_log import SparseLog


def test_of_events_that_come_fast_one_is_told_with_the_number_of_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    now = [0.0]
    sparse = SparseLog(logging.getLogger("siltstone.broker"), lambda: now[0], 1.0)
    for number, at in enumerate((0.0, 0.1, 0.9, 1.0, 2.0)):
        now[0] = at
        sparse.tell(logging.WARNING, "refused", number=number)
    told = [getattr(record, "facts", {}) for record in caplog.records]
    assert told == [{"number": 0}, {"number": 3, "unlogged": 2}, {"number": 4}]
