"""The protocol of topic logs, without I/O: what requests and replies look like as bytes.

Integers are in network byte order. Both ways every frame begins with twelve bytes:

    0   4  size of what follows these four bytes
    4   1  kind
    5   1  status: 0 in requests and where all is well
    6   2  size of the topic's name, 0 where there is none
    8   4  id, chosen by the client; the reply bears it too
    12     the name, then what the kind says

A request that cannot be understood is answered with MALFORMED and ends the connection. Replies may
come in another order than their requests, but those of sends to one topic come in theirs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from siltstone.errors import (
    ClosedError,
    ExistsError,
    NotFoundError,
    OutcomeUnknownError,
    OverloadedError,
    PoisonedError,
    ProtocolError,
    RetryError,
    SiltstoneError,
    UsageError,
)

VERSION: Final = 1
HEADER: Final = struct.Struct("!IBBHI")
HEADER_BYTES: Final = HEADER.size
NAME_BYTES_MAX: Final = 65_535
# As many as fit a batch that is worth its trip, and a table that fits a buffer.
ROWS_MAX: Final = 1 << 16
PLACES_MAX: Final = 1 << 12

_U16: Final = struct.Struct("!H")
_U32: Final = struct.Struct("!I")
_U64: Final = struct.Struct("!Q")
_BOUNDS: Final = struct.Struct("!QQ")
_HELLO: Final = struct.Struct("!HII")
_FETCH: Final = struct.Struct("!IIH")
_PLACE: Final = struct.Struct("!QH")
BATCH: Final = struct.Struct("!HQQII")


class Kind(IntEnum):
    """What is asked for."""

    HELLO = 1
    CREATE = 2
    TOPICS = 3
    SEND = 4
    BOUNDS = 5
    LENGTH = 6
    FETCH = 7
    COMMIT = 8
    COMMITTED = 9


class Status(IntEnum):
    """How a request ended."""

    OK = 0
    MALFORMED = 1
    EXISTS = 2
    NOT_FOUND = 3
    INVALID = 4
    OVERLOADED = 5
    FULL = 6
    UNKNOWN = 7
    UNAVAILABLE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first twelve bytes of a frame; size counts all of the frame."""

    size: int
    kind: Kind
    status: Status
    name_size: int
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """From where a topic is to be read."""

    topic: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """A wish for messages: about so many bytes in all, waiting so long for the first."""

    places: tuple[Place, ...]
    bytes_max: int
    wait_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHead:
    """What a reply says of the messages of one place: offsets from `first` on, the topic's end."""

    place: int
    first: int
    end: int
    count: int
    data_bytes: int


def decode_head(data: bytes | bytearray | memoryview, start: int) -> Head:
    """Read the twelve bytes at start. Raises: ProtocolError."""
    size, kind, status, name_size, request_id = HEADER.unpack_from(data, start)
    try:
        head = Head(
            size=size + 4,
            kind=Kind(kind),
            status=Status(status),
            name_size=name_size,
            id=request_id,
        )
    except ValueError as exc:
        raise ProtocolError(f"unknown request or status: kind={kind} status={status}") from exc
    if head.size < HEADER_BYTES + name_size:
        raise ProtocolError(f"the name in a frame is longer than the frame: size={size}")
    return head


def request(kind: Kind, request_id: int, topic: str = "", payload: bytes = b"") -> bytes:
    """Build a request. Raises: UsageError for a name that is too long."""
    name = encode_name(topic)
    size = HEADER_BYTES - 4 + len(name) + len(payload)
    return HEADER.pack(size, kind, Status.OK, len(name), request_id) + name + payload


def reply_head(kind: Kind, request_id: int, payload_bytes: int) -> bytes:
    """Build the head of a reply in good order, whose payload follows."""
    return HEADER.pack(HEADER_BYTES - 4 + payload_bytes, kind, Status.OK, 0, request_id)


def reply(kind: Kind, request_id: int, payload: bytes = b"") -> bytes:
    """Build a reply in good order."""
    return reply_head(kind, request_id, len(payload)) + payload


def refusal(kind: Kind, request_id: int, status: Status, reason: str) -> bytes:
    """Build a reply that says what went wrong."""
    text = reason.encode()[:NAME_BYTES_MAX]
    return HEADER.pack(HEADER_BYTES - 4 + len(text), kind, status, 0, request_id) + text


def encode_name(name: str) -> bytes:
    """Return a topic or client as bytes. Raises: UsageError."""
    try:
        data = name.encode()
    except UnicodeEncodeError as exc:
        raise UsageError(f"a name must be valid Unicode: name={name!r}") from exc
    if len(data) > NAME_BYTES_MAX:
        raise UsageError(f"a name must have at most {NAME_BYTES_MAX} bytes, got {len(data)}")
    return data


def decode_name(data: bytes) -> str:
    """Read a topic or client. Raises: ProtocolError."""
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise ProtocolError("a name is not valid UTF-8") from exc


def send_head(request_id: int, topic: str, *, table: bytes, data_bytes: int) -> bytes:
    """Build what precedes the data of a send; the table has where each message ends, as u32."""
    name = encode_name(topic)
    size = HEADER_BYTES - 4 + len(name) + 4 + len(table) + data_bytes
    head = HEADER.pack(size, Kind.SEND, Status.OK, len(name), request_id)
    return b"".join((head, name, _U32.pack(len(table) // 4), table))


def encode_hello(*, body_bytes_max: int) -> bytes:
    """Return what a server says of itself: version, the largest send, messages of one send."""
    return _HELLO.pack(VERSION, body_bytes_max, ROWS_MAX)


def decode_hello(payload: memoryview) -> tuple[int, int, int]:
    """Read what a server says of itself. Raises: ProtocolError."""
    version, body_bytes_max, rows_max = _unpack(_HELLO, payload)
    return version, body_bytes_max, rows_max


def encode_version() -> bytes:
    """Return what a client says first."""
    return _U16.pack(VERSION)


def decode_version(payload: memoryview) -> int:
    """Read what a client says first. Raises: ProtocolError."""
    return _unpack(_U16, payload)[0]


def encode_count(count: int) -> bytes:
    """Return a u32."""
    return _U32.pack(count)


def decode_count(payload: memoryview) -> int:
    """Read a u32. Raises: ProtocolError."""
    return _unpack(_U32, payload)[0]


def encode_offset(offset: int) -> bytes:
    """Return a u64. Raises: UsageError."""
    if not 0 <= offset < 1 << 64:
        raise UsageError(f"offset must be from 0 to 2**64 - 1, got {offset}")
    return _U64.pack(offset)


def decode_offset(payload: memoryview) -> int:
    """Read a u64. Raises: ProtocolError."""
    return _unpack(_U64, payload)[0]


def encode_bounds(bounds: range) -> bytes:
    """Return the first offset of a topic, and the one behind its last."""
    return _BOUNDS.pack(bounds.start, bounds.stop)


def decode_bounds(payload: memoryview) -> range:
    """Read the bounds of a topic. Raises: ProtocolError."""
    return range(*_unpack(_BOUNDS, payload))


def encode_names(names: Sequence[str]) -> bytes:
    """Return a list of names."""
    parts = [_U32.pack(len(names))]
    for name in names:
        data = encode_name(name)
        parts += (_U16.pack(len(data)), data)
    return b"".join(parts)


def decode_names(payload: memoryview) -> list[str]:
    """Read a list of names. Raises: ProtocolError."""
    reader = _Reader(payload)
    (count,) = reader.take(_U32)
    names = [reader.name(reader.take(_U16)[0]) for _ in range(count)]
    reader.finish()
    return names


def encode_commit(client: str, offset: int) -> bytes:
    """Return what a commit says beside the topic. Raises: UsageError."""
    return encode_offset(offset) + encode_name(client)


def decode_commit(payload: memoryview) -> tuple[str, int]:
    """Read client and offset of a commit. Raises: ProtocolError."""
    reader = _Reader(payload)
    (offset,) = reader.take(_U64)
    return reader.name(reader.left), offset


def encode_fetch(fetch: Fetch) -> bytes:
    """Return a wish for messages. Raises: UsageError."""
    parts = [_FETCH.pack(fetch.bytes_max, fetch.wait_ms, len(fetch.places))]
    for place in fetch.places:
        name = encode_name(place.topic)
        parts += (_PLACE.pack(place.offset, len(name)), name)
    return b"".join(parts)


def decode_fetch(payload: memoryview) -> Fetch:
    """Read a wish for messages. Raises: ProtocolError."""
    reader = _Reader(payload)
    bytes_max, wait_ms, count = reader.take(_FETCH)
    if count > PLACES_MAX:
        raise ProtocolError(f"too many topics in one fetch: topics={count} max={PLACES_MAX}")
    places: list[Place] = []
    for _ in range(count):
        offset, name_size = reader.take(_PLACE)
        places.append(Place(topic=reader.name(name_size), offset=offset))
    reader.finish()
    return Fetch(places=tuple(places), bytes_max=bytes_max, wait_ms=wait_ms)


def encode_batch_heads(heads: Sequence[BatchHead]) -> bytes:
    """Return what stands before the tables and data of a fetch's reply."""
    packed = [BATCH.pack(h.place, h.first, h.end, h.count, h.data_bytes) for h in heads]
    return _U16.pack(len(heads)) + b"".join(packed)


def decode_batches(payload: memoryview) -> list[tuple[BatchHead, memoryview, memoryview]]:
    """Read a fetch's reply: of each batch its head, its table of offsets, and its data.

    The table has a u32 a message and one more, the data begins at the first of them. Raises:
    ProtocolError.
    """
    reader = _Reader(payload)
    heads = [BatchHead(**_named(reader.take(BATCH))) for _ in range(reader.take(_U16)[0])]
    batches = [
        (head, reader.view(4 * (head.count + 1)), reader.view(head.data_bytes)) for head in heads
    ]
    reader.finish()
    return batches


def _named(fields: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(("place", "first", "end", "count", "data_bytes"), fields, strict=True))


class _Reader:
    """Takes one thing after another from a payload. Raises: ProtocolError where it ends."""

    def __init__(self, payload: memoryview) -> None:
        self._payload = payload
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._payload) - self._position

    def view(self, size: int) -> memoryview:
        if size > self.left:
            raise ProtocolError(f"a frame is cut short: needed={size} available={self.left}")
        start, self._position = self._position, self._position + size
        return self._payload[start : self._position]

    def take(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self.view(form.size))

    def name(self, size: int) -> str:
        return decode_name(bytes(self.view(size)))

    def finish(self) -> None:
        if self.left:
            raise ProtocolError(f"bytes follow the end of a frame: left={self.left}")


def _unpack(form: struct.Struct, payload: memoryview) -> tuple[int, ...]:
    reader = _Reader(payload)
    fields = reader.take(form)
    reader.finish()
    return fields


_STATUS_OF: Final[tuple[tuple[type[SiltstoneError], Status], ...]] = (
    (ProtocolError, Status.MALFORMED),
    (ExistsError, Status.EXISTS),
    (ClosedError, Status.UNAVAILABLE),
    (NotFoundError, Status.NOT_FOUND),
    (UsageError, Status.INVALID),
    (OverloadedError, Status.OVERLOADED),
    (RetryError, Status.FULL),
    (OutcomeUnknownError, Status.UNKNOWN),
)


def status_of(error: Exception) -> Status:
    """Return the status that tells of an error."""
    return next((s for kind, s in _STATUS_OF if isinstance(error, kind)), Status.UNAVAILABLE)


def error_of(status: Status, reason: str) -> SiltstoneError:
    """Return the error that a status tells of, for the client to raise."""
    match status:
        case Status.MALFORMED | Status.OK:
            return ProtocolError(reason)
        case Status.EXISTS:
            return ExistsError(reason)
        case Status.NOT_FOUND:
            return NotFoundError(reason)
        case Status.INVALID:
            return UsageError(reason)
        case Status.OVERLOADED:
            return OverloadedError(reason)
        case Status.FULL:
            return RetryError(reason)
        case Status.UNKNOWN:
            return OutcomeUnknownError(reason)
        case Status.UNAVAILABLE:
            return PoisonedError(reason)
