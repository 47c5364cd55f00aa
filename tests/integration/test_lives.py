"""The life of a connection leaves no garbage, whatever kind of life it was, and nothing that grows.

Garbage is what only the collector finds: objects that refer to each other. The broker is a process
of its own in which nothing collects, so that all of it is counted.
"""

from __future__ import annotations

import signal
import ssl
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from websockets.sync.client import connect as websocket
from websockets.typing import Subprotocol

from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import Connect, Disconnect, PubAck, Publish, Will
from siltstone.mqtt.properties import NO_PROPERTIES, Properties
from siltstone.mqtt.wire import Version
from tests.support.broker_process import BrokerProcess, Event
from tests.support.certificates import Authority
from tests.support.mqtt_socket import MqttSocket

COMMAND = (sys.executable, "-m", "tests.support.counted_server")
KEPT = Properties(session_expiry_interval=300)
BRIEF = Properties(session_expiry_interval=1)
LIVES = 20
# Cancelled timers stay until their time, or until they are many; so few objects are no growth.
SPARE_OBJECTS = 1000
EXPIRED_SECONDS = 10.0


class Counted:
    """A broker that counts its objects when it is asked."""

    def __init__(self, process: BrokerProcess, authority: Authority) -> None:
        self.process = process
        self.port = process.port
        self.trusting = ssl.create_default_context(cafile=authority.file)
        self._times = 0

    def count(self) -> Event:
        """Return how many objects live, and how many of which type were garbage."""
        self.settle()
        self._times += 1
        self.process.ask(signal.SIGUSR2)
        return self.process.wait_for("counted", count=self._times)

    def settle(self) -> None:
        """Return when the broker has taken note of every end before."""
        with MqttSocket(self.port) as last:
            last.connect("last", clean_start=False, properties=KEPT)
            last.disconnect()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    path = tmp_path_factory.mktemp("lives")
    authority = Authority(path)
    certificate = authority.server()
    listeners: dict[str, dict[str, str | int | bool]] = {
        "tcp": {"port": 0},
        "ws": {"kind": "ws", "port": 0},
        "tls": {
            "kind": "tls",
            "port": 0,
            "certificate": certificate.certificate,
            "key": certificate.key,
        },
    }
    process = BrokerProcess(path / "data", listeners=listeners, command=COMMAND)
    process.start()
    try:
        yield Counted(process, authority)
        process.stop()
    finally:
        if process.is_running:
            process.kill()


def exchange(client: MqttSocket, topic: str) -> None:
    """Publish a message to oneself, and acknowledge it."""
    client.send(Publish(topic=topic.encode(), payload=b"x", qos=1, packet_id=9))
    kinds: set[type] = set()
    while kinds != {Publish, PubAck}:
        packet = client.receive()
        kinds.add(type(packet))
        if isinstance(packet, Publish):
            client.acknowledge(packet)


def talk(
    broker: Counted,
    name: str,
    wanted: str = "",
    *,
    properties: Properties = NO_PROPERTIES,
    will: Will | None = None,
) -> MqttSocket:
    """Connect, and receive what was published to a filter of one's own."""
    client = MqttSocket(broker.port)
    client.connect(name, clean_start=properties is NO_PROPERTIES, properties=properties, will=will)
    if wanted:
        client.subscribe(wanted, 1)
        exchange(client, f"of/{name}")
    return client


def volatile(broker: Counted, number: int) -> None:
    talk(broker, f"v{number}", f"of/v{number}").disconnect()


def cut_off(broker: Counted, number: int) -> None:
    talk(broker, f"c{number}", f"of/c{number}").close()


def durable(broker: Counted, number: int) -> None:
    talk(broker, f"d{number}", f"of/d{number}", properties=KEPT).close()


def returning(broker: Counted, number: int) -> None:
    talk(broker, f"r{number}", f"of/r{number}", properties=KEPT).disconnect()
    talk(broker, f"r{number}", properties=KEPT).disconnect()
    talk(broker, f"r{number}").disconnect()


def taken_over(broker: Counted, number: int) -> None:
    for properties in (NO_PROPERTIES, KEPT):
        first = talk(broker, f"t{number}", f"of/t{number}", properties=properties)
        talk(broker, f"t{number}", properties=properties).disconnect()
        first.rest()
        first.close()


def with_a_will(broker: Counted, number: int) -> None:
    will = Will(topic=b"will", payload=b"gone", qos=1)
    for properties in (NO_PROPERTIES, KEPT):
        talk(broker, f"w{number}", properties=properties, will=will).close()


def in_a_group(broker: Counted, number: int) -> None:
    for name in (f"g{number}", f"h{number}"):
        properties = KEPT if name.startswith("h") else NO_PROPERTIES
        talk(broker, name, f"$share/{name}/of/{name}", properties=properties).close()


def wrong(broker: Counted, number: int) -> None:
    for client in (MqttSocket(broker.port), talk(broker, f"x{number}")):
        client.send_bytes(b"\x36\x02\x00\x00")
        client.rest()
        client.close()


def silent(broker: Counted, _: int) -> None:
    for name in ("tcp", "tls", "ws"):
        MqttSocket(broker.process.port_of(name)).close()


def over_tls(broker: Counted, number: int) -> None:
    client = MqttSocket(broker.process.port_of("tls"))
    client.socket = broker.trusting.wrap_socket(client.socket, server_hostname="localhost")
    client.connect(f"s{number}")
    client.disconnect()


def over_websocket(broker: Counted, number: int) -> None:
    address = f"ws://127.0.0.1:{broker.process.port_of('ws')}/mqtt"
    with websocket(address, subprotocols=[Subprotocol("mqtt")], compression=None) as client:
        client.send(encode(Version.V5, Connect(version=Version.V5, client_id=f"ws{number}")))
        client.recv()
        client.send(encode(Version.V5, Disconnect()))


KINDS = (
    *(volatile, cut_off, durable, returning, taken_over, with_a_will, in_a_group),
    *(wrong, silent, over_tls, over_websocket),
)


@pytest.mark.parametrize("live", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_a_life_leaves_no_garbage(broker: Counted, live: Callable[[Counted, int], None]) -> None:
    live(broker, 0)
    broker.count()
    for number in range(LIVES):
        live(broker, number)
    assert broker.count()["garbage"] == {}


def test_ten_times_as_many_lives_leave_no_more_objects(broker: Counted) -> None:
    """Without messages, whose places in the store are remembered."""
    live_many(broker, 50)
    limit = broker.count()["live"] + SPARE_OBJECTS
    live_many(broker, 500)
    # Sessions that have not expired yet are objects too: they go within some seconds.
    deadline = time.monotonic() + EXPIRED_SECONDS
    while (count := broker.count()["live"]) >= limit and time.monotonic() < deadline:
        continue
    assert count < limit


def live_many(broker: Counted, lives: int) -> None:
    """Let sessions begin and end: some expire, some are taken over."""
    for number in range(lives):
        talk(broker, f"many-{number}", properties=BRIEF).disconnect()
        talk(broker, f"taken-{number % 7}").close()
        talk(broker, f"taken-{number % 7}").close()
