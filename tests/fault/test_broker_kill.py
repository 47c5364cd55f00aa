"""kill -9 of the broker under load: what it acknowledged is in the store, once and in order."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread

import pytest

from siltstone.mqtt.packets import PingReq, PubAck, PubComp, Publish, PubRec, PubRel
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from tests.support.broker_process import BrokerProcess, Listener, Settings, broker_process, stored
from tests.support.mqtt_socket import MqttSocket, connected

WINDOW = 100
RETAINED_TOPICS = 20
SETTINGS: Settings = {"storage.shards": 2, "storage.rotate_bytes": "8 MiB"}


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
                    room = range(self.sent, self.done + WINDOW)
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
        until = self.done + WINDOW // 2
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


class Retainer:
    """Replaces retained messages one by one, and knows what may be there of each topic."""

    def __init__(self) -> None:
        # One number where it was acknowledged, more where others were on their way.
        self._possible: dict[str, set[int]] = {}
        self._acknowledged: set[str] = set()
        self._number = 0

    def run(self, port: int) -> None:
        try:
            with connected(port, "retainer") as client:
                while True:
                    self._number += 1
                    topic = f"retained/{self._number % RETAINED_TOPICS}"
                    self._possible.setdefault(topic, set()).add(self._number)
                    payload = b"%d" % self._number
                    assert client.publish(topic, payload, retain=True) is Reason.SUCCESS
                    self._possible[topic] = {self._number}
                    self._acknowledged.add(topic)
        except (EOFError, OSError):
            return

    def check(self, port: int) -> None:
        """Each topic has what was acknowledged last, or what was sent later."""
        with connected(port, "reader") as client:
            client.subscribe("retained/#", 0)
            client.send(PingReq())
            found: dict[str, int] = {}
            while isinstance(packet := client.receive(), Publish):
                found[packet.topic.decode()] = int(packet.payload)
                assert packet.retain
        assert found.keys() >= self._acknowledged
        for topic, number in found.items():
            assert number in self._possible[topic]
            self._possible[topic] = {number}


def numbers_of(data: Path) -> Mapping[str, list[int]]:
    """Return the stored numbers of each publisher, in their order."""
    found: dict[str, list[int]] = {}
    for topic, value in stored(data, "kill/#"):
        found.setdefault(topic.split("/")[1], []).append(int(value))
    return found


def run_until_killed(
    broker: BrokerProcess, publishers: list[Publisher], retainer: Retainer, enough: int
) -> None:
    load = Load(enough)
    threads = [Thread(target=each.run, args=(broker.port, load)) for each in publishers]
    threads.append(Thread(target=retainer.run, args=(broker.port,)))
    for thread in threads:
        thread.start()
    assert load.is_enough.wait(30)
    broker.kill()
    for thread in threads:
        thread.join()


def run_rounds(path: Path, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    publishers = [
        Publisher("a", Version.V3_1_1, 1),
        Publisher("b", Version.V5, 1),
        Publisher("c", Version.V5, 1),
        Publisher("d", Version.V5, 2),
    ]
    retainer = Retainer()
    # A socket file that a killed broker leaves behind must not stop the next one.
    listeners: dict[str, Listener] = {
        "tcp": {"port": 0},
        "unix": {"kind": "unix", "path": str(path.with_name("mqtt.sock"))},
    }
    with broker_process(path, listeners=listeners, settings=SETTINGS) as broker:
        for _ in range(rounds):
            with connected(broker.port, "onlooker") as onlooker:
                onlooker.subscribe("kill/#", 0)
                run_until_killed(broker, publishers, retainer, rng.randrange(500, 6000))
            broker.start()
            retainer.check(broker.port)
            numbers = numbers_of(path)
            for publisher in publishers:
                publisher.check(numbers[publisher.name])


@pytest.mark.timeout(120)
def test_what_was_acknowledged_survives_three_kills_once_and_in_order(tmp_path: Path) -> None:
    run_rounds(tmp_path / "data", rounds=3, seed=1)


@pytest.mark.soak
def test_what_was_acknowledged_survives_thirty_kills(tmp_path: Path) -> None:
    run_rounds(tmp_path / "data", rounds=30, seed=2)
