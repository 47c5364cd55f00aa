"""A small MQTT server without I/O, for tests of the client; it records everything.

It checks the rules for the client: packet ids in use, the receive maximum, topics, aliases.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from siltstone.mqtt.decode import decode
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Publish,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from siltstone.mqtt.properties import NO_PROPERTIES, Properties
from siltstone.mqtt.publish import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    AckBatch,
    PublishBatch,
    encode_acks,
)
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.splitter import Event, PacketSplitter, RawPacket
from siltstone.mqtt.wire import Version


class Received(NamedTuple):
    """One PUBLISH that the server received."""

    topic: bytes
    payload: bytes
    qos: int
    packet_id: int
    dup: bool


class ModelServer:
    """One server with at most one session. `connect` starts each connection.

    With `holding`, publishes are not acknowledged before `acknowledge` is called, and PUBREC gets
    no answer.
    """

    def __init__(self, version: Version = Version.V5, *, told: Properties = NO_PROPERTIES) -> None:
        self.version = version
        self.told = told
        self.holding = False
        self.keeps_sessions = True
        self.answer = ConnAck()
        self.received: list[Received] = []
        self.controls: list[Packet] = []
        # The messages for subscribers: QoS 2 once.
        self.delivered: list[bytes] = []
        self._taken: set[int] = set()
        self._owed: list[bytes] = []
        self._inflight: set[int] = set()
        self._session = False
        self._sent: dict[int, Publish] = {}
        # The packet ids that wait for PUBCOMP.
        self._recorded: set[int] = set()
        self._splitter = PacketSplitter(1 << 28)

    def connect(self) -> None:
        """Begin a new connection; pending answers of the old one are dropped."""
        self._splitter = PacketSplitter(1 << 28)
        self._owed = []
        self._inflight = set()

    def forget(self) -> None:
        """Lose the session, as a server without a disk does when it is killed."""
        self._session = False
        self._taken.clear()
        self._sent.clear()
        self._recorded.clear()

    def receive(self, data: bytes) -> bytes:
        """Process bytes of the client; return the answer."""
        events = self._splitter.feed(data)
        answer = b""
        while events:
            event, *events = events
            if isinstance(event, RawPacket) and event.first == 0x10:
                alias_max = self.told.topic_alias_maximum or 0
                events += self._splitter.begin(self.version, alias_max)
            answer += self._take(event)
        return answer

    def publish(self, *messages: Publish) -> bytes:
        """Return the bytes of messages, and keep those that must be acknowledged."""
        self._sent.update({m.packet_id: m for m in messages if m.qos})
        return b"".join(encode(self.version, message) for message in messages)

    def resend(self) -> bytes:
        """Return the bytes of everything that the client has not acknowledged."""
        return b"".join(
            encode(
                self.version, PubRel(packet_id=i) if i in self._recorded else replace(m, dup=True)
            )
            for i, m in self._sent.items()
        )

    @property
    def unacknowledged(self) -> list[int]:
        return sorted(self._sent)

    def acknowledge(self) -> bytes:
        """Return the acknowledgements that were held back."""
        owed, self._owed = self._owed, []
        self._inflight.clear()
        return b"".join(owed)

    def _take(self, event: Event) -> bytes:
        match event:
            case PublishBatch():
                return b"".join(self._publish(event, i) for i in range(len(event.topics)))
            case AckBatch(first=first, packet_ids=ids):
                return self._acked(first, ids)
            case RawPacket(first=first, body=body):
                packet = decode(self.version, first, body)
                self.controls.append(packet)
                return self._answer(packet)
            case _:
                raise event

    def _publish(self, batch: PublishBatch, index: int) -> bytes:
        flags, packet_id = batch.flags[index], batch.packet_ids[index]
        qos = flags & 3
        row = Received(batch.topics[index], batch.values[index], qos, packet_id, bool(flags & 8))
        self.received.append(row)
        if qos != 2 or packet_id not in self._taken:
            self.delivered.append(row.payload)
        if qos == 0:
            return b""
        assert packet_id not in self._inflight, f"packet id {packet_id} is in use"
        if qos == 2:
            self._taken.add(packet_id)
        self._inflight.add(packet_id)
        assert len(self._inflight) <= (self.told.receive_maximum or 65_535)
        self._owed.append(encode_acks(PUBACK if qos == 1 else PUBREC, [packet_id], 0))
        return b"" if self.holding else self.acknowledge()

    def _acked(self, first: int, ids: list[int]) -> bytes:
        if first == PUBREL:
            self._taken.difference_update(ids)
            return encode_acks(PUBCOMP, ids, 0)
        if first == PUBREC and self.holding:
            return b""
        if first == PUBREC:
            self._recorded.update(ids)
            return b"".join(encode(self.version, PubRel(packet_id=i)) for i in ids)
        for packet_id in ids:
            del self._sent[packet_id]
        self._recorded.difference_update(ids)
        return b""

    def _answer(self, packet: Packet) -> bytes:
        match packet:
            case Connect():
                present = self._session and self.keeps_sessions and not packet.clean_start
                if not present:
                    self.forget()
                self._session = True
                if self.answer.reason:
                    return encode(self.version, self.answer)
                return encode(self.version, ConnAck(session_present=present, properties=self.told))
            case Subscribe():
                reasons = tuple(Reason(item.qos) for item in packet.subscriptions)
                return encode(self.version, SubAck(packet_id=packet.packet_id, reasons=reasons))
            case Unsubscribe():
                done = (Reason.SUCCESS,) * len(packet.filters)
                return encode(self.version, UnsubAck(packet_id=packet.packet_id, reasons=done))
            case PingReq():
                return encode(self.version, PingResp())
            case Disconnect():
                return b""
            case _:
                raise AssertionError(f"a client may not send {packet}")
