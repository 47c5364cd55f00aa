"""The bytes of a call that one site sends to another, and of its answer.

Call: the version (u8: 1); its claim, or its own producer (16 bytes, number u64, previous u64); the
flags of the call (u8: 1 wants a sync, 2 the batch is checked, 4 has a producer of its own); shared
flags (i16); any flags (u16); then six lists of byte strings: topics, values, properties,
publishers, one with the publisher, and one with the flags, a byte for each row, empty if all rows
share them. A list is the number of strings (u32), their lengths (u32 each), and the strings.
Integers are little endian.

Answer: JSON, either of an outcome or of an error.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Mapping
from typing import Any, Final

from siltstone.errors import (
    InvalidTopicError,
    OutcomeUnknownError,
    OverloadedError,
    RetryError,
    SiltstoneError,
    UsageError,
)
from siltstone.rows.batch import RowBatch
from siltstone.store.log.write.frame_builder import ROW_OVERHEAD, Call
from siltstone.store.shard.replicated.port import (
    ClosedProducerError,
    NotLeaderError,
    OutOfOrderError,
    UnknownVersionError,
)
from siltstone.store.writer.replication.messages import ProducerCall
from siltstone.store.writer.ticket import Outcome, RowPlaces

VERSION: Final = 1
_HEAD: Final = struct.Struct("<B16sQQBhH")
_COUNT: Final = struct.Struct("<I")
_SYNC: Final = 1
_CHECKED: Final = 2
_OWN: Final = 4
# The most specific class comes first.
_ERRORS: Final[Mapping[str, type[SiltstoneError]]] = {
    "closed_producer": ClosedProducerError,
    "not_leader": NotLeaderError,
    "out_of_order": OutOfOrderError,
    "unknown_version": UnknownVersionError,
    "overloaded": OverloadedError,
    "invalid_topic": InvalidTopicError,
    "retry": RetryError,
    "usage": UsageError,
}


def encode_call(call: Call) -> bytes:
    """Return the bytes of a call that has a claim, or a producer of its own."""
    batch, claim = call.batch, call.claim
    flags = (_SYNC if call.wants_sync else 0) | (_CHECKED if batch.checked else 0)
    if claim is None:
        flags |= _OWN
        claim = ProducerCall(producer=call.producer, number=call.sequence, previous=0)
    head = _HEAD.pack(
        *(VERSION, claim.producer, claim.number, claim.previous),
        *(flags, batch.shared_flags, batch.any_flags),
    )
    lists = (batch.topics, batch.values, batch.properties, batch.publishers, [batch.publisher])
    row_flags = _texts([bytes(batch.flags)])
    return b"".join([head, *map(_texts, lists), row_flags])


def decode_call(data: bytes) -> Call:
    """Return the call that these bytes encode. Raises: UnknownVersionError, UsageError."""
    if data and data[0] != VERSION:
        raise UnknownVersionError(
            f"a call of another site has an unknown version: version={data[0]} supported={VERSION}"
        )
    try:
        _, producer, number, previous, flags, shared, any_flags = _HEAD.unpack_from(data)
        at = _HEAD.size
        lists: list[list[bytes]] = []
        for _ in range(6):
            texts, at = _texts_at(data, at)
            lists.append(texts)
        (publisher,), (row_flags,) = lists[4:]
    except (struct.error, ValueError) as exc:
        raise UsageError(f"a call of another site cannot be read: {exc}") from exc
    batch = RowBatch()
    batch.topics, batch.values, batch.properties, batch.publishers = lists[:4]
    batch.publisher, batch.flags = publisher, list(row_flags)
    batch.measure()
    batch.checked, batch.shared_flags, batch.any_flags = bool(flags & _CHECKED), shared, any_flags
    call = Call(batch)
    call.size_bytes = batch.size_bytes + ROW_OVERHEAD * len(batch.topics)
    call.wants_sync = bool(flags & _SYNC)
    if flags & _OWN:
        call.producer, call.sequence = producer, number
    else:
        call.claim = ProducerCall(producer=producer, number=number, previous=previous)
    return call


def encode_answer(answer: Outcome | Exception) -> bytes:
    """Return the bytes of an answer."""
    if isinstance(answer, Outcome):
        # The places of rows of several streams are known only where the frame is.
        values: dict[str, Any] = {
            "duplicate": answer.duplicate,
            "count": answer.count,
            "timestamp_us": answer.timestamp_us,
            "frame_serial": answer.frame_serial,
            "frame_timestamp_us": answer.frame_timestamp_us,
        }
        if answer.frame_places is not None:
            first = answer.timestamp_us - answer.frame_timestamp_us
            places = answer.frame_places.between(first, first + answer.count)
            values["first_place"], values["places"] = first, places.tolist()
    else:
        kinds = (kind for kind, known in _ERRORS.items() if isinstance(answer, known))
        values = {"error": next(kinds, "unknown"), "text": str(answer)}
    return json.dumps(values).encode()


def decode_answer(data: bytes) -> Outcome | SiltstoneError:
    """Return the answer that these bytes encode; one that cannot be read is an unknown outcome."""
    try:
        values = json.loads(data)
        if "error" in values:
            return _ERRORS.get(values["error"], OutcomeUnknownError)(values["text"])
        first, places = values.pop("first_place", 0), values.pop("places", None)
        known = None if places is None else RowPlaces.of(first, places)
        return Outcome(**values, frame_places=known)
    except (ValueError, TypeError, KeyError) as exc:
        return OutcomeUnknownError(f"an answer of another site cannot be read: {exc}")


def _texts(items: list[bytes]) -> bytes:
    return b"".join([_COUNT.pack(len(items)), array("I", map(len, items)).tobytes(), *items])


def _texts_at(data: bytes, at: int) -> tuple[list[bytes], int]:
    (count,) = _COUNT.unpack_from(data, at)
    lengths = struct.unpack_from(f"<{count}I", data, at + _COUNT.size)
    at += _COUNT.size * (1 + count)
    if at + sum(lengths) > len(data):
        raise ValueError("it is cut short")
    texts: list[bytes] = []
    for length in lengths:
        texts.append(data[at : at + length])
        at += length
    return texts, at
