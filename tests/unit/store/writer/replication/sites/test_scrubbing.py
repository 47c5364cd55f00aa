"""Which copy of a segment is right when sites compare theirs."""

from __future__ import annotations

import pytest

from siltstone.store.writer.replication.sites.scrubbing import (
    Comparison,
    CopyFinding,
    CopyState,
    are_of_one_index,
    compare,
    sources_of,
)

SOUND = Comparison(CopyFinding.SOUND)
UNDECIDED = Comparison(CopyFinding.UNDECIDED)


def repair(*sites: str) -> Comparison:
    return Comparison(CopyFinding.REPAIR, frozenset(sites))


@pytest.mark.parametrize(
    ("own", "others", "found"),
    [
        (b"x", {}, SOUND),
        (b"x", {"b": b"x", "c": b"x"}, SOUND),
        (None, {"b": b"x", "c": b"x"}, repair("b", "c")),
        (None, {"b": b"x"}, repair("b")),
        (None, {"b": b"x", "c": b"y"}, UNDECIDED),
        (None, {}, UNDECIDED),
        (b"y", {"b": b"x", "c": b"x"}, repair("b", "c")),
        (b"y", {"b": b"x"}, UNDECIDED),
        (b"x", {"b": b"x", "c": b"y"}, SOUND),
        (b"x", {"b": b"y", "c": b"z"}, UNDECIDED),
        (b"y", {"b": b"x", "c": b"x", "d": b"y"}, UNDECIDED),
    ],
)
def test_a_copy_is_replaced_only_by_what_a_majority_has(
    own: bytes | None, others: dict[str, bytes], found: Comparison
) -> None:
    assert compare(own, others) == found


def test_two_copies_never_repair_each_other_in_a_circle() -> None:
    digests = {"a": b"x", "b": b"x", "c": b"y"}
    for site, own in digests.items():
        others = {name: each for name, each in digests.items() if name != site}
        found = compare(own, others)
        assert site not in found.sources
        assert (found.finding is CopyFinding.REPAIR) == (own == b"y")


def test_a_minority_of_the_copies_replaces_no_copy_that_can_be_read() -> None:
    # Two of five sites do not answer; they may have our rows.
    assert compare(b"y", {"b": b"x", "c": b"x"}, copies=5) == UNDECIDED
    assert compare(b"y", {"b": b"x", "c": b"x", "d": b"x"}, copies=5) == repair("b", "c", "d")
    assert compare(b"y", {"b": b"x", "c": b"x"}, copies=3) == repair("b", "c")
    # A copy that cannot be read has nothing to lose.
    assert compare(None, {"b": b"x"}, copies=5) == repair("b")


@pytest.mark.parametrize(
    ("own", "others", "copies", "found"),
    [
        # An equal copy, whatever the others have.
        (b"x", {"b": b"x", "c": b"y"}, 3, {"b"}),
        (b"x", {"b": b"y", "c": b"x", "d": b"x"}, 4, {"c", "d"}),
        (b"x", {}, 3, set()),
        # The copy of a majority.
        (b"y", {"b": b"x", "c": b"x"}, 3, {"b", "c"}),
        (b"z", {"b": b"x", "c": b"x", "d": b"x", "e": b"y"}, 5, {"b", "c", "d"}),
        (b"y", {"b": b"x"}, 3, set()),
        # Ours cannot be read.
        (None, {"b": b"x"}, 3, {"b"}),
        (None, {"b": b"x", "c": b"x", "d": b"y"}, 4, {"b", "c"}),
        (None, {"b": b"x", "c": b"y"}, 3, set()),
        (None, {}, 3, set()),
    ],
)
def test_a_copy_is_deleted_only_if_another_site_has_it(
    own: bytes | None, others: dict[str, bytes], copies: int, found: set[str]
) -> None:
    assert sources_of(own, others, copies=copies) == found


def test_states_are_compared_at_one_index() -> None:
    assert are_of_one_index([])
    assert are_of_one_index([CopyState(3, b"x"), CopyState(3, b"")])
    assert not are_of_one_index([CopyState(3, b"x"), CopyState(4, b"x")])


def test_a_state_is_read_as_it_was_told() -> None:
    for state in (CopyState(7, b"digest"), CopyState(0, b"")):
        assert CopyState.decode(state.encode()) == state
