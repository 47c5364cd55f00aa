"""Run a broker with a continuous tier job, publish drifting payloads, kill processes, and compare.

    python -m tests.support.lake_soak DIRECTORY --seconds 3600 --rate 5000 --kills 20 --plot FILE

Every message that was acknowledged must be in the lake once, with its payload, as DuckDB and
delta-rs read it. The plot shows files, versions, memory and rows that wait over time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from threading import Event, Thread
from typing import Any, Final

import duckdb
from deltalake import DeltaTable

from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline.lake.delta import present_tables
from tests.support.broker_process import COMMAND, BrokerProcess, clean_environment
from tests.support.lake import lake_of

DEVICES: Final = 200
PUBLISHERS: Final = 4
WINDOW: Final = 500
SAMPLE_SECONDS: Final = 5.0
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
VICTIMS: Final = ("broker", "driver", "jvm", "worker")
STOP_SECONDS: Final = 20.0
CONNACK_SIZE: Final = 4
PUBACK_SIZE: Final = 4


def topic_of(number: int) -> str:
    """Return the topic of a message: a device of one of four plants."""
    return f"plant/{number % 4}/device/{number % DEVICES}/telemetry"


def payload_of(publisher: int, number: int) -> bytes:
    """Return the payload of a message; its fields and their types drift with the number."""
    document: dict[str, Any] = {"publisher": publisher, "number": number, "value": number % 97}
    if number % 3 == 0:
        document["value"] = number / 7
    if number % 50 == 0:
        document["value"] = "offline"
    if number > 5_000:
        document["late"] = number % 2 == 0
    if number % 200 == 0:
        document["state"] = {"code": number}
    elif number % 11 == 0:
        document["state"] = "ok"
    return json.dumps(document).encode()


@dataclass(slots=True)
class Publisher:
    """Publishes running numbers with QoS 1; no number is sent twice."""

    name: int
    rate: float
    acknowledged: set[int] = field(default_factory=set)
    sent: int = 0

    def run(self, broker: BrokerProcess, stop: Event) -> None:
        """Publish until it is stopped; connect again after an error."""
        while not stop.is_set():
            with suppress(OSError):
                self._publish(broker.port, stop)
            stop.wait(0.2)

    def _publish(self, port: int, stop: Event) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            name = b"soak-%d" % self.name
            body = b"\0\4MQTT\4\2\0\0" + struct.pack("!H", len(name)) + name
            connection.sendall(b"\x10" + bytes([len(body)]) + body)
            if len(connection.recv(CONNACK_SIZE)) < CONNACK_SIZE:
                return
            waiting: dict[int, int] = {}
            rest = b""
            due = time.monotonic()
            while not stop.is_set() or waiting:
                now = time.monotonic()
                room = 0 if stop.is_set() else min(WINDOW - len(waiting), 100)
                if room and now >= due:
                    connection.sendall(b"".join(self._message(waiting) for _ in range(room)))
                    due = max(due, now - 1) + room / self.rate
                if not select([connection], [], [], 0.02)[0]:
                    # A broker that is asked to stop may leave messages unanswered.
                    if stop.is_set() and now - due > STOP_SECONDS:
                        return
                    continue
                data = connection.recv(65_536)
                if not data:
                    return
                rest += data
                size = len(rest) // PUBACK_SIZE * PUBACK_SIZE
                for start in range(0, size, PUBACK_SIZE):
                    packet = struct.unpack("!H", rest[start + 2 : start + 4])[0]
                    self.acknowledged.add(waiting.pop(packet))
                rest = rest[size:]

    def _message(self, waiting: dict[int, int]) -> bytes:
        number, self.sent = self.sent, self.sent + 1
        packet = number % 65_535 + 1
        waiting[packet] = number
        topic = topic_of(number).encode()
        payload = payload_of(self.name, number)
        body = struct.pack("!H", len(topic)) + topic + struct.pack("!H", packet) + payload
        size = len(body)
        length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
        return b"\x32" + length + body


def children_of(pid: int) -> Iterator[tuple[int, str]]:
    """Yield the processes below one, with their command lines."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, IndexError):
                text = (entry / "stat").read_text().rpartition(") ")[2]
                parents.setdefault(int(text.split()[1]), []).append(int(entry.name))
    left = list(parents.get(pid, ()))
    while left:
        child = left.pop()
        left += parents.get(child, ())
        with suppress(OSError):
            yield child, Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def memory_of(pid: int) -> int:
    """Return the resident memory of a process in MiB; 0 if it is gone."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024
    return 0


def driver_of(broker: BrokerProcess) -> int | None:
    """Return the process id of the tier job."""
    started = broker.events("tier_job_started")
    return int(started[-1]["pid"]) if started else None


def kill(broker: BrokerProcess, victim: str) -> bool:
    """Kill a process of the kind; return whether there was one."""
    if victim == "broker":
        broker.kill()
        broker.start()
        return True
    driver = driver_of(broker)
    if driver is None or not Path(f"/proc/{driver}").exists():
        return False
    below = list(children_of(driver))
    found = {
        "driver": [driver],
        "jvm": [pid for pid, text in below if "java" in text.split(" ")[0]],
        "worker": [pid for pid, text in below if "pyspark.daemon" in text][-1:],
    }[victim]
    for pid in found[:1]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


def sample(broker: BrokerProcess, path: Path, publishers: Sequence[Publisher]) -> dict[str, float]:
    """Return what is measured now."""
    lake = lake_of(path)
    files = versions = 0
    fs = PosixFileSystem()
    with suppress(Exception):
        for name in present_tables(fs, lake):
            table = DeltaTable(str(lake / name))
            files = max(files, len(table.file_uris()))
            versions = max(versions, table.version())
    tiered = 0
    with suppress(OSError, ValueError):
        tiered = sum(json.loads((lake / "ledger.json").read_bytes())["slabs"].values())
    acknowledged = sum(len(publisher.acknowledged) for publisher in publishers)
    driver = driver_of(broker) or 0
    return {
        "files": files,
        "versions": versions,
        "driver_mib": memory_of(driver),
        "acknowledged": acknowledged,
        "tiered": tiered,
    }


def compare(path: Path, publishers: Sequence[Publisher]) -> dict[str, Any]:
    """Compare the lake with what was acknowledged, as two readers see it."""
    lake = lake_of(path)
    tables = present_tables(PosixFileSystem(), lake)
    seen: Counter[tuple[int, int]] = Counter()
    wrong = 0
    for name in tables:
        rows = DeltaTable(str(lake / name)).to_pyarrow_table(columns=["payload", "topic"])
        for payload, topic in zip(
            rows.column("payload").to_pylist(), rows.column("topic").to_pylist(), strict=True
        ):
            document = json.loads(payload)
            place = document["publisher"], document["number"]
            wrong += payload != payload_of(*place) or topic != topic_of(place[1])
            seen[place] += 1
    acknowledged = {(one.name, number) for one in publishers for number in one.acknowledged}
    by_duckdb = 0
    for name in tables:
        dataset = DeltaTable(str(lake / name)).to_pyarrow_dataset()  # noqa: F841 - by its name
        answer = duckdb.sql("SELECT count(DISTINCT (shard, serial)), count(*) FROM dataset")
        assert answer is not None
        ((distinct, count),) = answer.fetchall()
        by_duckdb += distinct
        wrong += count - distinct
    return {
        "acknowledged": len(acknowledged),
        "rows": sum(seen.values()),
        "rows_by_duckdb": by_duckdb,
        "missing": len(acknowledged - seen.keys()),
        "twice": sum(count - 1 for count in seen.values()),
        "wrong": wrong,
        "tables": {
            name: DeltaTable(str(lake / name)).to_pyarrow_dataset().count_rows() for name in tables
        },
    }


def soak(path: Path, *, seconds: float, rate: float, kills: int, seed: int = 1) -> dict[str, Any]:
    """Run all of it; return the comparison, the kills and the samples."""
    rng = random.Random(seed)
    settings = {
        "tier.continuous": "true",
        "tier.master": "local[2]",
        "tier.memory": "512m",
        "storage.segment_bytes": "64 MiB",
    }
    os.environ["JDK_JAVA_OPTIONS"] = JAVA_OPTIONS
    broker = BrokerProcess(path, settings=settings)
    broker.start()
    publishers = [Publisher(name, rate / PUBLISHERS) for name in range(PUBLISHERS)]
    stop = Event()
    threads = [Thread(target=one.run, args=(broker, stop)) for one in publishers]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    samples: list[dict[str, float]] = []
    killed: Counter[str] = Counter()
    times = sorted(rng.uniform(seconds * 0.15, seconds * 0.9) for _ in range(kills))
    try:
        while (now := time.monotonic() - began) < seconds:
            if times and now >= times[0]:
                times.pop(0)
                victim = VICTIMS[sum(killed.values()) % len(VICTIMS)]
                # Without a job, there is the broker.
                victim = victim if kill(broker, victim) else "broker"
                if victim == "broker" and VICTIMS[sum(killed.values()) % len(VICTIMS)] != "broker":
                    kill(broker, victim)
                killed[victim] += 1
            samples.append({"seconds": now} | sample(broker, path, publishers))
            stop.wait(SAMPLE_SECONDS)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
        # The job may take its time for the batch.
        broker.terminate()
        for _ in range(6):
            with suppress(subprocess.TimeoutExpired):
                broker.wait_for_status()
                break
    finish = [*COMMAND, "pipeline", "tier", "--data", str(path), "--master", "local[2]"]
    done = subprocess.run(finish, capture_output=True, check=False, env=clean_environment())
    assert done.returncode == 0, done.stderr.decode()
    return compare(path, publishers) | {"kills": dict(killed), "samples": samples}


def plot(samples: Sequence[dict[str, float]]) -> str:
    """Return the samples as an SVG picture: a panel for each measure."""
    width, height, left = 640, 110, 70
    panels = [
        ("live files of the largest table", [each["files"] for each in samples]),
        ("versions of the largest table", [each["versions"] for each in samples]),
        ("memory of the driver, MiB", [each["driver_mib"] for each in samples]),
        ("rows that wait", [each["acknowledged"] - each["tiered"] for each in samples]),
    ]
    last = samples[-1]["seconds"] or 1.0
    total = height * len(panels) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{total}" font-size="12">'
    ]
    for number, (title, values) in enumerate(panels):
        top = number * height + 20
        most = max(*values, 1)
        points = " ".join(
            f"{left + each['seconds'] / last * (width - left - 10):.1f},"
            f"{top + (height - 40) * (1 - max(value, 0) / most):.1f}"
            for each, value in zip(samples, values, strict=True)
        )
        parts += [
            f'<text x="{left}" y="{top - 5}">{title}</text>',
            f'<text x="{left - 5}" y="{top + 10}" text-anchor="end">{most:,.0f}</text>',
            f'<text x="{left - 5}" y="{top + height - 40}" text-anchor="end">0</text>',
            f'<polyline fill="none" stroke="#2563eb" stroke-width="1.5" points="{points}"/>',
        ]
    parts.append(
        f'<text x="{width - 10}" y="{height * len(panels) + 10}" text-anchor="end">'
        f"{last:,.0f} seconds</text></svg>"
    )
    return "\n".join(parts) + "\n"


def main() -> None:
    """Run the soak by hand."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--rate", type=float, default=5000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    found = soak(given.directory, seconds=given.seconds, rate=given.rate, kills=given.kills)
    samples = found.pop("samples")
    if given.plot is not None:
        given.plot.write_text(plot(samples))
    json.dump(found | {"last": samples[-1]}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
