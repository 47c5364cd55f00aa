"""NATS servers that a user runs, without Siltstone."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath

from siltstone.cluster.nats_process import PAYLOAD_MAX, find_program, read_monitor
from siltstone.cluster.settings import SiteSettings
from tests.support.ports import free_port
from tests.support.sites import until

_CONFIGURATION = """\
server_name: {name}
listen: "127.0.0.1:{client}"
http: "127.0.0.1:{monitor}"
max_payload: {payload}
jetstream {{ store_dir: "{store}", sync_interval: {sync} }}
authorization {{ users: [ {{ user: app, password: word }} ] }}
cluster {{ name: users, listen: "127.0.0.1:{route}", routes: [ {routes} ] }}
"""


@dataclass(frozen=True, slots=True)
class UserServers:
    """Where the servers are, and what starts one again with another `sync_interval`."""

    urls: tuple[str, ...]
    pages: tuple[str, ...]
    restart: Callable[[int, str], None]

    @property
    def settings(self) -> Mapping[str, str]:
        """What a site sets to use them."""
        return {
            "cluster.seeds": "",
            "cluster.nats": ",".join(self.urls),
            "cluster.nats_monitor": ",".join(self.pages),
        }


@contextmanager
def user_servers(directory: Path, sync: str = "always") -> Iterator[UserServers]:
    """Run three servers of a cluster; the last one has this `sync_interval`."""
    nowhere = PurePath("/nowhere")
    program = find_program(
        SiteSettings(name="x", site="x", seeds=(), listen=None, secret=b"", directory=nowhere)
    )
    directory.mkdir()
    routes = [free_port() for _ in range(3)]
    clients, monitors = [free_port() for _ in range(3)], [free_port() for _ in range(3)]
    processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(number: int, sync_interval: str) -> None:
        if number in processes:
            processes[number].kill()
            processes[number].wait()
        place = directory / f"nats-{number}.conf"
        others = [port for port in routes if port != routes[number]]
        text = _CONFIGURATION.format(
            name=f"nats-{number}",
            client=clients[number],
            monitor=monitors[number],
            payload=PAYLOAD_MAX,
            store=directory / f"store-{number}",
            sync=sync_interval,
            route=routes[number],
            routes=", ".join(f'"nats-route://127.0.0.1:{port}"' for port in others),
        )
        place.write_text(text)
        with (directory / f"nats-{number}.log").open("ab") as output:
            processes[number] = subprocess.Popen([program, "-c", str(place)], stderr=output)

    try:
        for number in range(3):
            start(number, sync if number == 2 else "always")
        pages = tuple(f"http://127.0.0.1:{port}" for port in monitors)
        until(lambda: all(map(_answers, pages)), "all servers answer")
        urls = tuple(f"nats://app:word@127.0.0.1:{port}" for port in clients)
        yield UserServers(urls, pages, start)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def _answers(page: str) -> bool:
    try:
        return bool(read_monitor(page, "varz"))
    except (OSError, ValueError):
        return False
