"""Small batches: publishers with one message in flight, paced loads, deliveries to many clients.

    python -m bench.traffic [--seconds S] [--only NAME] [--base PYTHON]

Each load runs on Siltstone, on Mosquitto, and on another build of Siltstone if `--base` names its
interpreter. A bare loop, which writes and syncs one frame after another at the same pace, shows
what the disk and the kernel cost. Mosquitto does not sync. The processor time is that of all
threads of a broker, for each acknowledged or delivered message.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.broker.generator import GeneratorError, Result, build_generator, run_load
from bench.broker.loads import MOSQUITTO, OURS, missing_peers
from bench.peers import Peer, PeerError, mosquitto, raise_file_limit, siltstone
from bench.workload import scratch
from siltstone.version import __version__, form

Start = Callable[[Path], AbstractContextManager[Peer]]

_BASE: Final = "base"
_BARE: Final = "bare pwrite + fdatasync"
# What the broker writes for one message of 100 bytes.
_FRAME: Final = b"f" * 452
_PREALLOCATED: Final = 16 << 20
# The broker writes its first files before the load begins.
_SETTLE_SECONDS: Final = 1.0
_COLUMNS: Final = ("load", "broker", "rate", "CPU µs", "p50 µs", "p99 µs", "ratio CPU", "target")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One load: the options of the generator, and the pace of the bare loop, 0 for none."""

    name: str
    title: str
    options: tuple[str, ...]
    bare_rate: float
    is_delivery: bool = False


class Figures(NamedTuple):
    """Messages per second, processor time of each, and latencies, in microseconds."""

    rate: float
    cpu_us: float
    p50_us: float
    p99_us: float


def all_loads() -> list[Load]:
    """Return the loads, in the order of their runs."""
    one_in_flight = [
        Load(
            name=f"closed-{count}",
            title=f"{count:,} publishers, 1 in flight",
            options=("-P", str(count), "-q", "1", "-T", "4", "-w", "1"),
            bare_rate=0.0,
        )
        for count in (1, 10, 100, 1_000)
    ]
    paced = [
        Load(
            name=f"paced-{rate}",
            title=f"100 publishers, {rate:,}/s",
            options=("-P", "100", "-q", "1", "-w", "64", "-r", str(rate)),
            bare_rate=float(rate),
        )
        for rate in (300, 2_000, 10_000)
    ]
    own = ("-P1", "-S500", "-T500", "-G", "-xbench/%d/device/%d", "-Fbench/0/device/%d")
    shared = ("-P1", "-S100", "-T1", "-q1", "-r50")
    deliveries = [
        Load(
            name=f"{name}-{kind}",
            title=f"{title}, {kind}",
            options=(*options, *extra),
            bare_rate=rate,
            is_delivery=True,
        )
        for name, title, options, rate in (
            ("own", "500 subscribers, own topics, 1,000/s", (*own, "-q1", "-r1000"), 1_000.0),
            ("shared", "100 subscribers, one topic, 50/s", shared, 50.0),
        )
        for kind, extra in (("volatile", ()), ("durable", ("-D",)))
    ]
    return one_in_flight + paced + deliveries


def main() -> None:
    """Run the selected loads and print the table."""
    loads = all_loads()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load and broker")
    parser.add_argument("--only", choices=[load.name for load in loads], action="append")
    parser.add_argument("--base", help="the interpreter of another build, see make base")
    chosen = parser.parse_args()
    console = Console(width=None if os.isatty(1) else 160)
    console.print(f"siltstone {__version__} ({form()})")
    raise_file_limit()
    contenders: dict[str, Start] = {OURS: siltstone}
    if chosen.base:
        # Not resolved: the link names the environment.
        contenders[_BASE] = partial(siltstone, python=Path(chosen.base).absolute())
    if MOSQUITTO not in missing_peers():
        contenders[MOSQUITTO] = mosquitto
    table = Table(title=f"small batches: {chosen.seconds:g} s each, payloads of 100 B, QoS 1")
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in {"load", "broker"} else "right")
    program = build_generator()
    for load in loads:
        if load.name in (chosen.only or [load.name]):
            add_load(table, load, contenders, program, chosen.seconds)
    console.print(table)


def add_load(
    table: Table, load: Load, contenders: dict[str, Start], program: Path, seconds: float
) -> None:
    """Run a load on all contenders, and add their rows; the floor is Mosquitto plus the sync."""
    found: dict[str, Figures] = {}
    failed: dict[str, str] = {}
    for name, start in contenders.items():
        try:
            found[name] = run_one(load, start, program, seconds)
        except (GeneratorError, PeerError) as exc:
            failed[name] = str(exc)[:60]
    found[_BARE] = bare_loop(load.bare_rate, min(seconds, 2.0))
    title = load.title
    for name, each in found.items():
        against, target = "", ""
        if name in (OURS, _BASE) and MOSQUITTO in found:
            floor = found[MOSQUITTO].cpu_us + _sync_share(found)
            against, target = f"{each.cpu_us / floor:.2f}x floor", "≤ 1.5x"
        cells = (f"{each.rate:,.0f}/s", f"{each.cpu_us:.1f}", f"{each.p50_us:,.0f}")
        table.add_row(title, name, *cells, f"{each.p99_us:,.0f}", against, target)
        title = ""
    for name, text in failed.items():
        table.add_row(title, name, text)
    table.add_section()


def _sync_share(found: dict[str, Figures]) -> float:
    """Return the processor time of the syncs for each message, if the broker syncs as the loop."""
    bare, ours = found[_BARE], found[OURS]
    # A load that is faster than the disk shares its syncs.
    return bare.cpu_us * min(1.0, bare.rate / max(1.0, ours.rate))


def run_one(load: Load, start: Start, program: Path, seconds: float) -> Figures:
    """Run a load on one broker. Raises: GeneratorError, PeerError."""
    with scratch() as place, start(place.resolve()) as peer:
        time.sleep(_SETTLE_SECONDS)
        before = peer.cpu_seconds()
        result = run_load(program, peer.port, seconds=seconds, options=load.options)
        used = peer.cpu_seconds() - before
    if result.lost:
        raise GeneratorError(f"{result.lost} lost")
    return figures_of(load, result, used)


def figures_of(load: Load, result: Result, cpu_seconds: float) -> Figures:
    """Return the figures of a run: of deliveries, or of acknowledgements."""
    if load.is_delivery:
        cpu_us = cpu_seconds * 1e6 / max(1, result.received)
        return Figures(result.recv_per_s, cpu_us, result.p50_us, result.p99_us)
    cpu_us = cpu_seconds * 1e6 / max(1, result.acked)
    return Figures(result.acked_per_s, cpu_us, result.ack_p50_us, result.ack_p99_us)


def bare_loop(rate: float, seconds: float) -> Figures:
    """Write and sync frames one after another, at most `rate` per second; 0 means no limit."""
    taken: list[float] = []
    with scratch() as path, (path / "frames").open("wb", buffering=0) as file:
        descriptor = file.fileno()
        os.posix_fallocate(descriptor, 0, _PREALLOCATED)
        os.fsync(descriptor)
        begin, cpu = time.perf_counter(), time.thread_time()
        while (now := time.perf_counter()) < begin + seconds:
            due = begin + len(taken) / rate if rate else now
            if due > now:
                time.sleep(due - now)
                now = time.perf_counter()
            os.pwrite(descriptor, _FRAME, len(taken) * len(_FRAME) % _PREALLOCATED)
            os.fdatasync(descriptor)
            taken.append(time.perf_counter() - now)
        used = time.thread_time() - cpu
        passed = time.perf_counter() - begin
    taken.sort()
    count = len(taken)
    p50, p99 = taken[count // 2] * 1e6, taken[count * 99 // 100] * 1e6
    return Figures(count / passed, used * 1e6 / count, p50, p99)


if __name__ == "__main__":
    main()
