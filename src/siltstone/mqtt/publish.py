"""Batches of publishes and acknowledgements, and their encoding.

The splitter decodes batches. Flags are those of a stored row: QoS in bits 0 and 1, retain in 2, DUP
in 3.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_be
from mypy_extensions import i32, i64, mypyc_attr

from siltstone.errors import UsageError
from siltstone.mqtt.wire import VARIABLE_MAX
from siltstone.rows.batch import RowBatch
from siltstone.units import SECOND_US

# The first bytes of acknowledgements.
PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70

NO_EXPIRY: Final = -1
# A payload of this size is not copied behind the header of its packet.
LARGE_PAYLOAD: Final = 65_536

_V5: Final = 5
# The largest header without topic, properties and payload; and the largest packet.
_HEADER_SIZE_MAX: Final = 13
_PACKET_SIZE_MAX: Final = VARIABLE_MAX + 5
# The bytes that a topic alias adds: the property, and up to one byte for each of two lengths.
_ALIAS_SIZE_MAX: Final = 5


@mypyc_attr(acyclic=True)
class PublishBatch(RowBatch):
    """Messages as rows, with what only a connection has. Topics are complete: aliases are resolved.

    The packet id of a QoS 0 message is 0. `properties` are as received, without the topic alias,
    which is valid only on its connection. `expiries` are message expiry intervals in seconds. These
    two lists are empty if no message has a value; otherwise a message without a value has b"" and
    -1. `flags` has an item for each message. The splitter checks its batches; `has_dollar` tells of
    a checked batch whether any topic starts with $.
    """

    def __init__(self) -> None:
        super().__init__()
        self.packet_ids: list[int] = []
        self.expiries: list[int] = []
        self.has_dollar = False


@mypyc_attr(acyclic=True)
class AckBatch:
    """Acknowledgements with the same first byte, all with success and without properties."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.packet_ids: list[int] = []


def encode_publishes(
    version: int,
    topics: list[bytes],
    payloads: list[bytes],
    flags: list[int],
    packet_ids: list[int],
    properties: list[bytes],
) -> bytes:
    """Return the PUBLISH packets for one receiver, in order.

    `properties` are encoded, without their length; the list is empty if no message has any. They
    are left out for 3.1.1. Topics, packet ids and properties are not checked.
    Raises: UsageError for a packet that exceeds the maximum size of MQTT.
    """
    out = BytesWriter()
    extended = len(properties) > 0
    for index in range(len(topics)):
        write_publish(
            out,
            version,
            topics[index],
            payloads[index],
            flags[index],
            packet_ids[index],
            properties[index] if extended else b"",
        )
    return out.getvalue()


def write_publish(
    out: BytesWriter,
    version: int,
    topic: bytes,
    payload: bytes,
    flags: int,
    packet_id: int,
    properties: bytes,
) -> None:
    """Write one PUBLISH packet; the packet id is left out for QoS 0.

    Raises: UsageError for a packet that exceeds the maximum size of MQTT.
    """
    write_publish_head(out, version, topic, payload, flags, packet_id, properties)
    out.write(payload)


def write_publish_head(
    out: BytesWriter,
    version: int,
    topic: bytes,
    payload: bytes,
    flags: int,
    packet_id: int,
    properties: bytes,
) -> None:
    """Write a PUBLISH packet up to its payload.

    Raises: UsageError for a packet that exceeds the maximum size of MQTT.
    """
    flag: i64 = flags
    size: i64 = 2 + len(topic) + len(payload)
    if flag & 3 != 0:
        size += 2
    if version == _V5:
        size += len(properties) + _variable_size(len(properties))
    if size > VARIABLE_MAX:
        raise UsageError(f"message is too large for a packet: size_bytes={size}")
    out.append(int(0x30 | (flag & 3) << 1 | flag >> 2 & 1 | flag & 8))
    _write_variable(out, size)
    _write_two(out, len(topic))
    out.write(topic)
    if flag & 3 != 0:
        _write_two(out, packet_id)
    if version == _V5:
        _write_variable(out, len(properties))
        out.write(properties)


def publish_size(version: int, topic: bytes, payload: bytes, flags: int, properties: bytes) -> int:
    """Return the size of a whole PUBLISH packet."""
    size: i64 = 2 + len(topic) + len(payload)
    if flags & 3 != 0:
        size += 2
    if version == _V5:
        size += len(properties) + _variable_size(len(properties))
    return int(1 + _variable_size(size) + size)


class PublishWriter:
    """Writes messages for one receiver, with its version, largest packet and topic aliases.

    A packet size limit of 0 means that of MQTT. The topics that are written first get aliases, in
    MQTT 5 only.
    """

    def __init__(self, version: int, packet_size_max: int, alias_max: int) -> None:
        self._version = version
        self._size_max = packet_size_max if packet_size_max > 0 else _PACKET_SIZE_MAX
        self._alias_max = alias_max
        # The topic alias property of each topic that has an alias.
        self._aliases: dict[bytes, bytes] = {}

    def fits(self, topic: bytes, payload: bytes, flags: int, properties: bytes) -> bool:
        """Tell whether the receiver accepts a packet with this message."""
        if len(topic) + len(payload) + len(properties) + _HEADER_SIZE_MAX <= self._size_max:
            return True
        return publish_size(self._version, topic, payload, flags, properties) <= self._size_max

    def write(
        self,
        out: BytesWriter,
        topic: bytes,
        payload: bytes,
        flags: int,
        packet_id: int,
        properties: bytes,
    ) -> None:
        """Write a message that fits, with an alias instead of its topic if there is one.

        The payload is left to the caller if it is large (`LARGE_PAYLOAD`): it need not be copied.
        """
        if self._alias_max > 0:
            alias = self._aliases.get(topic)
            if alias is not None:
                aliased = alias + properties
                # Instead of a short topic, an alias may make the packet larger.
                if len(topic) >= _ALIAS_SIZE_MAX or self.fits(b"", payload, flags, aliased):
                    topic = b""
                    properties = aliased
            elif len(self._aliases) < self._alias_max:
                alias = b"\x23" + (len(self._aliases) + 1).to_bytes(2, "big")
                aliased = alias + properties
                if self.fits(topic, payload, flags, aliased):
                    self._aliases[topic] = alias
                    properties = aliased
        write_publish_head(out, self._version, topic, payload, flags, packet_id, properties)
        if len(payload) < LARGE_PAYLOAD:
            out.write(payload)


def with_expiry(properties: bytes, seconds: int) -> bytes:
    """Return valid properties of a message with another message expiry interval.

    They must not contain a topic alias, as in a batch.
    """
    position: i64 = 0
    end: i64 = len(properties)
    while position < end:
        identifier: i64 = properties[position]
        if identifier == 0x02:
            before = properties[:position]
            return before + b"\x02" + seconds.to_bytes(4, "big") + properties[position + 5 :]
        position = _property_end(properties, identifier, position + 1)
    return properties


def with_time_left(properties: bytes, left_us: int) -> bytes:
    """Return valid properties of a message with the rest of its message expiry interval.

    [MQTT-3.3.2-6]: less the time that the message has waited. Only complete seconds are subtracted,
    and at least one second is left. The interval does not grow if a clock went back.
    """
    seconds = expiry_of(properties)
    left = min(seconds, max(1, -(-left_us // SECOND_US)))
    return properties if left == seconds else with_expiry(properties, left)


def expiry_of(properties: bytes) -> int:
    """Return the message expiry interval in valid properties of a message, or NO_EXPIRY."""
    position: i64 = 0
    end: i64 = len(properties)
    while position < end:
        identifier: i64 = properties[position]
        if identifier == 0x02:
            return int.from_bytes(properties[position + 1 : position + 5], "big")
        position = _property_end(properties, identifier, position + 1)
    return NO_EXPIRY


def stored_properties(properties: bytes) -> bytes:
    """Return the properties of a stored message, as receivers may get them.

    Valid properties are returned unchanged. Topic aliases, which version 0.1.0 could store, are
    removed, and so is a property that repeats another one. If the bytes are not the properties of a
    message, the result is empty.
    """
    position: i64 = 0
    end: i64 = len(properties)
    # A Python int: mypyc shifts a literal by an i64 in the 32 bits of a C int.
    seen: int = 0
    while position < end:
        identifier: i64 = properties[position]
        position = _checked_end(properties, identifier, position + 1, end)
        if position == 0 or identifier == 0x23 or seen >> int(identifier) & 1 == 1:
            return _mended(properties)
        if identifier not in (0x26, 0x0B):
            seen |= 1 << int(identifier)
    return properties


def _mended(properties: bytes) -> bytes:
    kept: set[int] = set()
    out: list[bytes] = []
    position: i64 = 0
    end: i64 = len(properties)
    while position < end:
        identifier: i64 = properties[position]
        after = _checked_end(properties, identifier, position + 1, end)
        if after == 0:
            return b""
        if identifier != 0x23 and int(identifier) not in kept:
            out.append(properties[position:after])
            if identifier not in (0x26, 0x0B):
                kept.add(int(identifier))
        position = after
    return b"".join(out)


def _checked_end(data: bytes, identifier: i64, start: i64, end: i64) -> i64:
    """Return the end of a property of a message; 0 if it is cut short, unknown or not valid."""
    after: i64 = start
    if identifier == 0x01:
        after += 1
    elif identifier == 0x02:
        after += 4
    elif identifier == 0x23:
        after += 2
    elif identifier == 0x0B:
        return _identifier_end(data, start, end)
    elif identifier in (0x03, 0x08, 0x09):
        after = _sized_end(data, start, end)
    elif identifier == 0x26:
        after = _sized_end(data, _sized_end(data, start, end), end)
    else:
        return 0
    return after if after <= end else 0


def _identifier_end(data: bytes, start: i64, end: i64) -> i64:
    """Return the end of a subscription identifier; 0 if it is cut short or not valid."""
    position: i64 = start
    while position < end and position < start + 4:
        byte: i64 = data[position]
        position += 1
        if byte < 0x80:
            # A last byte of zero: the value is 0, or has more bytes than it needs [MQTT-1.5.5-1].
            if byte == 0:
                break
            return position
    return 0


def _sized_end(data: bytes, start: i64, end: i64) -> i64:
    """Return the end of bytes with a length prefix; past `end` if they are cut short."""
    return start + 2 + _length_at(data, start) if start + 2 <= end else end + 1


def _property_end(data: bytes, identifier: i64, start: i64) -> i64:
    """Return the end of a valid property of a message."""
    if identifier == 0x01:
        return start + 1
    if identifier == 0x0B:
        while data[start] >= 0x80:
            start += 1
        return start + 1
    after = start + 2 + _length_at(data, start)
    if identifier == 0x26:
        after += 2 + _length_at(data, after)
    return after


def _length_at(data: bytes, start: i64) -> i64:
    high: i64 = data[start]
    low: i64 = data[start + 1]
    return high << 8 | low


def encode_acks(first: int, packet_ids: list[int], reason: int) -> bytes:
    """Return one acknowledgement for each packet id, all with the same first byte and reason code.

    Reason codes other than success are valid in MQTT 5 only.
    """
    out = BytesWriter()
    if reason == 0:
        for packet_id in packet_ids:
            write_i32_be(out, i32(first << 24 | 2 << 16 | packet_id))
    else:
        for packet_id in packet_ids:
            write_i32_be(out, i32(first << 24 | 3 << 16 | packet_id))
            out.append(reason)
    return out.getvalue()


def _variable_size(value: i64) -> i64:
    if value < 1 << 7:
        return 1
    if value < 1 << 14:
        return 2
    return 3 if value < 1 << 21 else 4


def _write_variable(out: BytesWriter, value: i64) -> None:
    while value > 0x7F:
        out.append(int(value & 0x7F | 0x80))
        value >>= 7
    out.append(int(value))


def _write_two(out: BytesWriter, value: i64) -> None:
    out.append(int(value >> 8))
    out.append(int(value & 0xFF))


def encode_receipts(flags: list[int], packet_ids: list[int]) -> bytes:
    """Return PUBACK or PUBREC, with success, for each message of QoS 1 or 2, in order."""
    out = BytesWriter()
    for index in range(len(packet_ids)):
        qos = flags[index] & 3
        if qos != 0:
            first = PUBACK if qos == 1 else PUBREC
            write_i32_be(out, i32(first << 24 | 2 << 16 | packet_ids[index]))
    return out.getvalue()
