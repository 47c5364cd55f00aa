"""Idle connections: the time to accept many at once, and the memory of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from rich.table import Table

from bench.broker.clients import crowd
from bench.broker.loads import MOSQUITTO, OURS, Contender
from bench.peers import mosquitto, siltstone
from bench.workload import scratch

COUNT: Final = 10_000


@dataclass(frozen=True, slots=True)
class Held:
    """The result of one round."""

    seconds: float
    bytes_each: float


def run_connections(*, rounds: int, missing: list[str]) -> Table:
    """Measure, each time with a new broker, and return the table."""
    contenders = [Contender(OURS, OURS, siltstone), Contender(MOSQUITTO, MOSQUITTO, mosquitto)]
    contenders = [contender for contender in contenders if contender.name not in missing]
    held: dict[str, list[Held]] = {contender.name: [] for contender in contenders}
    for _ in range(rounds):
        for contender in contenders:
            with scratch() as directory:
                held[contender.name].append(_hold(contender, directory.resolve()))
    table = Table(title=f"{COUNT:,} idle connections, all at once")
    for name in ("", "seconds until all have CONNACK", "memory of each"):
        table.add_column(name, justify="left" if not name else "right")
    for name, samples in held.items():
        table.add_row(
            name,
            f"{median(sample.seconds for sample in samples):.2f}",
            f"{median(sample.bytes_each for sample in samples) / 1024:.1f} KiB",
        )
    return table


def _hold(contender: Contender, directory: Path) -> Held:
    with contender.start(directory) as peer:
        before = peer.resident_bytes()
        with crowd(peer.port, COUNT) as seconds:
            return Held(seconds, (peer.resident_bytes() - before) / COUNT)
