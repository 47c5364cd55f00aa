"""Batches of publishes and acknowledgements, and batches to bytes.

The other way, from bytes, is the splitter's. Flags are those of a stored row: QoS in bits 0 and 1,
retain in 2, DUP in 3.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_be
from mypy_extensions import i32, i64

from siltstone.errors import UsageError
from siltstone.mqtt.wire import VARIABLE_MAX

# The first bytes of acknowledgements.
PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70

NO_EXPIRY: Final = -1

_V5: Final = 5


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
        topic = topics[index]
        payload = payloads[index]
        flag: i64 = flags[index]
        size: i64 = 2 + len(topic) + len(payload)
        if flag & 3 != 0:
            size += 2
        if version == _V5:
            size += 1
            if extended:
                size += len(properties[index]) + _variable_size(len(properties[index])) - 1
        out.append(int(0x30 | (flag & 3) << 1 | flag >> 2 & 1 | flag & 8))
        _write_variable(out, size)
        _write_two(out, len(topic))
        out.write(topic)
        if flag & 3 != 0:
            _write_two(out, packet_ids[index])
        if version == _V5:
            if extended:
                _write_variable(out, len(properties[index]))
                out.write(properties[index])
            else:
                out.append(0)
        out.write(payload)
    return out.getvalue()


def too_large(
    version: int,
    topics: list[bytes],
    payloads: list[bytes],
    flags: list[int],
    properties: list[bytes],
    packet_size_max: int,
) -> list[int]:
    """Return the indexes of messages whose packets a receiver with this limit must not get.

    [MQTT-3.1.2-24]: the server must not send them; [MQTT-3.1.2-25]: it acts as if it had.
    """
    found: list[int] = []
    for index in range(len(topics)):
        size: i64 = 2 + len(topics[index]) + len(payloads[index])
        if flags[index] & 3 != 0:
            size += 2
        if version == _V5:
            length: i64 = len(properties[index]) if properties else 0
            size += length + _variable_size(length)
        if 1 + _variable_size(size) + size > packet_size_max:
            found.append(index)
    return found


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
    if value > VARIABLE_MAX:
        raise UsageError(f"message is too large for a packet: size_bytes={value}")
    while value > 0x7F:
        out.append(int(value & 0x7F | 0x80))
        value >>= 7
    out.append(int(value))


def _write_two(out: BytesWriter, value: i64) -> None:
    out.append(int(value >> 8))
    out.append(int(value & 0xFF))
