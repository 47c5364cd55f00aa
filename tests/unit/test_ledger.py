"""The checker of the cluster tests finds what it is made to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ledger import Ledger, payload
from tests.support.sites import Sites

GOOD = [payload("at.a", number) for number in range(1, 6)]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Return a ledger in which a client has published five messages, the fourth one twice."""
    made = Ledger(Sites(tmp_path, {}), ["a"], seed=1, roaming=0)
    (client,) = made.clients
    client.attempts.update([1, 2, 3, 4, 5, 4])
    client.acknowledged = 4
    return made


@pytest.mark.parametrize("rows", [GOOD, GOOD[:4], [*GOOD[:4], GOOD[3], GOOD[4]], [*GOOD, GOOD[3]]])
def test_what_the_promises_allow_is_no_problem(ledger: Ledger, rows: list[bytes]) -> None:
    assert ledger.problems(rows) == []


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (GOOD[:3], "at.a: acknowledged and not stored: [4] of 1"),
        (GOOD[1:], "at.a: acknowledged and not stored: [1] of 1"),
        ([*GOOD, GOOD[0]], "at.a-1 is stored 2 times after 1 attempts"),
        ([GOOD[1], GOOD[0], *GOOD[2:]], "at.a: not in order: [(2, 1)]"),
        ([*GOOD, b"other-1"], "b'other-1' was never published"),
    ],
)
def test_a_broken_promise_is_found(ledger: Ledger, rows: list[bytes], problem: str) -> None:
    assert ledger.problems(rows) == [problem]
