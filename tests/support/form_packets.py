"""Subjects of the form comparison that read and write packets, and the packets.

A packet is made of mostly legal parts: every property in any order and number, every packet type,
every flag. Some of its bytes may then be changed.
"""

from __future__ import annotations

from random import Random
from typing import Any

from librt.strings import BytesWriter

from siltstone.errors import SiltstoneError
from siltstone.mqtt.connection import ServerConnection
from siltstone.mqtt.flow import (
    Receipts,
    Received,
    find_flags,
    find_reserved,
    is_reserved,
    pick,
    without,
)
from siltstone.mqtt.properties import RULES, PropertyEncoding
from siltstone.mqtt.publish import (
    AckBatch,
    PublishBatch,
    PublishWriter,
    encode_acks,
    encode_publishes,
    encode_receipts,
    expiry_of,
    publish_size,
    stored_properties,
    with_expiry,
)
from siltstone.mqtt.splitter import PacketSplitter, RawPacket
from siltstone.mqtt.wire import encode_variable

WORDS = ("a", "b", "c", "", "$x", "é", "+", "#", "\0", "a" * 70)
TOPICS = ("a", "a/b", "a/b/c", "b", "$SYS/a", "é/b", "a//b", "t" * 80)
RESERVED = ("$SYS/broker/connection/state", "$SYS/broker/connection//state", "$SYS/a", "a")
FILTERS = ("a", "a/+", "#", "+/b", "a/#", "$share/g/a/#", "$share/g/#", "b/é", "a/#/b", "")
MESSAGE_IDS = (0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x23, 0x26)
KINDS = {rule.id: rule.kind for rule in RULES}
INTEGERS = (0, 1, 2, 127, 128, 255, 256, 16_383, 16_384, 65_535, 2_097_151, 2_097_152)


def plain(value: Any) -> Any:
    """Return a value whose text is the same in both forms."""
    match value:
        case PublishBatch():
            return (
                value.topics,
                value.values,
                value.flags,
                value.packet_ids,
                value.properties,
                value.expiries,
            )
        case AckBatch():
            return value.first, value.packet_ids
        case RawPacket():
            return value.first, value.body
        case SiltstoneError():
            return type(value).__name__, str(value), getattr(value, "reason", None)
        case BaseException():
            # The interpreter and mypyc have different messages for their own errors.
            return type(value).__name__
        case _:
            return value


def attempt(act: Any, *args: Any) -> Any:
    """Call a function, and return its result or its error."""
    try:
        return plain(act(*args))
    except Exception as exc:  # noqa: BLE001 - whatever it is, the other form must raise it too
        return plain(exc)


def sized(data: bytes) -> bytes:
    return len(data).to_bytes(2) + data


def text(rng: Random) -> bytes:
    return rng.choice(WORDS).encode()


def property_of(rng: Random, identifier: int) -> bytes:
    """Return one property with its identifier."""
    head = bytes((identifier,))
    match KINDS.get(identifier):
        case PropertyEncoding.FLAG:
            return head + bytes((rng.choice((0, 1, 1, 2)),))
        case PropertyEncoding.TWO:
            return head + rng.choice(INTEGERS[:10]).to_bytes(2)
        case PropertyEncoding.FOUR:
            return head + rng.choice((*INTEGERS, 2**31, 2**32 - 1)).to_bytes(4)
        case PropertyEncoding.VARIABLE:
            return head + encode_variable(rng.choice(INTEGERS))
        case PropertyEncoding.PAIR:
            return head + sized(text(rng)) + sized(text(rng))
        case None:
            return head + rng.randbytes(3)
        case _:
            return head + sized(rng.choice((text(rng), rng.choice(TOPICS).encode())))


def properties_of(rng: Random, identifiers: tuple[int, ...] = MESSAGE_IDS) -> bytes:
    """Return properties in any order and number, without the length prefix."""
    known = tuple(KINDS) if rng.random() < 0.05 else identifiers
    parts = [property_of(rng, rng.choice(known)) for _ in range(rng.choice((0, 1, 2, 2, 3, 5)))]
    if rng.random() < 0.02:
        parts.append(property_of(rng, rng.randrange(256)))
    return b"".join(parts)


def block(properties: bytes) -> bytes:
    return encode_variable(len(properties)) + properties


def packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + encode_variable(len(body)) + body


def publish(rng: Random, version: int) -> bytes:
    flags = rng.choice((0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 8, 6))
    topic = b"" if rng.random() < 0.2 else rng.choice(TOPICS).encode()
    body = sized(topic)
    if flags & 6:
        body += rng.choice((0, 1, 1, 2, 65_535)).to_bytes(2)
    if version == 5:
        body += block(properties_of(rng))
    return packet(0x30 | flags, body + rng.randbytes(rng.choice((0, 1, 5, 130))))


def connect(rng: Random, version: int) -> bytes:
    flags = rng.choice((2, 0, 6, 0x0E, 0x36, 0xC2, 0x42, 0x82, 0x1E, 3))
    body = sized(b"MQTT") + bytes((version, flags)) + rng.choice((0, 10)).to_bytes(2)
    if version == 5:
        body += block(properties_of(rng, (0x11, 0x15, 0x16, 0x17, 0x19, 0x21, 0x22, 0x26, 0x27)))
    body += sized(text(rng))
    if flags & 4:
        if version == 5:
            body += block(properties_of(rng, (0x01, 0x02, 0x03, 0x08, 0x09, 0x18, 0x26)))
        body += sized(rng.choice(TOPICS).encode()) + sized(rng.randbytes(3))
    if flags & 0x80:
        body += sized(text(rng))
    if flags & 0x40:
        body += sized(rng.randbytes(2))
    return packet(0x10, body)


def other(rng: Random, version: int) -> bytes:
    """Return any packet except PUBLISH and CONNECT."""
    first = rng.choice(
        (0x40, 0x50, 0x62, 0x70, 0x82, 0x82, 0xA2, 0xA2, 0xC0, 0xE0, 0xF0, 0x20, 0x90, 0xB0, 0xD0)
    )
    packet_id = rng.choice((0, 1, 1, 2, 65_535)).to_bytes(2)
    properties = block(properties_of(rng, (0x1F, 0x26, 0x0B))) if version == 5 else b""
    reason = bytes((rng.choice((0, 0, 1, 2, 0x10, 0x80, 0x92, 0x97)),))
    body = b""
    if first in {0x40, 0x50, 0x62, 0x70}:
        body = packet_id + rng.choice((b"", b"", reason, reason + properties))
    elif first in {0x82, 0xA2}:
        options = b"" if first == 0xA2 else bytes((rng.choice((0, 1, 2, 3, 0x05, 0x2C, 0xC0)),))
        filters = [sized(rng.choice(FILTERS).encode()) + options for _ in range(rng.randrange(4))]
        body = packet_id + properties + b"".join(filters)
    elif first in {0xE0, 0xF0}:
        body = rng.choice((b"", reason, reason + properties))
    elif first == 0x20:
        body = b"\0" + reason + properties
    elif first in {0x90, 0xB0}:
        body = packet_id + properties + reason * rng.randrange(3)
    return packet(first, body)


def any_packet(rng: Random, version: int) -> bytes:
    kind = rng.random()
    if kind < 0.6:
        return publish(rng, version)
    return connect(rng, version) if kind < 0.63 else other(rng, version)


def changed(rng: Random, data: bytes) -> bytes:
    """Return bytes with random changes; mostly unchanged."""
    made = bytearray(data)
    while made and rng.random() < 0.15:
        place = rng.randrange(len(made))
        match rng.randrange(3):
            case 0:
                made[place] = rng.choice((0, 1, 0x23, 0x26, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 1:
                made.insert(place, rng.randrange(256))
            case _:
                del made[place]
    return bytes(made)


def pieces(rng: Random, data: bytes) -> list[bytes]:
    """Return the bytes in chunks, as a socket may deliver them."""
    if rng.random() < 0.5:
        return [data]
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(6)))
    return [data[i:j] for i, j in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def stream(rng: Random, version: int) -> bytes:
    return changed(rng, b"".join(any_packet(rng, version) for _ in range(rng.randrange(1, 6))))


def splitter(rng: Random) -> Any:
    version = rng.choice((4, 5, 5, 5))
    split = PacketSplitter(rng.choice((60, 4_000)), rng.random() < 0.3)
    split.topic_levels_max = rng.choice((0, 2, 10))
    split.large_bytes = rng.choice((5, 30, 4_000))
    found: list[Any] = []
    if rng.random() < 0.1:
        found += split.feed(connect(rng, version) + stream(rng, version))
    found += split.begin(version, rng.choice((0, 1, 65_535)))
    for piece in pieces(rng, stream(rng, version)):
        found += split.feed(piece)
    return [plain(event) for event in found], split.held_bytes()


def connection(rng: Random) -> Any:
    version = rng.choice((4, 5, 5))
    served = ServerConnection(rng.choice((60, 4_000)), rng.choice((2, 10)))
    found: list[Any] = []
    for piece in pieces(rng, changed(rng, connect(rng, version)) + stream(rng, version)):
        found += served.feed(piece)
        if served.state.name == "WAITING":
            found += served.begin(rng.choice((0, 10)), rng.choice((100, 4_000)))
    return [plain(event) for event in found], served.state.name, served.version, served.held_bytes


def _batch(rng: Random) -> PublishBatch:
    """Return the legal ones of some random messages."""
    batch = PublishBatch()
    for _ in range(rng.randrange(8)):
        split = PacketSplitter(4_000)
        split.begin(5, 65_535)
        for event in split.feed(publish(rng, 5)):
            if isinstance(event, PublishBatch):
                batch.topics += event.topics
                batch.values += event.values
                batch.flags += event.flags
                batch.packet_ids += event.packet_ids
                batch.properties += event.properties or [b""]
                batch.expiries += event.expiries or [-1]
    return batch


def publisher(rng: Random) -> Any:
    """Write batches, and parse stored properties."""
    batch = _batch(rng)
    version = rng.choice((4, 5))
    writer = PublishWriter(version, rng.choice((0, 20, 60, 200)), rng.choice((0, 1, 3)))
    out = BytesWriter()
    for index, topic in enumerate(batch.topics * 2):
        number = index % len(batch.topics)
        properties = batch.properties[number] if batch.properties else b""
        message = topic, batch.values[number], batch.flags[number]
        if writer.fits(*message, properties):
            writer.write(out, *message, batch.packet_ids[number], properties)
    raw = changed(rng, properties_of(rng))
    clean = stored_properties(raw)
    seconds = rng.choice((0, 1, 77, 2**31, 2**32 - 1))
    return (
        out.getvalue(),
        attempt(
            encode_publishes,
            version,
            batch.topics,
            batch.values,
            batch.flags,
            batch.packet_ids,
            batch.properties,
        ),
        clean,
        expiry_of(clean),
        with_expiry(clean, seconds),
        publish_size(version, b"a/b", raw, rng.randrange(16), clean),
        encode_receipts(batch.flags, batch.packet_ids),
        encode_acks(rng.choice((0x40, 0x50, 0x62, 0x70)), batch.packet_ids, rng.choice((0, 0x92))),
    )


def flow(rng: Random) -> Any:
    """Receive batches, settle receipts in any order, release ids."""
    received, receipts = Received(), Receipts()
    owed: list[Any] = []
    found: list[Any] = []
    for _ in range(rng.randrange(1, 8)):
        batch = _batch(rng)
        new = received.take_new(batch)
        receipt = receipts.add(new)
        owed += [] if receipt is None else [receipt]
        if owed and rng.random() < 0.7:
            chosen = owed.pop(rng.randrange(len(owed)))
            chosen.waits = 0
            if rng.random() < 0.3:
                chosen.fail(rng.choice((0x80, 0x87)))
            elif rng.random() < 0.3:
                chosen.refuse([rng.randrange(len(chosen.packet_ids))], 0x99)
            found.append(chosen.refused())
        found.append([each.encode() for each in receipts.take_settled()])
        ids = [rng.choice((1, 2, 65_535)) for _ in range(rng.randrange(3))]
        found.append(received.release(ids, rng.choice((4, 5))))
        receipts.complete(ids)
        numbers = [number for number in range(len(batch.topics)) if rng.random() < 0.5]
        found += [plain(new), plain(pick(batch, numbers)), plain(without(batch, numbers))]
        found += [
            len(receipts),
            find_flags(batch, 4),
            find_reserved(batch),
            is_reserved(rng.choice(RESERVED).encode()),
        ]
    return found
