"""Sessions of stock clients over kill -9 of the broker: nothing acknowledged is missed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Condition, Event, Thread
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.broker_process import BrokerProcess, Settings, broker_process
from tests.support.stock_aiomqtt import AioClient
from tests.support.stock_clients import Login, Message, StockClient, Target
from tests.support.stock_mosquitto import MosquittoClient
from tests.support.stock_paho import PahoClient

SETTINGS: Settings = {"storage.shards": 2}
VERSIONS = (paho.MQTTv311, paho.MQTTv5)
# Of every kill so many messages of each publisher are between it and the one before.
PACE = 60
PATIENCE = 40.0
INFLIGHT = 20


class PatientClient(paho.Client):
    """Tries to come back when somebody listens, and not before.

    A message that paho has only to release, because its PUBREC came, is published anew after a try
    that failed, without DUP. Where the broker has released it already, which the client was not
    told, nobody can tell it from another message of that packet id.
    """

    broker: BrokerProcess

    def reconnect(self) -> MQTTErrorCode:
        assert self.broker.listens.wait(PATIENCE)
        return super().reconnect()


class Phone:
    """A client that comes back by itself, with the session that it had."""

    def __init__(self, name: str, broker: BrokerProcess, version: int) -> None:
        self.changed = Condition()
        self.connections: list[bool] = []
        properties = None
        if version == paho.MQTTv5:
            self.client = PatientClient(
                CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5
            )
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 3600
        else:
            self.client = PatientClient(
                CallbackAPIVersion.VERSION2,
                client_id=name,
                protocol=paho.MQTTv311,
                clean_session=False,
            )
        self.client.broker = broker
        self.client.reconnect_delay_set(1, 1)
        self.client.max_inflight_messages_set(INFLIGHT)
        self.client.on_connect = self._on_connect
        self.client.on_message = self._on_message
        if properties is None:
            self.client.connect("127.0.0.1", broker.port)
        else:
            self.client.connect("127.0.0.1", broker.port, clean_start=False, properties=properties)
        self.client.loop_start()
        with self.changed:
            assert self.changed.wait_for(lambda: self.connections, PATIENCE)

    def _on_connect(self, _client: Any, _data: Any, flags: Any, reason: Any, _: Any) -> None:
        with self.changed:
            assert not reason.is_failure
            self.connections.append(bool(flags.session_present))
            self.changed.notify_all()

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        raise AssertionError(f"nobody asked for {message.topic}")

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


class Subscriber(Phone):
    """Takes note of what comes, by topic."""

    def __init__(self, name: str, broker: BrokerProcess, version: int) -> None:
        self.found: dict[str, list[int]] = {}
        super().__init__(name, broker, version)

    def subscribe(self, qos: int) -> None:
        granted = Event()
        self.client.on_subscribe = lambda *_: granted.set()
        self.client.subscribe("load/#", qos)
        assert granted.wait(PATIENCE)

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        with self.changed:
            self.found.setdefault(message.topic, []).append(int(message.payload))
            self.changed.notify_all()

    def wait_for(self, count: int) -> None:
        """Wait until so many different messages have come."""
        with self.changed:
            assert self.changed.wait_for(lambda: self._different() >= count, PATIENCE)

    def _different(self) -> int:
        return sum(len(set(numbers)) for numbers in self.found.values())


class Publisher(Phone):
    """Publishes running numbers to two topics, one of QoS 1 and one of QoS 2."""

    def __init__(self, name: str, broker: BrokerProcess, version: int) -> None:
        super().__init__(name, broker, version)
        self.name = name
        self.is_over = Event()
        self.sent = 0
        self.done = 0
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self.is_over.is_set():
            infos = [
                self.client.publish(f"load/{self.name}/{qos}", b"%d" % self.sent, qos)
                for qos in (1, 2)
            ]
            self.sent += 1
            for info in infos:
                info.wait_for_publish(PATIENCE)
                assert info.is_published()
            with self.changed:
                self.done += 1
                self.changed.notify_all()

    def wait_for(self, count: int) -> None:
        """Wait until so many of each topic were acknowledged."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.done >= count, PATIENCE)

    def finish(self) -> int:
        """Publish no more; return how many there are of each topic."""
        self.is_over.set()
        self._thread.join(PATIENCE)
        assert self.done == self.sent
        return self.sent


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "data", settings=SETTINGS) as broker:
        yield broker


def run_kills(broker: BrokerProcess, kills: int) -> None:
    """Kill the broker again and again under publishers and subscribers, and compare at the end."""
    with ExitStack() as stack:
        subscribers: list[tuple[Subscriber, int]] = []
        for version in VERSIONS:
            for qos in (1, 2):
                subscriber = Subscriber(f"s{version}-{qos}", broker, version)
                stack.callback(subscriber.close)
                subscriber.subscribe(qos)
                subscribers.append((subscriber, qos))
        absent = Subscriber("absent", broker, paho.MQTTv5)
        absent.subscribe(2)
        absent.close()
        publishers = [Publisher(f"p{version}", broker, version) for version in VERSIONS]
        for publisher in publishers:
            stack.callback(publisher.close)
        for kill in range(1, kills + 1):
            for publisher in publishers:
                publisher.wait_for(kill * PACE)
            broker.kill()
            broker.start()
        for publisher in publishers:
            publisher.wait_for(publisher.done + PACE)
        totals = {publisher.name: publisher.finish() for publisher in publishers}
        expected = {
            f"load/{name}/{qos}": list(range(total))
            for name, total in totals.items()
            for qos in (1, 2)
        }
        phones = [*(subscriber for subscriber, _ in subscribers), *publishers]
        # Every connection but the first has found its session.
        assert [phone.connections[0] for phone in phones] == [False] * len(phones)
        assert all(all(phone.connections[1:]) for phone in phones)
        back = Subscriber("absent", broker, paho.MQTTv5)
        stack.callback(back.close)
        assert back.connections == [True]
        for subscriber, qos in [*subscribers, (back, 2)]:
            subscriber.wait_for(sum(map(len, expected.values())))
            for topic, numbers in expected.items():
                found = subscriber.found[topic]
                assert list(dict.fromkeys(found)) == numbers
                assert qos == 1 or topic.endswith("/1") or found == numbers
    assert broker.mistakes() == []


def test_what_was_acknowledged_arrives_over_kills_of_the_broker(broker: BrokerProcess) -> None:
    run_kills(broker, 2)


@pytest.mark.soak
def test_what_was_acknowledged_arrives_over_many_kills_of_the_broker(
    broker: BrokerProcess,
) -> None:
    run_kills(broker, 50)


CLIENTS: dict[str, Callable[[Target, int], StockClient]] = {
    "aiomqtt": AioClient,
    "mosquitto": MosquittoClient,
    "paho": PahoClient,
}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("name", CLIENTS)
def test_a_stock_client_finds_what_it_missed_after_a_kill(
    broker: BrokerProcess, name: str, version: int
) -> None:
    login = Login(client_id="s", clean=False)
    with ExitStack() as stack:
        clients = [CLIENTS[name](Target(port=broker.port), version) for _ in range(3)]
        for client in clients:
            stack.callback(client.close)
        subscriber, publisher, again = clients
        subscriber.connect(login)
        subscriber.subscribe("t", 2)
        subscriber.drop()
        publisher.connect(Login(client_id="p"))
        missed = [Message(topic="t", payload=b"%d" % number, qos=2) for number in range(5)]
        # One publisher, for only its own messages have an order.
        publisher.publish_all("t", [message.payload for message in missed], 2)
        broker.kill()
        broker.start()
        assert again.connect(login)
        if name == "mosquitto":
            # It connects only when it subscribes.
            again.subscribe("t", 2)
        assert [again.receive() for _ in missed] == missed
