"""Run a broker with a continuous tier job, publish drifting payloads, kill processes, and compare.

    python -m tests.support.lake_soak DIRECTORY --seconds 3600 --rate 5000 --kills 20 --plot FILE

Every message that was acknowledged must be in the lake once: with its payload and its columns as
delta-rs reads them, and by number as DuckDB reads the files. The kills are in the first part of the
run. The rest of it shows memory and freshness of an undisturbed job. The plot shows
files, versions, memory, rows that wait and freshness over time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from deltalake import DeltaTable

from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline.lake.delta import present_tables
from tests.support.broker_process import COMMAND, BrokerProcess, clean_environment
from tests.support.lake import lake_of
from tests.support.soak_devices import Fleet
from tests.support.soak_figures import compare, freshness, picture, quantiles

DEVICES: Final = 200
SAMPLE_SECONDS: Final = 5.0
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
VICTIMS: Final = ("broker", "driver", "jvm", "worker")
# The part of the run in which processes are killed.
KILLED_FROM: Final = 0.08
KILLED_UNTIL: Final = 0.6
# A sample of a run without kills before it, in which a job is warm.
SETTLED_SECONDS: Final = 120.0


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


def below_driver(broker: BrokerProcess) -> dict[str, list[int]]:
    """Return the processes of the tier job, by what they are."""
    driver = driver_of(broker)
    if driver is None or not Path(f"/proc/{driver}").exists():
        return {"driver": [], "jvm": [], "worker": []}
    below = list(children_of(driver))
    return {
        "driver": [driver],
        "jvm": [pid for pid, text in below if "java" in text.split(" ")[0]],
        "worker": [pid for pid, text in below if "pyspark.daemon" in text],
    }


def kill(broker: BrokerProcess, victim: str) -> bool:
    """Kill a process of the kind; return whether there was one."""
    if victim == "broker":
        broker.kill()
        broker.start()
        return True
    found = below_driver(broker)[victim]
    for pid in found[-1:]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


def sample(broker: BrokerProcess, path: Path, fleet: Fleet) -> dict[str, float]:
    """Return what is measured now."""
    lake = lake_of(path)
    files = versions = 0
    with suppress(Exception):
        for name in present_tables(PosixFileSystem(), lake):
            table = DeltaTable(str(lake / name))
            files = max(files, len(table.file_uris()))
            versions = max(versions, table.version())
    tiered = 0
    with suppress(OSError, ValueError):
        tiered = sum(json.loads((lake / "ledger.json").read_bytes())["slabs"].values())
    processes = below_driver(broker)
    memory = {f"{name}_mib": sum(map(memory_of, pids)) for name, pids in processes.items()}
    return {
        **memory,
        "broker_mib": memory_of(broker.pid),
        "files": files,
        "versions": versions,
        "acknowledged": fleet.acknowledged,
        "tiered": tiered,
    }


def soak(path: Path, *, seconds: float, rate: float, kills: int, seed: int = 1) -> dict[str, Any]:
    """Run all of it; return the comparison, the kills, the samples and the freshness."""
    settings = {
        "tier.continuous": "true",
        "tier.master": "local[2]",
        "tier.memory": "512m",
        "storage.segment_bytes": "64 MiB",
    }
    os.environ["JDK_JAVA_OPTIONS"] = JAVA_OPTIONS
    broker = BrokerProcess(path, settings=settings)
    broker.start()
    fleet = Fleet(DEVICES, rate)
    stop = Event()
    devices = Thread(target=fleet.run, args=(broker, stop))
    devices.start()
    try:
        samples, killed, lasted = _run(broker, path, fleet, stop, seconds, kills, seed)
    finally:
        stop.set()
        devices.join(60)
        # The job may take its time for the batch.
        broker.terminate()
        for _ in range(6):
            with suppress(subprocess.TimeoutExpired):
                broker.wait_for_status()
                break
    (path / "acknowledged").mkdir()
    fleet.save(path / "acknowledged")
    finish = [*COMMAND, "pipeline", "tier", "--data", str(path), "--master", "local[2]"]
    done = subprocess.run(finish, capture_output=True, check=False, env=clean_environment())
    assert done.returncode == 0, done.stderr.decode()
    undisturbed = max((when for when, _ in killed), default=0.0) + SETTLED_SECONDS
    minutes = freshness(path, fleet, until=lasted)
    return compare(path, fleet) | {
        "rate": round(samples[-1]["acknowledged"] / lasted, 1),
        "seconds": round(lasted, 1),
        "kills": dict(Counter(name for _, name in killed)),
        "killed": killed,
        "samples": samples,
        "minutes": minutes.by_minute(),
        "freshness": quantiles(minutes.since(0.0)),
        "freshness_undisturbed": quantiles(minutes.since(undisturbed)),
        "mistakes": broker.mistakes()[:5],
    }


def _run(
    broker: BrokerProcess,
    path: Path,
    fleet: Fleet,
    stop: Event,
    seconds: float,
    kills: int,
    seed: int,
) -> tuple[list[dict[str, float]], list[tuple[float, str]], float]:
    """Kill processes and take samples until the time is over."""
    rng = random.Random(seed)
    samples: list[dict[str, float]] = []
    killed: list[tuple[float, str]] = []
    times = sorted(rng.uniform(KILLED_FROM, KILLED_UNTIL) * seconds for _ in range(kills))
    while (now := time.time() - fleet.began) < seconds:
        if times and now >= times[0]:
            victim = VICTIMS[len(killed) % len(VICTIMS)]
            # A job that is starting again has no such process yet.
            if kill(broker, victim):
                times.pop(0)
                killed.append((round(now, 1), victim))
        samples.append({"seconds": now} | sample(broker, path, fleet))
        stop.wait(SAMPLE_SECONDS)
    return samples, killed, time.time() - fleet.began


def main() -> None:
    """Run the soak by hand."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--rate", type=float, default=5000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--samples", type=Path)
    given = parser.parse_args()
    found = soak(given.directory, seconds=given.seconds, rate=given.rate, kills=given.kills)
    if given.plot is not None:
        given.plot.write_text(picture(found))
    if given.samples is not None:
        given.samples.write_text(json.dumps(found))
    kept = {name: value for name, value in found.items() if name not in ("samples", "minutes")}
    json.dump(kept | {"last": found["samples"][-1]}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
