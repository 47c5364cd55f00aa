"""The sites of a cluster as child processes, each with the nats-server that it starts."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from siltstone.errors import SiltstoneError
from siltstone.fs.process import process_arguments, send_signal
from siltstone.manage.running import ask_broker
from siltstone.mqtt.reason import Reason
from tests.support.broker_process import COMMAND, BrokerProcess, stored
from tests.support.mqtt_socket import connected
from tests.support.namespaces import Network
from tests.support.ports import free_port

NAMES = ("a", "b", "c")
# A first election of JetStream takes seconds, and more on a busy machine.
PATIENCE = 90.0
_STOPPED = threading.Event()


def until(holds: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not after {seconds:g} s: {what}"
        _STOPPED.wait(0.05)


class Sites:
    """Three sites on this machine, each in a namespace of its own if there is a network.

    Further ones may join them.
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str | float],
        network: Network | None = None,
    ) -> None:
        self.directory = directory
        self.network = network
        secret = directory / "secret"
        secret.write_text("a secret of this test only")
        secret.chmod(0o600)
        hosts = dict.fromkeys(NAMES, "127.0.0.1") if network is None else network.address
        addresses = {name: f"{hosts[name]}:{free_port()}" for name in NAMES}
        self.addresses = addresses
        self._settings = {
            "cluster.name": "plant",
            "cluster.seeds": ",".join(addresses.values()),
            "cluster.secret_file": str(secret),
            **settings,
        }
        self.brokers: dict[str, BrokerProcess] = {}
        for name in NAMES:
            self.add(name, addresses[name])
        # What was acknowledged, in the order of each client.
        self.acknowledged: list[bytes] = []
        self._lock = threading.Lock()

    def add(self, name: str, listen: str = "") -> None:
        """Add a site; it is not one of the seeds unless it listens at one."""
        own = {"cluster.site": name, "cluster.listen": listen or f"127.0.0.1:{free_port()}"}
        prefix = () if self.network is None else self.network.command(name)
        self.brokers[name] = BrokerProcess(
            self.directory / name, settings=self._settings | own, command=(*prefix, *COMMAND)
        )

    def alone(self, name: str) -> tuple[str, ...]:
        """Let a site be the only seed; return its name."""
        self.brokers[name].set("cluster.seeds", self.addresses[name])
        return (name,)

    def set_epoch(self, epoch: int, *names: str) -> None:
        """Let sites begin with another epoch from now on."""
        for name in names or NAMES:
            self.brokers[name].set("cluster.epoch", epoch)

    def start(self, *names: str) -> None:
        """Start sites at the same time; wait until they listen."""
        chosen = names or NAMES
        counts = {name: len(self.brokers[name].events()) for name in chosen}
        for name in chosen:
            self.brokers[name].begin()
        for name in chosen:
            broker = self.brokers[name]

            def listens(broker: BrokerProcess = broker, before: int = counts[name]) -> bool:
                assert broker.is_running, broker.events()[-5:]
                return any(each["event"] == "listening" for each in broker.events()[before:])

            until(listens, f"site {name} listens")

    def status(self, name: str) -> dict[str, Any]:
        """Return what `siltstone cluster status` shows at a site."""
        found: dict[str, Any] = ask_broker(self.directory / name, {"do": "cluster-status"})
        return found

    def leader(self, name: str, shard: str = "messages/0") -> str:
        """Return the leader that a site knows, "" for none."""
        with suppress(SiltstoneError):
            found = self.status(name)["shards"].get(shard)
            return (found or {}).get("leader") or ""
        return ""

    def wait_for_leader(self, *names: str) -> str:
        """Wait until sites agree on a leader among them; return it."""
        return self.wait_for_leader_of("messages/0", *names)

    def wait_for_leader_of(self, shard: str, *names: str) -> str:
        """Wait until sites agree on a leader of a shard among them; return it."""
        found: list[str] = []

        def agree() -> bool:
            found[:] = {self.leader(name, shard) for name in names}
            return len(found) == 1 and found[0] in names

        until(agree, f"a leader of {shard} among {names}")
        return found[0]

    def publish(self, name: str, client: str, payloads: list[bytes]) -> None:
        """Publish with QoS 1 at a site, one message after another."""
        with self.inside(name):
            opened = connected(self.brokers[name].port, client)
        with opened as socket:
            socket.socket.settimeout(PATIENCE)
            for number, payload in enumerate(payloads, 1):
                assert socket.publish("plant/x", payload, packet_id=number) is Reason.SUCCESS
                with self._lock:
                    self.acknowledged.append(payload)

    def inside(self, name: str) -> AbstractContextManager[None]:
        """Let this thread open sockets at a site."""
        return nullcontext() if self.network is None else self.network.inside(name)

    def rows(self, name: str) -> list[bytes]:
        """Return the stored payloads of a site."""
        return [value for _, value in stored(self.directory / name)]

    def wait_for_rows(self, count: int, *names: str) -> None:
        """Wait until sites have this many rows."""
        for name in names or NAMES:
            until(lambda name=name: len(self.rows(name)) >= count, f"{count} rows at {name}")  # type: ignore[misc]

    def nats_pid(self, name: str) -> int:
        """Return the process id of the nats-server of a site, 0 if it does not run."""
        place = self.directory / name / "cluster"
        with suppress(OSError, ValueError):
            pid = int((place / "nats.pid").read_text())
            if str(place / "nats.conf") in process_arguments(pid):
                return pid
        return 0

    def kill_nats(self, name: str) -> None:
        """Kill the nats-server of a site, if it runs."""
        pid = self.nats_pid(name)
        if pid:
            with suppress(SiltstoneError):
                send_signal(pid, signal.SIGKILL)

    def nats_is_well(self, name: str) -> bool:
        """Return whether the nats-server of a site keeps the logs, and has them all."""
        place = self.directory / name / "cluster" / f"nats-server_{self.nats_pid(name)}.ports"
        with suppress(OSError, ValueError), self.inside(name):
            url = json.loads(place.read_text())["monitoring"][0]
            with urlopen(f"{url}/healthz", timeout=2.0) as answer:  # noqa: S310
                return bool(answer.status == HTTPStatus.OK)
        return False

    def end(self) -> None:
        """Kill everything that still runs."""
        for broker in self.brokers.values():
            if broker.is_running:
                broker.kill()
        for name in self.brokers:
            self.kill_nats(name)

    def logs(self) -> str:
        """Return the end of the logs, for a failed test."""
        ends = {name: broker.events()[-8:] for name, broker in self.brokers.items()}
        return json.dumps(ends, indent=1, default=str)


@contextmanager
def three_sites(
    directory: Path,
    settings: Mapping[str, str | float] | None = None,
    network: Network | None = None,
) -> Iterator[Sites]:
    """Three sites, not started yet; nothing of them runs at the end."""
    sites = Sites(directory, settings or {}, network)
    try:
        yield sites
    except BaseException:
        sys.stderr.write(sites.logs())
        raise
    finally:
        sites.end()
