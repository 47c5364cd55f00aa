"""Comparison of this build with another one: ratios of rows, messages and transactions per second.

    make base REF=v0.1.0 && python -m bench.compare

The machine is noisy, so each round runs both builds one after the other, and the table has the
median of the ratios of the rounds. CPU time varies less than wall time.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import typer

from bench.broker.generator import build_generator, run_load
from bench.peers import siltstone
from bench.workload import scratch

WORK: Final = Path(__file__).parent / "compared_work.py"
BASE: Final = Path("build/base/env/bin/python")
LOADS: Final = {
    "publish QoS 1, 8 devices": ("-P", "8", "-S", "0", "-q", "1", "-T", "100", "-w", "64"),
    "publish QoS 0 to 4 clients": ("-P", "4", "-S", "4", "-q", "0", "-T", "50", "-w", "64"),
    "publish QoS 1 to 4 durable sessions": (
        *("-P", "4", "-S", "4", "-q", "1", "-T", "50", "-w", "64", "-D"),
    ),
}


class Figures(NamedTuple):
    """The result of one build in one round."""

    per_second: float
    cpu_us: float


def main(base: Path = BASE, rounds: int = 5, seconds: float = 3.0, only: str = "") -> None:
    """Compare this build with the one of another interpreter."""
    names = json.loads(run(sys.executable, "--names", ".").stdout)
    works: dict[str, Callable[[Path], Figures]] = {
        name: lambda python, name=name: do_work(python, name)  # type: ignore[misc]
        for name in names
    }
    for name, options in LOADS.items():
        works[name] = lambda python, options=options: (  # type: ignore[misc]
            put_under_load(python, seconds, options)
        )
    # Not resolved: the interpreter of an environment is a link, and the link names the environment.
    here, base = Path(sys.executable), base.absolute()
    if not base.exists():
        raise SystemExit(f"{base} does not exist: build it with make base REF=<commit>")
    print(f"{'':38} {'this/s':>10} {'base/s':>10} {'speed':>7} {'CPU':>7}")
    for name, work in works.items():
        if only in name:
            pairs = [(work(here), work(base)) for _ in range(rounds)]
            print(line(name, pairs), flush=True)


def line(name: str, pairs: list[tuple[Figures, Figures]]) -> str:
    """Return the row of the table: above 1.00 this build is faster, or needs less CPU."""
    ours, theirs = (statistics.median(pair[i].per_second for pair in pairs) for i in (0, 1))
    speed = statistics.median(own.per_second / other.per_second for own, other in pairs)
    cpu = statistics.median(other.cpu_us / own.cpu_us for own, other in pairs)
    return f"{name:38} {ours:10,.0f} {theirs:10,.0f} {speed:6.2f}x {cpu:6.2f}x"


def run(python: Path | str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a work item in a build."""
    command = [str(python), str(WORK), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True)


def do_work(python: Path, name: str) -> Figures:
    """Run a work item of a build in a new directory."""
    with scratch() as directory:
        done, seconds, cpu = json.loads(run(python, name, str(directory / "data")).stdout)
    return Figures(done / seconds, cpu / done * 1_000_000)


def put_under_load(python: Path, seconds: float, options: tuple[str, ...]) -> Figures:
    """Put the broker of a build under load."""
    program = build_generator()
    with scratch() as directory, siltstone(directory, python=python) as broker:
        before = broker.cpu_seconds()
        result = run_load(program, broker.port, seconds=seconds, options=options)
        used = broker.cpu_seconds() - before
    rate = result.recv_per_s if result.expected else result.acked_per_s
    return Figures(rate, used / max(result.acked, result.received) * 1_000_000)


if __name__ == "__main__":
    typer.run(main)
