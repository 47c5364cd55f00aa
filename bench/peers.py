"""The brokers under test, each a child process on a free loopback port with its own files.

A broker has its log beside its data, in the directory of the caller. `tools/peers.sh` fetches the
other brokers into build/peers if the system has none.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FETCHED: Final = Path("build/peers").resolve()
_LOOPBACK: Final = "127.0.0.1"
_START_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.02

_MOSQUITTO_CONF: Final = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence true
persistence_location {data}/
max_queued_messages 0
max_inflight_messages 0
log_dest stderr
log_type error
log_type warning
user {user}
"""

_NATS_CONF: Final = """\
server_name: peer
host: 127.0.0.1
port: {client_port}
jetstream {{ store_dir: "{data}", sync_interval: {sync} }}
mqtt {{ host: 127.0.0.1, port: {port} }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A running broker."""

    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """Return its processor time."""
        stat = Path(f"/proc/{self.pid}/stat").read_text("ascii")
        # The name may contain spaces; it ends at the last parenthesis.
        fields = stat[stat.rindex(")") + 2 :].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        """Return its resident memory."""
        pages = Path(f"/proc/{self.pid}/statm").read_text("ascii").split()[1]
        return int(pages) * resource.getpagesize()


class PeerError(Exception):
    """A broker did not start; the text has its output."""


@contextmanager
def siltstone(
    directory: Path, *assignments: str, python: Path | str = sys.executable
) -> Iterator[Peer]:
    """Run `siltstone serve` of an interpreter; assignments are those of --set."""
    port = free_port()
    command = [str(python), "-m", "siltstone.cli.main", "serve"]
    command += ["--data", str(directory / "data"), "--port", str(port), "--log-level", "warning"]
    for assignment in assignments:
        command += ["--set", assignment]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SILTSTONE_")}
    with _running(command, directory, port, environment) as peer:
        yield peer


@contextmanager
def mosquitto(directory: Path) -> Iterator[Peer]:
    """Run Mosquitto: persistent, with the default save interval, without limits of its queues."""
    program = find_mosquitto()
    if program is None:
        raise PeerError("Mosquitto is not here: tools/peers.sh fetches it")
    port = free_port()
    configuration = directory / "mosquitto.conf"
    data = directory / "data"
    data.mkdir(exist_ok=True)
    # As root it would switch to a user that cannot write here.
    user = "root" if os.geteuid() == 0 else "mosquitto"
    configuration.write_text(_MOSQUITTO_CONF.format(port=port, data=data, user=user), "utf-8")
    libraries = FETCHED / "usr" / "lib" / f"{platform.machine()}-linux-gnu"
    environment = dict(os.environ)
    if FETCHED in program.parents:
        environment["LD_LIBRARY_PATH"] = str(libraries)
    with _running([str(program), "-c", str(configuration)], directory, port, environment) as peer:
        yield peer


@contextmanager
def nats(directory: Path, *, sync: str = "always") -> Iterator[Peer]:
    """Run NATS with MQTT and JetStream; sync is "always", before each PUBACK, or an interval."""
    program = find_nats()
    if program is None:
        raise PeerError("NATS is not here: tools/peers.sh fetches it")
    port, client_port = free_port(), free_port()
    configuration = directory / "nats.conf"
    configuration.write_text(
        _NATS_CONF.format(port=port, client_port=client_port, data=directory / "data", sync=sync),
        "utf-8",
    )
    with _running([str(program), "-c", str(configuration)], directory, port, os.environ) as peer:
        yield peer


def find_mosquitto() -> Path | None:
    """Return the program of the system, or the fetched one."""
    # Distributions install it in sbin, which is only in the PATH of root.
    return _find("mosquitto", "/usr/sbin", str(FETCHED / "usr" / "sbin"))


def find_nats() -> Path | None:
    """Return the program beside this interpreter, the program of the system, or the fetched one."""
    return _find("nats-server", str(Path(sys.executable).parent), str(FETCHED / "nats" / "bin"))


def _find(name: str, *directories: str) -> Path | None:
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(directories))
    return Path(found) if found is not None else None


def free_port() -> int:
    """Return a free loopback port."""
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def raise_file_limit() -> int:
    """Raise the limit of open files to its maximum; return the new limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@contextmanager
def _running(
    command: Sequence[str], directory: Path, port: int, environment: Mapping[str, str]
) -> Iterator[Peer]:
    """Start a broker, yield it when it accepts connections, and stop it by its process id."""
    log = directory / "log"
    with log.open("wb") as output:
        # In its own directory, so that it finds no other settings file.
        child = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=output, stderr=output
        )
    try:
        _wait_until_accepting(child, port, log)
        yield Peer(port=port, pid=child.pid)
    finally:
        child.terminate()
        try:
            child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _wait_until_accepting(child: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and child.poll() is None:
        try:
            socket.create_connection((_LOOPBACK, port), timeout=1.0).close()
        except OSError:
            time.sleep(_POLL_SECONDS)
        else:
            return
    said = log.read_text("utf-8", errors="replace")[-2000:]
    raise PeerError(f"no connection on port {port}: {child.args!r} said:\n{said}")
