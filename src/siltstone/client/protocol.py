"""One connection of a client, without I/O and clock: bytes in, messages and bytes out.

The owner calls `receive` and delivers each batch before it asks for the next one, so that `accept`
can say which messages may be acknowledged. Then it writes what `take` returns, until that is empty.
It calls `tick` at the time `tick_at`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import Final

from siltstone.client.outgoing import PACKET_SIZE_MAX
from siltstone.client.refusal import refused
from siltstone.client.session import ClientSession
from siltstone.client.settings import TOPIC_ALIAS_MAX, ClientSettings
from siltstone.errors import OutcomeUnknownError, PeerError, ProtocolError, RetryError
from siltstone.mqtt.decode import decode
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import (
    ConnAck,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
)
from siltstone.mqtt.publish import PUBACK, PUBCOMP, PUBREC, PUBREL, AckBatch, PublishBatch
from siltstone.mqtt.reason import ALLOWED, ERROR, Reason
from siltstone.mqtt.splitter import PacketSplitter, RawPacket
from siltstone.mqtt.wire import PacketType, Version

CONNECT_SECONDS: Final = 10.0
_NEVER: Final = float("inf")


class ClientState(Enum):
    """The state of a connection."""

    CONNECTING = auto()
    CONNECTED = auto()
    OVER = auto()


class ClientProtocol:
    """The client side of one connection; its session may outlive it."""

    def __init__(self, settings: ClientSettings, session: ClientSession, *, now: float) -> None:
        self.state = ClientState.CONNECTING
        self.tick_at = now + CONNECT_SECONDS
        self._settings = settings
        self._session = session
        self._version = settings.version
        self._splitter = PacketSplitter(PACKET_SIZE_MAX, True)  # noqa: FBT003 - compiled
        self._splitter.begin(self._version, TOPIC_ALIAS_MAX)
        connect = settings.connect(session.client_id, returning=session.met)
        self._control = [encode(self._version, connect)]
        self._keep_alive = float(settings.keep_alive_seconds)
        self._sent_at = now
        self._received_at = now
        self._pinged_at = _NEVER

    def receive(self, data: bytes, now: float) -> Iterator[PublishBatch]:
        """Take bytes from the server; yield the messages in them that are new to the session.

        Raises: RefusedError, PeerError.
        """
        self._received_at = now
        for event in self._splitter.feed(data):
            if self.state is ClientState.OVER or self._session.leaving:
                return
            if isinstance(event, PublishBatch):
                self._check_connected("PUBLISH")
                fresh = self._session.incoming.fresh(event)
                if fresh.topics:
                    yield fresh
            else:
                self._take_event(event, now)

    def accept(self, batch: PublishBatch, count: int) -> None:
        """Acknowledge the first messages of a batch that was yielded."""
        self._session.incoming.accept(batch, count)

    def take(self, now: float) -> bytes:
        """Return the bytes to send now; after the last of them the state is OVER.

        Raises: UsageError for a message that the server does not accept.
        """
        if self.state is ClientState.CONNECTING and self._session.leaving:
            self.state = ClientState.OVER
        if self.state is ClientState.OVER:
            return b""
        parts = self._control
        self._control = []
        if self.state is ClientState.CONNECTED:
            parts.append(self._session.incoming.take())
            if not self._session.leaving:
                parts.append(self._session.outgoing.take())
            if self._session.over:
                parts.append(self._end(self._settings.disconnect()))
        data = b"".join(parts)
        if data:
            self._sent_at = now
        return data

    def fail(self, error: Exception) -> bytes:
        """End because of an error; return the DISCONNECT to send, or b""."""
        if self.state is not ClientState.CONNECTED:
            self.state = ClientState.OVER
            return b""
        if isinstance(error, PeerError) and self._version is Version.V5:
            known = (PacketType.DISCONNECT, error.reason) in ALLOWED
            reason = Reason(error.reason) if known else Reason.PROTOCOL_ERROR
            return self._end(Disconnect(reason=reason))
        return self._end(self._settings.disconnect())

    def tick(self, now: float) -> None:
        """Keep the connection alive [MQTT-3.1.2-22]; `take` returns the PINGREQ.

        Raises: RetryError, OutcomeUnknownError if the server does not answer.
        """
        if self.state is ClientState.CONNECTING:
            raise RetryError(f"no answer to CONNECT within {CONNECT_SECONDS:.0f} s")
        half = self._keep_alive / 2
        late = now - self.tick_at
        self.tick_at = now + half
        # If this call is late, the process was blocked, and an answer may have arrived unread.
        waited = now - max(self._pinged_at, self._received_at)
        if late < half and waited >= self._keep_alive:
            raise OutcomeUnknownError(f"no answer to a ping within {self._keep_alive:.0f} s")
        quiet = now - min(self._sent_at, self._received_at)
        if quiet >= half:
            self._control.append(encode(self._version, PingReq()))
            self._pinged_at = min(self._pinged_at, now)

    def _take_event(self, event: AckBatch | RawPacket | PeerError, now: float) -> None:
        match event:
            case PeerError():
                raise event
            case AckBatch(first=first, packet_ids=ids):
                self._check_connected("an acknowledgement")
                self._take_acks(first, ids)
            case RawPacket(first=first, body=body):
                self._take_packet(decode(self._version, first, body), now)

    def _take_acks(self, first: int, ids: list[int]) -> None:
        if first == PUBREL:
            self._session.incoming.release(ids)
        else:
            self._session.outgoing.receive(first, ids)

    def _take_packet(self, packet: Packet, now: float) -> None:
        if isinstance(packet, ConnAck):
            self._connected(packet, now)
            return
        self._check_connected(type(packet).__name__)
        match packet:
            case PubAck() | PubRec() if packet.reason >= ERROR:
                self._session.outgoing.refuse(packet.packet_id, packet.reason)
            case PubAck():
                self._take_acks(PUBACK, [packet.packet_id])
            case PubRec():
                self._take_acks(PUBREC, [packet.packet_id])
            case PubRel():
                self._take_acks(PUBREL, [packet.packet_id])
            case PubComp():
                self._take_acks(PUBCOMP, [packet.packet_id])
            case SubAck() | UnsubAck():
                self._answered(packet)
            case PingResp():
                self._pinged_at = _NEVER
            case Disconnect():
                self.state = ClientState.OVER
                raise refused("the server ended the connection", packet.reason, packet.properties)
            case _:
                raise ProtocolError(f"a server must not send {type(packet).__name__}")

    def _connected(self, answer: ConnAck, now: float) -> None:
        if self.state is not ClientState.CONNECTING:
            raise ProtocolError("a server must send CONNACK once, got a second one")
        if answer.reason >= ERROR:
            self.state = ClientState.OVER
            raise refused("the server refused the connection", answer.reason, answer.properties)
        self.state = ClientState.CONNECTED
        # [MQTT-3.2.2-21]: the keep alive of the server replaces that of the client.
        if answer.properties.server_keep_alive is not None:
            self._keep_alive = float(answer.properties.server_keep_alive)
        self.tick_at = now + self._keep_alive / 2 if self._keep_alive else _NEVER
        for request in self._session.begin(answer):
            self._control.append(encode(self._version, request))

    def _answered(self, answer: SubAck | UnsubAck) -> None:
        request = self._session.answered(answer.packet_id)
        if request is None:
            return
        asked = (
            [subscription.filter for subscription in request.subscriptions]
            if isinstance(request, Subscribe)
            else list(request.filters)
        )
        if answer.reasons and len(answer.reasons) != len(asked):
            raise ProtocolError(
                f"the server answered {len(asked)} filters with {len(answer.reasons)} reason codes"
            )
        for topic_filter, reason in zip(asked, answer.reasons, strict=False):
            if reason >= ERROR:
                word = "subscription" if isinstance(request, Subscribe) else "unsubscription"
                raise refused(
                    f"the server refused the {word} {topic_filter.text!r}",
                    reason,
                    answer.properties,
                )
        self._session.subscribed = self._session.subscribed or isinstance(request, Subscribe)

    def _check_connected(self, what: str) -> None:
        if self.state is not ClientState.CONNECTED:
            raise ProtocolError(f"the server sent {what} before CONNACK")

    def _end(self, last_packet: Disconnect) -> bytes:
        self.state = ClientState.OVER
        return encode(self._version, last_packet)
