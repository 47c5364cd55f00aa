from __future__ import annotations

from typing import get_args

from siltstone.snapshot.format.records import OWNERS, OfSession, Record
from tests.support.snapshots import EVERY_KIND


def test_there_is_an_example_of_every_kind() -> None:
    assert {type(record) for record in EVERY_KIND} == set(get_args(Record))


def test_all_that_belongs_to_a_session_follows_one() -> None:
    assert {kind for kind, owner in OWNERS.items() if owner.__name__ == "SessionState"} == set(
        get_args(OfSession)
    )
