"""The faults of a cluster, one after another, while clients publish."""

from __future__ import annotations

import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from siltstone.errors import SiltstoneError
from siltstone.fs.process import send_signal
from tests.support.ledger import WINDOW, Ledger
from tests.support.namespaces import Network
from tests.support.sites import NAMES, Sites, three_sites, until

_SETTINGS = {"cluster.away_after": 5}
# How long a fault lasts, at most: longer than a site may be away.
_LONG_SECONDS = 8.0
SHARD = "messages/0"


class Faults:
    """Three sites under load; each fault ends with all sites there again."""

    def __init__(self, sites: Sites, ledger: Ledger, network: Network, *, seed: int) -> None:
        self.sites = sites
        self.ledger = ledger
        self._network = network
        self._random = random.Random(seed)
        self._clock = threading.Event()
        self.history: list[str] = []

    @property
    def kinds(self) -> Mapping[str, Callable[[], None]]:
        """The faults, by their names."""
        return {
            "process": self.kill_process,
            "site": self.kill_site,
            "pause": self.pause,
            "partition": self.partition,
            "power": self.cut_power,
            "files": self.wipe_database,
            "wipe": self.wipe_site,
        }

    def cause(self, kind: str) -> None:
        """Cause a fault of this kind, and wait until everything works again."""
        self.kinds[kind]()
        self.sites.wait_for_leader(*NAMES)
        self.ledger.wait_for_progress()
        for name in NAMES:
            broker = self.sites.brokers[name]
            assert broker.is_running, (self.history, broker.events()[-5:])
            assert broker.events("shard_stopped") == [], (self.history, broker.events()[-5:])

    def kill_process(self) -> None:
        """Kill a broker; its NATS server lives on."""
        name = self._site("kill the process of")
        self.sites.brokers[name].kill()
        self._others_continue(name)
        self.sites.start(name)

    def kill_site(self) -> None:
        """Kill a broker and its NATS server."""
        name = self._site("kill the site")
        self.sites.brokers[name].kill()
        self.sites.kill_nats(name)
        self._others_continue(name)
        self.sites.start(name)

    def pause(self) -> None:
        """Stop a broker without its knowledge, and perhaps its NATS server."""
        name = self._site("pause")
        pids = [self.sites.brokers[name].pid]
        if self._random.random() < 0.5:
            pids.append(self.sites.nats_pid(name))
            self.history[-1] += " with NATS"
        for pid in pids:
            send_signal(pid, signal.SIGSTOP)
        try:
            self._others_continue(name)
            self._last()
        finally:
            for pid in reversed(pids):
                with suppress(SiltstoneError):
                    send_signal(pid, signal.SIGCONT)

    def partition(self) -> None:
        """Cut a site off; the clients of both sides go on."""
        name = self._site("cut off")
        self._network.cut(name)
        try:
            self._others_continue(name)
            before = self.ledger.acknowledged[f"at.{name}"]
            self._last()
            # What was acknowledged by the majority just before may still be told.
            after = self.ledger.acknowledged[f"at.{name}"]
            assert after <= before + WINDOW, f"{name} acknowledges alone"
        finally:
            self._network.join(name)

    def cut_power(self) -> None:
        """Kill every process of all sites at once, and start all again."""
        self.history.append("kill everything")
        for name in NAMES:
            self.sites.brokers[name].ask(signal.SIGKILL)
            self.sites.kill_nats(name)
        for name in NAMES:
            assert self.sites.brokers[name].wait_for_status() == -signal.SIGKILL
        self.sites.start()

    def wipe_database(self) -> None:
        """Remove the files of the database at a site; it copies them from another one."""
        name = self._site("remove the database of")
        self.sites.brokers[name].kill()
        shutil.rmtree(self.sites.directory / name / "data" / "messages")
        self._others_continue(name)
        self.sites.start(name)
        self._in_sync(name)

    def wipe_site(self) -> None:
        """Remove everything that a site has, its NATS store too, while the others are in sync."""
        name = self._site("wipe")
        for other in NAMES:
            self._in_sync(other)
        self.sites.brokers[name].kill()
        self.sites.kill_nats(name)
        _empty(self.sites.directory / name)
        self._others_continue(name)
        self.sites.start(name)
        self._in_sync(name)

    def _site(self, what: str) -> str:
        """Choose a site, the leader in half of all cases."""
        leader = self.sites.wait_for_leader(*NAMES)
        name = leader if self._random.random() < 0.5 else self._random.choice(NAMES)
        self.history.append(f"{what} {name}{' (leads)' if name == leader else ''}")
        return name

    def _others_continue(self, gone: str) -> None:
        self.ledger.wait_for_progress(*(f"at.{name}" for name in NAMES if name != gone))

    def _in_sync(self, name: str) -> None:
        def joined() -> bool:
            with suppress(SiltstoneError, KeyError):
                return name in self.sites.status(name)["shards"][SHARD]["in_sync"]
            return False

        until(joined, f"{name} is in sync")

    def _last(self) -> None:
        """Let a fault last for some time."""
        self._clock.wait(self._random.uniform(0.5, _LONG_SECONDS))


def _empty(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


@contextmanager
def sites_under_load(directory: Path, network: Network, *, seed: int) -> Iterator[Faults]:
    """Three sites in namespaces, with clients that publish."""
    with three_sites(directory, _SETTINGS, network) as sites:
        ledger = Ledger(sites, NAMES, seed=seed)
        sites.start()
        sites.wait_for_leader(*NAMES)
        try:
            ledger.start()
            yield Faults(sites, ledger, network, seed=seed)
        finally:
            ledger.end()
