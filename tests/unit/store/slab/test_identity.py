from __future__ import annotations

import pytest

from siltstone.store.slab.identity import DatabaseIdentity, told


@pytest.mark.parametrize(
    ("saved", "identified", "owns"),
    [
        ("a", True, True),
        ("a", False, True),
        ("b", True, False),
        ("b", False, False),
        ("", True, False),
        # It existed when positions had no identity: as far as anything tells, it is its own.
        ("", False, True),
    ],
)
def test_a_database_owns_what_was_saved_in_it(saved: str, *, identified: bool, owns: bool) -> None:
    assert DatabaseIdentity("a", identified).owns(saved) is owns


def test_people_read_that_an_identity_is_not_known() -> None:
    assert (told("5eed"), told("")) == ("5eed", "unknown, an earlier version saved it")
