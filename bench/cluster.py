"""Three sites on this machine beside one node: appends, commits, failover and catch-up.

    python -m bench.cluster [--seconds S] [--kills N] [--rows N]

Each site is a child process with a store, without a broker, and starts its own nats-server. So all
three sites, their servers and the single node share the processors and the disk of this machine.
The single node has the same code and settings, and no cluster.

Failover is the longest time between two commits of a client at a site that survives. The killed
process comes back after each kill; with `site`, its nats-server is killed too. Drain is the same
time while the leader is asked to hand over.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final, TypeVar

from rich.console import Console
from rich.table import Table

from bench.peers import free_port
from bench.workload import VALUE, columns, fill, run_producers, scratch, settings, topics
from siltstone import Columns, Database
from siltstone.broker.settings.cluster import ClusterSettings
from siltstone.clock import SystemClock
from siltstone.cluster.opening import make_site
from siltstone.cluster.site import ClusterSite
from siltstone.errors import SiltstoneError
from siltstone.fs.process import process_arguments, send_signal
from siltstone.store.directory import Store, open_store
from siltstone.store.writer.replication.sites.planning import SiteRole
from siltstone.version import __version__, form

NAMES: Final = ("a", "b", "c")
DATABASE: Final = "bench"
SHARD: Final = f"{DATABASE}/0"
BATCH: Final = 1000
# A commit over three sites takes longer than one on this machine.
IN_FLIGHT: Final = 8
_PATIENCE: Final = 90.0
_PAUSE: Final = 0.05
_PULSE_SECONDS: Final = 15.0
_DRAIN_SECONDS: Final = 6.0
T = TypeVar("T")


# In the process of a site.


def append(database: Database, seconds: float) -> float:
    """Return rows per second that four producers append, with some calls of each in flight."""
    batches = [columns(topics(5000), number, BATCH) for number in range(4)]

    def produce(number: int, stop: float) -> int:
        mine, sent = batches[number], 0
        waiting: deque[Any] = deque()
        while time.monotonic() < stop:
            waiting.append(database.append(mine[sent % len(mine)], durability="synced"))
            sent += 1
            if len(waiting) >= IN_FLIGHT:
                waiting.popleft().wait()
        for ticket in waiting:
            ticket.wait()
        return sent * BATCH

    return run_producers(produce, seconds)


def commit(database: Database, count: int) -> list[float]:
    """Return the seconds that each commit of one row takes, one after another."""
    word, found = topics(1), []
    for _ in range(count):
        begin = time.perf_counter()
        database.append(Columns(word, [VALUE], b"bench", 1), durability="synced").wait()
        found.append(time.perf_counter() - begin)
    return found


def pulse(database: Database, seconds: float) -> float:
    """Commit one row after another; return the longest time between two commits."""
    word, longest = topics(1), 0.0
    end = time.monotonic() + seconds
    last = time.monotonic()
    while (now := time.monotonic()) < end:
        with suppress(SiltstoneError):
            database.append(Columns(word, [VALUE], b"bench", 1), durability="synced").wait()
            now = time.monotonic()
            longest, last = max(longest, now - last), now
    return longest


def serve(options: Mapping[str, Any]) -> None:
    """Run a site, or a single node, and obey the commands on standard input."""
    clock = SystemClock()
    site: ClusterSite | None = None
    if options["seeds"]:
        chosen = ClusterSettings(
            name="bench",
            site=options["site"],
            seeds=options["seeds"],
            listen=options["listen"],
            secret_file=options["secret_file"],
            away_after=10.0,
            copy_rate=1 << 34,
        )
        site = make_site(**chosen.model_dump(), data=options["data"], clock=clock)
    with open_store(options["data"], clock=clock, cluster=site) as store:
        if site is not None:
            site.start()
            site.serve(store.ensure, store.keyvalue, store.drop_copy)
        obey(store, site)
    if site is not None:
        site.stop()


def obey(store: Store, site: ClusterSite | None) -> None:
    """Answer each command with a line."""
    backend = "local" if site is None else "replicated"
    database = store.ensure(DATABASE, settings(backend=backend))
    acts: Mapping[str, Callable[[Any], object]] = {
        "append": lambda seconds: append(database, seconds),
        "commit": lambda count: commit(database, count),
        "pulse": lambda seconds: pulse(database, seconds),
        "fill": lambda rows: fill(database, topics(5000), rows, BATCH, "synced"),
        "count": lambda _: sum(batch.num_rows for batch in database.read("#", columns=["serial"])),
        "role": lambda role: None if site is None else site.change_role("", SiteRole(role)),
        "status": lambda _: None if site is None else site.status(),
    }
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        name, value = json.loads(line)
        print(json.dumps(acts[name](value)), flush=True)


# In the process that measures.


class Node:
    """A site, or a single node, as a child process."""

    def __init__(self, directory: Path, name: str, seeds: str = "", listen: str = "") -> None:
        self.name = name
        # Its nats-server is known by the whole path in its arguments.
        self.data = (directory / name).resolve()
        self._options = {
            "data": str(self.data),
            "site": name,
            "seeds": seeds,
            "listen": listen,
            "secret_file": str(directory / "secret"),
        }
        self._log = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it without waiting."""
        command = [sys.executable, "-m", "bench.cluster", "--serve", json.dumps(self._options)]
        with self._log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )

    def ask(self, name: str, value: object = None) -> None:
        """Send a command without waiting."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, value]).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Return the answer to the oldest command."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"site {self.name} has ended: {self._log.read_text()[-3000:]}")
        return json.loads(line)

    def do(self, name: str, value: object = None) -> Any:
        """Send a command; return the answer."""
        self.ask(name, value)
        return self.answer()

    def kill(self, *, nats: bool) -> None:
        """Kill it, and its nats-server if that is wanted."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()
        if nats:
            with suppress(OSError, ValueError, SiltstoneError):
                pid = int((self.data / "cluster" / "nats.pid").read_text())
                if str(self.data / "cluster" / "nats.conf") in process_arguments(pid):
                    send_signal(pid, signal.SIGKILL)


class Cluster:
    """Three sites."""

    def __init__(self, directory: Path) -> None:
        (directory / "secret").write_text("the secret of this benchmark")
        listens = {name: f"127.0.0.1:{free_port()}" for name in NAMES}
        seeds = ",".join(listens.values())
        self.nodes = {
            name: Node(directory, name, seeds, listen) for name, listen in listens.items()
        }

    def start(self, *names: str) -> None:
        """Start sites; wait until they have opened the database."""
        for name in names:
            self.nodes[name].start()
        for name in names:
            assert self.nodes[name].answer() == "ready"

    def status(self, name: str) -> dict[str, Any]:
        """Return the state of the shard as a site sees it."""
        found: dict[str, Any] = self.nodes[name].do("status")["shards"].get(SHARD, {})
        return found

    def leader(self, *names: str) -> str:
        """Wait until sites agree on a leader among them."""
        return wait_for(lambda: self._leader(names), "a leader")

    def _leader(self, names: tuple[str, ...]) -> str:
        found = {self.status(name).get("leader") or "" for name in names}
        (first, *others) = found
        return first if not others and first in names else ""

    def has_all(self, name: str) -> bool:
        """Return whether a site has everything, as it sees it."""
        mine = self.status(name).get("replicas", {}).get(name, {})
        return bool(mine.get("lag") == 0)

    def wait_until_equal(self, name: str, leader: str) -> None:
        """Wait until a site has everything and is in sync."""

        def equal() -> bool:
            known = self.status(leader)
            mine = known.get("replicas", {}).get(name, {})
            return mine.get("lag") == 0 and name in known.get("in_sync", ())

        wait_for(equal, f"{name} is in sync")

    def end(self) -> None:
        """Kill everything."""
        for node in self.nodes.values():
            with suppress(OSError, AssertionError):
                node.kill(nats=True)


def wait_for(look: Callable[[], T], what: str) -> T:
    """Return what `look` returns when it is true."""
    deadline = time.monotonic() + _PATIENCE
    while not (found := look()):
        if time.monotonic() > deadline:
            raise SystemExit(f"not after {_PATIENCE:g} s: {what}")
        time.sleep(_PAUSE)
    return found


@contextmanager
def three_sites(directory: Path) -> Iterator[Cluster]:
    """Three sites that run."""
    cluster = Cluster(directory)
    try:
        cluster.start(*NAMES)
        yield cluster
    finally:
        cluster.end()


def fail_over(cluster: Cluster, *, nats: bool) -> float:
    """Kill the leader; return how long a client at another site had to wait."""
    leader = cluster.leader(*NAMES)
    for name in NAMES:
        if name != leader:
            cluster.wait_until_equal(name, leader)
    other = next(name for name in NAMES if name != leader)
    cluster.nodes[other].ask("pulse", _PULSE_SECONDS)
    time.sleep(1.0)
    cluster.nodes[leader].kill(nats=nats)
    found: float = cluster.nodes[other].answer()
    cluster.start(leader)
    cluster.wait_until_equal(leader, cluster.leader(*NAMES))
    return found


def drain(cluster: Cluster) -> float:
    """Drain the leader; return how long a client at another site had to wait."""
    leader = cluster.leader(*NAMES)
    for name in NAMES:
        if name != leader:
            cluster.wait_until_equal(name, leader)
    other, third = (name for name in NAMES if name != leader)
    cluster.nodes[other].ask("pulse", _DRAIN_SECONDS)
    time.sleep(1.0)
    cluster.nodes[leader].do("role", SiteRole.DRAINING.value)
    wait_for(lambda: cluster.status(third).get("leader") != leader, "another site leads")
    found: float = cluster.nodes[other].answer()
    cluster.nodes[leader].do("role", SiteRole.MEMBER.value)
    return found


def catch_up(cluster: Cluster, rows: int) -> tuple[float, float]:
    """Append rows while a site is away, and once more after it lost its files; return MB/s of rows
    that it reads from the shared log, and that it copies.
    """
    leader = cluster.leader(*NAMES)
    away = next(name for name in NAMES if name != leader)
    size = rows * (len(VALUE) + len(topics(1)[0]))
    rates = []
    for wiped in (False, True):
        cluster.wait_until_equal(away, leader)
        cluster.nodes[away].kill(nats=False)
        cluster.nodes[leader].do("fill", rows)
        if wiped:
            size = cluster.nodes[leader].do("count") * (len(VALUE) + len(topics(1)[0]))
            shutil.rmtree(cluster.nodes[away].data / "data" / DATABASE)
        begin = time.monotonic()
        cluster.start(away)
        wait_for(lambda: cluster.has_all(away), "caught up")
        rates.append(size / 1e6 / (time.monotonic() - begin))
    return rates[0], rates[1]


def run(seconds: float, kills: int, rows: int) -> Table:
    """Measure everything; return the table."""
    table = Table("figure", "one node", "three sites", "ratio", title="cluster")
    with scratch() as directory, three_sites(directory) as cluster:
        alone = Node(directory, "alone")
        alone.start()
        assert alone.answer() == "ready"
        leader = cluster.nodes[cluster.leader(*NAMES)]
        rates = [(alone.do("append", seconds), leader.do("append", seconds)) for _ in range(3)]
        one, three = (median(each) for each in zip(*rates, strict=True))
        table.add_row("append, rows/s", f"{one:,.0f}", f"{three:,.0f}", f"{three / one:.2f}")
        for title, node in (("one node", alone), ("three sites", leader)):
            times = sorted(node.do("commit", 500))
            p50, p99 = median(times) * 1e3, quantiles(times, n=100)[98] * 1e3
            text = f"{p50:.1f} / {p99:.1f}"
            cells = (text, "") if title == "one node" else ("", text)
            table.add_row("commit, p50 / p99 ms", *cells)
        alone.kill(nats=False)
        for what, nats in (("process", False), ("site", True)):
            waits = [fail_over(cluster, nats=nats) for _ in range(kills)]
            if waits:
                text = f"{median(waits):.1f} / {max(waits):.1f}"
                table.add_row(f"failover of a {what}, median / worst s", "", text)
        waits = [drain(cluster) for _ in range(kills)]
        if waits:
            text = f"{median(waits):.2f} / {max(waits):.2f}"
            table.add_row("drain, median / worst s", "", text)
        tail, copied = catch_up(cluster, rows)
        table.add_row("catch-up from the log, MB/s", "", f"{tail:.0f}")
        table.add_row("catch-up by copying, MB/s", "", f"{copied:.0f}")
    return table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each append")
    parser.add_argument("--kills", type=int, default=5, help="of processes, of sites, and drains")
    parser.add_argument("--rows", type=int, default=2_000_000, help="that a site misses")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        serve(json.loads(chosen.serve))
        return
    # The servers of the sites outlive them, so they must be ended whatever happens.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before the table was complete"))
    console = Console()
    console.print(f"siltstone {__version__} ({form()})")
    console.print(run(chosen.seconds, chosen.kills, chosen.rows))


if __name__ == "__main__":
    main()
