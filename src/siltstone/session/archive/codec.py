"""The byte format of saved sessions and groups: one version byte, then fields, big endian.

    text, bytes    u32 size | that many bytes
    places         u32 count | shards u32 each | serials u64 each
    ranges         u32 count | shards u32 each | firsts u64 each | stops u64 each

    session        02 | u64 revision | text client id | text user | u8 flags | u8 MQTT version |
                   u32 expiry | u64 run | u64 dropped | u64 away since | will, when flags say so |
                   text identity
    will           bytes topic | bytes payload | bytes properties | u8 QoS | u8 retain |
                   u32 delay | u64 expiry, all ones for none
    subscription   01 | text filter | u8 options | u32 identifier | places since
    progress       01 | u16 next packet id | places | ranges done | u32 count |
                   packet ids u16 each | shards u32 each | serials u64 each | flags u8 each
    received       01 | u32 count | packet ids u16, producers u64, sequences u32, each a column
    message        01 | u16 packet id | u8 flags | u64 arrived | bytes topic, payload, properties
    group          02 | u64 revision | text name, filter, strategy | u32 expiry | u64 created |
                   u8 empty | u64 empty since | places since | text identity

The identity is that of the database to which all places of a session or group refer. Version 1 of
both ends before the identity. Places and identity change in one transaction.
Flags of a session: 1 connected, 2 away, 4 with a will, 8 unclean. Options are those of SUBSCRIBE:
QoS in bits 0 and 1, no local in 2, retain as published in 3, retain handling in 4 and 5. Bytes that
are cut short, have extra bytes at the end, or hold an invalid value are refused as damaged.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from pathlib import PurePath
from typing import Final, NamedTuple

from siltstone.errors import CorruptionError, UsageError
from siltstone.fs.paths import COMMITS
from siltstone.mqtt.publish import stored_properties
from siltstone.session.archive.records import (
    SavedGroup,
    SavedInflight,
    SavedMessage,
    SavedReceived,
    SavedSession,
    SavedSubscription,
    SavedWill,
    SerialRange,
)
from siltstone.store.feed.position import START, Position
from siltstone.store.slab.identity import UNIDENTIFIED

VERSION: Final = 1
# The version of sessions and groups that include the identity of their database.
IDENTIFIED: Final = 2
# The path that errors report.
PATH: Final = PurePath(COMMITS)
NO_TIME: Final = (1 << 64) - 1

_CONNECTED: Final = 1
_AWAY: Final = 2
_WILL: Final = 4
_UNCLEAN: Final = 8
_QOS: Final = 0x03
_NO_LOCAL: Final = 0x04
_RETAIN_AS_PUBLISHED: Final = 0x08
_RETAIN_HANDLING: Final = 4

_U8: Final = struct.Struct(">B")
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
# The count of an empty list.
_NONE: Final = bytes(4)
_HEAD: Final = struct.Struct(">BQ")
_SESSION: Final = struct.Struct(">BBIQQQ")
_WHEN: Final = struct.Struct(">BBIQ")
_OPTIONS: Final = struct.Struct(">BI")
_MESSAGE: Final = struct.Struct(">HBQ")
# A progress with one place, and without ranges and messages in flight.
_PLAIN_PROGRESS: Final = struct.Struct(">BHIIQII")
_GROUP: Final = struct.Struct(">IQBQ")


@lru_cache(maxsize=1024)
def _layout(form: str) -> struct.Struct:
    """Return a layout that depends on a count; the cache helps because most counts repeat."""
    return struct.Struct(form)


class SavedProgress(NamedTuple):
    """The progress of a session or a group: the rows that it has read and acknowledged.

    The position has no identity, because the row of the session or group has it.
    """

    position: Position = START
    done: tuple[SerialRange, ...] = ()
    inflight: tuple[SavedInflight, ...] = ()
    next_packet_id: int = 1


NO_PROGRESS: Final = SavedProgress()


def encode_session(session: SavedSession, revision: int) -> bytes:
    """Return the row of a session, without the parts that have rows of their own."""
    will = session.will
    away_since_us = session.away_since_us
    flags = (
        (_CONNECTED if session.connected else 0)
        | (0 if away_since_us is None else _AWAY)
        | (0 if will is None else _WILL)
        | (_UNCLEAN if session.unclean else 0)
    )
    return b"".join(
        (
            _packed(_HEAD, IDENTIFIED, revision),
            _sized(session.client_id.encode()),
            _sized(session.user.encode()),
            _packed(
                _SESSION,
                flags,
                session.version,
                session.expiry_seconds,
                session.run,
                session.dropped,
                away_since_us or 0,
            ),
            b"" if will is None else _encode_will(will),
            _sized(session.identity.encode()),
        )
    )


def decode_session(data: bytes) -> tuple[SavedSession, int]:
    """Return a session, without the parts that have rows of their own, and its revision.

    Raises: CorruptionError; UsageError for a row of a newer Siltstone. All other decoders in this
    module raise the same.
    """
    cursor = _Cursor(data, "session", IDENTIFIED)
    (revision,) = cursor.take(_U64)
    client_id, user = cursor.text(), cursor.text()
    flags, version, expiry_seconds, run, dropped, away_since_us = cursor.take(_SESSION)
    session = SavedSession(
        client_id=client_id,
        user=user,
        version=version,
        expiry_seconds=expiry_seconds,
        connected=bool(flags & _CONNECTED),
        run=run,
        away_since_us=away_since_us if flags & _AWAY else None,
        unclean=bool(flags & _UNCLEAN),
        will=_decode_will(cursor) if flags & _WILL else None,
        dropped=dropped,
        position=Position({}, cursor.identity()),
    )
    cursor.end()
    return session, revision


def encode_subscription(subscription: SavedSubscription) -> bytes:
    """Return the row of a subscription."""
    options = (
        subscription.qos
        | (_NO_LOCAL if subscription.no_local else 0)
        | (_RETAIN_AS_PUBLISHED if subscription.retain_as_published else 0)
        | subscription.retain_handling << _RETAIN_HANDLING
    )
    return b"".join(
        (
            _packed(_U8, VERSION),
            _sized(subscription.filter.encode()),
            _packed(_OPTIONS, options, subscription.identifier),
            _encode_places(subscription.since),
        )
    )


def decode_subscription(data: bytes) -> SavedSubscription:
    """Return the subscription that encode_subscription encoded."""
    cursor = _Cursor(data, "subscription")
    text = cursor.text()
    options, identifier = cursor.take(_OPTIONS)
    subscription = SavedSubscription(
        filter=text,
        qos=options & _QOS,
        no_local=bool(options & _NO_LOCAL),
        retain_as_published=bool(options & _RETAIN_AS_PUBLISHED),
        retain_handling=options >> _RETAIN_HANDLING,
        identifier=identifier,
        since=cursor.places(),
    )
    cursor.end()
    return subscription


def encode_progress(progress: SavedProgress) -> bytes:
    """Return the row of the progress of a session or group."""
    inflight = progress.inflight
    count = len(inflight)
    places = progress.position.serials
    if not count and not progress.done and len(places) == 1:
        # The usual case: the session has one shard and has acknowledged everything.
        ((shard, serial),) = places.items()
        return _packed(_PLAIN_PROGRESS, VERSION, progress.next_packet_id, 1, shard, serial, 0, 0)
    tail = _NONE
    if count:
        ids, shards, serials, flags = zip(*inflight, strict=True)
        layout = _layout(f">I{count}H{count}I{count}Q{count}B")
        tail = _packed(layout, count, *ids, *shards, *serials, *flags)
    return b"".join(
        (
            _packed(_U8, VERSION),
            _packed(_U16, progress.next_packet_id),
            _encode_places(progress.position),
            _encode_ranges(progress.done),
            tail,
        )
    )


def decode_progress(data: bytes) -> SavedProgress:
    """Return the progress that encode_progress encoded."""
    cursor = _Cursor(data, "progress")
    (next_packet_id,) = cursor.take(_U16)
    position, done = cursor.places(), cursor.ranges()
    count = cursor.count(15)
    columns = [cursor.column(count, kind) for kind in "HIQB"]
    cursor.end()
    inflight = tuple(map(SavedInflight._make, zip(*columns, strict=True)))
    return SavedProgress(position, done, inflight, next_packet_id)


def encode_received(received: tuple[SavedReceived, ...]) -> bytes:
    """Return the row of the QoS 2 messages that a client has not released."""
    count = len(received)
    columns: list[int] = []
    for column in zip(*received, strict=True):
        columns.extend(column)
    return _packed(_layout(f">BI{count}H{count}Q{count}I"), VERSION, count, *columns)


def decode_received(data: bytes) -> tuple[SavedReceived, ...]:
    """Return the messages that encode_received encoded."""
    cursor = _Cursor(data, "received")
    count = cursor.count(14)
    columns = [cursor.column(count, kind) for kind in "HQI"]
    cursor.end()
    return tuple(map(SavedReceived._make, zip(*columns, strict=True)))


def encode_message(message: SavedMessage) -> bytes:
    """Return the row of a message that is not in the store."""
    return b"".join(
        (
            _packed(_U8, VERSION),
            _packed(_MESSAGE, message.packet_id, message.flags, message.arrived_us),
            _sized(message.topic),
            _sized(message.payload),
            _sized(message.properties),
        )
    )


def decode_message(data: bytes) -> SavedMessage:
    """Return the message that encode_message encoded."""
    cursor = _Cursor(data, "message")
    packet_id, flags, arrived_us = cursor.take(_MESSAGE)
    topic, payload, properties = cursor.bytes(), cursor.bytes(), cursor.bytes()
    cursor.end()
    return SavedMessage(packet_id, topic, payload, flags, stored_properties(properties), arrived_us)


def encode_group(group: SavedGroup, revision: int) -> bytes:
    """Return the row of a group, without its progress."""
    empty_since_us = group.empty_since_us
    return b"".join(
        (
            _packed(_HEAD, IDENTIFIED, revision),
            _sized(group.name.encode()),
            _sized(group.filter.encode()),
            _sized(group.strategy.encode()),
            _packed(
                _GROUP,
                group.expiry_seconds,
                group.created_us,
                0 if empty_since_us is None else 1,
                empty_since_us or 0,
            ),
            _encode_places(group.since),
            _sized(group.identity.encode()),
        )
    )


def decode_group(data: bytes) -> tuple[SavedGroup, int]:
    """Return a group without its progress, and its revision."""
    cursor = _Cursor(data, "group", IDENTIFIED)
    (revision,) = cursor.take(_U64)
    name, text, strategy = cursor.text(), cursor.text(), cursor.text()
    expiry_seconds, created_us, empty, empty_since_us = cursor.take(_GROUP)
    group = SavedGroup(
        name=name,
        filter=text,
        strategy=strategy,
        expiry_seconds=expiry_seconds,
        created_us=created_us,
        empty_since_us=empty_since_us if empty else None,
        since=cursor.places(),
        position=Position({}, cursor.identity()),
    )
    cursor.end()
    return group, revision


def _encode_will(will: SavedWill) -> bytes:
    expiry = NO_TIME if will.expiry_seconds is None else will.expiry_seconds
    return b"".join(
        (
            _sized(will.topic),
            _sized(will.payload),
            _sized(will.properties),
            _packed(_WHEN, will.qos, int(will.retain), will.delay_seconds, expiry),
        )
    )


def _decode_will(cursor: _Cursor) -> SavedWill:
    topic, payload, properties = cursor.bytes(), cursor.bytes(), cursor.bytes()
    qos, retain, delay_seconds, expiry = cursor.take(_WHEN)
    return SavedWill(
        topic=topic,
        payload=payload,
        qos=qos,
        retain=bool(retain),
        properties=properties,
        delay_seconds=delay_seconds,
        expiry_seconds=None if expiry == NO_TIME else expiry,
    )


def _encode_places(position: Position) -> bytes:
    if not position.serials:
        return _NONE
    count = len(position.serials)
    shards, serials = zip(*sorted(position.serials.items()), strict=True)
    return _packed(_layout(f">I{count}I{count}Q"), count, *shards, *serials)


def _encode_ranges(ranges: tuple[SerialRange, ...]) -> bytes:
    if not ranges:
        return _NONE
    count = len(ranges)
    shards, firsts, stops = zip(*ranges, strict=True)
    return _packed(_layout(f">I{count}I{count}Q{count}Q"), count, *shards, *firsts, *stops)


def _sized(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


def _packed(layout: struct.Struct, *values: int) -> bytes:
    try:
        return layout.pack(*values)
    except struct.error as exc:
        raise UsageError(f"a number in the state is out of range: {exc}") from exc


class _Cursor:
    """A read position in stored bytes; it never reads past their end."""

    def __init__(self, data: bytes, noun: str, newest: int = VERSION) -> None:
        self._data = data
        self._noun = noun
        self._offset = 1
        self._version = data[0] if data else 0
        if self._version > newest:
            raise UsageError(
                f"a newer version of Siltstone saved the {noun}, use that version: "
                f"version={self._version} supported=1 to {newest}"
            )
        if self._version < VERSION:
            raise self.damaged("has an invalid version")

    def damaged(self, what: str) -> CorruptionError:
        """Return the error for bytes that cannot be decoded."""
        return CorruptionError(f"a saved {self._noun} {what}", path=PATH, offset=self._offset)

    def take(self, layout: struct.Struct) -> tuple[int, ...]:
        start = self._offset
        self._offset += layout.size
        if self._offset > len(self._data):
            raise self.damaged("is cut short")
        fields: tuple[int, ...] = layout.unpack_from(self._data, start)
        return fields

    def count(self, item_bytes: int) -> int:
        """Return a count, after a check that the data has bytes for so many items."""
        (count,) = self.take(_U32)
        if self._offset + count * item_bytes > len(self._data):
            raise self.damaged("is cut short")
        return count

    def column(self, count: int, kind: str) -> tuple[int, ...]:
        return self.take(_layout(f">{count}{kind}"))

    def places(self) -> Position:
        count = self.count(12)
        columns = (self.column(count, "I"), self.column(count, "Q"))
        serials = dict(zip(*columns, strict=True))
        if len(serials) != count:
            raise self.damaged("names a shard twice")
        return Position(serials)

    def ranges(self) -> tuple[SerialRange, ...]:
        count = self.count(20)
        columns = (self.column(count, "I"), self.column(count, "Q"), self.column(count, "Q"))
        return tuple(map(SerialRange._make, zip(*columns, strict=True)))

    def bytes(self) -> bytes:
        size = self.count(1)
        start = self._offset
        self._offset += size
        return self._data[start : self._offset]

    def text(self) -> str:
        try:
            return self.bytes().decode()
        except UnicodeDecodeError as exc:
            raise self.damaged("has invalid UTF-8") from exc

    def identity(self) -> str:
        """Return the identity of the database; empty if an earlier version saved the row."""
        return self.text() if self._version >= IDENTIFIED else UNIDENTIFIED

    def end(self) -> None:
        if self._offset != len(self._data):
            raise self.damaged("has extra bytes at its end")
