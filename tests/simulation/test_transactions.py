"""Short runs with transactions: every seed is another history of faults, and is serializable."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.broken_transactions import BROKEN, Broken
from tests.simulation.transactions import run

SEEDS = 1_000
CHUNK = 50


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_seed_violates_an_invariant(first: int) -> None:
    for seed in range(first, first + CHUNK):
        assert run(seed).is_settled()


def test_the_runs_contain_what_they_are_about() -> None:
    seen: Counter[str] = Counter()
    for seed in range(150):
        seen += run(seed).seen
    kinds = ("count", "require", "blind", "read")
    wanted = {f"committed {kind}" for kind in kinds} | {
        "answered again",
        "confirmed",
        "conflict",
        "crash",
        "duplicate",
        "jump",
        "lead again",
        "precondition",
        "refused",
        "step down",
        "tried again",
        "unknown",
    }
    assert {name: seen[name] for name in wanted if seen[name] < 3} == {}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda one: f"{one.rule}: {one.how}")
def test_a_broken_rule_is_found(broken: Broken) -> None:
    assert broken.run(broken.seed) != ""
    assert broken.run(broken.seed, broken=False) == ""
