"""The messages a client publishes: queued, in flight, acknowledged; without I/O.

Invariants: a message of QoS 1 or 2 is kept until the server has taken it, whatever happens to the
connection; in a session that the server kept it is sent again with DUP and its packet id, in a
session that the server lost it is sent as new; messages leave in the order in which they were
added; no more are in flight than the server and the window allow.

The unit is the batch: messages of one `Publication` differ in nothing but their payloads.
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

PACKET_SIZE_MAX: Final = VARIABLE_MAX + 5

# What one piece may hold: enough for a batch to be worth it, little enough to be written soon.
_PIECE_MESSAGES_MAX: Final = 4096
_PIECE_BYTES_MAX: Final = 262_144
_INFLIGHT_BYTES_MAX: Final = 67_108_864

# From this length on a topic alias saves more than its property takes.
_ALIASED_TOPIC_MIN: Final = 16
_ALIAS_ID: Final = 0x23
_DUP: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What messages have in common. Properties are encoded, without their length."""

    topic: bytes
    qos: int = 0
    retain: bool = False
    properties: bytes = b""

    @property
    def flags(self) -> int:
        return self.qos | self.retain << 2


# Takes a message and why the server does not.
Refused = Callable[[Publication, bytes, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What a server takes, as its CONNACK says (3.2.2.3)."""

    receive_max: int = PACKET_ID_MAX
    packet_size_max: int = PACKET_SIZE_MAX
    topic_alias_max: int = 0
    qos_max: int = 2
    retain: bool = True

    @classmethod
    def told_by(cls, properties: Properties) -> Self:
        """Read the limits; what is absent has the default of the protocol."""
        return cls(
            receive_max=properties.receive_maximum or PACKET_ID_MAX,
            packet_size_max=properties.maximum_packet_size or PACKET_SIZE_MAX,
            topic_alias_max=properties.topic_alias_maximum or 0,
            qos_max=2 if properties.maximum_qos is None else properties.maximum_qos,
            retain=properties.retain_available != 0,
        )


class Outgoing:
    """The publishing half of a client's session; `window` bounds what is in flight."""

    def __init__(self, version: Version, ids: PacketIds, *, window: int) -> None:
        self.queued = 0
        self.completed = 0
        self.refusal: Reason | None = None
        # Takes the messages that the server does not, with the reason, so that the others go on.
        self.on_refused: Refused | None = None
        self._version = version
        self._ids = ids
        self._window = self._window_wide = window
        self._limits = ServerLimits()
        self._queue: deque[tuple[Publication, list[bytes]]] = deque()
        # How many messages at the head of the queue were taken already.
        self._offset = 0
        # In flight, in the order of sending: by packet id, the payload and what it was sent as.
        self._payloads: dict[int, bytes] = {}
        self._publications: dict[int, Publication] = {}
        self._inflight_bytes = 0
        # Those of them that this connection has not seen yet, the next one last.
        self._unsent: list[int] = []
        # QoS 2: the server has the message, PUBCOMP is still to come.
        self._released: dict[int, None] = {}
        self._releases: list[int] = []
        self._disowns = False
        # Topic -> its alias on this connection, as a property.
        self._aliases: dict[bytes, bytes] = {}

    @property
    def limits(self) -> ServerLimits:
        """What the server takes, as the last connection was told."""
        return self._limits

    @property
    def unacknowledged(self) -> int:
        """How many messages were added and are not done with."""
        return self.queued + len(self._payloads) + len(self._released)

    @property
    def idle(self) -> bool:
        """Whether nothing is left to send or to wait for."""
        return not (self.queued or self._payloads or self._released or self._releases)

    def narrow(self, window: int | None) -> None:
        """Let no more than so many messages be in flight on the next connections; None is as at
        first.
        """
        self._window = self._window_wide if window is None else window

    def condemn(self, why: str) -> None:
        """Take the message that is next in flight for one that the server refuses."""
        packet_id = next(iter(self._payloads), None)
        if packet_id is not None and self.on_refused is not None:
            publication, payload = self._publications[packet_id], self._payloads[packet_id]
            self._ids.free(self._drop([packet_id]))
            self.completed += 1
            self.on_refused(publication, payload, why)

    def disown(self) -> None:
        """Release every packet id that an earlier life of this client may have left with a server
        that kept the session: it would take a new message of QoS 2 for a known one.
        """
        self._disowns = True

    def add(self, publication: Publication, payloads: list[bytes]) -> None:
        """Queue messages. After a refusal nothing more is sent."""
        if payloads and self.refusal is None:
            self._queue.append((publication, payloads))
            self.queued += len(payloads)

    def begin(self, limits: ServerLimits, *, session_present: bool) -> None:
        """Start on a new connection: what was in flight is sent again."""
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
        """Make new messages of those in flight, for the server has forgotten their packet ids.

        What it released it had taken: to send that again would double it.
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

        Raises: UsageError for a message that this server does not take, and nobody else.
        """
        while (data := self._take_piece()) is None:
            continue
        return data

    def _take_piece(self) -> bytes | None:
        """Return what `take` does; None when all that was next has been refused."""
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
        """Return the messages that the server takes. Raises: UsageError, if nobody takes others."""
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
        """Return why the server would not take a message."""
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
        """Tell whether the server takes a packet of this size, with these properties more."""
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
        """Return an alias for a topic as a property; b"" where it has none."""
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
        """Return again, with DUP, what an earlier connection of this session was sent."""
        ids: list[int] = []
        size = 0
        refused = False
        for _ in range(min(len(self._unsent), self._room(), _PIECE_MESSAGES_MAX)):
            if size >= _PIECE_BYTES_MAX:
                break
            packet_id = self._unsent.pop()
            # Another connection, perhaps with other limits.
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
            [publication.flags | _DUP for publication in publications],
            ids,
            [publication.properties for publication in publications],
        )

    def receive(self, first: int, ids: list[int]) -> None:
        """Take acknowledgements of one kind, by their first byte; unknown ids mean nothing."""
        if first == PUBACK:
            done = self._drop(ids)
        elif first == PUBREC:
            self._released.update(dict.fromkeys(self._drop(ids)))
            # [MQTT-4.3.3-4]: each PUBREC is answered, also one whose message is long done.
            self._releases += ids
            return
        else:
            done = [packet_id for packet_id in ids if packet_id in self._released]
            for packet_id in done:
                del self._released[packet_id]
        self.completed += len(done)
        self._ids.free(done)

    def _drop(self, ids: list[int]) -> list[int]:
        """Forget the payloads of messages; return which of these there were."""
        known = [packet_id for packet_id in ids if packet_id in self._payloads]
        for packet_id in known:
            self._inflight_bytes -= len(self._payloads.pop(packet_id))
            del self._publications[packet_id]
        if self._unsent:
            self._unsent = [i for i in self._unsent if i in self._payloads]
        return known

    def refuse(self, packet_id: int, reason: Reason) -> None:
        """Take a PUBACK or PUBREC that is a failure: what is queued is given up too, unless
        somebody takes the message.
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
    """Return so many of the messages that they are not too many bytes, but at least one."""
    while len(piece) > 1 and sum(map(len, piece)) > _PIECE_BYTES_MAX:
        piece = piece[: len(piece) // 2]
    return piece
