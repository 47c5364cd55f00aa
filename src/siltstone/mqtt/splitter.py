"""Splits the received bytes into batches of publishes, acknowledgements, and other packets.

A splitter receives the bytes of the socket, in pieces of any size. It returns, in the order of the
wire: each run of PUBLISH as one batch of parallel lists; each run of plain acknowledgements of one
kind as a list of packet ids; any other packet undecoded, for `decode`; and, as the last event of
the connection, the error that ends it. The sizes of the pieces change only where runs end.

Invariants: a packet that exceeds the limit, or whose first byte is illegal, is refused before it is
buffered; each byte is copied a bounded number of times, whatever the size of its packet and of the
pieces; a batch contains only messages that `decode` would accept, so it counts as checked.

Flags are those of a stored row: QoS in bits 0 and 1, retain in 2, DUP in 3.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from siltstone.errors import MalformedPacketError, PeerError, ProtocolError
from siltstone.mqtt.names import check_topic_name
from siltstone.mqtt.publish import (
    NO_EXPIRY,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    AckBatch,
    PublishBatch,
)
from siltstone.mqtt.wire import check_string

_CONNECT: Final = 0x10
_AUTH: Final = 0xF0
_V3_1_1: Final = 4
_V5: Final = 5

_TOPIC_NAME_INVALID: Final = 0x90
_TOPIC_ALIAS_INVALID: Final = 0x94
_PACKET_TOO_LARGE: Final = 0x95
_QUOTA_EXCEEDED: Final = 0x97

# The memory limit for the known topics of one connection, and the overhead for each of them.
_KNOWN_BYTES_MAX: Final = 262_144
_KNOWN_OVERHEAD: Final = 100
_PLAIN_MAX: Final = 64
# The bytes of CONNECT up to its protocol level: the name `MQTT` with its length, and the level.
_LEVEL_END: Final = 7
_DOLLAR: Final = 0x24

# After this many bytes of one packet, the rest is buffered in separate parts, so that it is copied
# only once, into the payload. The topic and the properties are before this limit, except with
# unusual settings.
LARGE_BYTES: Final = 524_288
# Smaller pieces are joined up to this size.
_PART_BYTES: Final = 65_536

_STRICT: Final = True


class RawPacket:
    """Any other packet, complete and not decoded."""

    def __init__(self, first: int, body: bytes) -> None:
        self.first = first
        self.body = body


Event = PublishBatch | AckBatch | RawPacket | PeerError


class PacketSplitter:
    """The receiving side of one connection, from its first byte on.

    Before `begin` sets the version, it accepts CONNECT and buffers all bytes after it; the caller
    stops reading in this time. `packet_size_max` limits the whole packet and may be changed. The
    other limits may be changed too; 0 means none. `control_size_max` applies to all packets except
    PUBLISH. Only a server sends subscription identifiers with a message, so they are accepted only
    with `from_server`.
    """

    def __init__(self, packet_size_max: int, from_server: bool = False) -> None:
        self.packet_size_max = packet_size_max
        self.topic_levels_max = 0
        self.control_size_max = 0
        self.properties_size_max = 0
        self.user_properties_max = 0
        self._from_server = from_server
        self._version = 0
        self._held = False
        self._failed = False
        # The first bytes of a CONNECT that is too large: the name and the level of the protocol.
        self.refused_connect = b""
        self._pending = bytearray()
        # The bytes after the first ones of a large packet, in parts; the last part is still
        # growing.
        self.large_bytes = LARGE_BYTES
        self._parts: list[bytes] = []
        self._parts_bytes: i64 = 0
        self._last_part = bytearray()
        self._needed: i64 = 0
        self._events: list[Event] = []
        self._batch: PublishBatch | None = None
        self._acks: AckBatch | None = None
        self._known: dict[bytes, bytes] = {}
        self._known_bytes = 0
        self._alias_max = 0
        self._aliases: dict[int, bytes] = {}
        # The property values of the current message.
        self._alias = 0
        self._expiry = NO_EXPIRY
        self._properties = b""

    def begin(self, version: int, topic_alias_max: int) -> list[Event]:
        """Continue after CONNECT; return the events of the bytes that were held back."""
        self._version = version
        self._alias_max = topic_alias_max
        self._held = False
        return self.feed(b"")

    def held_bytes(self) -> int:
        """Return how many bytes of an incomplete packet are buffered."""
        return int(self._pending_bytes())

    def feed(self, chunk: bytes) -> list[Event]:
        """Take the next bytes; return the completed events. After an error there are none."""
        if self._failed:
            return []
        data = chunk
        if self._held or (self._pending and self._pending_bytes() + len(chunk) < self._needed):
            self._keep(chunk)
            return []
        try:
            if self._parts_bytes > 0:
                data = self._take_large(chunk)
            elif self._pending:
                data = b"".join([self._pending, chunk])
                self._pending = bytearray()
            used = self._split(data)
            if used < len(data):
                self._pending += data[used:]
        except PeerError as exc:
            self._failed = True
            self._end_runs()
            # The traceback has frames that refer to the error: a reference cycle.
            exc.__traceback__ = None
            self._events.append(exc)
        self._end_runs()
        events = self._events
        self._events = []
        return events

    def _pending_bytes(self) -> i64:
        return len(self._pending) + self._parts_bytes

    def _keep(self, chunk: bytes) -> None:
        """Buffer a piece of an incomplete packet."""
        if self._held or len(self._pending) < self.large_bytes:
            self._pending += chunk
            return
        self._parts_bytes += len(chunk)
        if len(chunk) >= _PART_BYTES:
            self._close_part()
            self._parts.append(chunk)
        else:
            self._last_part += chunk
            if len(self._last_part) >= _PART_BYTES:
                self._close_part()

    def _close_part(self) -> None:
        if self._last_part:
            self._parts.append(bytes(self._last_part))
            self._last_part = bytearray()

    def _take_large(self, chunk: bytes) -> bytes:
        """Process a packet that was buffered in parts and that the chunk completes; return the
        bytes that are still to be split.
        """
        self._close_part()
        head = bytes(self._pending)
        parts = self._parts
        rest = self._needed - self._pending_bytes()
        self._pending = bytearray()
        self._parts = []
        self._parts_bytes = 0
        start: i64 = _variable_end(head, 1, len(head), self._version == _V5)
        first: i64 = head[0]
        if first >> 4 != 3 or not self._has_head(head, first, start):
            return b"".join([head, *parts, chunk])
        self._take_publish(head, first, start, self._needed)
        batch = self._batch
        assert batch is not None
        parts.append(chunk[:rest])
        begun = batch.values[-1]
        batch.values[-1] = b"".join([begun, *parts])
        batch.size_bytes += len(batch.values[-1]) - len(begun)
        return chunk[rest:]

    def _has_head(self, head: bytes, first: i64, start: i64) -> bool:
        """Tell whether the first bytes of a message include everything before its payload."""
        end: i64 = len(head)
        try:
            position = start + 2 + _two(head, start, end) + (2 if first >> 1 & 3 else 0)
            if self._version != _V5:
                return position <= end
            after: i64 = _variable_end(head, position, end, _STRICT)
        except MalformedPacketError:
            # The packet is refused when it is read as a whole, so that its first error is reported.
            return False
        return after > 0 and after + _variable(head, position, after) <= end

    def _split(self, data: bytes) -> i64:
        """Process the complete packets at the start; return the number of their bytes."""
        start: i64 = 0
        end: i64 = len(data)
        self._needed = 2
        while end - start >= 2 and not self._held:
            first: i64 = data[start]
            self._check_first(first)
            body: i64 = start + 2
            size: i64 = data[start + 1]
            if size >= 0x80:
                body = _variable_end(data, start + 1, end, self._version == _V5)
                if body == 0:
                    self._needed = end - start + 1
                    return start
                size = _variable(data, start + 1, body)
            stop: i64 = body + size
            if stop - start > self.packet_size_max:
                if self._version == 0 and first >> 4 == 1:
                    # The answer depends on the version, so these bytes are needed.
                    level_end: i64 = body + _LEVEL_END
                    if end < level_end and end < stop:
                        self._needed = end - start + 1
                        return start
                    self.refused_connect = data[body:level_end]
                raise ProtocolError(
                    f"packet is too large: size_bytes={stop - start}"
                    f" max_bytes={self.packet_size_max}",
                    reason=_PACKET_TOO_LARGE,
                )
            if 0 < self.control_size_max < stop - start and first >> 4 != 3:
                raise ProtocolError(
                    f"control packet is too large: size_bytes={stop - start}"
                    f" max_bytes={self.control_size_max}",
                    reason=_QUOTA_EXCEEDED,
                )
            if stop > end:
                self._needed = stop - start
                return start
            if first >> 4 == 3:
                self._take_publish(data, first, body, stop)
            elif _is_plain_ack(data, first, body, stop, self._version):
                self._take_ack(first, _two(data, body, stop))
            else:
                self._end_runs()
                self._events.append(RawPacket(int(first), data[body:stop]))
                self._held = self._version == 0
            start = stop
        return start

    def _check_first(self, first: i64) -> None:
        """Refuse an illegal packet by its first byte, before it is buffered."""
        if self._version == 0:
            # [MQTT-3.1.0-1]: the first packet of a client must be CONNECT.
            if first != _CONNECT:
                raise ProtocolError(f"the first packet must be CONNECT: first_byte={first:#04x}")
        elif first < _CONNECT or (first >= _AUTH and self._version == _V3_1_1):
            raise MalformedPacketError(f"packet type is reserved: first_byte={first:#04x}")

    def _take_publish(self, data: bytes, first: i64, start: i64, stop: i64) -> None:
        """Add one message to the batch."""
        qos = first >> 1 & 3
        # [MQTT-3.3.1-4], [MQTT-3.3.1-2].
        if qos == 3 or first & 0x0E == 0x08:
            raise MalformedPacketError(
                f"message has QoS 3, or DUP with QoS 0: first_byte={first:#04x}"
            )
        topic_end: i64 = start + 2 + _two(data, start, stop)
        position = topic_end
        packet_id: i64 = 0
        if qos > 0:
            packet_id = _packet_id(data, position, stop)
            position += 2
        elif position > stop:
            raise _cut_short(position, stop)
        extended = False
        if self._version == _V5:
            extended = position >= stop or data[position] != 0
            position = self._read_properties(data, position, stop) if extended else position + 1
        topic = data[start + 2 : topic_end]
        if not _is_plain_topic(data, start + 2, topic_end, self.topic_levels_max):
            topic = self._known.get(topic) or self._new_topic(topic, extended)
        batch = self._batch
        if batch is None:
            batch = self._open_batch()
        if extended:
            self._add_properties(batch, topic)
        stored = int(qos | (first & 1) << 2)
        if batch.shared_flags != stored:
            batch.shared_flags = -1 if batch.topics else stored
        if topic[0] == _DOLLAR:
            batch.has_dollar = True
        flags = int(first & 8) | stored
        batch.any_flags |= flags
        batch.size_bytes += int(len(topic) + stop - position)
        batch.topics.append(topic)
        batch.values.append(data[position:stop])
        batch.flags.append(flags)
        batch.packet_ids.append(int(packet_id))

    def _new_topic(self, topic: bytes, extended: bool) -> bytes:
        """Check a topic when it is first seen, and remember it, so that it is checked once."""
        if not topic and self._version == _V5:
            if not extended or self._alias == 0:
                raise ProtocolError("message has neither a topic nor a topic alias")
            if self._alias not in self._aliases:
                raise ProtocolError(f"unknown topic alias: topic_alias={self._alias}")
            return self._aliases[self._alias]
        check_topic_name(topic)
        if 0 < self.topic_levels_max <= topic.count(b"/"):
            raise ProtocolError(
                f"topic has too many levels: max={self.topic_levels_max}",
                reason=_TOPIC_NAME_INVALID,
            )
        self._known_bytes += len(topic) + _KNOWN_OVERHEAD
        if self._known_bytes > _KNOWN_BYTES_MAX:
            self._known.clear()
            self._known_bytes = len(topic) + _KNOWN_OVERHEAD
        self._known[topic] = topic
        return topic

    def _take_ack(self, first: i64, packet_id: i64) -> None:
        """Add one acknowledgement to the run of its kind."""
        acks = self._acks
        if acks is None or acks.first != first:
            self._end_runs()
            acks = AckBatch(int(first))
            self._acks = acks
            self._events.append(acks)
        acks.packet_ids.append(int(packet_id))

    def _open_batch(self) -> PublishBatch:
        self._end_runs()
        batch = PublishBatch()
        batch.checked = True
        self._batch = batch
        self._events.append(batch)
        return batch

    def _end_runs(self) -> None:
        batch = self._batch
        if batch is not None:
            if batch.properties:
                _pad_bytes(batch.properties, len(batch.topics))
            if batch.expiries:
                _pad_integers(batch.expiries, len(batch.topics))
            self._batch = None
        self._acks = None

    def _add_properties(self, batch: PublishBatch, topic: bytes) -> None:
        """Add the values that `_read_properties` found to the next row of the batch."""
        if self._alias > 0:
            self._aliases[self._alias] = topic
        if self._properties:
            _pad_bytes(batch.properties, len(batch.topics))
            batch.properties.append(self._properties)
            batch.size_bytes += len(self._properties)
        if self._expiry != NO_EXPIRY:
            _pad_integers(batch.expiries, len(batch.topics))
            batch.expiries.append(self._expiry)

    def _read_properties(self, data: bytes, start: i64, stop: i64) -> i64:
        """Check the properties of a message; return the offset of their end."""
        first = _variable_end(data, start, stop, _STRICT)
        if first == 0:
            raise _cut_short(start, stop)
        end = first + _variable(data, start, first)
        if end > stop:
            raise _cut_short(end, stop)
        if 0 < self.properties_size_max < end - first:
            raise ProtocolError(
                f"properties are too large: size_bytes={end - first}"
                f" max_bytes={self.properties_size_max}",
                reason=_QUOTA_EXCEEDED,
            )
        self._alias = 0
        self._expiry = NO_EXPIRY
        users: i64 = 0
        alias_start: i64 = -1
        # A Python int: mypyc shifts a literal by an i64 in the 32 bits of a C int.
        seen: int = 0
        position = first
        while position < end:
            identifier: i64 = data[position]
            if seen >> int(identifier) & 1 == 1:
                raise ProtocolError(f"property must not be repeated: id={identifier:#04x}")
            if identifier == 0x23:
                alias_start = position
            position = self._read_property(data, identifier, position + 1, end)
            # User properties and subscription identifiers may be repeated.
            if identifier == 0x26:
                users += 1
                if 0 < self.user_properties_max < users:
                    raise ProtocolError(
                        f"too many user properties: max={self.user_properties_max}",
                        reason=_QUOTA_EXCEEDED,
                    )
            elif identifier != 0x0B:
                seen |= 1 << int(identifier)
        self._properties = data[first:end]
        if alias_start >= 0:
            self._properties = data[first:alias_start] + data[alias_start + 3 : end]
        return end

    def _read_property(self, data: bytes, identifier: i64, start: i64, end: i64) -> i64:
        """Check one property, like the module `properties`; return the offset of its end."""
        if identifier == 0x26:
            return _string_end(data, _string_end(data, start, end), end)
        if identifier == 0x03:
            return _string_end(data, start, end)
        if identifier == 0x02:
            self._expiry = int(_two(data, start, end) << 16 | _two(data, start + 2, end))
            return start + 4
        if identifier == 0x23:
            return self._read_alias(data, start, end)
        if identifier == 0x08:
            after = _string_end(data, start, end)
            check_topic_name(data[start + 2 : after])
            return after
        if identifier == 0x09:
            return _binary_end(data, start, end)
        if identifier == 0x01:
            return _flag_end(data, start, end)
        if identifier == 0x0B and self._from_server:
            return _subscription_end(data, start, end)
        if identifier == 0x0B:
            # [MQTT-3.3.4-6]: a client's message must not have a subscription identifier.
            raise ProtocolError("message of a client must not have a subscription identifier")
        raise MalformedPacketError(f"PUBLISH must not have this property: id={identifier:#04x}")

    def _read_alias(self, data: bytes, start: i64, end: i64) -> i64:
        self._alias = int(_two(data, start, end))
        # [MQTT-3.3.2-8], [MQTT-3.3.2-9]: not zero, and not above the maximum of the receiver.
        if not 0 < self._alias <= self._alias_max:
            raise ProtocolError(
                f"topic alias is out of range: topic_alias={self._alias} max={self._alias_max}",
                reason=_TOPIC_ALIAS_INVALID,
            )
        return start + 2


def _cut_short(position: i64, stop: i64) -> MalformedPacketError:
    return MalformedPacketError(f"packet is cut short: offset={stop} needed={position - stop}")


def _two(data: bytes, start: i64, stop: i64) -> i64:
    """Read two bytes, which must lie before stop."""
    if start + 2 > stop:
        raise _cut_short(start + 2, stop)
    high: i64 = data[start]
    low: i64 = data[start + 1]
    return high << 8 | low


def _packet_id(data: bytes, start: i64, stop: i64) -> i64:
    packet_id = _two(data, start, stop)
    # [MQTT-2.2.1-3].
    if packet_id == 0:
        raise ProtocolError("packet id must not be 0")
    return packet_id


def _is_plain_ack(data: bytes, first: i64, start: i64, stop: i64, version: int) -> bool:
    """Tell whether this is an acknowledgement with success and no properties."""
    if first not in (PUBACK, PUBREC, PUBREL, PUBCOMP):
        return False
    size = stop - start
    if size == 3 and version == _V5:
        return data[start + 2] == 0 and data[start] | data[start + 1] != 0
    return size == 2 and data[start] | data[start + 1] != 0


def _is_plain_topic(data: bytes, start: i64, end: i64, levels_max: int) -> bool:
    """Tell whether a topic is certainly valid: short, and with characters that any topic may have.

    A check of each byte takes less time than a lookup among all known topics.
    """
    if end - start > _PLAIN_MAX or end == start:
        return False
    levels: i64 = 1
    position = start
    while position < end:
        byte: i64 = data[position]
        # Printable ASCII without the wildcards.
        if byte < 0x20 or byte > 0x7E or byte in (0x23, 0x2B):
            return False
        if byte == 0x2F:
            levels += 1
        position += 1
    return levels_max == 0 or levels <= levels_max


def _variable_end(data: bytes, start: i64, stop: i64, strict: bool) -> i64:
    """Return the end of the variable byte integer at `start`; 0 if it is past `stop`."""
    position = start
    while position < start + 4:
        if position >= stop:
            return 0
        byte: i64 = data[position]
        position += 1
        if byte < 0x80:
            # [MQTT-1.5.5-1], which 3.1.1 does not have: the encoding must be as short as possible.
            if strict and byte == 0 and position > start + 1:
                raise MalformedPacketError("variable byte integer has more bytes than it needs")
            return position
    raise MalformedPacketError("variable byte integer does not end after four bytes")


def _variable(data: bytes, start: i64, end: i64) -> i64:
    """Return the value of a variable byte integer with a known end."""
    value: i64 = 0
    position = end
    while position > start:
        position -= 1
        byte: i64 = data[position]
        value = value << 7 | byte & 0x7F
    return value


def _binary_end(data: bytes, start: i64, end: i64) -> i64:
    after: i64 = start + 2 + _two(data, start, end)
    if after > end:
        raise _cut_short(after, end)
    return after


def _string_end(data: bytes, start: i64, end: i64) -> i64:
    after = _binary_end(data, start, end)
    position = start + 2
    while position < after:
        byte: i64 = data[position]
        if byte == 0 or byte >= 0x80:
            check_string(data[start + 2 : after])
            return after
        position += 1
    return after


def _flag_end(data: bytes, start: i64, end: i64) -> i64:
    if start >= end:
        raise _cut_short(start + 1, end)
    if data[start] > 1:
        raise ProtocolError("payload format indicator must be 0 or 1")
    return start + 1


def _subscription_end(data: bytes, start: i64, end: i64) -> i64:
    after = _variable_end(data, start, end, _STRICT)
    if after == 0:
        raise _cut_short(start + 1, end)
    if data[start] == 0:
        raise ProtocolError("subscription identifier must not be 0")
    return after


def _pad_bytes(items: list[bytes], count: int) -> None:
    while len(items) < count:
        items.append(b"")


def _pad_integers(items: list[int], count: int) -> None:
    while len(items) < count:
        items.append(NO_EXPIRY)
