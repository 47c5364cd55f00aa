from __future__ import annotations

import pytest

from siltstone.store.writer.producers import producer_key
from siltstone.store.writer.refused_sequences import RefusedSequences

ANN = producer_key("ann")
BO = producer_key("bo")
CY = producer_key("cy")


def arrears(*numbers: int, producers_max: int = 10) -> RefusedSequences:
    result = RefusedSequences(producers_max=producers_max)
    for number in numbers:
        result.add(ANN, number)
    return result


def test_who_owes_nothing_may_send_anything() -> None:
    assert arrears().first_before(ANN, 7) is None


def test_the_lowest_number_comes_first_in_whatever_order_they_were_refused() -> None:
    owed = arrears(5, 3, 9, 3)
    assert [owed.first_before(ANN, number) for number in (2, 3, 4, 9, 10)] == [
        None,
        None,
        3,
        3,
        3,
    ]
    assert owed.first_before(BO, 10) is None


def test_each_number_that_was_refused_must_come_again() -> None:
    owed = arrears(3, 5)
    owed.settle(ANN, 3)
    assert [owed.first_before(ANN, number) for number in (4, 5, 6)] == [None, None, 5]
    owed.settle(ANN, 5)
    assert owed.first_before(ANN, 6) is None


def test_a_number_that_is_not_owed_settles_nothing() -> None:
    owed = arrears(3)
    owed.settle(ANN, 2)
    owed.settle(ANN, 4)
    owed.settle(BO, 3)
    assert owed.first_before(ANN, 9) == 3


def test_a_number_that_was_refused_twice_must_come_once() -> None:
    owed = arrears(3, 3)
    owed.settle(ANN, 3)
    assert owed.first_before(ANN, 9) is None


def test_a_producer_that_owes_nothing_any_more_takes_no_place() -> None:
    owed = arrears(producers_max=2)
    owed.add(BO, 1)
    owed.add(ANN, 1)
    owed.settle(ANN, 1)
    owed.add(CY, 1)
    assert [owed.first_before(name, 9) for name in (ANN, BO, CY)] == [None, 1, 1]


def test_what_is_coming_is_not_waited_for() -> None:
    owed = arrears(3, 5)
    assert [owed.first_before(ANN, 9, coming) for coming in ({3}, {3, 5})] == [5, None]


def test_beyond_the_limit_the_producer_that_was_refused_longest_ago_is_forgotten() -> None:
    owed = arrears(1, producers_max=2)
    owed.add(BO, 1)
    owed.add(ANN, 2)
    owed.add(CY, 1)
    assert [owed.first_before(name, 9) for name in (ANN, BO, CY)] == [1, None, 1]


def test_of_too_many_numbers_the_lowest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siltstone.store.writer.refused_sequences.NUMBERS_MAX", 2)
    owed = arrears(4, 2, 3)
    assert owed.first_before(ANN, 9, {2}) == 3
    assert owed.first_before(ANN, 9, {2, 3}) is None
