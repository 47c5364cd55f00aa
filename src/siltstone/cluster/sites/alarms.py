"""The problems of a cluster, as one site sees them: derived from the state that `status` shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from siltstone.store.writer.replication.follower import FollowerStatus
from siltstone.store.writer.replication.health import CLOCK_US_MAX
from siltstone.store.writer.replication.sites.alarms import Alarm, AlarmKind

# A part of the maximum size of a shared log. At 75 % the leader takes no more rows.
NEARLY_FULL: Final = 0.5
# An in-sync site this far behind holds up the trim of the log.
SLOW_BYTES: Final = 64 * 1024 * 1024


def alarms_of(state: Mapping[str, Any]) -> dict[Alarm, str]:
    """Return the current problems, with a sentence each."""
    found: dict[Alarm, str] = {}
    if state["nats"]:
        found[Alarm(AlarmKind.UNSAFE_NATS, state["site"])] = (
            f"{state['nats']}; rows wait where this site leads"
        )
    for name, site in state["sites"].items():
        skew_us = site["clock_us"]
        if skew_us is not None and abs(skew_us) > CLOCK_US_MAX:
            found[Alarm(AlarmKind.CLOCK_SKEW, name)] = (
                f"the clock is {skew_us / 1e6:+.0f} s from that of most sites; it leads nothing"
            )
    for key, shard in state["shards"].items():
        found |= _of_shard(key, shard)
    return found


def _of_shard(key: str, shard: Mapping[str, Any]) -> dict[Alarm, str]:
    found: dict[Alarm, str] = {}
    if shard["leader"] is None:
        found[Alarm(AlarmKind.NO_LEADER, key)] = "no site leads the shard: writes wait"
    for kind in (AlarmKind.BELOW_QUORUM, AlarmKind.UNDER_REPLICATED):
        if shard["health"] == kind.value:
            there = ", ".join(shard["in_sync"])
            found[Alarm(kind, key)] = f"in-sync sites: {there}; replicas wanted: {shard['wanted']}"
    if shard["log_full"] >= NEARLY_FULL:
        found[Alarm(AlarmKind.LOG_NEARLY_FULL, key)] = (
            f"the shared log is {shard['log_full']:.0%} full: an in-sync site is behind or away"
        )
    for path in shard["undecided"]:
        found[Alarm(AlarmKind.UNDECIDED, f"{key}/{path}")] = (
            "the copies of the segment differ, and no majority says which one is right"
        )
    for name, replica in shard["replicas"].items():
        place = f"{key} at {name}"
        if replica["status"] == FollowerStatus.STOPPED.value:
            found[Alarm(AlarmKind.DIVERGED, place)] = replica["reason"] or "the site has stopped"
        if replica["full"]:
            found[Alarm(AlarmKind.NO_SPACE, place)] = "the site waits for disk space"
        if replica["in_sync"] and replica["lag_bytes"] >= SLOW_BYTES:
            found[Alarm(AlarmKind.SLOW_SITE, place)] = (
                f"the site is {replica['lag_bytes']:,} bytes behind"
            )
    return found


def is_ready(state: Mapping[str, Any]) -> bool:
    """Return whether this site serves everything: it has read its shards, and they have leaders."""
    if state["problem"]:
        return False
    return all(
        shard["leader"] is not None
        and shard["replicas"][state["site"]]["status"] == FollowerStatus.CURRENT.value
        for shard in state["shards"].values()
    )
