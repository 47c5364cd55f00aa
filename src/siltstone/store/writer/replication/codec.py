"""The bytes of a message of the shared log.

    0   4  magic `SREP`
    4   4  CRC-32C of everything after it
    8   4  length of the message, header included
    12  1  version: 1
    13  1  kind: 1 ROWS, 2 ROLL, 3 GENERATION, 4 DROP, 5 SETTINGS, 6 KV, 7 TERM, 8 GENESIS, 9 FENCE,
           10 BARRIER, 11 RETIRE
    14  2  number of this part, from 1
    16  2  number of parts
    18  2  zero
    20  4  epoch
    24  8  term
    32  8  index
    40  8  seen
    48  16 chain
    64  16 root
    80     body

Integers are little endian. A field that a kind does not use is zero: GENESIS uses none of term,
index, seen, chain and root; TERM uses term and root. Neither has parts.

The body of GENESIS is the database (16 bytes), the shard (u32) and the nonce (16 bytes). The body
of TERM is the boot (u64) and the site (UTF-8, 1 to 255 bytes). The body of FENCE is the producer
(16 bytes). That of RETIRE is the first 8 bytes of the producers of a site, and a number (u64). A
BARRIER has none. The body of ROWS and KV is the number of calls (u32), the calls (producer 16
bytes, number u64, previous u64), and the payload. All others have the payload only. A large body
is cut into parts: the bodies of the parts, joined, are the body.

A message has one encoding: decoding accepts the bytes that encoding makes, and no others. Two
errors tell the caller what to do. Damaged bytes can be fetched again from another copy of the log.
Bytes with a valid checksum that this version cannot read stop the site, because all copies of the
log have the same bytes.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from siltstone.errors import SiltstoneError, UsageError
from siltstone.store.writer.replication.messages import (
    CALL_KINDS,
    DIGEST_BYTES,
    NO_DIGEST,
    RECORD_KINDS,
    WHOLE_KINDS,
    Genesis,
    LogIdentity,
    Message,
    MessageKind,
    Place,
    ProducerCall,
    RecordChange,
    RecordMessage,
    Term,
)

MAGIC: Final = b"SREP"
VERSION: Final = 1
HEADER: Final = struct.Struct("<4sIIBBHHHIQQQ16s16s")
HEADER_BYTES: Final = 80
BODY_BYTES_MAX: Final = 512 * 1024
PARTS_MAX: Final = 0xFFFF
SITE_BYTES_MAX: Final = 255

_CRC_END: Final = 8
_CRC: Final = struct.Struct("<I")
_GENESIS: Final = struct.Struct("<16sI16s")
_BOOT: Final = struct.Struct("<Q")
_COUNT: Final = struct.Struct("<I")
_CALL: Final = struct.Struct("<16sQQ")


class DamagedRecordError(SiltstoneError):
    """The bytes differ from what was published; fetch the message from another copy of the log."""


class UnreadableRecordError(SiltstoneError):
    """The bytes are as published, but this version cannot read them; stop, and upgrade."""


def encode(message: Message) -> bytes:
    """Return the bytes of a message. Raises: UsageError for a field out of range."""
    match message:
        case Genesis(identity=identity, nonce=nonce):
            place = _place_of_claim(epoch=identity.epoch, term=0, root=NO_DIGEST)
            body = _GENESIS.pack(_digest(identity.database), identity.shard, _digest(nonce))
            return _pack(MessageKind.GENESIS, place, 1, 1, body)
        case Term():
            site = message.site.encode()
            if not 1 <= len(site) <= SITE_BYTES_MAX:
                raise UsageError(
                    f"the name of a site must have 1 to {SITE_BYTES_MAX} bytes, got {len(site)}"
                )
            place = _place_of_claim(epoch=message.epoch, term=message.term, root=message.root)
            return _pack(MessageKind.TERM, place, 1, 1, _BOOT.pack(message.boot) + site)
        case RecordMessage():
            if len(message.body) > BODY_BYTES_MAX:
                raise UsageError(
                    f"the body of a record must have at most {BODY_BYTES_MAX} bytes, "
                    f"got {len(message.body)}"
                )
            return _pack(message.kind, message.place, message.part, message.parts, message.body)


def _digest(value: bytes) -> bytes:
    """Return the value; `struct` would cut or pad one of another length silently."""
    if len(value) != DIGEST_BYTES:
        raise UsageError(f"a digest must have {DIGEST_BYTES} bytes, got {len(value)}")
    return value


def _place_of_claim(*, epoch: int, term: int, root: bytes) -> Place:
    return Place(epoch=epoch, term=term, index=0, chain=NO_DIGEST, root=root, seen=0)


def _pack(kind: int, place: Place, part: int, parts: int, body: bytes) -> bytes:
    length = HEADER_BYTES + len(body)
    numbers = (kind, part, parts, 0, place.epoch, place.term, place.index, place.seen)
    digests = (_digest(place.chain), _digest(place.root))
    try:
        data = HEADER.pack(MAGIC, 0, length, VERSION, *numbers, *digests) + body
    except struct.error as exc:
        raise UsageError(f"a field of the record is out of range: {place}") from exc
    return MAGIC + _CRC.pack(crc32c(data[_CRC_END:])) + data[_CRC_END:]


def decode(data: bytes) -> Message:
    """Return the message that these bytes encode.

    Raises: DamagedRecordError if the bytes differ from what was published; UnreadableRecordError if
    a newer version published them, or if they break the rules of the format.
    """
    version = _checked_version(data)
    if version != VERSION:
        raise UnreadableRecordError(
            f"the record has an unknown version, upgrade this site: version={version} "
            f"supported={VERSION}"
        )
    fields = HEADER.unpack_from(data)
    kind, part, parts, zero, epoch, term, index, seen, chain, root = fields[4:]
    body = data[HEADER_BYTES:]
    if zero != 0 or not 1 <= part <= parts:
        raise UnreadableRecordError(
            f"the header of the record is invalid: part={part} parts={parts} zero={zero}"
        )
    if kind in (MessageKind.GENESIS, MessageKind.TERM):
        if parts != 1 or index or seen or chain != NO_DIGEST:
            raise UnreadableRecordError("a GENESIS or TERM has fields that only records have")
        return _decode_claim(kind, epoch, term, root, body)
    if len(body) > BODY_BYTES_MAX:
        raise UnreadableRecordError(
            f"the body of the record is too long: size_bytes={len(body)} max={BODY_BYTES_MAX}"
        )
    place = Place(epoch=epoch, term=term, index=index, chain=chain, root=root, seen=seen)
    return RecordMessage(kind=kind, place=place, part=part, parts=parts, body=body)


def _checked_version(data: bytes) -> int:
    """Return the version of bytes whose length and checksum are right.

    Every version begins with the magic, the checksum, the length and the version.
    """
    if len(data) < HEADER_BYTES:
        raise DamagedRecordError(f"the record is too short: size_bytes={len(data)}")
    magic, crc, length, version = struct.unpack_from("<4sIIB", data)
    if magic != MAGIC:
        raise DamagedRecordError(f"the record does not begin with {MAGIC!r}, got {magic!r}")
    if length != len(data):
        raise DamagedRecordError(
            f"the record has another length than it says: size_bytes={len(data)} said={length}"
        )
    if crc32c(data[_CRC_END:]) != crc:
        raise DamagedRecordError(f"the checksum of the record is wrong: size_bytes={len(data)}")
    return int(version)


def _decode_claim(kind: int, epoch: int, term: int, root: bytes, body: bytes) -> Genesis | Term:
    """Return a GENESIS or a TERM."""
    if kind == MessageKind.GENESIS:
        if term or root != NO_DIGEST or len(body) != _GENESIS.size:
            raise UnreadableRecordError("a GENESIS has a term, a root, or a body of a wrong length")
        database, shard, nonce = _GENESIS.unpack(body)
        return Genesis(LogIdentity(database=database, shard=shard, epoch=epoch), nonce)
    if not _BOOT.size < len(body) <= _BOOT.size + SITE_BYTES_MAX:
        raise UnreadableRecordError(f"the body of a TERM has a wrong length: {len(body)}")
    try:
        site = body[_BOOT.size :].decode()
    except UnicodeDecodeError as exc:
        raise UnreadableRecordError("the name of the site in a TERM is not valid UTF-8") from exc
    (boot,) = _BOOT.unpack_from(body)
    return Term(epoch=epoch, term=term, root=root, site=site, boot=boot)


def encode_change(change: RecordChange) -> bytes:
    """Return the body of a record, before it is cut into parts."""
    if change.kind not in CALL_KINDS:
        return change.payload
    calls = b"".join(
        _CALL.pack(_digest(call.producer), call.number, call.previous) for call in change.calls
    )
    return _COUNT.pack(len(change.calls)) + calls + change.payload


def decode_change(kind: int, body: bytes) -> RecordChange:
    """Return the change that a complete record makes. Raises: UnreadableRecordError."""
    if kind not in RECORD_KINDS:
        raise UnreadableRecordError(
            f"the record has an unknown kind, upgrade this site: kind={kind}"
        )
    known = MessageKind(kind)
    if known in WHOLE_KINDS and len(body) != (0 if known is MessageKind.BARRIER else DIGEST_BYTES):
        raise UnreadableRecordError(
            f"the body of a {known.name} has a wrong length: size_bytes={len(body)}"
        )
    if known not in CALL_KINDS:
        return RecordChange(kind=known, calls=(), payload=body)
    if len(body) < _COUNT.size:
        raise UnreadableRecordError(f"the calls of the record are cut: size_bytes={len(body)}")
    (count,) = _COUNT.unpack_from(body)
    end = _COUNT.size + count * _CALL.size
    if end > len(body):
        raise UnreadableRecordError(
            f"the calls of the record are cut: count={count} size_bytes={len(body)}"
        )
    calls = tuple(
        ProducerCall(producer=producer, number=number, previous=previous)
        for producer, number, previous in _CALL.iter_unpack(body[_COUNT.size : end])
    )
    return RecordChange(kind=known, calls=calls, payload=body[end:])


def cut(body: bytes, part_bytes: int = BODY_BYTES_MAX) -> list[bytes]:
    """Return the parts of a body. Raises: UsageError if there would be too many."""
    parts = [body[at : at + part_bytes] for at in range(0, len(body), part_bytes)] or [b""]
    if len(parts) > PARTS_MAX:
        raise UsageError(
            f"the record is too large: size_bytes={len(body)} max={PARTS_MAX * part_bytes}"
        )
    return parts
