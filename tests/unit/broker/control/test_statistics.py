from __future__ import annotations

from siltstone.broker.control.statistics import Statistics


def test_all_counters_begin_at_zero_and_the_start_is_kept() -> None:
    statistics = Statistics(12.5)
    expected = {
        "bytes_received": 0,
        "bytes_sent": 0,
        "clients_maximum": 0,
        "connections": 0,
        "messages_dropped": 0,
        "publishes_received": 0,
        "publishes_refused": 0,
        "publishes_sent": 0,
        "started_at": 12.5,
    }
    assert {name: getattr(statistics, name) for name in expected} == expected
