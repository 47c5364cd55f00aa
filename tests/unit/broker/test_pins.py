from __future__ import annotations

from siltstone.broker.pins import Pins


def test_rows_are_free_when_every_pin_was_let_go_of_and_none_was_taken_since() -> None:
    pins = Pins()
    assert pins.is_free(0)
    first, second = pins.take(), pins.take()
    assert not pins.is_free(2)
    first()
    first()
    assert not pins.is_free(2)
    second()
    assert pins.is_free(2)
    assert not pins.is_free(1)
