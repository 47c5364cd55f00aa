"""Two hundred devices with a connection each, which publish drifting payloads with QoS 1.

No number is sent twice. The time of each acknowledgement is kept: it is all that a device knows.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from threading import Event
from typing import Any, Final

from tests.support.broker_process import BrokerProcess

# A device that waits for this number of acknowledgements publishes nothing.
WINDOW: Final = 100
# The time between two bursts of a device.
BURST_SECONDS: Final = 0.2
STOP_SECONDS: Final = 20.0
RETRY_SECONDS: Final = 0.5
ANSWER_SIZE: Final = 4
NEVER: Final = -1.0


def topic_of(unit: int) -> str:
    """Return the topic of a device of one of four plants."""
    return f"plant/{unit % 4}/device/{unit}/telemetry"


def payload_of(unit: int, number: int) -> bytes:
    """Return the payload of a message; its fields and their types drift with the number."""
    document: dict[str, Any] = {"unit": unit, "number": number, "value": number % 97}
    if number % 3 == 0:
        document["value"] = number / 7
    if number % 50 == 49 and number > 200:
        document["value"] = "offline"
    if number > 500:
        document["late"] = number % 2 == 0
    if number > 2_000:
        document["later"] = [number, number + 1]
    if number % 200 == 0:
        document["state"] = {"code": number}
    elif number % 11 == 0:
        document["state"] = "ok"
    return json.dumps(document).encode()


class Device:
    """One device: its connection, and the times of its acknowledgements by number."""

    def __init__(self, unit: int, due: float) -> None:
        self.unit = unit
        self.due = due
        self.sent = 0
        # Seconds since the start of the fleet.
        self.acknowledged = array("f")
        self.connection: socket.socket | None = None
        self._topic = topic_of(unit).encode()
        self._waiting: dict[int, int] = {}
        self._rest = b""

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def connect(self, port: int) -> socket.socket:
        """Connect and log in. Raises: OSError."""
        self.connection = socket.create_connection(("127.0.0.1", port), timeout=10)
        name = b"soak-%d" % self.unit
        body = b"\0\4MQTT\4\2\0\0" + struct.pack("!H", len(name)) + name
        self.connection.sendall(b"\x10" + bytes([len(body)]) + body)
        if len(self.connection.recv(ANSWER_SIZE)) < ANSWER_SIZE:
            raise ConnectionError("no answer to CONNECT")
        return self.connection

    def disconnect(self) -> None:
        """Forget the connection, and what it has not acknowledged."""
        if self.connection is not None:
            self.connection.close()
        self.connection = None
        self._waiting.clear()
        self._rest = b""

    def send(self, count: int) -> None:
        """Publish the given number of messages, or fewer if many wait. Raises: OSError."""
        assert self.connection is not None
        room = min(count, WINDOW - len(self._waiting))
        if room > 0:
            self.connection.sendall(b"".join(self._message() for _ in range(room)))

    def receive(self, now: float) -> int:
        """Take acknowledgements; return their number. Raises: OSError."""
        assert self.connection is not None
        data = self.connection.recv(65_536)
        if not data:
            raise ConnectionError("the broker closed the connection")
        self._rest += data
        size = len(self._rest) // ANSWER_SIZE * ANSWER_SIZE
        for start in range(0, size, ANSWER_SIZE):
            packet = struct.unpack("!H", self._rest[start + 2 : start + 4])[0]
            self.acknowledged[self._waiting.pop(packet)] = now
        self._rest = self._rest[size:]
        return size // ANSWER_SIZE

    def _message(self) -> bytes:
        number, self.sent = self.sent, self.sent + 1
        self.acknowledged.append(NEVER)
        packet = number % 65_535 + 1
        self._waiting[packet] = number
        payload = payload_of(self.unit, number)
        body = struct.pack("!H", len(self._topic)) + self._topic + struct.pack("!H", packet)
        size = len(body) + len(payload)
        length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
        return b"\x32" + length + body + payload


class Fleet:
    """All devices, in one thread."""

    def __init__(self, count: int, rate: float) -> None:
        self.began = time.time()
        self.devices = [Device(unit, BURST_SECONDS * unit / count) for unit in range(count)]
        self.acknowledged = 0
        self._share = rate / count

    def run(self, broker: BrokerProcess, stop: Event) -> None:
        """Publish until it is stopped, and wait for the last acknowledgements."""
        stopped: float | None = None
        with DefaultSelector() as ready:
            while True:
                now = time.time() - self.began
                if stop.is_set():
                    stopped = now if stopped is None else stopped
                    waiting = any(device.is_waiting for device in self.devices)
                    if not waiting or now - stopped > STOP_SECONDS:
                        return
                else:
                    for device in self._due(now):
                        self._publish(device, now, broker, ready)
                for key, _ in ready.select(0.01):
                    self._take(key.data, ready)

    def save(self, path: Path) -> None:
        """Keep the times of all acknowledgements, for another look at the tables."""
        for device in self.devices:
            (path / f"{device.unit}.f32").write_bytes(device.acknowledged.tobytes())

    def _due(self, now: float) -> Iterator[Device]:
        return (device for device in self.devices if device.due <= now)

    def _publish(
        self, device: Device, now: float, broker: BrokerProcess, ready: DefaultSelector
    ) -> None:
        try:
            if device.connection is None:
                if not broker.listens.is_set():
                    device.due = now + RETRY_SECONDS
                    return
                ready.register(device.connect(broker.port), EVENT_READ, device)
            # A part of a message is sent with the next burst.
            bursts = round((now - device.due) * self._share + BURST_SECONDS * self._share)
            count = max(1, min(bursts, WINDOW))
            device.due = max(device.due + count / self._share, now - 1)
            device.send(count)
        except OSError:
            self._lose(device, ready)
            device.due = now + RETRY_SECONDS

    def _take(self, device: Device, ready: DefaultSelector) -> None:
        try:
            self.acknowledged += device.receive(time.time() - self.began)
        except OSError:
            self._lose(device, ready)

    def _lose(self, device: Device, ready: DefaultSelector) -> None:
        if device.connection is not None:
            with suppress(KeyError, ValueError):
                ready.unregister(device.connection)
        device.disconnect()
