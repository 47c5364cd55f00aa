"""Messages as entries of a spool: PUBLISH packets of MQTT 5, one after the other.

The name of an entry contains the arrival time and the number of messages: `<µs since
1970>_<count>`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import PurePath
from typing import Final

from siltstone.client.outgoing import PACKET_SIZE_MAX, Publication
from siltstone.errors import CorruptionError, MalformedPacketError
from siltstone.mqtt.flow import pick
from siltstone.mqtt.publish import (
    NO_EXPIRY,
    PublishBatch,
    encode_publishes,
    stored_properties,
    with_time_left,
)
from siltstone.mqtt.splitter import PacketSplitter
from siltstone.mqtt.wire import PacketReader, Version, encode_variable
from siltstone.rows.batch import RETAIN
from siltstone.spool import Entry
from siltstone.units import SECOND_US

# The limits of one entry. A single message may be larger.
_ENTRY_MESSAGES_MAX: Final = 4096
_ENTRY_BYTES_MAX: Final = 1_048_576
_QOS: Final = 3


def metadata_of(now_us: int, count: int) -> str:
    """Return the metadata for the name of an entry."""
    return f"{now_us}_{count}"


def came_us(entry: Entry) -> int:
    """Return the arrival time of the messages of an entry, in µs; 0 if its name has none."""
    text = (entry.metadata or "").partition("_")[0]
    return int(text) if text.isdecimal() else 0


def encode_entries(batch: PublishBatch, now_us: int) -> Iterator[tuple[bytes, str]]:
    """Yield the data and metadata of the entries that hold a batch."""
    first = size = 0
    sizes = [len(t) + len(p) for t, p in zip(batch.topics, batch.values, strict=True)]
    for index, message in enumerate(sizes):
        if index - first == _ENTRY_MESSAGES_MAX or (size and size + message > _ENTRY_BYTES_MAX):
            yield _encode(pick(batch, list(range(first, index))), now_us)
            first, size = index, 0
        size += message
    yield _encode(pick(batch, list(range(first, len(sizes)))), now_us)


def _encode(batch: PublishBatch, now_us: int) -> tuple[bytes, str]:
    # Distinct packet ids, because the format requires them for QoS 1 and 2; they have no meaning.
    ids = list(range(1, len(batch.topics) + 1))
    flags = [flag & (_QOS | RETAIN) for flag in batch.flags]
    data = encode_publishes(Version.V5, batch.topics, batch.values, flags, ids, batch.properties)
    return data, metadata_of(now_us, len(ids))


def decode_entry(data: bytes, path: PurePath) -> PublishBatch:
    """Return the messages of an entry. Raises: CorruptionError."""
    batch = _split(data)
    if batch is None:
        # Version 0.1.0 could store topic aliases, which are not valid in an entry.
        try:
            batch = _split(_mended(data))
        except MalformedPacketError:
            batch = None
    if batch is None:
        raise CorruptionError("the entry does not contain messages of a bridge", path=path)
    return batch


def _split(data: bytes) -> PublishBatch | None:
    splitter = PacketSplitter(PACKET_SIZE_MAX)
    splitter.begin(Version.V5, 0)
    events = splitter.feed(data)
    if len(events) != 1 or splitter.held_bytes() or not isinstance(events[0], PublishBatch):
        return None
    return events[0]


def _mended(data: bytes) -> bytes:
    """Return the packets with valid message properties only. Raises: MalformedPacketError."""
    out: list[bytes] = []
    reader = PacketReader(data)
    while reader.remaining:
        first = reader.byte()
        body = reader.part(reader.variable())
        head = body.take(int.from_bytes(body.data[:2]) + (4 if first & (_QOS << 1) else 2))
        properties = stored_properties(body.take(body.variable()))
        rest = b"".join((head, encode_variable(len(properties)), properties, body.rest()))
        out += bytes((first,)), encode_variable(len(rest)), rest
    return b"".join(out)


def publications(
    batch: PublishBatch, *, waited_seconds: float, qos_max: int, retain: bool
) -> Iterator[tuple[Publication, list[bytes]]]:
    """Yield the messages that have not expired, within the limits of the remote broker, in order.
    Consecutive messages with the same publication are grouped.
    """
    made: list[tuple[Publication, bytes]] = []
    for index, topic in enumerate(batch.topics):
        properties = batch.properties[index] if batch.properties else b""
        expiry = batch.expiries[index] if batch.expiries else NO_EXPIRY
        if expiry != NO_EXPIRY:
            left = expiry - waited_seconds
            if left <= 0:
                continue
            properties = with_time_left(properties, round(left * SECOND_US))
        flags = batch.flags[index]
        publication = Publication(
            topic=topic,
            qos=min(flags & _QOS, qos_max),
            retain=retain and flags & RETAIN != 0,
            properties=properties,
        )
        made.append((publication, batch.values[index]))
    for publication, run in groupby(made, lambda pair: pair[0]):
        yield publication, [payload for _, payload in run]


def encode_message(publication: Publication, payload: bytes) -> bytes:
    """Return one message as the data of an entry."""
    return encode_publishes(
        Version.V5,
        [publication.topic],
        [payload],
        [publication.flags],
        [1],
        [publication.properties],
    )
