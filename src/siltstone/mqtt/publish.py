"""Batches of publishes and acknowledgements, and batches to bytes.

The other way, from bytes, is the splitter's. Flags are those of a stored row: QoS in bits 0 and 1,
retain in 2, DUP in 3.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_be
from mypy_extensions import i32, i64, mypyc_attr

from siltstone.errors import UsageError
from siltstone.mqtt.wire import VARIABLE_MAX

# The first bytes of acknowledgements.
PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70

NO_EXPIRY: Final = -1

_V5: Final = 5
_SECOND_US: Final = 1_000_000
# A packet without topic, properties and payload is never larger, and with them never than this.
_HEADER_SIZE_MAX: Final = 13
_PACKET_SIZE_MAX: Final = VARIABLE_MAX + 5
# What a topic alias takes: the property, and a byte that it may add to each of two lengths.
_ALIAS_SIZE_MAX: Final = 5


@mypyc_attr(acyclic=True)
class PublishBatch:
    """Messages as parallel lists. Topics are whole: aliases are resolved.

    A packet id of QoS 0 is 0. `properties` are as received, but for the topic alias, which means
    nothing beyond its connection; `expiries` are message expiry intervals in seconds. These two
    are empty where no message has any; else a message without has b"" and -1.
    """

    def __init__(self) -> None:
        self.topics: list[bytes] = []
        self.payloads: list[bytes] = []
        self.flags: list[int] = []
        self.packet_ids: list[int] = []
        self.properties: list[bytes] = []
        self.expiries: list[int] = []


@mypyc_attr(acyclic=True)
class AckBatch:
    """Acknowledgements with one first byte, all of them successes without properties."""

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
    """Return the PUBLISH packets of one receiver, in order.

    `properties` are encoded, without their length; the list is empty where no message has any.
    3.1.1 leaves them out. Topics, packet ids and properties are taken as valid.
    Raises: UsageError for a packet that MQTT cannot hold.
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
    """Write one PUBLISH packet; a packet id of QoS 0 is left out.

    Raises: UsageError for a packet that MQTT cannot hold.
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
    out.write(payload)


def publish_size(version: int, topic: bytes, payload: bytes, flags: int, properties: bytes) -> int:
    """Return the size of a whole PUBLISH packet."""
    size: i64 = 2 + len(topic) + len(payload)
    if flags & 3 != 0:
        size += 2
    if version == _V5:
        size += len(properties) + _variable_size(len(properties))
    return int(1 + _variable_size(size) + size)


class PublishWriter:
    """How one receiver gets its messages: version, largest packet, topic aliases.

    A limit on packets of 0 is MQTT's own. Aliases go to the topics that are written first, and are
    for MQTT 5 alone.
    """

    def __init__(self, version: int, packet_size_max: int, alias_max: int) -> None:
        self._version = version
        self._size_max = packet_size_max if packet_size_max > 0 else _PACKET_SIZE_MAX
        self._alias_max = alias_max
        # The property that tells the alias of a topic.
        self._aliases: dict[bytes, bytes] = {}

    def fits(self, topic: bytes, payload: bytes, flags: int, properties: bytes) -> bool:
        """Tell whether the receiver takes a packet with this message."""
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
        """Write a message that fits, with an alias in place of its topic where there is one."""
        if self._alias_max > 0:
            alias = self._aliases.get(topic)
            if alias is not None:
                aliased = alias + properties
                # In place of a short topic, an alias may make a packet larger.
                if len(topic) >= _ALIAS_SIZE_MAX or self.fits(b"", payload, flags, aliased):
                    topic = b""
                    properties = aliased
            elif len(self._aliases) < self._alias_max:
                alias = b"\x23" + (len(self._aliases) + 1).to_bytes(2, "big")
                aliased = alias + properties
                if self.fits(topic, payload, flags, aliased):
                    self._aliases[topic] = alias
                    properties = aliased
        write_publish(out, self._version, topic, payload, flags, packet_id, properties)


def with_expiry(properties: bytes, seconds: int) -> bytes:
    """Return the valid properties of a message with another message expiry interval.

    As in a batch, they have no topic alias.
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
    """Return the valid properties of a message with what is left of its message expiry interval.

    [MQTT-3.3.2-6]: less the time that it has waited. A second is taken when it has passed whole, so
    that one is left at least; none is added where a clock went back.
    """
    seconds = expiry_of(properties)
    left = min(seconds, max(1, -(-left_us // _SECOND_US)))
    return properties if left == seconds else with_expiry(properties, left)


def expiry_of(properties: bytes) -> int:
    """Return the message expiry interval among the valid properties of a message, or NO_EXPIRY."""
    position: i64 = 0
    end: i64 = len(properties)
    while position < end:
        identifier: i64 = properties[position]
        if identifier == 0x02:
            return int.from_bytes(properties[position + 1 : position + 5], "big")
        position = _property_end(properties, identifier, position + 1)
    return NO_EXPIRY


def stored_properties(properties: bytes) -> bytes:
    """Return the properties of a stored message as its receivers may have them.

    Valid properties are returned as they are. Topic aliases, which version 0.1.0 could store, are
    left out, and so is a property that repeats another. Bytes that are not the properties of a
    message become none.
    """
    position: i64 = 0
    end: i64 = len(properties)
    # A number of Python: mypyc shifts a literal by an i64 in the 32 bits of C's int.
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
    """Return where a property of a message ends; 0 if it has no end here, or is none."""
    after: i64 = start
    if identifier == 0x01:
        after += 1
    elif identifier == 0x02:
        after += 4
    elif identifier == 0x23:
        after += 2
    elif identifier == 0x0B:
        while after < end and after < start + 3 and data[after] >= 0x80:
            after += 1
        after += 1
    elif identifier in (0x03, 0x08, 0x09):
        after = _sized_end(data, start, end)
    elif identifier == 0x26:
        after = _sized_end(data, _sized_end(data, start, end), end)
    else:
        return 0
    return after if after <= end else 0


def _sized_end(data: bytes, start: i64, end: i64) -> i64:
    """Return where bytes with their length end; past the end if they are cut short."""
    return start + 2 + _length_at(data, start) if start + 2 <= end else end + 1


def _property_end(data: bytes, identifier: i64, start: i64) -> i64:
    """Return where a valid property of a message ends."""
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
    """Return one acknowledgement for each packet id, all with one first byte and reason.

    Any reason but success is for MQTT 5 alone.
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
    """Return PUBACK or PUBREC for each message of QoS 1 or 2, all successes, in order."""
    out = BytesWriter()
    for index in range(len(packet_ids)):
        qos = flags[index] & 3
        if qos != 0:
            first = PUBACK if qos == 1 else PUBREC
            write_i32_be(out, i32(first << 24 | 2 << 16 | packet_ids[index]))
    return out.getvalue()
