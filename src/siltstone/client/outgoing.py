"""The messages that a client publishes: queued, in flight, acknowledged; without I/O.

Invariants: a message of QoS 1 or 2 is kept until the server has accepted it, even if the connection
is lost. If the server kept the session, the message is sent again with DUP and its packet id; if
the server lost the session, it is sent as a new message. Messages are sent in the order in which
they were added. The messages in flight never exceed the limits of the server and the window.

The unit is the batch: the messages of one `Publication` differ only in their payloads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Self

from siltstone.client.packet_ids import PACKET_ID_MAX, PacketIds
from siltstone.client.refusal import reason_words
from siltstone.errors import UsageError
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.publish import (
    PUBACK,
    PUBREC,
    PUBREL,
    encode_acks,
    encode_publishes,
    publish_size,
)
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import VARIABLE_MAX, Version
from siltstone.rows.batch import DUP

PACKET_SIZE_MAX: Final = VARIABLE_MAX + 5

# The limits of one piece: large enough to be efficient, small enough to be written quickly.
_PIECE_MESSAGES_MAX: Final = 4096
_PIECE_BYTES_MAX: Final = 262_144
_INFLIGHT_BYTES_MAX: Final = 67_108_864

# From this length on, a topic alias saves more bytes than its property takes.
_ALIASED_TOPIC_MIN: Final = 16
_ALIAS_ID: Final = 0x23


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The common fields of messages. Properties are encoded, without their length."""

    topic: bytes
    qos: int = 0
    retain: bool = False
    properties: bytes = b""

    @property
    def flags(self) -> int:
        return self.qos | self.retain << 2


# Receives a message that the server refuses, and the reason.
Refused = Callable[[Publication, bytes, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The limits of a server, from its CONNACK (3.2.2.3)."""

    receive_max: int = PACKET_ID_MAX
    packet_size_max: int = PACKET_SIZE_MAX
    topic_alias_max: int = 0
    qos_max: int = 2
    retain: bool = True

    @classmethod
    def told_by(cls, properties: Properties) -> Self:
        """Return the limits in these properties; absent ones have the default of the protocol."""
        return cls(
            receive_max=properties.receive_maximum or PACKET_ID_MAX,
            packet_size_max=properties.maximum_packet_size or PACKET_SIZE_MAX,
            topic_alias_max=properties.topic_alias_maximum or 0,
            qos_max=2 if properties.maximum_qos is None else properties.maximum_qos,
            retain=properties.retain_available != 0,
        )


class Outgoing:
    """The publishing part of a client's session; `window` limits the messages in flight."""

    def __init__(self, version: Version, ids: PacketIds, *, window: int) -> None:
        self.queued = 0
        self.completed = 0
        self.refusal: Reason | None = None
        # Receives refused messages with the reason, so that the other messages can continue.
        self.on_refused: Refused | None = None
        self._version = version
        self._ids = ids
        self._window = self._window_wide = window
        self._limits = ServerLimits()
        self._queue: deque[tuple[Publication, list[bytes]]] = deque()
        # How many messages of the first item of the queue were taken already.
        self._offset = 0
        # In flight, in the order of sending: by packet id, the payload and the publication.
        self._payloads: dict[int, bytes] = {}
        self._publications: dict[int, Publication] = {}
        self._inflight_bytes = 0
        # The messages in flight that were not sent on this connection yet; the next one is last.
        self._unsent: list[int] = []
        # QoS 2: the server has the message, but PUBCOMP has not arrived.
        self._released: dict[int, None] = {}
        self._releases: list[int] = []
        self._disowns = False
        # Topic -> its alias on this connection, as an encoded property.
        self._aliases: dict[bytes, bytes] = {}

    @property
    def limits(self) -> ServerLimits:
        """The limits of the server, as of the last connection."""
        return self._limits

    @property
    def unacknowledged(self) -> int:
        """The number of messages that were added and are not complete."""
        return self.queued + len(self._payloads) + len(self._released)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to send and nothing to wait for."""
        return not (self.queued or self._payloads or self._released or self._releases)

    def narrow(self, window: int | None) -> None:
        """Limit the messages in flight on the next connections; None restores the window."""
        self._window = self._window_wide if window is None else window

    def condemn(self, why: str) -> None:
        """Handle the oldest message in flight as if the server had refused it."""
        packet_id = next(iter(self._payloads), None)
        if packet_id is not None and self.on_refused is not None:
            publication, payload = self._publications[packet_id], self._payloads[packet_id]
            self._ids.free(self._drop([packet_id]))
            self.completed += 1
            self.on_refused(publication, payload, why)

    def disown(self) -> None:
        """Release every packet id that an earlier run of this client may have left in a session
        that the server kept. Otherwise the server would take a new QoS 2 message for a known one.
        """
        self._disowns = True

    def add(self, publication: Publication, payloads: list[bytes]) -> None:
        """Queue messages. After a refusal nothing more is queued."""
        if payloads and self.refusal is None:
            self._queue.append((publication, payloads))
            self.queued += len(payloads)

    def begin(self, limits: ServerLimits, *, session_present: bool) -> None:
        """Start on a new connection: messages in flight are sent again."""
        self._limits = limits
        self._aliases.clear()
        if not session_present:
            self._start_over()
        self._unsent = list(reversed(self._payloads))
        self._releases = list(self._released)
        if self._disowns and session_present:
            self._releases = list(range(1, PACKET_ID_MAX + 1))
        self._disowns = False

    def _start_over(self) -> None:
        """Turn the messages in flight into new messages, because the server has lost the session.

        The server has accepted the released messages; sending them again would duplicate them.
        """
        if self._queue and self._offset:
            publication, payloads = self._queue.popleft()
            self._queue.appendleft((publication, payloads[self._offset :]))
            self._offset = 0
        runs = groupby(self._payloads, self._publications.__getitem__)
        lost = [(publication, [self._payloads[i] for i in ids]) for publication, ids in runs]
        self._queue.extendleft(reversed(lost))
        self.queued += len(self._payloads)
        self.completed += len(self._released)
        self._ids.free(self._payloads)
        self._ids.free(self._released)
        self._payloads.clear()
        self._publications.clear()
        self._released.clear()
        self._inflight_bytes = 0

    def take(self) -> bytes:
        """Return the next packets that may be sent now, as one piece; b"" if there are none.

        Raises: UsageError for a message that the server does not accept, if `on_refused` is not
        set.
        """
        while (data := self._take_piece()) is None:
            continue
        return data

    def _take_piece(self) -> bytes | None:
        """Return what `take` does; None if all messages of this piece were refused."""
        if self._releases:
            releases, self._releases = self._releases, []
            return encode_acks(PUBREL, releases, 0)
        if self._unsent:
            return self._take_unsent()
        if not self._queue:
            return b""
        publication, payloads = self._queue[0]
        count = min(len(payloads) - self._offset, _PIECE_MESSAGES_MAX)
        if publication.qos:
            count = min(count, self._room())
            if count <= 0 or self._inflight_bytes >= _INFLIGHT_BYTES_MAX:
                return b""
        piece = _bounded(payloads[self._offset : self._offset + count])
        acceptable = self._checked(publication, piece)
        self.queued -= len(piece)
        self._offset += len(piece)
        if self._offset == len(payloads):
            self._queue.popleft()
            self._offset = 0
        return self._encode(publication, acceptable) if acceptable else None

    def _room(self) -> int:
        """Return how many more messages may be in flight on this connection."""
        inflight = len(self._payloads) - len(self._unsent) + len(self._released)
        return min(self._limits.receive_max, self._window) - inflight

    def _checked(self, publication: Publication, piece: list[bytes]) -> list[bytes]:
        """Return the messages that the server accepts. Raises: UsageError without `on_refused`."""
        if self._objection(publication, max(piece, key=len)) is None:
            return piece
        objections = [self._objection(publication, payload) for payload in piece]
        if self.on_refused is None:
            raise UsageError(next(filter(None, objections)))
        for payload, objection in zip(piece, objections, strict=True):
            if objection is not None:
                self.completed += 1
                self.on_refused(publication, payload, objection)
        return [
            payload
            for payload, objection in zip(piece, objections, strict=True)
            if objection is None
        ]

    def _objection(self, publication: Publication, payload: bytes) -> str | None:
        """Return why the server would refuse a message; None if it would not."""
        limits = self._limits
        if publication.qos > limits.qos_max:
            return (
                f"the server takes no message of this QoS: qos={publication.qos}"
                f" max={limits.qos_max}"
            )
        if publication.retain and not limits.retain:
            return "the server does not support retained messages"
        if not self._fits(publication, payload):
            return (
                f"message is too large for the server: size_bytes={len(payload)}"
                f" packet_size_max={limits.packet_size_max}"
            )
        return None

    def _fits(self, publication: Publication, payload: bytes, *, more: bytes = b"") -> bool:
        """Tell whether the packet fits the server's limit, with `more` as additional properties."""
        properties = publication.properties + more
        size = publish_size(
            self._version, publication.topic, payload, publication.flags, properties
        )
        return size <= self._limits.packet_size_max

    def _encode(self, publication: Publication, piece: list[bytes]) -> bytes:
        count = len(piece)
        ids = [0] * count
        if publication.qos:
            ids = self._ids.take(count)
            self._payloads.update(zip(ids, piece, strict=True))
            self._publications.update(dict.fromkeys(ids, publication))
            self._inflight_bytes += sum(map(len, piece))
        else:
            self.completed += count
        topics = [publication.topic] * count
        properties = [publication.properties] * count if publication.properties else []
        if alias := self._aliases.get(publication.topic, b""):
            topics = [b""] * count
            properties = [publication.properties + alias] * count
        elif alias := self._new_alias(publication, piece[0]):
            topics[1:] = [b""] * (count - 1)
            properties = [publication.properties + alias] * count
        flags = [publication.flags] * count
        return encode_publishes(self._version, topics, piece, flags, ids, properties)

    def _new_alias(self, publication: Publication, payload: bytes) -> bytes:
        """Return a new alias for a topic, as a property; b"" if it gets none."""
        number = len(self._aliases) + 1
        alias = bytes([_ALIAS_ID, number >> 8 & 0xFF, number & 0xFF])
        if (
            number > self._limits.topic_alias_max
            or len(publication.topic) < _ALIASED_TOPIC_MIN
            or not self._fits(publication, payload, more=alias)
        ):
            return b""
        self._aliases[publication.topic] = alias
        return alias

    def _take_unsent(self) -> bytes | None:
        """Return packets, with DUP, that an earlier connection of this session has sent."""
        ids: list[int] = []
        size = 0
        refused = False
        for _ in range(min(len(self._unsent), self._room(), _PIECE_MESSAGES_MAX)):
            if size >= _PIECE_BYTES_MAX:
                break
            packet_id = self._unsent.pop()
            # This is another connection, and the limits of the server may be different.
            if not self._checked(self._publications[packet_id], [self._payloads[packet_id]]):
                self._ids.free(self._drop([packet_id]))
                refused = True
                continue
            ids.append(packet_id)
            size += len(self._payloads[packet_id])
        if not ids:
            return None if refused else b""
        publications = [self._publications[packet_id] for packet_id in ids]
        return encode_publishes(
            self._version,
            [publication.topic for publication in publications],
            [self._payloads[packet_id] for packet_id in ids],
            [publication.flags | DUP for publication in publications],
            ids,
            [publication.properties for publication in publications],
        )

    def receive(self, first: int, ids: list[int]) -> None:
        """Process acknowledgements of one kind, by their first byte; unknown ids are ignored."""
        if first == PUBACK:
            done = self._drop(ids)
        elif first == PUBREC:
            self._released.update(dict.fromkeys(self._drop(ids)))
            # [MQTT-4.3.3-4]: each PUBREC is answered, even if its message is complete.
            self._releases += ids
            return
        else:
            done = [packet_id for packet_id in ids if packet_id in self._released]
            for packet_id in done:
                del self._released[packet_id]
        self.completed += len(done)
        self._ids.free(done)

    def _drop(self, ids: list[int]) -> list[int]:
        """Forget the payloads of messages; return the packet ids that were known."""
        known = [packet_id for packet_id in ids if packet_id in self._payloads]
        for packet_id in known:
            self._inflight_bytes -= len(self._payloads.pop(packet_id))
            del self._publications[packet_id]
        if self._unsent:
            self._unsent = [i for i in self._unsent if i in self._payloads]
        return known

    def refuse(self, packet_id: int, reason: Reason) -> None:
        """Process a PUBACK or PUBREC with a failure. Without `on_refused`, the queued messages are
        dropped too.
        """
        publication, payload = self._publications.get(packet_id), self._payloads.get(packet_id)
        if publication is None or payload is None:
            return
        self._drop([packet_id])
        self._ids.free([packet_id])
        if self.on_refused is not None:
            self.completed += 1
            self.on_refused(publication, payload, f"refused by the server: {reason_words(reason)}")
        else:
            self.refusal = self.refusal or reason
            self._queue.clear()
            self._offset = 0
            self.queued = 0


def _bounded(piece: list[bytes]) -> list[bytes]:
    """Return the first messages up to the byte limit, but at least one."""
    while len(piece) > 1 and sum(map(len, piece)) > _PIECE_BYTES_MAX:
        piece = piece[: len(piece) // 2]
    return piece
