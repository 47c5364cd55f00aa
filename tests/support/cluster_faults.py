"""The faults of a cluster, one after another, while clients publish."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from siltstone.errors import SiltstoneError
from siltstone.fs.paths import StorePaths
from siltstone.fs.posix import PosixFileSystem, absolute_path
from siltstone.fs.process import send_signal
from siltstone.store.segment.segment import open_segment
from tests.support.broker_process import COMMAND, clean_environment, run_command
from tests.support.ledger import WINDOW, Ledger
from tests.support.namespaces import Network
from tests.support.sites import NAMES, Sites, three_sites, until
from tests.support.small_disk import mounted, take_the_rest

_SETTINGS = {"cluster.away_after": 5}
# The check in the background, often enough that a flipped bit is found soon.
_SCRUBBED = _SETTINGS | {"cluster.scrub_interval": 20}
# The site whose disk can be filled.
SMALL = "c"
_DISK_BYTES = 512 * 1024 * 1024
# A site that was cut off is removed from the in-sync sites first.
_COMMAND_SECONDS = 300
# The exit status of a command that the cluster does not answer.
_NO_ANSWER = 3
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
            "disk": self.fill_disk,
            "flip": self.flip,
            "drain": self.drain_while_cut,
            "leave": self.leave_while_cut,
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

    def fill_disk(self) -> None:
        """Take all space of a site for some time, from its NATS server too."""
        leads = self.sites.wait_for_leader(*NAMES) == SMALL
        self.history.append(f"fill the disk of {SMALL}{' (leads)' if leads else ''}")
        rest = self.sites.directory / SMALL / "rest"
        take_the_rest(rest)
        try:
            self._others_continue(SMALL)
            self._last()
            self._others_continue(SMALL)
        finally:
            rest.unlink()
        until(lambda: self.sites.nats_is_well(SMALL), f"NATS at {SMALL} has all logs again")
        self._in_sync(SMALL)

    def flip(self) -> None:
        """Flip a bit in a sealed segment of a site that is stopped; it repairs it."""
        until(self._sealed, "the first segment is sealed")
        name = self._site("flip a bit at")
        self._in_sync(name)
        broker = self.sites.brokers[name]
        broker.kill()
        copied = len(broker.events("shard_copied"))
        flip_a_bit(self.sites, name)
        self._others_continue(name)
        self.sites.start(name)
        # Either the check finds the damage, or the site was away for so long that it copies all.
        until(lambda: len(broker.events("shard_copied")) > copied, "the segment is copied")
        until(lambda: is_sound(self.sites, name), "the segment is repaired")

    def drain_while_cut(self) -> None:
        """While a site is cut off, let another one drain; only the third may lead."""
        cut, changed, third = self._roles("drain")
        self._network.cut(cut)
        try:
            self._others_continue(cut)
            self._change("drain", changed, at=third)
            until(lambda: self.sites.leader(third) == third, f"{third} leads")
            self._last()
        finally:
            self._network.join(cut)
        self._change("join", changed, at=third)

    def leave_while_cut(self) -> None:
        """While a site is cut off, let another one leave. Once the first is back, it may."""
        cut, changed, third = self._roles("leave")
        self._network.cut(cut)
        try:
            self._others_continue(cut)
            words = self._command("leave", changed, at=third)
            leaving = subprocess.Popen([*COMMAND, *words], env=clean_environment())
            self._last()
        finally:
            self._network.join(cut)
        if (status := leaving.wait(_COMMAND_SECONDS)) != 0:
            # The site that was cut off led the registry, so nothing answered for some seconds.
            assert status == _NO_ANSWER, (self.history, status)
            left = partial(self._has_left, changed, at=third)
            until(left, f"{changed} leaves", seconds=_COMMAND_SECONDS)
        self.ledger.wait_for_progress()
        placed = self.sites.status(third)["shards"][SHARD]["placed"]
        assert placed == sorted({cut, third}), (self.history, placed)
        self._change("join", changed, at=third)
        for name in NAMES:
            self._in_sync(name)

    def _roles(self, what: str) -> tuple[str, str, str]:
        """Choose a site to cut off, one to change meanwhile, and the one that is left."""
        for name in NAMES:
            self._in_sync(name)
        leader = self.sites.wait_for_leader(*NAMES)
        cut, changed, third = self._random.sample(NAMES, len(NAMES))
        self.history.append(f"cut off {cut} and let {changed} {what} ({leader} leads)")
        return cut, changed, third

    def _command(self, what: str, name: str, *, at: str) -> list[str]:
        wait = ("--wait", str(_COMMAND_SECONDS)) if what != "join" else ()
        return ["cluster", what, name, *wait, "--data", str(self.sites.directory / at)]

    def _change(self, what: str, name: str, *, at: str) -> None:
        """Change the role of a site. What the cluster does not answer for a moment is repeated."""

        def is_changed() -> bool:
            done = run_command(*self._command(what, name, at=at))
            assert done.returncode in (0, _NO_ANSWER), (self.history, done.stderr)
            return done.returncode == 0

        until(is_changed, f"{what} {name}")

    def _has_left(self, name: str, *, at: str) -> bool:
        """Return whether a site has left; ask again if the question was lost."""
        with suppress(SiltstoneError):
            role = self.sites.status(at)["sites"][name]["role"]
            if role == "member":
                done = run_command(*self._command("leave", name, at=at))
                return done.returncode == 0
            return bool(role == "observer")
        return False

    def _sealed(self) -> bool:
        """Let the leader seal; return whether the first slab is sealed at all sites."""
        slabs = [self._slab(name) for name in NAMES]
        if all((slab.parent / "2").exists() for slab in slabs):
            return True
        with suppress(SiltstoneError):
            leader = self.sites.wait_for_leader(*NAMES)
            run_command("seal", "messages", "--data", str(self.sites.directory / leader))
        return False

    def _slab(self, name: str) -> Path:
        return self.sites.directory / name / "data" / "messages" / "0" / "1"

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


def flip_a_bit(sites: Sites, name: str) -> None:
    """Flip a bit in the middle of the first segment of a site, which is sealed."""
    place = StorePaths(absolute_path(sites.directory / name)).data / "messages" / "0" / "1"
    fs = PosixFileSystem()
    path = place / min(entry.name for entry in fs.list(place) if entry.name.endswith(".seg"))
    segment = open_segment(fs, path)
    segment.follow()
    at = int(segment.index.positions[len(segment.index.positions) // 2]) + 90
    with fs.open(path, writable=True) as file:
        file.write_at(at, bytes([file.read_at(at, 1)[0] ^ 1]))


def is_sound(sites: Sites, name: str) -> bool:
    """Return whether `siltstone verify` finds nothing at a site."""
    return run_command("verify", "messages", "--data", str(sites.directory / name)).returncode == 0


def _empty(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


@contextmanager
def sites_under_load(
    directory: Path, network: Network, *, seed: int, every_kind: bool = False
) -> Iterator[Faults]:
    """Three sites in namespaces, with clients that publish. For every kind of fault, one site has a
    small disk, and the sites check their files often.
    """
    with ExitStack() as stack:
        if every_kind:
            stack.enter_context(mounted(directory / SMALL, _DISK_BYTES))
        settings = _SCRUBBED if every_kind else _SETTINGS
        sites = stack.enter_context(three_sites(directory, settings, network))
        ledger = Ledger(sites, NAMES, seed=seed)
        sites.start()
        sites.wait_for_leader(*NAMES)
        stack.callback(ledger.end)
        ledger.start()
        yield Faults(sites, ledger, network, seed=seed)
