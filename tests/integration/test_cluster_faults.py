"""Three real sites in network namespaces lose processes, power and links while clients publish: a
ledger that is not part of the product says that nothing acknowledged is lost.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from pathlib import Path

import pytest

from tests.support.cluster_faults import sites_under_load
from tests.support.namespaces import network
from tests.support.sites import NAMES

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("cluster")]
_SHORT = ("process", "partition", "site", "pause", "power")
_LONG = {"process": 50, "site": 20, "pause": 10, "partition": 10, "power": 10}
_LONG_TOO = {"files": 4, "wipe": 4, "disk": 6, "flip": 4, "drain": 4, "leave": 4}


def test_what_was_acknowledged_outlives_each_fault(tmp_path: Path) -> None:
    with network(NAMES) as net, sites_under_load(tmp_path, net, seed=1) as faults:
        for kind in _SHORT:
            faults.cause(kind)
        assert faults.ledger.check() >= sum(faults.ledger.acknowledged.values())


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_what_was_acknowledged_outlives_a_hundred_faults(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    kinds = [kind for kind, count in (_LONG | _LONG_TOO).items() for _ in range(count)]
    random.Random(seed).shuffle(kinds)
    sys.stderr.write(f"seed {seed}\n")
    lasted: dict[str, list[float]] = {}
    with (
        network(NAMES) as net,
        sites_under_load(tmp_path, net, seed=seed, every_kind=True) as faults,
    ):
        rows = 0
        for number, kind in enumerate(kinds, 1):
            began = time.monotonic()
            faults.cause(kind)
            lasted.setdefault(kind, []).append(time.monotonic() - began)
            sys.stderr.write(f"{number}/{len(kinds)} {faults.history[-1]}\n")
            if number % 10 == 0 or number == len(kinds):
                rows = faults.ledger.check()
                sys.stderr.write(f"{rows} rows at all sites\n")
        acknowledged = sum(faults.ledger.acknowledged.values())
    sys.stderr.write("fault: times, median and longest seconds until all sites work again\n")
    for kind, seconds in lasted.items():
        middle = statistics.median(seconds)
        sys.stderr.write(f"{kind}: {len(seconds)}, {middle:.1f}, {max(seconds):.1f}\n")
    sys.stderr.write(f"{acknowledged} messages acknowledged, {rows} rows at each site\n")
