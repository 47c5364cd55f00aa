"""The archive of sessions: the cost to create, take and save them, and to find expired ones.

`python -m bench.archive` prints the table.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

import siltstone
from bench.workload import scratch
from siltstone.clock import SystemClock
from siltstone.session.archive.owned.session import OwnedSession
from siltstone.session.archive.records import (
    SavedInflight,
    SavedSession,
    SavedSubscription,
)
from siltstone.session.archive.store import ARCHIVE_NAME, SessionArchive
from siltstone.store.feed.position import Position

SESSIONS = 100_000
GATHERED = 1_000
TAKEN = 200
ROUNDS = 5


def session(number: int) -> SavedSession:
    """Return a session that is away, with two subscriptions."""
    return SavedSession(
        client_id=f"client-{number}",
        away_since_us=1_000_000 + number,
        expiry_seconds=3_600,
        subscriptions=(
            SavedSubscription(filter="plant/+/alarm", qos=1),
            SavedSubscription(filter=f"device/{number % 1_000}/command", qos=1),
        ),
        position=Position({0: number}),
    )


def seconds(work: Callable[[], object]) -> float:
    """Return the duration of a call."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def save_progress(owned: list[OwnedSession], turn: int) -> None:
    """Move every session forward, with ten messages in flight, and save them together."""
    inflight = tuple(SavedInflight(number, 0, turn * 100 + number, 1) for number in range(1, 11))
    tickets = []
    for one in owned:
        one.put_progress(position=Position({0: turn * 100}), inflight=inflight, next_packet_id=11)
        tickets.append(one.save_later())
    for ticket in tickets:
        if ticket is not None:
            ticket.wait()


def run(*, sessions: int = SESSIONS) -> Table:
    """Measure one archive as it grows."""
    table = Table(title=f"the archive of {sessions:,} sessions, synced")
    for name in ("", "time", "rate"):
        table.add_column(name, justify="left" if not name else "right")

    def add(name: str, took: float, count: int) -> None:
        table.add_row(name, f"{took * 1_000:,.2f} ms", f"{count / took:,.0f}/s")

    with scratch() as path, siltstone.open(path / "archive") as store:
        archive = SessionArchive(store.keyvalue(ARCHIVE_NAME), SystemClock())
        numbers = range(0, sessions, GATHERED)
        created = sum(
            seconds(
                lambda first=first: archive.create_many(  # type: ignore[misc]
                    [session(number) for number in range(first, first + GATHERED)]
                )
            )
            for first in numbers
        )
        add(f"create, {GATHERED:,} gathered", created, sessions)
        picked = random.Random(1).sample(range(sessions), TAKEN)
        took = sorted(seconds(lambda n=n: archive.take(f"client-{n}")) for n in picked)  # type: ignore[misc]
        add("take one", took[TAKEN // 2], 1)
        ids = [f"client-{number}" for number in range(GATHERED)]
        add(f"take {GATHERED:,} gathered", seconds(lambda: archive.take_many(ids)), GATHERED)
        owned = [one for one in archive.take_many(ids) if one is not None]
        saved = [seconds(lambda t=t: save_progress(owned, t)) for t in range(ROUNDS)]  # type: ignore[misc]
        add(f"save the progress of {GATHERED:,}", min(saved), GATHERED)
        add(f"find {GATHERED:,} that are due", seconds(archive.due), GATHERED)
        add("count", seconds(archive.count), 1)
    return table


if __name__ == "__main__":
    Console().print(run())
