"""The basic data types of packets, MQTT 1.5: integers, strings, binary data.

    byte, two, four     unsigned, big endian
    variable            seven bits in each byte, lowest first; the high bit: more bytes follow
    string              two bytes of length, then UTF-8 without U+0000
    binary              two bytes of length, then bytes

A PacketReader never reads past its end: a packet that is cut short is malformed. A Writer gets its
values from this program, so a value that does not fit is a UsageError.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from siltstone.errors import MalformedPacketError, UsageError

VARIABLE_MAX: Final = 268_435_455
STRING_SIZE_MAX: Final = 65_535

_VARIABLE_BYTES_MAX: Final = 4


class Version(IntEnum):
    """The protocol level of CONNECT."""

    V3_1_1 = 4
    V5 = 5


class PacketType(IntEnum):
    """The upper half of a packet's first byte.

    Zero is reserved on the wire. WILL uses it, as the packet type of the will properties.
    """

    WILL = 0
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits of one packet; a packet beyond them is refused. 0 means no limit."""

    filters_max: int = 0
    user_properties_max: int = 0
    properties_size_max: int = 0


NO_BOUNDS: Final = Bounds()


def check_string(data: bytes) -> None:
    """Refuse bytes that are not a valid UTF-8 string of MQTT.

    Raises: MalformedPacketError.
    """
    # [MQTT-1.5.4-2]: a string must not include an encoding of U+0000.
    if 0 in data:
        raise MalformedPacketError("string has the character U+0000")
    if not data.isascii():
        decode_string(data)


def decode_string(data: bytes) -> str:
    """Decode the bytes of a string, without its length.

    Raises: MalformedPacketError.
    """
    if 0 in data:
        raise MalformedPacketError("string has the character U+0000")
    try:
        # Strict decoding refuses surrogates, as [MQTT-1.5.4-1] requires, and keeps U+FEFF at any
        # position, as [MQTT-1.5.4-3] requires.
        return data.decode()
    except UnicodeDecodeError as exc:
        raise MalformedPacketError(f"string is not valid UTF-8: offset={exc.start}") from exc


class PacketReader:
    """A read position in the body of a packet; each read moves it forward."""

    __slots__ = ("bounds", "data", "end", "offset")

    def __init__(self, data: bytes, bounds: Bounds = NO_BOUNDS) -> None:
        self.data = data
        self.bounds = bounds
        self.offset = 0
        self.end = len(data)

    @property
    def remaining(self) -> int:
        return self.end - self.offset

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes.

        Raises: MalformedPacketError, as all reads do.
        """
        start = self.offset
        if size > self.end - start:
            raise MalformedPacketError(
                f"packet is cut short: offset={start} needed={size} available={self.end - start}"
            )
        self.offset = start + size
        return self.data[start : self.offset]

    def byte(self) -> int:
        return self.take(1)[0]

    def two(self) -> int:
        return int.from_bytes(self.take(2))

    def four(self) -> int:
        return int.from_bytes(self.take(4))

    def variable(self) -> int:
        value = 0
        for index in range(_VARIABLE_BYTES_MAX):
            byte = self.byte()
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                # [MQTT-1.5.5-1]: the encoding must be as short as possible.
                if byte == 0 and index > 0:
                    raise MalformedPacketError(
                        f"variable byte integer has more bytes than it needs: value={value}"
                    )
                return value
        raise MalformedPacketError(f"variable byte integer does not end: offset={self.offset}")

    def binary(self) -> bytes:
        return self.take(self.two())

    def string(self) -> str:
        return decode_string(self.binary())

    def part(self, size: int) -> PacketReader:
        """Return a reader of the next `size` bytes only, and skip them."""
        return PacketReader(self.take(size), self.bounds)

    def rest(self) -> bytes:
        return self.take(self.end - self.offset)

    def finish(self) -> None:
        """Refuse bytes that were not read."""
        if self.offset != self.end:
            raise MalformedPacketError(
                f"bytes follow the end of the packet: offset={self.offset} size={self.end}"
            )


class Writer:
    """The body of a packet that is being written. Raises UsageError for values that do not fit."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = bytearray()

    def raw(self, data: bytes | bytearray) -> None:
        self.data += data

    def byte(self, value: int) -> None:
        self._integer(value, 1)

    def two(self, value: int) -> None:
        self._integer(value, 2)

    def four(self, value: int) -> None:
        self._integer(value, 4)

    def variable(self, value: int) -> None:
        self.data += encode_variable(value)

    def binary(self, data: bytes) -> None:
        if len(data) > STRING_SIZE_MAX:
            raise UsageError(f"too long for a string or binary data: size_bytes={len(data)}")
        self.two(len(data))
        self.data += data

    def string(self, text: str) -> None:
        try:
            encoded = text.encode()
        except UnicodeEncodeError as exc:
            raise UsageError(f"string has a lone surrogate: offset={exc.start}") from exc
        if 0 in encoded:
            raise UsageError(f"string has the character U+0000: offset={encoded.index(0)}")
        self.binary(encoded)

    def _integer(self, value: int, width: int) -> None:
        try:
            self.data += value.to_bytes(width)
        except OverflowError as exc:
            raise UsageError(f"does not fit in {width} bytes: value={value}") from exc


def encode_variable(value: int) -> bytes:
    """Encode a variable byte integer.

    Raises: UsageError.
    """
    if not 0 <= value <= VARIABLE_MAX:
        raise UsageError(f"does not fit in a variable byte integer: value={value}")
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
