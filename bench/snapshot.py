"""The cost of a snapshot for a broker that keeps its state in memory: latency, memory, time.

    python -m bench.snapshot [SESSIONS [ROUNDS [RETAINED_MIB]]]

A broker loads a snapshot with SESSIONS sessions, each with two subscriptions and three messages,
and with RETAINED_MIB of incompressible retained messages. Then one client publishes with QoS 1, one
message at a time, and the time to its PUBACK is measured: while a snapshot is written, and before
and after it, so that other load of the machine affects both. The load average shows how high this
load was. At the end, a snapshot is written while no client sends anything. Its size, duration and
processor time give the time for 1 GiB, on this machine now and on an idle processor.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from random import Random
from tempfile import TemporaryDirectory
from threading import Thread

from siltstone.clock import SystemClock
from siltstone.fs.posix import PosixFileSystem
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import Connect, Publish
from siltstone.mqtt.wire import Version
from siltstone.snapshot.directory import SnapshotDirectory
from siltstone.snapshot.format.records import (
    QueuedMessage,
    Record,
    RetainedMessage,
    SessionState,
    SubscriptionState,
)

SESSIONS = 100_000
ROUNDS = 5
ROUND_SECONDS = 6.0
PACE_SECONDS = 0.001
MIB = 1024 * 1024
GIB = 1024 * MIB
LARGE_BYTES = 4096


def records(sessions: int, retained_mib: int) -> Iterator[Record]:
    """Yield a state: retained messages, and sessions with subscriptions and queues."""
    now_us = SystemClock().now_us()
    chance = Random(1)
    for number in range(retained_mib * MIB // LARGE_BYTES):
        yield RetainedMessage(
            topic=b"large/%d" % number,
            payload=chance.randbytes(LARGE_BYTES),
            flags=5,
            properties=b"",
            stored_us=now_us,
            expires_us=0,
            publisher=b"bench",
        )
    for number in range(sessions // 10):
        yield RetainedMessage(
            topic=b"retained/%d" % number,
            payload=b"value %d" % (number % 1000),
            flags=5,
            properties=b"",
            stored_us=now_us,
            expires_us=0,
            publisher=b"bench",
        )
    for number in range(sessions):
        yield SessionState(
            client_id=f"device-{number}", user="", expiry_seconds=100_000, last_active_us=now_us
        )
        for text in (f"to/{number}/#", f"group/{number % 100}/{number}"):
            yield SubscriptionState(
                filter=text,
                qos=1,
                no_local=False,
                retain_as_published=False,
                retain_handling=0,
                identifier=0,
            )
        for part in range(3):
            yield QueuedMessage(
                topic=b"to/%d/x" % number,
                payload=b"payload %d " % (number % 5000 + part) * 10,
                flags=1,
                properties=b"",
                expires_us=0,
                packet_id=0,
            )


class BrokerUnderTest:
    """A broker process, its log, and its memory."""

    def __init__(self, data: Path) -> None:
        settings = {
            "persistence": "snapshot",
            "snapshot.time_interval": "0",
            "sys_interval": "0",
            "listeners.0.port": "0",
        }
        command = [sys.executable, "-m", "siltstone.cli.main", "serve", "--data", str(data)]
        command += ["--log-format", "json"]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE)
        self.events: list[dict[str, object]] = []
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()
        address = str(self.wait_for("listening", 1)["address"])
        self.port = int(address.rpartition(":")[2])

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.events.append(json.loads(line))

    def count(self, event: str) -> int:
        return sum(each["event"] == event for each in self.events)

    def wait_for(self, event: str, count: int) -> dict[str, object]:
        while self.count(event) < count:
            assert self.process.poll() is None, self.events
            time.sleep(0.005)
        return [each for each in self.events if each["event"] == event][count - 1]

    def memory_bytes(self, field: str) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text("ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024

    def processor_seconds(self) -> float:
        """Return its processor time so far."""
        fields = (
            Path(f"/proc/{self.process.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        )
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def save(self) -> float:
        """Write one snapshot; return the seconds."""
        written = self.count("snapshot_written")
        os.kill(self.process.pid, signal.SIGUSR1)
        return float(str(self.wait_for("snapshot_written", written + 1)["seconds"]))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(120)


def during(seconds: float) -> Callable[[], bool]:
    """Return a condition that holds for this number of seconds."""
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() < end


def latencies(port: int, goes_on: Callable[[], bool]) -> list[float]:
    """Return the times to PUBACK of one message at a time, sorted, in milliseconds."""
    found: list[float] = []
    publish = encode(Version.V5, Publish(topic=b"bench", payload=bytes(100), qos=1, packet_id=1))
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.sendall(encode(Version.V5, Connect(version=Version.V5, client_id="publisher")))
        peer.recv(1000)
        while goes_on():
            begun = time.perf_counter()
            peer.sendall(publish)
            peer.recv(100)
            found.append((time.perf_counter() - begun) * 1000)
            time.sleep(PACE_SECONDS)
    return sorted(found)


def at(times: list[float], part: float) -> float:
    """Return this quantile of the times."""
    return times[int(len(times) * part)]


def row(name: str, times: list[float], note: str = "") -> str:
    """Return a line of the table."""
    return (
        f"{name:<28} {len(times):>9,} {at(times, 0.5):>8.2f} {at(times, 0.99):>8.2f} "
        f"{at(times, 0.999):>8.2f} {times[-1]:>8.2f}  {note}"
    )


def measure(sessions: int, rounds: int, retained_mib: int, data: Path) -> None:
    """Print the table."""
    keeper = SnapshotDirectory(
        PosixFileSystem(), SystemClock(), PurePath(data / "snapshots"), PurePath(data / "q")
    )
    began = time.perf_counter()
    saved = keeper.save(records(sessions, retained_mib), source="broker")
    keeper.close()
    size = saved.size_bytes / MIB
    print(f"{sessions:,} sessions: {size:.1f} MiB, made in {time.perf_counter() - began:.1f} s")
    began = time.perf_counter()
    broker = BrokerUnderTest(data)
    try:
        print(f"started and loaded in {time.perf_counter() - began:.1f} s")
        print(f"{'':<28} {'publishes':>9} {'p50 ms':>8} {'p99 ms':>8} {'p99.9':>8} {'max':>8}")
        latencies(broker.port, during(1.0))
        before = broker.memory_bytes("VmRSS")
        idle: list[float] = []
        busy: list[float] = []
        took: list[float] = []
        ratios: list[float] = []
        before_it = latencies(broker.port, during(ROUND_SECONDS))
        idle += before_it
        for _ in range(rounds):
            saving = Thread(target=lambda: took.append(broker.save()))
            saving.start()
            meanwhile = latencies(broker.port, saving.is_alive)
            after_it = latencies(broker.port, during(ROUND_SECONDS))
            without = sorted(before_it + after_it)
            ratios.append(at(meanwhile, 0.99) / at(without, 0.99))
            print(row("  a round without", without), flush=True)
            print(row("  a round meanwhile", meanwhile, f"ratio {ratios[-1]:.2f}"), flush=True)
            idle += after_it
            busy += meanwhile
            before_it = after_it
        idle.sort()
        busy.sort()
        print(row("without a snapshot", idle))
        worked = broker.processor_seconds()
        alone = broker.save()
        worked = broker.processor_seconds() - worked
        growth = (broker.memory_bytes("VmHWM") - before) / MIB
        note = f"{len(took)} snapshots, {sum(took) / len(took):.1f} s each"
        print(row("while one is written", busy, note))
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"p99 ratio {at(busy, 0.99) / at(idle, 0.99):.2f}, by rounds {each}")
        ratio = GIB / saved.size_bytes
        print(
            f"a snapshot of {size:.1f} MiB without clients {alone:.1f} s, 1 GiB "
            f"{alone * ratio:.0f} s; processor {worked:.1f} s, 1 GiB {worked * ratio:.0f} s"
        )
        print(f"memory grew by {growth:.1f} MiB at most; load average {os.getloadavg()[0]:.1f}")
    finally:
        began = time.perf_counter()
        broker.stop()
        print(f"stopped, with a last snapshot, in {time.perf_counter() - began:.1f} s")


def main() -> None:
    """Measure with the given numbers of sessions and rounds."""
    sessions = int(sys.argv[1]) if len(sys.argv) > 1 else SESSIONS
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    retained_mib = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    with TemporaryDirectory() as directory:
        data = Path(directory) / "data"
        data.mkdir()
        (data / "VERSION").write_bytes(b"siltstone 1\n")
        measure(sessions, rounds, retained_mib, data)


if __name__ == "__main__":
    main()
