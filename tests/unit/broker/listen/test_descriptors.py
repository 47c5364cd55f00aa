from __future__ import annotations

import logging

import pytest

from siltstone.broker.listen.admission import Admission
from siltstone.broker.listen.descriptors import Shares, share_descriptors, tell_refused, tell_shares
from siltstone.broker.settings.broker import Limits


def facts(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, object]]]:
    return [(record.getMessage(), getattr(record, "facts", {})) for record in caplog.records]


def test_a_high_limit_gives_what_the_settings_want() -> None:
    shares = share_descriptors(1_048_576, 50, clients_wanted=100_000, topic_logs_wanted=10_000)
    assert shares == Shares(clients=100_000, topic_logs=10_000)


def test_a_low_limit_leaves_descriptors_for_storage() -> None:
    assert share_descriptors(1024, 50, clients_wanted=100_000) == Shares(clients=846, topic_logs=0)
    shares = share_descriptors(1024, 50, clients_wanted=100_000, topic_logs_wanted=10_000)
    assert shares == Shares(clients=587, topic_logs=195)


def test_some_connections_are_always_allowed() -> None:
    shares = share_descriptors(64, 60, clients_wanted=1000, topic_logs_wanted=1000)
    assert shares == Shares(clients=16, topic_logs=16)


def test_fewer_connections_than_wanted_are_told_with_their_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "siltstone.server"):
        shares = Shares(clients=700, topic_logs=10)
        tell_shares(shares, 1024, clients_wanted=100_000, topic_logs_wanted=10)
    assert facts(caplog) == [
        (
            "open_files_limit_low",
            {
                "setting": "limits.connections_max",
                "wanted": 100_000,
                "allowed": 700,
                "limit": 1024,
                "remedy": "raise the limit (ulimit -n, LimitNOFILE) or lower the setting",
            },
        )
    ]


def test_refused_connections_are_told_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    admission = Admission(Limits())
    admission.bound(1)
    assert [admission.enter("a"), admission.enter("b")] == [True, False]
    with caplog.at_level(logging.WARNING, "siltstone.server"):
        for now in (0.0, 1.0, 9.0, 10.0, 11.0):
            tell_refused(admission, "b", now)
    told = [
        (event, found["count"], found["last_address"], found["connections"])
        for event, found in facts(caplog)
    ]
    assert told == [("connections_refused", 1, "b", 1), ("connections_refused", 3, "b", 1)]
