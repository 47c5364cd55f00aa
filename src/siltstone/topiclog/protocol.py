"""The protocol of topic logs, without I/O: the encoding of requests and replies.

Integers are in network byte order. In both directions every frame begins with twelve bytes:

    0   4  size of the frame after these four bytes
    4   1  kind
    5   1  status: 0 in requests and in successful replies
    6   2  size of the topic's name, 0 if there is none
    8   4  id, chosen by the client; the reply has the same id
    12     the name, then the payload of the kind

A request that cannot be decoded is answered with MALFORMED, and the connection is closed. Replies
may come in another order than their requests, but replies to sends to one topic come in order.
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
# Enough rows for an efficient batch, and a table that fits into a buffer.
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


class RequestKind(IntEnum):
    """The kind of a request."""

    HELLO = 1
    CREATE = 2
    TOPICS = 3
    SEND = 4
    BOUNDS = 5
    LENGTH = 6
    FETCH = 7
    COMMIT = 8
    COMMITTED = 9


class ResponseStatus(IntEnum):
    """The result of a request."""

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
class MessageHead:
    """The first twelve bytes of a frame; `size` includes the whole frame."""

    size: int
    kind: RequestKind
    status: ResponseStatus
    name_size: int
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPlace:
    """The offset from which a topic is to be read."""

    topic: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """A request for messages: about `bytes_max` bytes in total, waiting `wait_ms` for the first."""

    places: tuple[FetchPlace, ...]
    bytes_max: int
    wait_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHead:
    """The head of a batch in a reply: its place, offsets from `first` on, the end of the topic."""

    place: int
    first: int
    end: int
    count: int
    data_bytes: int


def decode_head(data: bytes | bytearray | memoryview, start: int) -> MessageHead:
    """Decode the twelve bytes at `start`. Raises: ProtocolError."""
    size, kind, status, name_size, request_id = HEADER.unpack_from(data, start)
    try:
        head = MessageHead(
            size=size + 4,
            kind=RequestKind(kind),
            status=ResponseStatus(status),
            name_size=name_size,
            id=request_id,
        )
    except ValueError as exc:
        raise ProtocolError(f"unknown request or status: kind={kind} status={status}") from exc
    if head.size < HEADER_BYTES + name_size:
        raise ProtocolError(f"the name in a frame is longer than the frame: size={size}")
    return head


def request(kind: RequestKind, request_id: int, topic: str = "", payload: bytes = b"") -> bytes:
    """Encode a request. Raises: UsageError for a name that is too long."""
    name = encode_name(topic)
    size = HEADER_BYTES - 4 + len(name) + len(payload)
    return HEADER.pack(size, kind, ResponseStatus.OK, len(name), request_id) + name + payload


def reply_head(kind: RequestKind, request_id: int, payload_bytes: int) -> bytes:
    """Encode the head of a successful reply; its payload follows."""
    return HEADER.pack(HEADER_BYTES - 4 + payload_bytes, kind, ResponseStatus.OK, 0, request_id)


def reply(kind: RequestKind, request_id: int, payload: bytes = b"") -> bytes:
    """Encode a successful reply."""
    return reply_head(kind, request_id, len(payload)) + payload


def refusal(kind: RequestKind, request_id: int, status: ResponseStatus, reason: str) -> bytes:
    """Encode a reply with an error."""
    text = reason.encode()[:NAME_BYTES_MAX]
    return HEADER.pack(HEADER_BYTES - 4 + len(text), kind, status, 0, request_id) + text


def encode_name(name: str) -> bytes:
    """Encode the name of a topic or client. Raises: UsageError."""
    try:
        data = name.encode()
    except UnicodeEncodeError as exc:
        raise UsageError(f"a name must be valid Unicode: name={name!r}") from exc
    if len(data) > NAME_BYTES_MAX:
        raise UsageError(f"a name must have at most {NAME_BYTES_MAX} bytes, got {len(data)}")
    return data


def decode_name(data: bytes) -> str:
    """Decode the name of a topic or client. Raises: ProtocolError."""
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise ProtocolError("a name is not valid UTF-8") from exc


def send_head(request_id: int, topic: str, *, table: bytes, data_bytes: int) -> bytes:
    """Encode everything before the data of a send; `table` has the end of each message, as u32."""
    name = encode_name(topic)
    size = HEADER_BYTES - 4 + len(name) + 4 + len(table) + data_bytes
    head = HEADER.pack(size, RequestKind.SEND, ResponseStatus.OK, len(name), request_id)
    return b"".join((head, name, _U32.pack(len(table) // 4), table))


def encode_hello(*, body_bytes_max: int) -> bytes:
    """Encode the HELLO of a server: version, the largest send, the most messages in one send."""
    return _HELLO.pack(VERSION, body_bytes_max, ROWS_MAX)


def decode_hello(payload: memoryview) -> tuple[int, int, int]:
    """Decode the HELLO of a server. Raises: ProtocolError."""
    version, body_bytes_max, rows_max = _unpack(_HELLO, payload)
    return version, body_bytes_max, rows_max


def encode_version() -> bytes:
    """Encode the HELLO of a client."""
    return _U16.pack(VERSION)


def decode_version(payload: memoryview) -> int:
    """Decode the HELLO of a client. Raises: ProtocolError."""
    return _unpack(_U16, payload)[0]


def encode_count(count: int) -> bytes:
    """Encode a u32."""
    return _U32.pack(count)


def decode_count(payload: memoryview) -> int:
    """Decode a u32. Raises: ProtocolError."""
    return _unpack(_U32, payload)[0]


def encode_offset(offset: int) -> bytes:
    """Encode a u64. Raises: UsageError."""
    if not 0 <= offset < 1 << 64:
        raise UsageError(f"offset must be from 0 to 2**64 - 1, got {offset}")
    return _U64.pack(offset)


def decode_offset(payload: memoryview) -> int:
    """Decode a u64. Raises: ProtocolError."""
    return _unpack(_U64, payload)[0]


def encode_bounds(bounds: range) -> bytes:
    """Encode the first offset of a topic, and the offset after its last message."""
    return _BOUNDS.pack(bounds.start, bounds.stop)


def decode_bounds(payload: memoryview) -> range:
    """Decode the bounds of a topic. Raises: ProtocolError."""
    return range(*_unpack(_BOUNDS, payload))


def encode_names(names: Sequence[str]) -> bytes:
    """Encode a list of names."""
    parts = [_U32.pack(len(names))]
    for name in names:
        data = encode_name(name)
        parts += (_U16.pack(len(data)), data)
    return b"".join(parts)


def decode_names(payload: memoryview) -> list[str]:
    """Decode a list of names. Raises: ProtocolError."""
    reader = _Reader(payload)
    (count,) = reader.take(_U32)
    names = [reader.name(reader.take(_U16)[0]) for _ in range(count)]
    reader.finish()
    return names


def encode_commit(client: str, offset: int) -> bytes:
    """Encode the payload of a commit. Raises: UsageError."""
    return encode_offset(offset) + encode_name(client)


def decode_commit(payload: memoryview) -> tuple[str, int]:
    """Decode the client and the offset of a commit. Raises: ProtocolError."""
    reader = _Reader(payload)
    (offset,) = reader.take(_U64)
    return reader.name(reader.left), offset


def encode_fetch(fetch: Fetch) -> bytes:
    """Encode a fetch. Raises: UsageError."""
    parts = [_FETCH.pack(fetch.bytes_max, fetch.wait_ms, len(fetch.places))]
    for place in fetch.places:
        name = encode_name(place.topic)
        parts += (_PLACE.pack(place.offset, len(name)), name)
    return b"".join(parts)


def decode_fetch(payload: memoryview) -> Fetch:
    """Decode a fetch. Raises: ProtocolError."""
    reader = _Reader(payload)
    bytes_max, wait_ms, count = reader.take(_FETCH)
    if count > PLACES_MAX:
        raise ProtocolError(f"too many topics in one fetch: topics={count} max={PLACES_MAX}")
    places: list[FetchPlace] = []
    for _ in range(count):
        offset, name_size = reader.take(_PLACE)
        places.append(FetchPlace(topic=reader.name(name_size), offset=offset))
    reader.finish()
    return Fetch(places=tuple(places), bytes_max=bytes_max, wait_ms=wait_ms)


def encode_batch_heads(heads: Sequence[BatchHead]) -> bytes:
    """Encode the part of a fetch reply before the tables and data."""
    packed = [BATCH.pack(h.place, h.first, h.end, h.count, h.data_bytes) for h in heads]
    return _U16.pack(len(heads)) + b"".join(packed)


def decode_batches(payload: memoryview) -> list[tuple[BatchHead, memoryview, memoryview]]:
    """Decode a fetch reply: for each batch its head, its table of offsets, and its data.

    The table has one u32 for each message and one more; the data begins at the first offset.
    Raises: ProtocolError.
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
    """Decodes a payload in order. Raises: ProtocolError if the payload is too short."""

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


_STATUS_OF: Final[tuple[tuple[type[SiltstoneError], ResponseStatus], ...]] = (
    (ProtocolError, ResponseStatus.MALFORMED),
    (ExistsError, ResponseStatus.EXISTS),
    (ClosedError, ResponseStatus.UNAVAILABLE),
    (NotFoundError, ResponseStatus.NOT_FOUND),
    (UsageError, ResponseStatus.INVALID),
    (OverloadedError, ResponseStatus.OVERLOADED),
    (RetryError, ResponseStatus.FULL),
    (OutcomeUnknownError, ResponseStatus.UNKNOWN),
)


def status_of(error: Exception) -> ResponseStatus:
    """Return the status for an error."""
    return next(
        (s for kind, s in _STATUS_OF if isinstance(error, kind)), ResponseStatus.UNAVAILABLE
    )


def error_of(status: ResponseStatus, reason: str) -> SiltstoneError:
    """Return the error for a status, for the client to raise."""
    match status:
        case ResponseStatus.MALFORMED | ResponseStatus.OK:
            return ProtocolError(reason)
        case ResponseStatus.EXISTS:
            return ExistsError(reason)
        case ResponseStatus.NOT_FOUND:
            return NotFoundError(reason)
        case ResponseStatus.INVALID:
            return UsageError(reason)
        case ResponseStatus.OVERLOADED:
            return OverloadedError(reason)
        case ResponseStatus.FULL:
            return RetryError(reason)
        case ResponseStatus.UNKNOWN:
            return OutcomeUnknownError(reason)
        case ResponseStatus.UNAVAILABLE:
            return PoisonedError(reason)
