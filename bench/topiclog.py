"""Topic logs: sends and polls, compared with a bare socket and with the same server in memory.

    python -m bench.topiclog [--mebibytes N] [--messages N] [--rounds N]

Each figure is the best of several rounds, because the machine may have other load. Memory is
allocated and freed before each measurement: a virtual machine returns free memory to its host after
some seconds, and getting it back costs more than everything that is measured here.
"""

from __future__ import annotations

import argparse
import mmap
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.workload import scratch
from siltstone.topiclog.client import TopicLogClient
from siltstone.version import __version__, form

MIB = 1024 * 1024
SMALL = b"m" * 100
# From 80 to 120 bytes, with the same average as the others.
MIXED = [b"m" * size for size in range(80, 121)]
PAGE = 4096
WINDOW = 16


@contextmanager
def running(where: str, directory: Path | None = None) -> Iterator[int]:
    """Run a server in another process; yield its port."""
    command = [sys.executable, "-m", "bench.topiclog_server", where]
    if directory is not None:
        command.append(str(directory))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def raw_rate(port: int, mebibytes: int) -> float:
    """Return MiB per second of a bare socket, with a byte of answer for each MiB, several in
    flight.
    """
    value = memoryview(bytes(MIB))
    with socket.create_connection(("127.0.0.1", port)) as peer:
        begin, answered = time.perf_counter(), 0
        for sent in range(mebibytes):
            peer.sendall(value)
            while sent - answered >= WINDOW:
                answered += len(peer.recv(WINDOW))
        while answered < mebibytes:
            answered += len(peer.recv(WINDOW))
        return mebibytes / (time.perf_counter() - begin)


def large_rate(port: int, topic: str, mebibytes: int) -> float:
    """Return MiB per second of messages of 1 MiB, each acknowledged."""
    with TopicLogClient(port=port) as client:
        client.create_topic(topic)
        begin = time.perf_counter()
        client.send_many(topic, repeat(bytes(MIB), mebibytes))
        return mebibytes / (time.perf_counter() - begin)


def small_rate(port: int, topic: str, values: list[bytes]) -> float:
    """Return small messages per second, batched by the client, each acknowledged."""
    with TopicLogClient(port=port) as client:
        client.create_topic(topic)
        begin = time.perf_counter()
        client.send_many(topic, values)
        return len(values) / (time.perf_counter() - begin)


def poll_rate(port: int, topic: str, messages: int) -> float:
    """Return small messages per second that a reader receives as Python bytes."""
    with TopicLogClient(port=port) as client:
        client.subscribe([topic])
        client.seek(topic, 0)
        begin, read = time.perf_counter(), 0
        while read < messages:
            batch = client.poll_batch()
            assert batch is not None
            read += len(batch.values())
        return messages / (time.perf_counter() - begin)


def measure(mebibytes: int, messages: int, rounds: int) -> dict[str, float]:
    """Return the best rate of each case; the first round is a warm-up and does not count."""
    best: dict[str, float] = {}
    for number in range(rounds + 1):
        with scratch() as path:
            for name, rate in measure_once(path, mebibytes, messages).items():
                best[name] = max(best.get(name, 0.0), rate) if number else 0.0
    return best


def measure_once(path: Path, mebibytes: int, messages: int) -> dict[str, float]:
    """Return the rate of each case, each with a new server."""
    rates: dict[str, float] = {}
    kinds = {"100 B": [SMALL] * messages, "mixed": MIXED * (messages // len(MIXED))}
    for where in ("reused", "kept"):
        with running(where) as port:
            settle_memory(2 * mebibytes)
            rates[f"raw, {where}"] = raw_rate(port, mebibytes)
    for where in ("memory", "disk"):
        with running(where, path / where) as port:
            settle_memory(2 * mebibytes)
            rates[f"1 MiB, {where}"] = large_rate(port, "large", mebibytes)
            for name, values in kinds.items():
                # For the pages of the log, and the socket buffers.
                settle_memory(2 * sum(map(len, values)) // MIB + 2 * mebibytes)
                rates[f"{name}, {where}"] = small_rate(port, name, values)
                rates[f"{name}, polled, {where}"] = poll_rate(port, name, len(values))
    return rates


def settle_memory(mebibytes: int) -> None:
    """Make sure that this amount of free memory is not with the host."""
    size = mebibytes * MIB
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for position in range(0, size, PAGE):
            memory[position] = 1


def run(mebibytes: int, messages: int, rounds: int) -> Table:
    """Measure all and return the table."""
    rate = measure(mebibytes, messages, rounds)
    table = Table(title=f"topic logs, one client, best of {rounds}")
    for name in ("", "a second", "ratio", "wanted"):
        table.add_column(name, justify="left" if not name else "right")
    large, kept = rate["1 MiB, disk"], rate["raw, kept"]
    rows = [
        ("socket read into one buffer again and again", f"{rate['raw, reused']:,.0f} MiB", "", ""),
        ("socket read into memory that is kept", f"{kept:,.0f} MiB", "1.00", ""),
        ("1 MiB messages, synced, to that", f"{large:,.0f} MiB", f"{large / kept:.2f}", "0.80"),
        ("100 B messages, batched, synced", f"{rate['100 B, disk']:,.0f}", "", "1,000,000"),
        ("100 B messages, polled", f"{rate['100 B, polled, disk']:,.0f}", "", "2,000,000"),
        ("80 to 120 B messages, batched, synced", f"{rate['mixed, disk']:,.0f}", "", ""),
        ("80 to 120 B messages, polled", f"{rate['mixed, polled, disk']:,.0f}", "", ""),
    ]
    for name in ("1 MiB", "100 B"):
        memory, disk = rate[f"{name}, memory"], rate[f"{name}, disk"]
        label = f"{name}: time of the disk to that of memory"
        rows.append((label, f"{memory:,.0f} in memory", f"{memory / disk:.2f}", "at most 1.30"))
    for row in rows:
        table.add_row(*row)
    return table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=192)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    console = Console()
    console.print(f"siltstone {__version__} ({form()})")
    console.print(run(given.mebibytes, given.messages, given.rounds))


if __name__ == "__main__":
    main()
