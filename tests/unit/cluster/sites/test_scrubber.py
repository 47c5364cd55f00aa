"""From which sites damaged segments are copied."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from siltstone.cluster.sites.scrubber import Scrubber

FIRST, SECOND = "1/00000000000000000001.seg", "1/00000000000000000900.seg"


class FakeCopier:
    """Takes note of the repairs."""

    def __init__(self) -> None:
        self.repairs: list[tuple[frozenset[str], frozenset[str]]] = []

    async def repair(self, _: object, damaged: frozenset[str], sources: frozenset[str]) -> None:
        self.repairs.append((damaged, sources))


def repairs(
    digests: Mapping[str, Mapping[str, bytes]], *, leads: bool = False
) -> list[frozenset[str]]:
    """Return the sources of the repairs. `digests` has the copies that each site can read."""
    damaged = frozenset({FIRST, SECOND})

    async def ask(site: str, request: Mapping[str, Any]) -> bytes:
        digest = digests[site].get(request["path"])
        return b"-it is damaged" if digest is None else b"+" + digest

    log = SimpleNamespace(
        database="d", shard=0, damaged=lambda: damaged, view=SimpleNamespace(leads=leads)
    )
    shard = SimpleNamespace(log=log, damaged=frozenset())
    placing = SimpleNamespace(able=lambda _: list(digests))
    copier, anything = FakeCopier(), cast("Any", None)
    scrubber = Scrubber(anything, {}, cast("Any", placing), ask, cast("Any", copier), anything)
    asyncio.run(scrubber.repair_known(cast("Any", shard)))
    assert shard.damaged == damaged
    return [sources for _, sources in copier.repairs]


SOUND = {FIRST: b"x", SECOND: b"z"}


@pytest.mark.parametrize(
    ("digests", "sources"),
    [
        ({"b": SOUND, "c": SOUND}, [{"b", "c"}]),
        # c has damage of its own, which must not be copied.
        ({"b": SOUND, "c": {FIRST: b"x"}}, [{"b"}]),
        ({"b": SOUND, "c": {}}, [{"b"}]),
        ({"b": SOUND, "c": SOUND, "d": {FIRST: b"y", SECOND: b"z"}}, [{"b", "c"}]),
        # No site is right about both, or none can tell which is right.
        ({"b": {FIRST: b"x"}, "c": {SECOND: b"z"}}, []),
        ({"b": SOUND, "c": {FIRST: b"y", SECOND: b"z"}}, []),
        # They are not sealed at the other sites.
        ({"b": {}, "c": {}}, [set()]),
        ({}, []),
    ],
)
def test_damage_is_repaired_from_the_sites_that_are_right(
    digests: Mapping[str, Mapping[str, bytes]], sources: list[set[str]]
) -> None:
    assert repairs(digests) == sources


def test_a_site_that_leads_hands_over_before_it_repairs() -> None:
    assert repairs({"b": SOUND, "c": SOUND}, leads=True) == []
