"""Which shard a row goes to: a stable hash of its publisher or topic, the same on every machine and
for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

from siltstone.errors import UsageError
from siltstone.store.cook import Call
from siltstone.store.rows import QOS_MASK, RETAIN, Row
from siltstone.store.settings import DatabaseSettings


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows to append as parallel lists, for those who have many.

    A single publisher or flags value holds for all rows. Flags are QoS in bits 0 and 1, retain in
    bit 2. The lists belong to the store once given: they must not change.
    """

    topics: list[bytes]
    values: list[bytes]
    publisher: bytes | list[bytes] = b""
    flags: int | list[int] = 0
    properties: list[bytes] | None = None

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.topics)


def columns_of(rows: Iterable[Row]) -> Columns:
    """Turn rows into columns. Raises: UsageError, naming the row."""
    listed = list(rows)
    columns = Columns([], [], [], [], [])
    assert isinstance(columns.publisher, list)
    assert isinstance(columns.flags, list)
    assert columns.properties is not None
    for number, row in enumerate(listed):
        if not isinstance(row, Row):
            raise UsageError(f"not a Row: row={number} type={type(row).__name__}")
        if not 0 <= row.qos <= 2:
            raise UsageError(f"qos must be 0, 1 or 2: row={number} qos={row.qos}")
        columns.topics.append(_encoded(row.topic, "topic", number))
        columns.values.append(_as_bytes(row.value, "value", number))
        columns.publisher.append(_encoded(row.publisher, "publisher", number))
        columns.flags.append(row.qos & QOS_MASK | (RETAIN if row.retain else 0))
        columns.properties.append(_as_bytes(row.properties, "properties", number))
    return columns


def _encoded(text: str, name: str, number: int) -> bytes:
    if not isinstance(text, str):
        raise UsageError(f"{name} must be text: row={number} type={type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise UsageError(f"{name} is not valid Unicode: row={number}") from exc


def _as_bytes(data: bytes, name: str, number: int) -> bytes:
    if not isinstance(data, bytes):
        raise UsageError(f"{name} must be bytes: row={number} type={type(data).__name__}")
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one shard gets of a call; rows are their numbers in it, None for all."""

    shard: int
    call: Call
    rows: list[int] | None


def shard_of(key: bytes, shards: int) -> int:
    """Return the shard of a publisher or topic."""
    return crc32(key) % shards


def split_call(columns: Columns, settings: DatabaseSettings) -> list[Part]:
    """Split a call by shard, in order. Raises: UsageError."""
    _check(columns)
    if settings.shards == 1:
        return [Part(shard=0, call=_call(columns, None), rows=None)] if columns.count else []
    if settings.shard_by == "publisher" and isinstance(columns.publisher, bytes):
        shard = shard_of(columns.publisher, settings.shards)
        return [Part(shard=shard, call=_call(columns, None), rows=None)] if columns.count else []
    keys: Sequence[bytes] = columns.topics
    if settings.shard_by == "publisher":
        assert isinstance(columns.publisher, list)
        keys = columns.publisher
    rows_by_shard: dict[int, list[int]] = {}
    for number, key in enumerate(keys):
        rows_by_shard.setdefault(shard_of(key, settings.shards), []).append(number)
    return [
        Part(shard=shard, call=_call(columns, rows), rows=rows)
        for shard, rows in sorted(rows_by_shard.items())
    ]


def _check(columns: Columns) -> None:
    """Refuse what the shards could not tell apart from a mistake of ours. Raises: UsageError."""
    publishers = columns.publisher
    for name, column in (
        ("topics", columns.topics),
        ("values", columns.values),
        ("publisher", publishers if isinstance(publishers, list) else [publishers]),
        ("properties", columns.properties or []),
    ):
        if not isinstance(column, list):
            raise UsageError(f"{name} must be a list: type={type(column).__name__}")
        # One set of types a column: the rows are looked at one by one only to name the culprit.
        if column and set(map(type, column)) != {bytes}:
            number = next(i for i, item in enumerate(column) if type(item) is not bytes)
            kind = type(column[number]).__name__
            raise UsageError(f"{name} must be bytes: row={number} type={kind}")
    for name, length in (
        ("values", len(columns.values)),
        ("publisher", len(publishers) if isinstance(publishers, list) else columns.count),
        ("flags", len(columns.flags) if isinstance(columns.flags, list) else columns.count),
        ("properties", columns.count if columns.properties is None else len(columns.properties)),
    ):
        if length != columns.count:
            raise UsageError(f"columns differ in length: topics={columns.count} {name}={length}")
    names = publishers if isinstance(publishers, list) else [publishers]
    try:
        for publisher in set(names):
            publisher.decode()
    except UnicodeDecodeError as exc:
        raise UsageError("publisher is not valid UTF-8") from exc


def _call(columns: Columns, rows: list[int] | None) -> Call:
    publisher = columns.publisher if isinstance(columns.publisher, bytes) else b""
    call = Call(
        _pick(columns.topics, rows),
        _pick(columns.values, rows),
        publisher,
    )
    if isinstance(columns.publisher, list):
        call.publishers = _pick(columns.publisher, rows)
    if isinstance(columns.flags, int):
        call.flags = columns.flags
    else:
        call.flag_list = columns.flags if rows is None else [columns.flags[i] for i in rows]
    if columns.properties is not None:
        properties = _pick(columns.properties, rows)
        call.properties = properties if any(properties) else None
    return call


def _pick(column: list[bytes], rows: list[int] | None) -> list[bytes]:
    return column if rows is None else [column[i] for i in rows]
