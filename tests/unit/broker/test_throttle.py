from __future__ import annotations

import pytest

from siltstone.broker.throttle import ADDRESSES_MAX, FORGET_SECONDS, Throttle
from siltstone.clock import ManualClock

ADDRESS = "192.0.2.7"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def throttle(clock: ManualClock) -> Throttle:
    return Throttle(clock)


def delays(throttle: Throttle, failures: int, address: str = ADDRESS) -> list[float]:
    """Return the delay before and after each of so many failures."""
    found = [throttle.delay_for(address)]
    for _ in range(failures):
        throttle.failed(address)
        found.append(throttle.delay_for(address))
    return found


def test_the_delay_doubles_with_each_failure_up_to_its_maximum(throttle: Throttle) -> None:
    assert delays(throttle, 7) == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_any_number_of_failures_keeps_to_the_maximum(throttle: Throttle) -> None:
    assert delays(throttle, 5_000)[-1] == 10.0


def test_the_delay_is_what_the_settings_say(clock: ManualClock) -> None:
    assert delays(Throttle(clock, delay=0.1, delay_max=0.3), 3) == [0.0, 0.1, 0.2, 0.3]
    assert delays(Throttle(clock, delay=0.0, delay_max=0.0), 2) == [0.0, 0.0, 0.0]


def test_addresses_do_not_slow_each_other_down(throttle: Throttle) -> None:
    throttle.failed(ADDRESS)
    assert [throttle.delay_for(each) for each in (ADDRESS, "192.0.2.8", "")] == [0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("failed", "other", "delay"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", 0.5),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", 0.0),
        ("::ffff:192.0.2.7", "192.0.2.7", 0.5),
        ("::ffff:192.0.2.7", "::ffff:192.0.2.8", 0.0),
        ("", "", 0.5),
        ("/run/siltstone.sock", "/run/other.sock", 0.0),
    ],
)
def test_one_network_counts_as_one_address(
    throttle: Throttle, failed: str, other: str, delay: float
) -> None:
    throttle.failed(failed)
    assert throttle.delay_for(other) == delay


def test_a_login_that_works_forgets_the_failures(throttle: Throttle) -> None:
    throttle.succeeded(ADDRESS)
    delays(throttle, 3)
    throttle.failed("192.0.2.8")
    throttle.succeeded(ADDRESS)
    assert delays(throttle, 1) == [0.0, 0.5]
    assert throttle.delay_for("192.0.2.8") == 0.5


def test_failures_are_forgotten_after_a_while(throttle: Throttle, clock: ManualClock) -> None:
    delays(throttle, 3)
    clock.advance(FORGET_SECONDS - 0.1)
    assert throttle.delay_for(ADDRESS) == 2.0
    clock.advance(0.1)
    assert throttle.delay_for(ADDRESS) == 0.0


def test_old_failures_do_not_count_for_a_new_one(throttle: Throttle, clock: ManualClock) -> None:
    delays(throttle, 3)
    clock.advance(FORGET_SECONDS)
    throttle.failed(ADDRESS)
    assert throttle.delay_for(ADDRESS) == 0.5


def test_of_too_many_addresses_the_one_that_failed_longest_ago_is_forgotten(
    throttle: Throttle,
) -> None:
    first, second = "198.51.100.1", "198.51.100.2"
    throttle.failed(first)
    throttle.failed(second)
    throttle.failed(first)
    for number in range(ADDRESSES_MAX - 1):
        throttle.failed(f"10.0.{number >> 8}.{number & 255}")
    assert [throttle.delay_for(each) for each in (first, second, "10.0.0.0")] == [1.0, 0.0, 0.5]
