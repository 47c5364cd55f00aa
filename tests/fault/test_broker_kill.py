"""kill -9 of the broker under load: what it acknowledged is in the store, once and in order."""

from __future__ import annotations

import random
from pathlib import Path
from threading import Thread

import pytest

from siltstone.mqtt.packets import PingReq, Publish
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from tests.support.broker_process import BrokerProcess, Listener, Settings, broker_process
from tests.support.mqtt_socket import connected
from tests.support.publishers import Load, Publisher, numbers_of

RETAINED_TOPICS = 20
SETTINGS: Settings = {"storage.shards": 2, "storage.rotate_bytes": "8 MiB"}


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
