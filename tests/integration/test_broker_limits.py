"""Clients that misbehave: others don't notice, and the broker's memory stays bounded.

While one test misbehaves, a pair of clients plays ping-pong beside it: every message of theirs must
arrive. How long a turn took is printed (`pytest -s` shows it) and asserted by none.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Self

import pytest

from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import ConnAck, Connect, Disconnect, PingReq, PingResp, Publish
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version, encode_variable
from tests.support.broker_process import MIB, BrokerProcess, Settings, broker_process
from tests.support.mqtt_socket import TIMEOUT_SECONDS, MqttSocket, connected

V3, V5 = Version.V3_1_1, Version.V5
VERSIONS = pytest.mark.parametrize("version", [V3, V5], ids=["v3", "v5"])
STORM = 2_000
PER_ADDRESS = 100
# An idle broker has about 90 MiB, most of them libraries; the rest is for all misbehaviour.
PEAK_BYTES_MAX = 192 * MIB
FLOOD_BYTES = 320 * MIB
LIMITS: Settings = {
    "limits.queued_bytes_max": "4 MiB",
    "limits.queued_bytes_total_max": "16 MiB",
    "limits.write_buffer_max": "256 KiB",
    "limits.connect_timeout": 1.0,
    "limits.connections_per_address_max": PER_ADDRESS,
    # Stored messages are mapped, and what is mapped counts as memory.
    "storage.rules": json.dumps([{"filter": "flood/#", "store": "never"}]),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    path = tmp_path_factory.mktemp("broker") / "data"
    with broker_process(path, settings=LIMITS) as broker:
        yield broker


class PingPong(Thread):
    """Two clients that answer each other until they are told to stop."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__(name=name)
        self._ping = connected(port, f"{name}-ping")
        self._pong = connected(port, f"{name}-pong", V3)
        self._topics = (f"{name}/ping", f"{name}/pong")
        self._pong.subscribe(self._topics[0], 1)
        self._ping.subscribe(self._topics[1], 1)
        self._is_over = Event()
        self.seconds: list[float] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self.join()
        self._ping.close()
        self._pong.close()

    def run(self) -> None:
        number = 0
        while not self._is_over.is_set() or number < 100:
            number += 1
            began = time.perf_counter()
            self._turn(b"%d" % number)
            self.seconds.append(time.perf_counter() - began)

    def _turn(self, payload: bytes) -> None:
        ping, pong = (topic.encode() for topic in self._topics)
        self._ping.send(Publish(topic=ping, payload=payload))
        received = self._pong.expect(Publish)
        assert received == Publish(topic=ping, payload=payload)
        self._pong.send(Publish(topic=pong, payload=received.payload))
        assert self._ping.expect(Publish) == Publish(topic=pong, payload=payload)


def tell(pair: PingPong, peak_bytes: int) -> None:
    """Print what the pair noticed."""
    median, worst = statistics.median(pair.seconds), max(pair.seconds)
    sys.stdout.write(
        f"{pair.name}: turns={len(pair.seconds)} median={median * 1e3:.1f}ms "
        f"worst={worst * 1e3:.1f}ms peak={peak_bytes // MIB}MiB\n"
    )


@pytest.fixture
def bystanders(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[None]:
    """Let a pair play beside the test, and hold the broker to its memory when it ends."""
    with PingPong(broker.port, request.node.name) as pair:
        yield
    peak_bytes = broker.peak_bytes()
    tell(pair, peak_bytes)
    assert peak_bytes < PEAK_BYTES_MAX


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.usefixtures("bystanders")
def test_subscribers_that_do_not_keep_up_harm_nobody(broker: BrokerProcess, qos: int) -> None:
    payload = bytes(256 * 1024)
    count = FLOOD_BYTES // 2 // len(payload)
    with (
        connected(broker.port, "deaf") as deaf,
        connected(broker.port, "slow", V3) as slow,
        connected(broker.port, "listener") as listener,
        connected(broker.port, "publisher") as publisher,
    ):
        for client in (deaf, slow):
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        for client in (deaf, slow, listener):
            assert client.subscribe("flood/#", qos) == (Reason(qos),)
        for number in range(count):
            topic = f"flood/{number}"
            assert publisher.publish(topic, payload, packet_id=number + 1) is Reason.SUCCESS
            message = listener.expect(Publish)
            assert (message.topic, message.qos) == (topic.encode(), qos)
            if qos:
                listener.acknowledge(message)
            slow.socket.recv(100)
        # Who did not read is still connected, and gets on when it reads.
        deaf.send(PingReq())
        while not isinstance(packet := deaf.receive(), PingResp):
            assert isinstance(packet, Publish)


@VERSIONS
@pytest.mark.usefixtures("bystanders")
def test_a_packet_of_200_megabytes_is_refused_by_its_first_bytes(
    broker: BrokerProcess, version: Version
) -> None:
    header = b"\x30" + encode_variable(200 * MIB)
    with connected(broker.port, "huge", version) as client:
        client.send_bytes(header + b"\0\1t" + bytes(MIB))
        expected = [Disconnect(reason=Reason.PACKET_TOO_LARGE)] if version is V5 else []
        # It goes on sending, and nobody keeps what it sends.
        sender = Thread(target=send_until_closed, args=(client, 200))
        sender.start()
        assert [_bare(packet) for packet in client.rest()] == expected
        sender.join()


@VERSIONS
@pytest.mark.usefixtures("bystanders")
def test_a_first_packet_of_200_megabytes_ends_a_connection(
    broker: BrokerProcess, version: Version
) -> None:
    with MqttSocket(broker.port, version) as client:
        client.send_bytes(b"\x10" + encode_variable(200 * MIB) + b"\0\4MQTT" + bytes([version]))
        sender = Thread(target=send_until_closed, args=(client, 200))
        sender.start()
        assert all(isinstance(packet, ConnAck) and packet.reason for packet in client.rest())
        sender.join()


def _bare(packet: object) -> object:
    """Leave out the text of a farewell."""
    return Disconnect(reason=packet.reason) if isinstance(packet, Disconnect) else packet


def send_until_closed(client: MqttSocket, megabytes: int) -> None:
    part = bytes(MIB)
    try:
        for _ in range(megabytes):
            client.send_bytes(part)
    except OSError:
        return


@pytest.mark.usefixtures("bystanders")
def test_who_sends_a_byte_now_and_then_before_connect_is_closed_in_time(
    broker: BrokerProcess,
) -> None:
    count = 50
    before = len(broker.events())
    # The first bytes of a CONNECT that is never whole.
    drops = encode(V5, Connect(version=V5, client_id="x" * 1000))
    slow = {MqttSocket(broker.port) for _ in range(count)}
    deadline = time.monotonic() + TIMEOUT_SECONDS
    sent = 0
    while slow:
        assert time.monotonic() < deadline
        for client in slow:
            try:
                client.send_bytes(drops[sent : sent + 1])
            except OSError:
                continue
        sent += 1
        readable, _, _ = select.select([client.socket for client in slow], [], [], 0.1)
        for client in [each for each in slow if each.socket in readable]:
            assert client.rest() == []
            client.close()
            slow.discard(client)
    assert sent < 100
    broker.wait_for_total("connect_timed_out", count, skip=before)


@pytest.mark.usefixtures("bystanders")
def test_one_address_may_not_take_the_places_of_others(broker: BrokerProcess) -> None:
    greedy = "127.0.0.9"
    taken = [MqttSocket(broker.port, source=greedy) for _ in range(PER_ADDRESS)]
    for number, client in enumerate(taken):
        assert client.connect(f"greedy-{number}").reason is Reason.SUCCESS
    assert refused(broker.port, greedy)
    connected(broker.port, "modest").close()
    taken.pop().disconnect()
    # That the connection is gone is known to the broker soon, and to us never.
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while refused(broker.port, greedy):
        assert time.monotonic() < deadline
    for client in taken:
        client.close()


def refused(port: int, source: str) -> bool:
    """Say whether a connection from this address is closed without a word."""
    with MqttSocket(port, source=source) as client:
        try:
            return client.connect("greedy-more").reason is not Reason.SUCCESS
        except (EOFError, ConnectionError):
            return True


@pytest.fixture
def many_files() -> Iterator[None]:
    """Allow this process as many connections as the system lets it have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < STORM * 2:
        pytest.skip(f"only {hard} files are allowed here: the storm is not tested")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_a_storm_of_connections_is_survived_and_the_last_ones_are_told_to_wait(
    tmp_path: Path,
) -> None:
    beyond = 10
    settings = {"limits.connections_max": STORM + 2}
    with broker_process(tmp_path / "data", settings=settings) as broker:
        with PingPong(broker.port, "storm") as pair:
            clients = [MqttSocket(broker.port, (V3, V5)[i % 2]) for i in range(STORM + beyond)]
            for number, client in enumerate(clients):
                client.send(Connect(version=client.version, client_id=f"storm-{number}"))
            answers = [client.expect(ConnAck).reason for client in clients]
            accepted = answers.count(Reason.SUCCESS)
            refused = [reason for reason in answers if reason is not Reason.SUCCESS]
            assert accepted == STORM
            assert len(refused) == beyond
            assert set(refused) <= {Reason.SERVER_BUSY, Reason.SERVER_UNAVAILABLE}
            for client, reason in zip(clients, answers, strict=True):
                if reason is Reason.SUCCESS:
                    client.send(PingReq())
            for client, reason in zip(clients, answers, strict=True):
                if reason is Reason.SUCCESS:
                    client.expect(PingResp)
                client.close()
        tell(pair, broker.peak_bytes())
        assert broker.peak_bytes() < PEAK_BYTES_MAX
        with connected(broker.port, "after") as client:
            assert client.publish("after", b"") is Reason.SUCCESS


@pytest.mark.parametrize("size_bytes", [300_000, 1 * MIB, 8 * MIB])
def test_a_client_that_sends_a_large_connect_can_read_why_it_is_refused(
    broker: BrokerProcess, size_bytes: int
) -> None:
    pairs = ((("k" * 1000), ("v" * 1000)),) * (size_bytes // 2005)
    connect = Connect(version=V5, client_id="c", properties=Properties(user_properties=pairs))
    with MqttSocket(broker.port) as client:
        client.send(connect)
        is_small = size_bytes < 6 * 65_536
        reason = Reason.QUOTA_EXCEEDED if is_small else Reason.PACKET_TOO_LARGE
        assert client.expect(ConnAck).reason is reason
        assert client.rest() == []


def test_a_client_that_still_sends_can_read_why_its_connection_ends(broker: BrokerProcess) -> None:
    with connected(broker.port, "c") as client:
        # SUBSCRIBE of 8 MiB, beyond limits.control_size_max by its first bytes.
        client.send_bytes(b"\x82" + encode_variable(8 * MIB) + bytes(8 * MIB))
        assert client.expect(Disconnect).reason is Reason.QUOTA_EXCEEDED
        assert client.rest() == []
