"""MQTT 4.2, 4.13.2 and 6: a real broker on real sockets, and who closes them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as connect_websocket
from websockets.typing import Subprotocol

from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    Will,
)
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.topic.grammar import TopicFilter
from tests.conformance.versions import both_versions
from tests.support.broker_core import V5, decode_all
from tests.support.broker_process import BrokerProcess, Listener, broker_process, stored
from tests.support.mqtt_socket import TIMEOUT_SECONDS, MqttSocket, connected

SUBSCRIBE = Subscribe(
    packet_id=1, subscriptions=(Subscription(filter=TopicFilter.parse("t"), qos=1),)
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("transport")
    path = str(data / "mqtt.sock")
    listeners: dict[str, Listener] = {
        "tcp": {"port": 0},
        "unix": {"kind": "unix", "path": path},
        "ws": {"kind": "ws", "port": 0},
    }
    with broker_process(data / "data", listeners=listeners) as process:
        yield process


@pytest.fixture
def websocket(broker: BrokerProcess) -> Iterator[ClientConnection]:
    url = f"ws://127.0.0.1:{broker.port_of('ws')}/mqtt"
    with connect_websocket(url, subprotocols=[Subprotocol("mqtt")], proxy=None) as connection:
        yield connection


def unix_socket_of(broker: BrokerProcess) -> Path:
    return broker.data.parent / "mqtt.sock"


def exchanged(connection: socket.socket, version: Version) -> list[Packet]:
    """Connect, subscribe, publish and leave; return all that came until the server closed."""
    packets = (
        Connect(version=version, client_id=""),
        SUBSCRIBE,
        Publish(topic=b"t", payload=b"m", qos=0),
        PingReq(),
    )
    connection.settimeout(TIMEOUT_SECONDS)
    connection.sendall(b"".join(encode(version, packet) for packet in packets))
    data = b""
    while not data.endswith(encode(version, PingResp())):
        data += connection.recv(65_536)
    connection.sendall(encode(version, Disconnect()))
    while part := connection.recv(65_536):
        data += part
    return decode_all(version, data)


@both_versions
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_mqtt_is_spoken_over_streams_of_bytes(
    broker: BrokerProcess, version: Version, kind: str
) -> None:
    if kind == "tcp":
        connection = socket.create_connection(("127.0.0.1", broker.port))
    else:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(unix_socket_of(broker)))
    with connection:
        accepted, *rest = exchanged(connection, version)
    assert isinstance(accepted, ConnAck)
    assert rest == [
        SubAck(packet_id=1, reasons=(Reason.GRANTED_QOS_1,)),
        Publish(topic=b"t", payload=b"m"),
        PingResp(),
    ]


@both_versions
def test_mqtt_3_2_2_7_a_refused_client_reads_why_and_then_the_end(
    broker: BrokerProcess, version: Version
) -> None:
    with MqttSocket(broker.port, version) as client:
        # More behind it than the server will read: it must not reset what it said.
        refused = Connect(version=version, client_id="i" * 2000)
        client.send_bytes(encode(version, refused) + bytes(100_000))
        assert client.rest() == [ConnAck(reason=Reason.CLIENT_IDENTIFIER_NOT_VALID)]


@both_versions
def test_mqtt_4_13_2_1_a_client_that_breaks_the_rules_reads_why_and_then_the_end(
    broker: BrokerProcess, version: Version
) -> None:
    with connected(broker.port, "breaks", version) as client:
        client.send_bytes(b"\x00\x00" + bytes(100_000))
        told = client.rest()
    assert [packet.reason for packet in told if isinstance(packet, Disconnect)] == (
        [Reason.MALFORMED_PACKET] if version is V5 else []
    )


@both_versions
def test_mqtt_3_14_4_2_after_disconnect_the_server_closes(
    broker: BrokerProcess, version: Version
) -> None:
    with connected(broker.port, "leaves", version) as client:
        client.send(Disconnect(), PingReq())
        # Until the end, which comes without a word, and without an answer to what follows.
        assert client.rest() == []


def test_mqtt_3_1_4_3_who_is_taken_over_reads_so_and_then_the_end(broker: BrokerProcess) -> None:
    with connected(broker.port, "same") as first, connected(broker.port, "same") as second:
        assert first.rest() == [Disconnect(reason=Reason.SESSION_TAKEN_OVER)]
        assert second.publish("t", b"m") is Reason.SUCCESS


def test_mqtt_6_0_0_4_the_subprotocol_is_mqtt(websocket: ClientConnection) -> None:
    assert websocket.subprotocol == "mqtt"


@both_versions
def test_mqtt_6_0_0_2_packets_and_frames_need_not_be_the_same(
    websocket: ClientConnection, version: Version
) -> None:
    data = b"".join(
        encode(version, packet)
        for packet in (
            Connect(version=version, client_id=""),
            SUBSCRIBE,
            Publish(topic=b"t", payload=b"m", qos=1, packet_id=2),
        )
    )
    for start in range(0, len(data), 3):
        websocket.send(data[start : start + 3])
    seen = b""
    while len(packets := decode_all(version, seen)) < 4:
        frame = websocket.recv(timeout=TIMEOUT_SECONDS)
        assert isinstance(frame, bytes)
        seen += frame
    assert sorted(type(packet).__name__ for packet in packets) == [
        "ConnAck",
        "PubAck",
        "Publish",
        "SubAck",
    ]
    assert PubAck(packet_id=2) in packets


def test_mqtt_6_0_0_1_a_text_frame_closes_the_connection(websocket: ClientConnection) -> None:
    websocket.send(encode(V5, Connect(version=V5, client_id="")))
    answer = websocket.recv(timeout=TIMEOUT_SECONDS)
    assert isinstance(answer, bytes)
    assert [type(packet) for packet in decode_all(V5, answer)] == [ConnAck]
    websocket.send("text")
    with pytest.raises(ConnectionClosed):
        websocket.recv(timeout=TIMEOUT_SECONDS)


def test_a_server_that_ends_tells_its_clients(tmp_path: Path) -> None:
    with broker_process(tmp_path) as ending:
        new, old = connected(ending.port, "new"), connected(ending.port, "old", Version.V3_1_1)
        ending.terminate()
        with new, old:
            assert new.rest() == [Disconnect(reason=Reason.SERVER_SHUTTING_DOWN)]
            assert old.rest() == []
        ending.wait_until_stopped()


def test_a_will_at_shutdown_is_stored_unless_it_waits(tmp_path: Path) -> None:
    waits = Properties(will_delay_interval=60)
    with broker_process(tmp_path) as ending:
        with MqttSocket(ending.port) as plain, MqttSocket(ending.port) as delayed:
            plain.connect("plain", will=Will(topic=b"will", payload=b"at once", retain=True))
            delayed.connect(
                "delayed",
                clean_start=False,
                will=Will(topic=b"will", payload=b"later", properties=waits),
                properties=Properties(session_expiry_interval=60),
            )
            ending.terminate()
            assert plain.rest() == [Disconnect(reason=Reason.SERVER_SHUTTING_DOWN)]
        ending.wait_until_stopped()
        assert stored(tmp_path) == [("will", b"at once")]
        ending.start()
        with connected(ending.port, "late") as late:
            late.subscribe("will")
            assert late.receive() == Publish(topic=b"will", payload=b"at once", retain=True)
