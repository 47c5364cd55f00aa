from __future__ import annotations

import pytest

from siltstone.broker.listen.admission import Admission, clients_within
from siltstone.broker.settings.broker import Limits


def test_an_address_has_no_limit_of_its_own_by_default() -> None:
    admission = Admission(Limits())
    assert [admission.enter("a") for _ in range(5000)] == [True] * 5000


def test_an_address_gets_its_places_and_they_are_free_again_when_left() -> None:
    admission = Admission(Limits(connections_per_address_max=2))
    assert [admission.enter("a"), admission.enter("a"), admission.enter("a")] == [True, True, False]
    assert admission.enter("b")
    admission.leave("a")
    assert [admission.enter("a"), admission.enter("a")] == [True, False]


def test_strangers_have_some_places_beyond_those_of_clients() -> None:
    admission = Admission(Limits(connections_max=1))
    assert [admission.enter(str(number)) for number in range(1002)] == [True] * 1001 + [False]
    admission.leave("0")
    assert admission.enter("x")


class Leaving:
    """A connection that waits for its client to close."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.has_given_way = False

    def give_way(self) -> None:
        self.has_given_way = True
        self._admission.leave("a")


def test_connections_that_are_closing_give_way_to_new_ones_the_oldest_first() -> None:
    admission = Admission(Limits())
    admission.bound(3)
    leaving = [Leaving(admission) for _ in range(3)]
    for each in leaving:
        assert admission.enter("a")
        admission.closes(each)
    admission.closed(leaving[0])
    admission.leave("a")
    assert [admission.enter("b"), admission.enter("b")] == [True, True]
    assert [each.has_given_way for each in leaving] == [False, True, False]
    assert [admission.enter("b"), admission.enter("b")] == [True, False]
    assert admission.connections == 3


def test_no_connection_gives_way_to_an_address_that_has_too_many() -> None:
    admission = Admission(Limits(connections_per_address_max=1))
    admission.bound(2)
    leaving = Leaving(admission)
    assert [admission.enter("a"), admission.enter("b")] == [True, True]
    admission.closes(leaving)
    assert (admission.enter("b"), leaving.has_given_way) == (False, False)


@pytest.mark.parametrize(
    ("connections", "clients"), [(16, 12), (140, 132), (640, 600), (50_000, 49_000)]
)
def test_some_of_few_connections_are_for_clients_that_are_refused(
    connections: int, clients: int
) -> None:
    assert clients_within(connections) == clients
