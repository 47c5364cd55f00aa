"""Compare Siltstone with Mosquitto and NATS: `python -m bench.broker [--only NAME]`.

Mosquitto is persistent but does not sync; NATS syncs; Siltstone syncs unless its row says
otherwise. All brokers get the same load from the same generator, in turns.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Final

from rich.console import Console

from bench.broker.connections import run_connections
from bench.broker.generator import build_generator
from bench.broker.loads import all_loads, missing_peers, present
from bench.broker.report import add_rows, new_table
from bench.broker.rounds import run_rounds
from bench.peers import raise_file_limit
from bench.workload import scratch
from siltstone.version import __version__, form

_CONNECTIONS: Final = "connections"
_SYNC_SECONDS: Final = 1.0
_SYNC_BYTES: Final = 4096


def main() -> None:
    """Run the selected loads and print the tables."""
    loads = all_loads()
    names = [load.name for load in loads] + [_CONNECTIONS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=3, help="of each broker and load")
    parser.add_argument("--only", choices=names, action="append", help="may be repeated")
    chosen = parser.parse_args()
    # A file has no width limit.
    console = Console(width=None if os.isatty(1) else 160)
    console.print(f"siltstone {__version__} ({form()})")
    raise_file_limit()
    missing = missing_peers()
    for name in missing:
        console.print(f"{name} is not here and left out; tools/peers.sh fetches it")
    program = build_generator()
    console.print(f"before: {machine()}")
    table = new_table(f"{chosen.rounds} rounds of {chosen.seconds:g} s, 100 B, 1,000 topics each")
    for load in loads:
        if load.name in (chosen.only or names):
            some = present(load, missing)
            outcomes = run_rounds(some, program, seconds=chosen.seconds, rounds=chosen.rounds)
            add_rows(table, some, outcomes)
    if table.row_count:
        console.print(table)
    if _CONNECTIONS in (chosen.only or names):
        console.print(run_connections(rounds=chosen.rounds, missing=missing))
    console.print(f"after: {machine()}")


def machine() -> str:
    """Return other facts that affect the figures: processors, their load, the speed of a sync."""
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return (
        f"{os.cpu_count()} processors, load average {load}, "
        f"{sync_rate():,.0f} fdatasync/s of {_SYNC_BYTES} B"
    )


def sync_rate() -> float:
    """Return the number of synced writes of one page per second."""
    page = b"x" * _SYNC_BYTES
    count = 0
    with scratch() as path, (path / "pages").open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, 64 << 20)
        os.fsync(file.fileno())
        begin = time.monotonic()
        while (seconds := time.monotonic() - begin) < _SYNC_SECONDS:
            file.write(page)
            os.fdatasync(file.fileno())
            count += 1
    return count / seconds


if __name__ == "__main__":
    main()
