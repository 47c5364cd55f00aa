"""A client made of a socket and the codec; it sends anything, valid or not."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Self, TypeVar

from siltstone.mqtt.decode import decode
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    Will,
)
from siltstone.mqtt.properties import NO_PROPERTIES, Properties
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.topic.grammar import TopicFilter

TIMEOUT_SECONDS = 20.0
_PART = 1 << 16

P = TypeVar("P", bound=Packet)


class MqttSocket:
    """One connection to a port of this machine, without a thread."""

    def __init__(
        self, port: int, version: Version = Version.V5, *, source: str = "127.0.0.1"
    ) -> None:
        self.version = version
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS, (source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket without DISCONNECT."""
        self.socket.close()

    def connect(
        self,
        client_id: str,
        *,
        clean_start: bool = True,
        username: str | None = None,
        password: bytes | None = None,
        will: Will | None = None,
        properties: Properties = NO_PROPERTIES,
    ) -> ConnAck:
        """Send CONNECT; return the answer."""
        self.send(
            Connect(
                version=self.version,
                client_id=client_id,
                clean_start=clean_start,
                username=username,
                password=password,
                will=will,
                properties=properties,
            )
        )
        return self.expect(ConnAck)

    def subscribe(self, text: str, qos: int = 0) -> tuple[Reason, ...]:
        """Subscribe to one filter; return the reason codes of the answer."""
        wanted = Subscription(filter=TopicFilter.parse(text), qos=qos)
        self.send(Subscribe(packet_id=65_535, subscriptions=(wanted,)))
        return self.expect(SubAck).reasons

    def publish(
        self, topic: str, payload: bytes, *, packet_id: int = 1, retain: bool = False
    ) -> Reason:
        """Publish with QoS 1; return the reason code of the acknowledgement."""
        self.send(
            Publish(
                topic=topic.encode(), payload=payload, qos=1, packet_id=packet_id, retain=retain
            )
        )
        answer = self.expect(PubAck)
        assert answer.packet_id == packet_id
        return answer.reason

    def acknowledge(self, message: Publish) -> None:
        """Acknowledge a QoS 1 message."""
        self.send(PubAck(packet_id=message.packet_id))

    def disconnect(self) -> None:
        """Send DISCONNECT, and wait until the server has closed."""
        self.send(Disconnect())
        assert self.rest() == []
        self.close()

    def send(self, *packets: Packet) -> None:
        """Send packets in one chunk."""
        self.send_bytes(b"".join(encode(self.version, packet) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        """Send any bytes."""
        self.socket.sendall(data)

    def receive(self) -> Packet:
        """Return the next packet. Raises: EOFError when the server has closed."""
        while (size := self._packet_size()) is None:
            part = self.socket.recv(_PART)
            if not part:
                raise EOFError("the server closed the connection")
            self._unread += part
        first = self._unread[0]
        start = next(i for i in range(1, 5) if self._unread[i] < 0x80) + 1
        body = bytes(self._unread[start:size])
        del self._unread[:size]
        return decode(self.version, first, body)

    def expect(self, kind: type[P]) -> P:
        """Return the next packet, which must have this type."""
        packet = self.receive()
        assert isinstance(packet, kind), packet
        return packet

    def receive_many(self, kind: type[P], count: int) -> list[P]:
        """Return this number of packets, all of one type."""
        return [self.expect(kind) for _ in range(count)]

    def rest(self) -> list[Packet]:
        """Return all packets until the server closes, with a FIN or a reset."""
        packets: list[Packet] = []
        while True:
            try:
                packets.append(self.receive())
            except (EOFError, ConnectionError):
                return packets

    def _packet_size(self) -> int | None:
        """Return the size of the first packet if it is complete, otherwise None."""
        length = 0
        for index in range(1, min(5, len(self._unread))):
            length |= (self._unread[index] & 0x7F) << 7 * (index - 1)
            if self._unread[index] < 0x80:
                size = index + 1 + length
                return size if len(self._unread) >= size else None
        return None


def connected(
    port: int, client_id: str, version: Version = Version.V5, *, clean_start: bool = True
) -> MqttSocket:
    """Return a connection that was accepted."""
    client = MqttSocket(port, version)
    try:
        assert client.connect(client_id, clean_start=clean_start).reason is Reason.SUCCESS
    except BaseException:
        # If the server is killed before it answers, the caller never gets the client to close it.
        client.close()
        raise
    return client


def publishes(topic: str, payloads: Iterable[bytes], *, first_id: int = 1) -> list[Publish]:
    """Return QoS 1 messages with consecutive packet ids."""
    return [
        Publish(topic=topic.encode(), payload=payload, qos=1, packet_id=packet_id)
        for packet_id, payload in enumerate(payloads, first_id)
    ]
