"""Publishers that know what a killed broker had acknowledged, and what it may have stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from time import monotonic

from siltstone.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from tests.support.broker_process import stored
from tests.support.mqtt_socket import MqttSocket, connected


class Load:
    """Counts what all publishers together have had acknowledged, and tells when it is enough."""

    def __init__(self, enough: int) -> None:
        self.is_enough = Event()
        self._left = enough
        self._lock = Lock()

    def count(self, acknowledged: int) -> None:
        with self._lock:
            self._left -= acknowledged
            if self._left <= 0:
                self.is_enough.set()


@dataclass(slots=True)
class Publisher:
    """Sends running numbers with a window; no number is ever sent twice."""

    name: str
    version: Version
    qos: int
    window: int = 100
    # The numbers below this one were acknowledged, and those below the other may have been sent.
    done: int = 0
    sent: int = 0
    # Of each connection its first number, `done` and `sent` at its end.
    connections: list[tuple[int, int, int]] = field(default_factory=list)

    def run(self, port: int, load: Load) -> None:
        """Publish until the connection breaks."""
        start = self.done = self.sent
        try:
            with connected(port, self.name, self.version) as client:
                while True:
                    room = range(self.sent, self.done + self.window)
                    # What cannot be sent whole counts as sent: nobody knows what arrived of it.
                    self.sent = room.stop
                    client.send(*map(self._message, room))
                    self._take_acknowledgements(client)
                    load.count(len(room))
        except (EOFError, OSError):
            self.connections.append((start, self.done, self.sent))

    def check(self, numbers: list[int]) -> None:
        """Of each connection the first numbers are stored, at least the acknowledged ones."""
        assert numbers == sorted(set(numbers))
        for start, done, sent in self.connections:
            found = [number for number in numbers if start <= number < sent]
            assert found == list(range(start, start + len(found)))
            assert start + len(found) >= done

    def _message(self, number: int) -> Publish:
        return Publish(
            topic=f"kill/{self.name}/{number % 7}".encode(),
            payload=b"%d" % number,
            qos=self.qos,
            packet_id=_packet_id(number),
        )

    def _take_acknowledgements(self, client: MqttSocket) -> None:
        """Take half a window of them, in the order of the messages."""
        until = self.done + (self.window + 1) // 2
        while self.done < until:
            packet = client.receive()
            if isinstance(packet, PubComp):
                continue
            assert isinstance(packet, PubAck if self.qos == 1 else PubRec)
            assert (packet.packet_id, packet.reason) == (_packet_id(self.done), Reason.SUCCESS)
            self.done += 1
            if self.qos == 2:
                client.send(PubRel(packet_id=packet.packet_id))


def _packet_id(number: int) -> int:
    return number % 60_000 + 1


class Pace(Load):
    """Also makes all publishers together send at most so many messages per second."""

    def __init__(self, enough: int, rate: float) -> None:
        super().__init__(enough)
        self._seconds = 1 / rate
        self._due = monotonic()
        self._turn = Lock()

    def count(self, acknowledged: int) -> None:
        super().count(acknowledged)
        with self._turn:
            self._due = max(self._due, monotonic() - 0.1) + acknowledged * self._seconds
            early = self._due - monotonic()
        if early > 0:
            self.is_enough.wait(early)


def numbers_of(data: Path) -> Mapping[str, list[int]]:
    """Return the stored numbers of each publisher, in their order."""
    found: dict[str, list[int]] = {}
    for topic, value in stored(data, "kill/#"):
        found.setdefault(topic.split("/")[1], []).append(int(value))
    return found
