from __future__ import annotations

from siltstone.session.delivery import Budget, Delivery


def test_a_message_takes_its_bytes_and_something_more() -> None:
    empty = Delivery(b"", b"", 1, b"", 0.0)
    assert Delivery(b"topic", b"payload", 1, b"pp", 0.0).size() == empty.size() + 14


def test_a_message_is_no_row_was_never_sent_and_has_no_packet_id() -> None:
    delivery = Delivery(b"t", b"p", 2, b"", 5.0)
    assert (delivery.lane, delivery.serial, delivery.packet_id) == (None, 0, 0)
    assert (delivery.sent, delivery.released, delivery.is_unsent) == (False, False, False)


def test_nothing_of_a_budget_is_used_at_first() -> None:
    budget = Budget(100)
    assert (budget.bytes_max, budget.used) == (100, 0)
