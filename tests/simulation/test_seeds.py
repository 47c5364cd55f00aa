"""Short runs of the simulation: every seed is another history of faults."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.world import World

SEEDS = 2_000
CHUNK = 50


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_seed_violates_an_invariant(first: int) -> None:
    for seed in range(first, first + CHUNK):
        world = World(seed).run()
        assert world.is_damaged or world.is_settled()


def test_a_seed_is_a_run() -> None:
    one, again = World(7).run(), World(7).run()
    assert one.events == again.events
    assert (one.steps, one.now_us, one.log.messages) == (
        again.steps,
        again.now_us,
        again.log.messages,
    )


def test_the_runs_contain_what_they_are_about() -> None:
    seen: Counter[str] = Counter()
    for seed in range(200):
        world = World(seed).run()
        seen += world.seen
    rare = {name: count for name, count in seen.items() if count < 3}
    assert rare == {}
    assert seen.keys() == {
        "acknowledged",
        "copy",
        "crash",
        "damage",
        "fence",
        "handover",
        "ignored",
        "jump",
        "lead",
        "lead again",
        "parts",
        "question",
        "refused",
        "removal",
        "retire",
        "role draining",
        "role gone",
        "role leaving",
        "role member",
        "role observer",
        "step down",
        "stop",
        "trim",
        "unknown",
    }
