"""Clients on a bad link, against a real broker: cut off anywhere, they come back every time."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from siltstone.fs.paths import CONTROL
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import (
    Connect,
    Disconnect,
    Packet,
    Publish,
    PubRel,
    Subscribe,
    Subscription,
    Will,
)
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.topic.grammar import TopicFilter
from tests.support.broker_process import EVENT_SECONDS, BrokerProcess, broker_process
from tests.support.mqtt_socket import MqttSocket

DURABLE = Properties(session_expiry_interval=300)
WANTED = (
    Subscription(filter=TopicFilter.parse("a/#"), qos=2),
    Subscription(filter=TopicFilter.parse("$share/g/a/#"), qos=1),
)
LIVES = 10
ROUNDS_MAX = 200


def hello(port: int, client_id: str) -> MqttSocket:
    """Connect a client whose session is kept."""
    client = MqttSocket(port)
    answer = client.connect(client_id, clean_start=False, properties=DURABLE)
    assert answer.reason is Reason.SUCCESS
    return client


def goodbye(client: MqttSocket) -> None:
    """Leave, and wait until the broker has closed; what it still sends is for the next time."""
    with client:
        client.send(Disconnect())
        client.rest()


def listen_for(client: MqttSocket, seconds: float) -> None:
    """Take what the broker says within so long."""
    client.socket.settimeout(seconds or 1e-9)
    try:
        while client.socket.recv(1 << 16):
            pass
    except (TimeoutError, BlockingIOError):
        pass


def conversation(client_id: str) -> bytes:
    """Return what a client sends that trusts its link."""
    packets: list[Packet] = [
        Connect(
            version=Version.V5,
            client_id=client_id,
            clean_start=False,
            will=Will(topic=b"a/will", payload=b"gone", qos=1),
            properties=DURABLE,
        ),
        Subscribe(packet_id=1, subscriptions=WANTED),
        Publish(topic=b"a/b", payload=b"two", qos=2, packet_id=2, dup=True),
        Publish(topic=b"a/b", payload=b"one", qos=1, packet_id=3, retain=True),
        PubRel(packet_id=2),
    ]
    return b"".join(encode(Version.V5, packet) for packet in packets)


def ask(broker: BrokerProcess, request: object) -> object:
    """Ask what the command line would."""
    with socket.socket(socket.AF_UNIX) as control:
        control.settimeout(EVENT_SECONDS)
        control.connect(str(broker.data / CONTROL))
        control.sendall(json.dumps(request).encode() + b"\n")
        return json.loads(control.makefile("rb").readline())


def descriptors(broker: BrokerProcess) -> int:
    return len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))


def test_a_client_that_is_cut_off_in_the_middle_of_qos_2_gets_in_again(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as broker:
        for life in range(LIVES):
            with hello(broker.port, "radio") as client:
                client.send(
                    Subscribe(packet_id=1, subscriptions=WANTED[:1]),
                    Publish(topic=b"a/b", payload=b"two", qos=2, packet_id=2, dup=life > 0),
                    Publish(topic=b"a/b", payload=b"one", qos=1, packet_id=3),
                )
                listen_for(client, life * 0.005)
        goodbye(hello(broker.port, "radio"))
        assert ask(broker, {"do": "drop", "client_id": "radio"}) == {"ok": True}


def test_a_connection_that_is_cut_at_any_byte_leaves_nothing_behind(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as broker:
        data = conversation("radio")
        with MqttSocket(broker.port) as client:
            client.send_bytes(data)
            goodbye(client)
        before = descriptors(broker)
        for cut in range(0, len(data) + 1, 3):
            with MqttSocket(broker.port) as client:
                client.send_bytes(data[:cut])
                listen_for(client, cut % 3 * 0.002)
        goodbye(hello(broker.port, "radio"))
        # The broker hears of the last cuts in its own time.
        for _ in range(ROUNDS_MAX):
            if descriptors(broker) <= before:
                break
            goodbye(hello(broker.port, "other"))
        assert descriptors(broker) <= before
