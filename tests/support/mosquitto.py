"""Debian's Mosquitto, started by a test on a free loopback port."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import Connect, Publish
from siltstone.mqtt.wire import Version
from tests.support.peers import need_peer, peer_environment
from tests.support.ports import free_port


class Mosquitto:
    """A server that may be killed and started again on the same port."""

    def __init__(self, directory: Path, *settings: str, listener: tuple[str, ...] = ()) -> None:
        self._command = need_peer("mosquitto")
        self.port = free_port()
        self._config = directory / "mosquitto.conf"
        lines = [
            # With the default, messages for a slow subscriber would be dropped.
            "max_queued_messages 1000000",
            "log_dest stderr",
            # As root it would switch to another user, which cannot read the files of the test.
            *(["user root"] if os.geteuid() == 0 else []),
            *(settings or ("allow_anonymous true",)),
            f"listener {self.port} 127.0.0.1",
            *listener,
        ]
        self._config.write_text("".join(f"{line}\n" for line in lines))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        self._process = subprocess.Popen(
            [self._command, "-c", str(self._config)],
            env=peer_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert self._process.stderr is not None
        said = b""
        for line in self._process.stderr:
            said += line
            if line.rstrip().endswith(b"running"):
                return
        raise AssertionError(said.decode())

    def retain(self, topic: bytes, payload: bytes) -> None:
        """Publish a retained message, and wait for its acknowledgement."""
        message = Publish(topic=topic, payload=payload, qos=1, retain=True, packet_id=1)
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            for packet in (Connect(version=Version.V3_1_1, client_id=""), message):
                connection.sendall(encode(Version.V3_1_1, packet))
                # CONNACK, then PUBACK.
                connection.recv(4, socket.MSG_WAITALL)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.wait()
            assert self._process.stderr is not None
            self._process.stderr.close()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._end()
