from __future__ import annotations

from siltstone.broker.publish.rate import Rate


def test_a_second_s_worth_comes_at_once_and_what_is_more_must_wait() -> None:
    rate = Rate(10)
    assert [rate.take(10, 5.0), rate.take(5, 5.0), rate.take(5, 5.0)] == [0.0, 0.5, 1.0]


def test_the_bucket_fills_with_time() -> None:
    rate = Rate(10)
    assert rate.take(20, 0.0) == 1.0
    assert [rate.take(5, 1.5), rate.take(1, 1.5)] == [0.0, 0.1]


def test_the_bucket_holds_no_more_than_a_second_s_worth() -> None:
    rate = Rate(10)
    rate.take(1, 0.0)
    assert [rate.take(10, 1000.0), rate.take(1, 1000.0)] == [0.0, 0.1]


def test_zero_is_no_limit() -> None:
    rate = Rate(0)
    assert [rate.take(1_000_000, 0.0), rate.take(1_000_000, 0.0)] == [0.0, 0.0]
