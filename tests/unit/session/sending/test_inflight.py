from __future__ import annotations

import pytest

from siltstone.session.durable.progress import SessionProgress
from siltstone.session.sending.delivery import NEVER, Budget, Delivery
from siltstone.session.sending.inflight import Inflight


def message(packet_id: int, payload: bytes = b"") -> Delivery:
    delivery = Delivery(b"t", payload, 1, b"", NEVER)
    delivery.packet_id = packet_id
    return delivery


class TestPacketIds:
    def test_they_are_given_in_turn_and_begin_again_with_1(self) -> None:
        inflight = Inflight(Budget(1000))
        inflight.last_id = 65_533
        assert [inflight.free_id() for _ in range(4)] == [65_534, 65_535, 1, 2]

    def test_those_in_flight_and_those_reserved_are_passed_over(self) -> None:
        inflight = Inflight(Budget(1000))
        inflight.add(message(1))
        inflight.reserved = {2, 4}
        assert [inflight.free_id(), inflight.free_id()] == [3, 5]

    def test_there_are_65_535_of_them(self) -> None:
        inflight = Inflight(Budget(1000))
        inflight.reserved = set(range(1, 65_535))
        assert inflight.has_free_id()
        inflight.add(message(inflight.free_id()))
        assert not inflight.has_free_id()


class TestSize:
    def test_what_is_in_flight_counts_until_it_goes(self) -> None:
        budget = Budget(10_000)
        inflight = Inflight(budget)
        first, second = message(1, b"abc"), message(2)
        inflight.add(first)
        inflight.add(second)
        inflight.outstanding = 2
        assert (len(inflight), budget.used) == (2, first.size() + second.size())
        inflight.remove(first)
        assert (inflight.size_bytes, budget.used, inflight.outstanding) == (
            second.size(),
            second.size(),
            1,
        )
        inflight.clear()
        assert (len(inflight), inflight.size_bytes, budget.used) == (0, 0, 0)

    def test_what_is_kept_in_place_of_a_message_counts_alone(self) -> None:
        budget = Budget(10_000)
        inflight = Inflight(budget)
        whole, kept = message(7, bytes(500)), message(7)
        inflight.add(whole)
        inflight.replace(whole, kept)
        assert inflight.deliveries == {7: kept}
        assert (inflight.size_bytes, budget.used) == (kept.size(), kept.size())


@pytest.mark.parametrize("mine", [True, False])
def test_rows_are_told_by_whose_they_are(*, mine: bool) -> None:
    inflight = Inflight(Budget(1000))
    progress = SessionProgress()
    row = message(1)
    row.lane = (progress if mine else SessionProgress()).lane(0)
    inflight.add(row)
    inflight.add(message(2))
    assert inflight.rows_of(progress) == ([row] if mine else [])
