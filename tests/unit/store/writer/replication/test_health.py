"""Timers of claims, outboxes and leases, and wrong clocks."""

from __future__ import annotations

import pytest

from siltstone.store.writer.replication.health import (
    AGAIN_US,
    BACK_OFF_US_MAX,
    DEAD_US,
    FALL_BACK_US,
    MUTE_US,
    RANK_US,
    RENEW_US,
    SILENCE_US,
    STALL_US,
    BoundsWatch,
    ClaimTimer,
    Lease,
    OutboxTimer,
    PeerWatch,
    all_can_read,
    clock_is_wrong,
)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_claim_is_due_after_silence_later_for_a_higher_rank(rank: int) -> None:
    timer = ClaimTimer(rank, 100)
    due = 100 + SILENCE_US + rank * RANK_US
    assert [timer.is_due(due - 1), timer.is_due(due)] == [False, True]
    timer.heard(due)
    assert not timer.is_due(due + SILENCE_US + rank * RANK_US - 1)


def test_claims_back_off_up_to_a_limit_until_a_leader_is_heard() -> None:
    timer = ClaimTimer(0, 0)
    waits = []
    for _ in range(6):
        timer.claimed(0)
        waits.append(next(at for at in range(0, 20_000_000, 500_000) if timer.is_due(at)))
    assert waits == [2_000_000, 4_000_000, 8_000_000] + [BACK_OFF_US_MAX] * 3
    timer.heard(0)
    assert timer.is_due(SILENCE_US)


def test_an_outbox_is_published_again_at_intervals_until_it_moves() -> None:
    timer = OutboxTimer()
    assert not timer.watch(5, 0)
    assert not timer.watch(5, AGAIN_US - 1)
    assert timer.watch(5, AGAIN_US)
    assert not timer.watch(5, AGAIN_US + 1)
    assert not timer.watch(6, 2 * AGAIN_US)
    assert timer.watch(6, 3 * AGAIN_US)
    assert not timer.watch(0, 9 * AGAIN_US)
    assert not timer.watch(0, 99 * AGAIN_US)


def test_a_leader_whose_records_do_not_count_has_stalled() -> None:
    timer = OutboxTimer()
    timer.watch(5, 0)
    assert [timer.is_stalled(STALL_US - 1), timer.is_stalled(STALL_US)] == [False, True]
    timer.watch(0, STALL_US)
    assert not timer.is_stalled(9 * STALL_US)


def test_a_site_serves_no_clients_before_its_first_renewal() -> None:
    # A site that restarts while it is cut off has no lease that others know of.
    lease = Lease()
    assert not lease.may_serve(0)
    assert lease.try_renew(0)
    assert not lease.may_serve(1)
    lease.renewed(0)
    assert lease.may_serve(1)


def test_a_lease_counts_from_when_the_renewal_was_sent() -> None:
    lease = Lease()
    assert lease.try_renew(0)
    assert not lease.try_renew(RENEW_US - 1)
    assert lease.try_renew(RENEW_US)
    assert not lease.try_renew(RENEW_US)
    lease.renewed(RENEW_US)
    lease.renewed(1)
    assert lease.may_serve(RENEW_US + MUTE_US - 1)
    assert not lease.may_serve(RENEW_US + MUTE_US)


def test_a_peer_is_dead_when_its_entry_stays_the_same() -> None:
    watch = PeerWatch(0)
    watch.saw(1, 5)
    watch.saw(1, 6)
    assert [watch.is_dead(4 + DEAD_US), watch.is_dead(5 + DEAD_US)] == [False, True]
    watch.saw(2, 5 + DEAD_US)
    assert not watch.is_dead(6 + DEAD_US)


def test_clocks_may_drift_apart_by_half_before_a_serving_site_is_declared_dead() -> None:
    assert MUTE_US * 3 // 2 < DEAD_US


def test_a_clock_is_wrong_if_it_is_far_from_the_median() -> None:
    assert not clock_is_wrong(5_000_000, [0, 0, 5_000_000])
    assert clock_is_wrong(5_000_001, [0, 0, 5_000_001])
    assert not clock_is_wrong(0, [0, 0, 3_600_000_000])
    assert clock_is_wrong(-3_600_000_000, [0, 10, -3_600_000_000])


def test_a_site_leads_only_if_all_that_are_heard_can_read_it() -> None:
    assert all_can_read(2, [])
    assert all_can_read(2, [2, 3])
    assert not all_can_read(2, [2, 1])


def told(watch: BoundsWatch, last: int, read: int, now_us: int) -> int | None:
    return watch.last(last, read_before=read, read=read, now_us=now_us)


def test_a_shorter_log_is_believed_only_if_nothing_else_is_seen_for_a_while() -> None:
    watch = BoundsWatch()
    assert told(watch, 1244, 1244, 0) == 1244
    assert told(watch, 1243, 1244, 10) is None
    assert told(watch, 1243, 1244, FALL_BACK_US) is None
    # The new leader of the log has applied what it had: the answers before were from the past.
    assert told(watch, 1244, 1244, FALL_BACK_US + 1) == 1244
    assert told(watch, 1243, 1244, FALL_BACK_US + 2) is None
    assert told(watch, 1240, 1250, 2 * FALL_BACK_US + 1) is None
    assert told(watch, 1243, 1244, 2 * FALL_BACK_US + 2) == 1243


def test_messages_that_are_read_while_the_log_answers_are_not_lost() -> None:
    watch = BoundsWatch()
    for number in range(100):
        now_us = number * FALL_BACK_US
        assert watch.last(519, read_before=519, read=521, now_us=now_us) == 521
