"""What is wrong in the state of a cluster, and whether a site is ready."""

from __future__ import annotations

from typing import Any

import pytest

from siltstone.cluster.sites.alarms import SLOW_BYTES, alarms_of, is_ready
from siltstone.store.writer.replication.sites.alarms import Alarm, AlarmKind


def replica(**changes: Any) -> dict[str, Any]:
    return {
        "status": "current",
        "reason": "",
        "full": False,
        "in_sync": True,
        "lag_bytes": 0,
    } | changes


def state(*, site: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The state of two sites that is in order, but for some values of the shard or of site b."""
    shard = {
        "leader": "a",
        "health": "ok",
        "in_sync": ["a", "b"],
        "wanted": 2,
        "log_full": 0.1,
        "undecided": [],
        "replicas": {"a": replica(), "b": replica(**(site or {}))},
    }
    return {
        "site": "b",
        "problem": "",
        "nats": "",
        "sites": {"a": {"clock_us": 0}, "b": {"clock_us": None}},
        "shards": {"m/0": shard | changes},
    }


def test_nothing_is_wrong_in_a_cluster_in_order() -> None:
    assert alarms_of(state()) == {}
    assert is_ready(state())


@pytest.mark.parametrize(
    ("kind", "place", "found"),
    [
        (AlarmKind.NO_LEADER, "m/0", state(leader=None)),
        (AlarmKind.BELOW_QUORUM, "m/0", state(health="below quorum")),
        (AlarmKind.UNDER_REPLICATED, "m/0", state(health="under-replicated")),
        (AlarmKind.LOG_NEARLY_FULL, "m/0", state(log_full=0.5)),
        (AlarmKind.UNDECIDED, "m/0/1/7.seg", state(undecided=["1/7.seg"])),
        (AlarmKind.DIVERGED, "m/0 at b", state(site={"status": "stopped", "reason": "x"})),
        (AlarmKind.NO_SPACE, "m/0 at b", state(site={"full": True})),
        (AlarmKind.UNSAFE_NATS, "b", state() | {"nats": "it does not sync"}),
        (AlarmKind.SLOW_SITE, "m/0 at b", state(site={"lag_bytes": SLOW_BYTES})),
    ],
)
def test_each_problem_has_an_alarm(kind: AlarmKind, place: str, found: dict[str, Any]) -> None:
    assert alarms_of(found).keys() == {Alarm(kind, place)}


def test_an_observer_that_is_behind_is_no_alarm() -> None:
    assert alarms_of(state(site={"lag_bytes": SLOW_BYTES, "in_sync": False})) == {}


def test_a_clock_far_from_the_others_is_an_alarm() -> None:
    found = state()
    found["sites"]["a"]["clock_us"] = 5_000_000
    assert alarms_of(found) == {}
    found["sites"]["a"]["clock_us"] = -3_600_000_000
    assert alarms_of(found) == {
        Alarm(AlarmKind.CLOCK_SKEW, "a"): (
            "the clock is -3600 s from that of most sites; it leads nothing"
        )
    }


def test_a_site_is_ready_when_it_has_read_its_shards_and_they_have_leaders() -> None:
    assert not is_ready(state(leader=None))
    assert not is_ready(state(site={"status": "behind the trim"}))
    assert not is_ready(state() | {"problem": "it is starting"})
