from __future__ import annotations

from siltstone.broker.listen.admission import Admission
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
