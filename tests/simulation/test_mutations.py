"""The simulation finds every rule that is broken, and the same run without the break is clean."""

from __future__ import annotations

import pytest

from tests.simulation.mutations import MUTATIONS, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: f"{one.rule}: {one.how}")
def test_a_broken_rule_is_found(mutation: Mutation) -> None:
    assert mutation.run(mutation.seed) != ""
    assert mutation.run(mutation.seed, broken=False) == ""
