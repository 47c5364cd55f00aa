"""`siltstone serve` as a child process: started, watched through its log, killed, restarted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import siltstone
from tests.support.ports import free_port

COMMAND = (sys.executable, "-m", "siltstone.cli.main")
DATABASE = "messages"
EVENT_SECONDS = 20.0
MIB = 1024 * 1024

Event = Mapping[str, Any]
Listener = Mapping[str, str | int | bool]
Settings = Mapping[str, str | float]

# Listeners by the names that tests use; the first one is plain TCP.
PLAIN: Mapping[str, Listener] = {"tcp": {"port": 0}}
RELOADS = {"reloaded", "access_reload_failed", "certificates_reload_failed"}
QUICK: Settings = {"storage.segment_bytes": "1 MiB", "sys_interval": 0, "drain_timeout": 0.5}


def clean_environment() -> dict[str, str]:
    """Return the environment without SILTSTONE_ variables, and with the import path of this
    process.
    """
    kept = {name: text for name, text in os.environ.items() if not name.startswith("SILTSTONE_")}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def run_command(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run another command of the project."""
    return subprocess.run(
        [*COMMAND, *args], input=stdin, capture_output=True, check=False, env=clean_environment()
    )


class BrokerProcess:
    """One data directory, and the broker that serves it, if it is running.

    Free ports are chosen at the first start, and the first listener keeps its port.
    """

    def __init__(
        self,
        data: Path,
        *,
        listeners: Mapping[str, Listener] = PLAIN,
        settings: Settings | None = None,
        files_max: int | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.data = data
        self._files_max = files_max
        self._command = command
        self.addresses: dict[str, str] = {}
        self._listeners = listeners
        self._settings = dict(QUICK) | dict(settings or {})
        first = next(iter(listeners.values()))
        # A restart must use the same port.
        self._port = free_port() if first.get("port") == 0 else 0
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: threading.Thread | None = None
        self._changed = threading.Condition()
        self._events: list[Event] = []
        self._is_over = True
        # Set from the moment when it listens until it is killed or told to stop.
        self.listens = threading.Event()

    def set(self, key: str, value: str | float) -> None:
        """Change a setting for the next start."""
        self._settings[key] = value

    def use(self, command: Sequence[str]) -> None:
        """Run another program from the next start on."""
        self._command = command

    def start(self, *, allow_empty: bool = False) -> None:
        """Start it, and wait until all listeners are open."""
        first = len(self._events)
        self.begin(allow_empty=allow_empty)
        for number, name in enumerate(self._listeners, 1):
            address = self.wait_for("listening", skip=first, count=number)["address"]
            self.addresses[name] = str(address)
        self._port = self.port_of(next(iter(self._listeners)))
        self.listens.set()

    def begin(self, *, allow_empty: bool = False) -> None:
        """Start it without waiting."""
        assert self._is_over
        command = [*self._command, "serve", "--data", str(self.data), "--log-format", "json"]
        command += ["--set", f"listeners={json.dumps(list(self._listeners.values()))}"]
        if self._port:
            command += ["--port", str(self._port)]
        for key, value in self._settings.items():
            command += ["--set", f"{key}={value}"]
        if allow_empty:
            command.append("--allow-empty")
        if self._files_max is not None:
            limited = f'ulimit -n {self._files_max} && exec "$@"'
            command = ["sh", "-c", limited, "sh", *command]
        self._is_over = False
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, env=clean_environment())
        self._watcher = threading.Thread(target=self._watch, args=(self._process,))
        self._watcher.start()

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return self._port

    @property
    def pid(self) -> int:
        """The id of the running process."""
        assert self._process is not None
        return self._process.pid

    def port_of(self, name: str) -> int:
        """Return the port of a listener."""
        return int(self.addresses[name].rpartition(":")[2].partition("/")[0])

    def events(self, event: str = "") -> list[Event]:
        """Return the logged events of all starts, or those with one name."""
        with self._changed:
            return [each for each in self._events if event in {"", each["event"]}]

    def wait_for(self, event: str, *, skip: int = 0, count: int = 1) -> Event:
        """Return the count-th event of this name after the first `skip` events."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over or len(self._named(event, skip)) >= count, EVENT_SECONDS
            )
            found = self._named(event, skip)
            assert len(found) >= count, f"no event {event!r} in {self._events}"
            return found[count - 1]

    def wait_for_total(self, event: str, total: int, *, skip: int = 0) -> None:
        """Wait until an event has happened this often, with those that a summary line counts."""

        def counted() -> int:
            return sum(1 + int(str(each.get("unlogged", 0))) for each in self._named(event, skip))

        with self._changed:
            self._changed.wait_for(lambda: self._is_over or counted() >= total, EVENT_SECONDS)
            assert counted() == total, f"{counted()} events {event!r} in {self._events}"

    def reload(self) -> Event:
        """Send SIGHUP; return the event that reports the result."""
        with self._changed:
            before = len(self._events)
        self._signal(signal.SIGHUP)
        with self._changed:
            done: list[Event] = []

            def is_told() -> bool:
                since = self._events[before:]
                done[:] = [each for each in since if each["event"] in RELOADS]
                return self._is_over or bool(done)

            self._changed.wait_for(is_told, EVENT_SECONDS)
            assert done, self._events
            return done[0]

    def save(self) -> None:
        """Send SIGUSR1; return when the log reports a snapshot."""
        with self._changed:
            before = len(self._events)
        self._signal(signal.SIGUSR1)
        self.wait_for("snapshot_written", skip=before)

    def kill(self) -> None:
        """Kill it with SIGKILL; return when it has ended."""
        self._signal(signal.SIGKILL)
        assert self._wait() == -signal.SIGKILL

    def stop(self) -> None:
        """Send SIGTERM; it must exit with status 0, and without an internal error in its log."""
        self._signal(signal.SIGTERM)
        self.wait_until_stopped()

    def wait_for_status(self) -> int:
        """Wait until it ends by itself; return its status."""
        return self._wait()

    def wait_until_stopped(self) -> None:
        """Wait for the end that SIGTERM requested."""
        status = self._wait()
        assert (status, self.mistakes()) == (0, []), (status, self.mistakes(), self.events()[-3:])

    def ask(self, number: signal.Signals) -> None:
        """Send a signal without waiting."""
        self._signal(number)

    def terminate(self) -> None:
        """Send SIGTERM without waiting."""
        self._signal(signal.SIGTERM)

    @property
    def is_running(self) -> bool:
        return not self._is_over

    def mistakes(self) -> list[Event]:
        """Return the internal errors in the log: tracebacks, and lines that are not events."""
        return [each for each in self.events() if "level" not in each or "traceback" in each]

    def peak_bytes(self) -> int:
        """Return its peak memory, including mapped files."""
        assert self._process is not None
        lines = Path(f"/proc/{self._process.pid}/status").read_text("ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024

    def _named(self, event: str, skip: int) -> list[Event]:
        return [each for each in self._events[skip:] if each["event"] == event]

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.listens.clear()
        self._process.send_signal(number)

    def _wait(self) -> int:
        assert self._process is not None
        assert self._watcher is not None
        status = self._process.wait(EVENT_SECONDS)
        self._watcher.join()
        return status

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Read the log until the process ends."""
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                try:
                    event: Event = json.loads(line)
                except ValueError:
                    event = {"event": line.decode(errors="replace")}
                with self._changed:
                    self._events.append(event)
                    self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


@contextmanager
def broker_process(
    data: Path,
    *,
    listeners: Mapping[str, Listener] = PLAIN,
    settings: Settings | None = None,
    command: Sequence[str] = COMMAND,
) -> Iterator[BrokerProcess]:
    """Run a broker; stop it at the end, unless the test has stopped it."""
    broker = BrokerProcess(data, listeners=listeners, settings=settings, command=command)
    try:
        broker.start()
        yield broker
        if broker.is_running:
            broker.stop()
    finally:
        if broker.is_running:
            broker.kill()


def stored(data: Path, topic_filter: str = "#") -> list[tuple[str, bytes]]:
    """Return topic and value of the stored messages, in order of time."""
    with siltstone.open(data, read_only=True) as store:
        return [
            (topic, value)
            for batch in store.database(DATABASE).read(topic_filter, columns=["topic", "value"])
            for topic, value in zip(
                batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True
            )
        ]
