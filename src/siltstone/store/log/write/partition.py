"""Check rows and split them by shard. The shard is a stable hash of the publisher or topic.

The hash is the same on every machine and must never change.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from siltstone.errors import UsageError
from siltstone.rows.batch import RETAIN, RowBatch
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.write.frame_builder import ROW_OVERHEAD, Call, measure_column
from siltstone.store.slab.settings import VALUE_BYTES_MAX, DatabaseSettings
from siltstone.topic.grammar import TOPIC_SIZE_MAX, TopicFilter

_QOS: Final = (0, 1, 2)
# The index of the first field of a Row that the store sets, and the initial values from there.
_SET_BY_STORE: Final = 6
_UNSET: Final = Row("", b"")[_SET_BY_STORE:]
_FLAGS: Final = bytes([*_QOS, *(RETAIN | qos for qos in _QOS)])


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows to append as parallel lists, for programs that append many rows.

    A single publisher or flags value applies to all rows. Flags are QoS in bits 0 and 1, retain in
    bit 2. The program must not change the lists after it passed them to the store.
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
    if not isinstance(rows, Iterable):
        raise UsageError(f"rows must be Rows, or Columns: type={type(rows).__name__}")
    listed = list(rows)
    columns = Columns([], [], [], [], [])
    assert isinstance(columns.publisher, list)
    assert isinstance(columns.flags, list)
    assert columns.properties is not None
    for number, row in enumerate(listed):
        if not isinstance(row, Row):
            raise UsageError(f"not a Row: row={number} type={type(row).__name__}")
        if row[_SET_BY_STORE:] != _UNSET:
            raise UsageError(
                f"the store sets timestamp_us, shard, generation, stream and serial; to append a "
                f"row that was read, pass Row(*row[:6]): row={number}"
            )
        if not _is_number(row.qos) or row.qos not in _QOS:
            raise UsageError(f"qos must be 0, 1 or 2: row={number} qos={row.qos}")
        if not isinstance(row.retain, bool):
            raise UsageError(f"retain must be a bool: row={number} retain={row.retain!r}")
        columns.topics.append(_encoded(row.topic, "topic", number))
        columns.values.append(_as_bytes(row.value, "value", number))
        columns.publisher.append(_encoded(row.publisher, "publisher", number))
        columns.flags.append(row.qos | (RETAIN if row.retain else 0))
        columns.properties.append(_as_bytes(row.properties, "properties", number))
    return columns


def _is_number(value: object) -> bool:
    """Return whether a value is an int, but not a bool, which is an int to Python."""
    return isinstance(value, int) and not isinstance(value, bool)


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


def shard_of(key: bytes, shards: int) -> int:
    """Return the shard of a publisher or topic."""
    return crc32(key) % shards


def may_hold(shard: int, topic_filter: TopicFilter, settings: DatabaseSettings) -> bool:
    """Return whether a shard may have rows of a filter.

    If a database is sharded by topic, all rows of one topic are in one shard.
    """
    if settings.shards == 1 or settings.shard_by != "topic":
        return True
    levels = topic_filter.levels
    if b"+" in levels or b"#" in levels:
        return True
    return shard_of(b"/".join(levels), settings.shards) == shard


def batch_of(columns: Columns) -> RowBatch:
    """Check columns and return them as a batch. Raises: UsageError.

    Its topics are not checked: the shard reports a bad one with the ticket.
    """
    size_bytes = _check(columns)
    batch = RowBatch()
    batch.topics = columns.topics
    batch.values = columns.values
    if isinstance(columns.publisher, bytes):
        batch.publisher = columns.publisher
    else:
        batch.publishers = columns.publisher
    if isinstance(columns.flags, int):
        batch.shared_flags = columns.flags
    else:
        batch.flags = columns.flags
    if columns.properties is not None and any(columns.properties):
        batch.properties = columns.properties
    batch.size_bytes = size_bytes
    return batch


def check_batch(batch: RowBatch) -> None:
    """Check the rows of a batch that was filled without checks. Raises: UsageError."""
    if not batch.checked:
        _check(
            Columns(
                batch.topics,
                batch.values,
                batch.publishers or batch.publisher,
                batch.shared_flags if batch.shared_flags >= 0 else batch.flags,
                batch.properties or None,
            )
        )


def split_batch(batch: RowBatch, settings: DatabaseSettings) -> list[Call]:
    """Split rows into one call for each shard, in order of shards; set their sizes."""
    if not batch.topics:
        return []
    shards = settings.shards
    if shards == 1:
        return [_call(batch)]
    by_publisher = settings.shard_by == "publisher"
    if by_publisher and not batch.publishers:
        call = _call(batch)
        call.shard = shard_of(batch.publisher, shards)
        return [call]
    rows_by_shard: dict[int, list[int]] = {}
    for number, key in enumerate(batch.publishers if by_publisher else batch.topics):
        rows_by_shard.setdefault(shard_of(key, shards), []).append(number)
    calls: list[Call] = []
    for shard, rows in sorted(rows_by_shard.items()):
        call = _call(batch.pick(rows))
        call.shard = shard
        call.rows = rows
        calls.append(call)
    return calls


def _call(batch: RowBatch) -> Call:
    call = Call(batch)
    call.size_bytes = batch.size_bytes + ROW_OVERHEAD * len(batch.topics)
    return call


def _check(columns: Columns) -> int:
    """Check the columns and return their size in bytes. Raises: UsageError.

    A shard would treat invalid columns as an internal error.
    """
    size_bytes = 0
    publishers = columns.publisher
    for name, needed in (("topics", columns.topics), ("values", columns.values)):
        if not isinstance(needed, list):
            raise UsageError(f"{name} must be a list: type={type(needed).__name__}")
    count = columns.count
    for name, column, size_max in (
        ("topics", columns.topics, TOPIC_SIZE_MAX),
        ("values", columns.values, VALUE_BYTES_MAX),
        ("publisher", publishers if isinstance(publishers, list) else None, TOPIC_SIZE_MAX),
        ("properties", columns.properties, VALUE_BYTES_MAX),
    ):
        if column is not None:
            if not isinstance(column, list):
                raise UsageError(f"{name} must be a list: type={type(column).__name__}")
            size_bytes += measure_column(column, name, count, size_max)
    if not isinstance(publishers, bytes | list):
        raise UsageError(f"publisher must be bytes: type={type(publishers).__name__}")
    if isinstance(publishers, bytes) and len(publishers) > TOPIC_SIZE_MAX:
        raise UsageError(
            f"publisher is too large: size_bytes={len(publishers)} max={TOPIC_SIZE_MAX}"
        )
    _check_flags(columns.flags, count)
    names = publishers if isinstance(publishers, list) else [publishers]
    for item in set(names):
        try:
            item.decode()
        except UnicodeDecodeError as exc:
            place = f": row={names.index(item)}" if isinstance(publishers, list) else ""
            raise UsageError(f"publisher is not valid UTF-8{place}") from exc
    return size_bytes


def _check_flags(flags: object, count: int) -> None:
    """Check that flags contain only a QoS and retain. Raises: UsageError."""
    if not isinstance(flags, list):
        if not _is_legal(flags):
            raise UsageError(
                f"flags must be a QoS from 0 to 2, with or without retain: flags={flags!r}"
            )
        return
    if len(flags) != count:
        raise UsageError(f"columns must have the same length: topics={count} flags={len(flags)}")
    with suppress(TypeError, ValueError):
        # Check all rows at once; the loop below only finds the row to report.
        if not bytes(flags).translate(None, _FLAGS):
            return
    row = next(row for row, item in enumerate(flags) if not _is_legal(item))
    raise UsageError(
        f"flags must be a QoS from 0 to 2, with or without retain: row={row} flags={flags[row]!r}"
    )


def _is_legal(flags: object) -> bool:
    return _is_number(flags) and flags in tuple(_FLAGS)
