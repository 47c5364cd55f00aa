from __future__ import annotations

import pytest

from siltstone.broker.connect.throttle import ENTRIES_MAX, FORGET_SECONDS, Throttle, network_of
from siltstone.clock import ManualClock
from siltstone.mqtt.reason import Reason

ADDRESS = "192.0.2.7"
OTHER = "192.0.2.8"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def throttle(clock: ManualClock) -> Throttle:
    return Throttle(clock)


def delays(throttle: Throttle, failures: int, address: str = ADDRESS) -> list[float]:
    """Return the delay before and after each of so many failures."""
    found = [throttle.delay_for("u", address)]
    for _ in range(failures):
        throttle.failed("u", address)
        found.append(throttle.delay_for("u", address))
    return found


class TestDelay:
    def test_it_doubles_with_each_failure_up_to_its_maximum(self, throttle: Throttle) -> None:
        assert delays(throttle, 7) == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]

    def test_any_number_of_failures_keeps_to_the_maximum(self, throttle: Throttle) -> None:
        assert delays(throttle, 5_000)[-1] == 10.0

    def test_it_is_what_the_settings_say(self, clock: ManualClock) -> None:
        assert delays(Throttle(clock, delay=0.1, delay_max=0.3), 3) == [0.0, 0.1, 0.2, 0.3]
        assert delays(Throttle(clock, delay=0.0, delay_max=0.0), 2) == [0.0, 0.0, 0.0]

    def test_users_and_addresses_do_not_slow_each_other_down(self, throttle: Throttle) -> None:
        throttle.failed("u", ADDRESS)
        who = [("u", ADDRESS), ("v", ADDRESS), ("u", OTHER), (None, ADDRESS), ("", ADDRESS)]
        assert [throttle.delay_for(*each) for each in who] == [0.5, 0.0, 0.0, 0.0, 0.0]
        assert [throttle.judge(*each) for each in who] == [0.5, 0.0, 0.0, 0.0, 0.0]

    def test_a_login_that_works_forgets_the_failures_of_its_own_user_there(
        self, throttle: Throttle
    ) -> None:
        throttle.succeeded("u", ADDRESS)
        delays(throttle, 3)
        throttle.failed("u", OTHER)
        throttle.succeeded("v", ADDRESS)
        throttle.succeeded(None, ADDRESS)
        assert throttle.delay_for("u", ADDRESS) == 2.0
        throttle.succeeded("u", ADDRESS)
        assert (throttle.delay_for("u", ADDRESS), throttle.delay_for("u", OTHER)) == (0.0, 0.5)

    def test_failures_are_forgotten_after_a_while(
        self, throttle: Throttle, clock: ManualClock
    ) -> None:
        delays(throttle, 3)
        clock.advance(FORGET_SECONDS - 0.1)
        assert throttle.delay_for("u", ADDRESS) == 2.0
        clock.advance(0.1)
        assert throttle.delay_for("u", ADDRESS) == 0.0
        throttle.failed("u", ADDRESS)
        assert throttle.delay_for("u", ADDRESS) == 0.5


class TestTurns:
    def test_logins_at_once_wait_one_behind_the_other(self, throttle: Throttle) -> None:
        delays(throttle, 3)
        assert [throttle.judge("u", ADDRESS) for _ in range(7)] == [
            2.0,
            4.0,
            6.0,
            8.0,
            10.0,
            Reason.SERVER_BUSY,
            Reason.SERVER_BUSY,
        ]

    def test_the_wait_counts_from_the_failure(self, throttle: Throttle, clock: ManualClock) -> None:
        delays(throttle, 3)
        clock.advance(1.5)
        assert throttle.judge("u", ADDRESS) == 0.5
        clock.advance(60.0)
        assert throttle.judge("u", ADDRESS) == 0.0

    def test_an_address_that_guesses_many_users_tries_one_after_the_other(
        self, throttle: Throttle, clock: ManualClock
    ) -> None:
        for number in range(9):
            throttle.failed(f"u{number}", ADDRESS)
        assert [throttle.judge(f"v{number}", ADDRESS) for number in range(3)] == [0.0] * 3
        throttle.failed("u9", ADDRESS)
        assert [throttle.judge(f"v{number}", ADDRESS) for number in range(3)] == [0.0, 0.5, 1.0]
        assert throttle.judge("v", OTHER) == 0.0
        clock.advance(FORGET_SECONDS)
        assert [throttle.judge(f"v{number}", ADDRESS) for number in range(3)] == [0.0] * 3


class TestLockout:
    def test_so_many_failures_lock_a_user_out_from_an_address_for_a_while(
        self, clock: ManualClock
    ) -> None:
        throttle = Throttle(clock, failures_max=3, lockout=60.0)
        assert [throttle.failed("u", ADDRESS) for _ in range(4)] == [False, False, True, False]
        assert throttle.judge("u", ADDRESS) is Reason.BANNED
        who = [("u", ADDRESS), ("v", ADDRESS), ("u", OTHER)]
        assert [throttle.is_locked(*each) for each in who] == [True, False, False]
        clock.advance(59.9)
        assert throttle.is_locked("u", ADDRESS)
        clock.advance(0.1)
        assert not throttle.is_locked("u", ADDRESS)
        # One more failure is enough, until they are forgotten.
        assert throttle.failed("u", ADDRESS)

    def test_a_lockout_may_outlast_the_memory_of_failures(self, clock: ManualClock) -> None:
        throttle = Throttle(clock, failures_max=1, lockout=2 * FORGET_SECONDS)
        throttle.failed("u", ADDRESS)
        clock.advance(2 * FORGET_SECONDS - 0.1)
        assert throttle.is_locked("u", ADDRESS)
        clock.advance(0.1)
        assert (throttle.is_locked("u", ADDRESS), throttle.delay_for("u", ADDRESS)) == (False, 0.0)

    @pytest.mark.parametrize(("failures_max", "lockout"), [(0, 60.0), (3, 0.0)])
    def test_there_may_be_none(self, clock: ManualClock, failures_max: int, lockout: float) -> None:
        throttle = Throttle(clock, failures_max=failures_max, lockout=lockout)
        assert [throttle.failed("u", ADDRESS) for _ in range(5)] == [False] * 5
        assert not throttle.is_locked("u", ADDRESS)

    def test_a_client_without_a_user_name_has_guessed_nothing(self, clock: ManualClock) -> None:
        throttle = Throttle(clock, failures_max=3)
        assert [throttle.failed(None, ADDRESS) for _ in range(5)] == [False] * 5
        assert (throttle.is_locked(None, ADDRESS), throttle.judge("u", ADDRESS)) == (False, 0.0)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2::1", "2001:db8:1:2::"),
        ("2001:db8:1:2:ffff::9", "2001:db8:1:2::"),
        ("2001:db8:1:3::1", "2001:db8:1:3::"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", ""),
        ("/run/siltstone.sock", "/run/siltstone.sock"),
    ],
)
def test_one_network_counts_as_one_address(address: str, network: str) -> None:
    assert network_of(address) == network


def test_of_too_many_the_one_that_failed_longest_ago_is_forgotten(throttle: Throttle) -> None:
    first, second = "198.51.100.1", "198.51.100.2"
    throttle.failed("u", first)
    throttle.failed("u", second)
    throttle.failed("u", first)
    for number in range(ENTRIES_MAX - 1):
        throttle.failed("u", f"10.0.{number >> 8}.{number & 255}")
    addresses = (first, second, "10.0.0.0")
    assert [throttle.delay_for("u", each) for each in addresses] == [1.0, 0.0, 0.5]
