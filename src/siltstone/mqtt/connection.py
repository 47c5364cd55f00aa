"""The server side of one connection: bytes in, the client's packets out, in a legal order.

CONNECT comes first and only once [MQTT-3.1.0-1], [MQTT-3.1.0-2]. The caller then calls `begin`, and
the packets after CONNECT are read. A packet that only a server may send ends the connection, and so
does a packet that cannot be decoded. Nothing is read after DISCONNECT.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Final

from siltstone.errors import MalformedPacketError, PeerError, ProtocolError
from siltstone.mqtt.decode import BRIDGE_BIT, decode, protocol_version
from siltstone.mqtt.packets import (
    Auth,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
)
from siltstone.mqtt.publish import AckBatch, PublishBatch
from siltstone.mqtt.splitter import PacketSplitter, RawPacket
from siltstone.mqtt.wire import NO_BOUNDS, Bounds, PacketType, Version

_LEVEL_5: Final = bytes([Version.V5])
_BRIDGE_LEVELS: Final = bytes([BRIDGE_BIT])

Event = PublishBatch | AckBatch | Packet | PeerError
# The results of the splitter: packets that are not decoded, or batches.
Part = PublishBatch | AckBatch | RawPacket | PeerError


class State(Enum):
    """The state of a connection."""

    CONNECTING = auto()
    WAITING = auto()
    CONNECTED = auto()
    CLOSED = auto()


LEGAL: Final[Mapping[State, tuple[type[Packet], ...]]] = {
    State.CONNECTING: (Connect,),
    State.WAITING: (),
    State.CONNECTED: (
        PubAck,
        PubRec,
        PubRel,
        PubComp,
        Subscribe,
        Unsubscribe,
        PingReq,
        Disconnect,
        Auth,
    ),
    State.CLOSED: (),
}


# A tuple: compiled code would build a union of the types at each call.
_LAST: Final = (PeerError, Disconnect)


class ServerConnection:
    """The receiving end of one connection."""

    __slots__ = ("_bounds", "_splitter", "state", "version")

    def __init__(
        self,
        connect_size_max: int,
        topic_levels_max: int,
        bounds: Bounds = NO_BOUNDS,
    ) -> None:
        self.state = State.CONNECTING
        # Before CONNECT was decoded this is a guess, for the answer to an invalid CONNECT.
        self.version = Version.V3_1_1
        self._splitter = PacketSplitter(connect_size_max)
        self._splitter.topic_levels_max = topic_levels_max
        self._splitter.properties_size_max = bounds.properties_size_max
        self._splitter.user_properties_max = bounds.user_properties_max
        self._bounds = bounds

    def begin(
        self, topic_alias_max: int, packet_size_max: int, control_size_max: int = 0
    ) -> Iterator[Event]:
        """Continue after CONNECT was accepted; yield the events of the bytes that followed it."""
        self.state = State.CONNECTED
        self._splitter.packet_size_max = packet_size_max
        self._splitter.control_size_max = control_size_max
        return self.read(self._splitter.begin(self.version, topic_alias_max))

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Take the next bytes; yield the completed events. Each packet is decoded when it is
        needed.

        An error is the last event.
        """
        return self.read(self.split(chunk))

    def split(self, chunk: bytes) -> list[Part]:
        """Take the next bytes; return the completed packets, not decoded. `read` must follow, or
        the caller must process a single batch itself.
        """
        if self.state is State.CLOSED:
            return []
        return self._splitter.feed(chunk)

    @property
    def held_bytes(self) -> int:
        """The number of bytes of an incomplete packet."""
        return self._splitter.held_bytes()

    def close(self) -> None:
        """Stop reading."""
        self.state = State.CLOSED

    def read(self, parts: list[Part]) -> Iterator[Event]:
        """Yield the events of what `split` returned. Each packet is decoded when it is needed."""
        for item in parts:
            event: Event
            if isinstance(item, RawPacket):
                try:
                    event = self._decode(item)
                except PeerError as exc:
                    # The traceback refers to this frame, and the frame to the error: a reference
                    # cycle.
                    exc.__traceback__ = None
                    event = exc
            else:
                event = item
                if self._splitter.refused_connect:
                    self.version = _version_of(self._splitter.refused_connect)
            if isinstance(event, _LAST):
                self.state = State.CLOSED
                yield event
                return
            yield event

    def _decode(self, raw: RawPacket) -> Packet:
        if self.state is State.CONNECTING:
            self.version = _version_of(raw.body)
        elif raw.first >> 4 == PacketType.CONNECT:
            # [MQTT-3.1.0-2]: a second CONNECT is an error, even if it cannot be decoded.
            raise ProtocolError("a client must send CONNECT once, got a second one")
        packet = decode(self.version, raw.first, raw.body, self._bounds)
        if not isinstance(packet, LEGAL[self.state]):
            raise ProtocolError(f"unexpected {type(packet).__name__} while {self.state.name}")
        if isinstance(packet, Auth):
            # [MQTT-4.12.0-1]: no authentication method is supported, so none was agreed on.
            raise ProtocolError("AUTH without an authentication method")
        if isinstance(packet, Connect):
            self.state = State.WAITING
        return packet


def _version_of(body: bytes) -> Version:
    """Return the version to decode and answer a CONNECT with, even if it is not supported."""
    try:
        return protocol_version(body)
    except MalformedPacketError:
        return Version.V3_1_1
    except ProtocolError:
        # The level follows the name, whatever the name is.
        offset = 2 + int.from_bytes(body[:2], "big")
        level = body[offset : offset + 1]
        # Bridges that set the bit of Mosquitto do not know the reason codes of MQTT 5. They try
        # again without the bit if they get the return code of 3.1.1.
        return Version.V5 if _LEVEL_5 <= level < _BRIDGE_LEVELS else Version.V3_1_1
