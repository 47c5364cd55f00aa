from __future__ import annotations

from siltstone.client.backoff import Backoff


def steady(give_up_seconds: float | None = None) -> Backoff:
    """Return one whose waits are not shortened."""
    return Backoff(give_up_seconds, random=lambda: 0.0)


def test_waits_double_up_to_the_longest() -> None:
    backoff = steady()
    waits = [backoff.lost(float(now)) for now in range(8)]
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_a_wait_is_shortened_by_up_to_a_half() -> None:
    assert Backoff(None, random=lambda: 1.0).lost(0.0) == 0.05


def test_a_connection_that_lasted_makes_the_next_wait_short_again() -> None:
    backoff = steady()
    backoff.lost(0.0)
    backoff.lost(1.0)
    backoff.connected(2.0)
    assert backoff.lost(7.0) == 0.1


def test_a_connection_that_did_not_last_changes_nothing() -> None:
    backoff = steady()
    backoff.lost(0.0)
    backoff.connected(2.0)
    assert backoff.lost(2.5) == 0.2


def test_it_gives_up_when_the_server_is_away_for_too_long() -> None:
    backoff = steady(1.0)
    assert [backoff.lost(now) for now in (0.0, 0.9, 1.0)] == [0.1, 0.09999999999999998, None]


def test_a_short_return_begins_the_time_to_give_up_anew() -> None:
    backoff = steady(1.0)
    backoff.lost(0.0)
    backoff.connected(0.9)
    assert backoff.lost(1.5) == 0.2
    assert backoff.lost(2.5) is None
