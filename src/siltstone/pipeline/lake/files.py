"""One task of a tier batch: it writes rows of the store to Parquet files of the lake.

A task reads its portion, sorts the rows by their rules, decodes them, and writes a file for each
table and partition. It syncs each file before it reports it. File names are unique, and a file
belongs to a table only when a Delta transaction names it. The rows of a file are sorted by topic
and then by serial, so that readers can skip what they do not need.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from siltstone.errors import UsageError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import create_directories
from siltstone.pipeline.lake.fields import KINDS, Path
from siltstone.pipeline.lake.names import DEAD_LETTER, ROW_COLUMNS
from siltstone.pipeline.lake.payloads import (
    Decoded,
    chained,
    decode_rows,
    reason_of,
    rescue_columns,
    text_columns,
)
from siltstone.pipeline.lake.rules import Partition, Rules, TableRule
from siltstone.scan.columns.levels import ROWS_MAX, level_lists
from siltstone.scan.columns.schema import table_schema
from siltstone.scan.options import ReadOptions
from siltstone.scan.portion import Readable

ROW_SCHEMA: Final = pa.schema(
    [pa.field(item.name, item.type) for item in table_schema(ROW_COLUMNS)]
)
_UNDECODED: Final = pa.schema(
    [*ROW_SCHEMA, pa.field("table", pa.string()), pa.field("reason", pa.string())]
)
_LEVELS: Final = pa.field("levels", pa.list_(pa.field("element", pa.string())))
# The number of rows that are decoded at a time. Larger parts would only need more memory.
_CHUNK_ROWS: Final = 32_768
_GROUP_ROWS: Final = 262_144
# Longer bounds would not help readers to skip more files.
_WORD_MAX: Final = 64
# Columns whose values rarely repeat, so that a dictionary does not pay off.
_UNIQUE: Final = frozenset({"timestamp", "payload", "serial"})
# Parquet's name of the elements of the list.
_WORDS: Final = "levels.list.element"
_THREADS: Final = 8
# Fewer items are done one after the other.
_PARALLEL_MIN: Final = 4
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTask:
    """The input, the rules and the target directory of a task.

    Tables in `skip` have their files already. If `only` is set, other rules are ignored. A settled
    task uses the rules as they are, and leaves fields that they do not name in the payload. Rows
    that come from tables have batch 0: they are of several batches.
    """

    portion: Readable
    options: ReadOptions
    rules: tuple[TableRule, ...]
    lake: str
    batch: int
    skip: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    settled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFile:
    """A file for a table, as its transaction will name it."""

    rule: str
    table: str
    path: str
    size_bytes: int
    rows: int
    partition: Mapping[str, str]
    stats: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The files of a task, the number of rows of each slab, and fields that no rule names.

    `left_out` has the fields that stayed in the payload because their rule is full, with the table.
    """

    files: tuple[MadeFile, ...]
    slabs: Mapping[str, int]
    found: tuple[tuple[str, Path, str], ...]
    left_out: tuple[tuple[str, Path], ...] = ()

    def without(self, rules: frozenset[str]) -> Written:
        """Return a copy without the files of some rules."""
        return replace(self, files=tuple(file for file in self.files if file.rule not in rules))


def rule_schema(rule: TableRule) -> pa.Schema:
    """Return the columns of the files of a rule."""
    return _with_levels(_decoded_schema(rule))


def dead_schema() -> pa.Schema:
    """Return the columns of the rows that could not be decoded."""
    return _with_levels(_UNDECODED)


def _decoded_schema(rule: TableRule) -> pa.Schema:
    """Return the columns of a rule without the levels, which are added after sorting."""
    extra = [pa.field(name, pa.string()) for name in rule.levels]
    extra += [pa.field(name, kind) for name, kind in text_columns(rule.decode).items()]
    extra += [pa.field(item.column, KINDS[item.kind]) for item in rule.fields]
    rescue = rescue_columns(rule.decode, rule.drift)
    extra += [pa.field(name, kind) for name, kind in rescue.items()]
    return pa.schema([*ROW_SCHEMA, *extra])


def _with_levels(schema: pa.Schema) -> pa.Schema:
    return schema.insert(len(ROW_SCHEMA), _LEVELS)


def partition_schema(partition: Partition) -> pa.Schema:
    """Return the columns of a table that its directory names contain."""
    names = [pa.field("date", pa.date32())]
    return pa.schema([*names, pa.field("hour", pa.int32())] if partition == "hour" else names)


def write_portion(task: WriteTask, fs: FileSystem) -> Written:
    """Run a task. Raises: SlabDroppedError, CorruptionError, StorageFullError."""
    rules = Rules(task.rules)
    held: dict[str, tuple[TableRule, list[pa.RecordBatch]]] = {}
    slabs: dict[str, int] = {}
    schema = table_schema(ROW_COLUMNS)
    for batch in task.portion.batches(fs, task.options, schema):
        _count_slabs(batch, slabs)
        for rule, part in _by_rule(batch, rules):
            if task.only is not None and rule.filter not in task.only:
                continue
            held.setdefault(rule.filter, (rule, []))[1].append(part)
    writer = _Writer(task, fs)
    for rule, parts in held.values():
        writer.write(rule, pa.Table.from_batches(parts).cast(ROW_SCHEMA))
    writer.store()
    return Written(
        files=tuple(writer.files),
        slabs=slabs,
        found=tuple(writer.found),
        left_out=tuple(writer.left_out),
    )


@dataclass(slots=True)
class _Writer:
    """Writes the files of a task, rule by rule."""

    task: WriteTask
    fs: FileSystem
    files: list[MadeFile] = field(default_factory=list)
    found: list[tuple[str, Path, str]] = field(default_factory=list)
    left_out: list[tuple[str, Path]] = field(default_factory=list)
    _pending: list[tuple[PurePath, pa.Buffer]] = field(default_factory=list)

    def write(self, rule: TableRule, rows: pa.Table) -> None:
        """Write the rows of one rule; if they have new fields that it can add, report these
        instead.
        """
        chunks = [
            rows.slice(start, _CHUNK_ROWS).combine_chunks()
            for start in range(0, rows.num_rows, _CHUNK_ROWS)
        ]
        decoded = [_decode(chunk, rule) for chunk in chunks]
        found = chained(part.found for part in decoded)
        if rule.is_full:
            self.left_out += [(rule.table, path) for path, _ in found]
        elif found and not self.task.settled:
            self.found += [(rule.filter, path, kind) for path, kind in found]
            return
        if rule.table not in self.task.skip:
            good = [_good(chunk, part, rule) for chunk, part in zip(chunks, decoded, strict=True)]
            self._write_table(rule, rule.table, pa.concat_tables(good), rule.partition)
        if DEAD_LETTER not in self.task.skip:
            dead = [_dead(chunk, part, rule) for chunk, part in zip(chunks, decoded, strict=True)]
            self._write_table(rule, DEAD_LETTER, pa.concat_tables(dead), "day")

    def _write_table(
        self, rule: TableRule, table: str, rows: pa.Table, partition: Partition
    ) -> None:
        for values, part in _partitions(rows, partition):
            place = PurePath(*(f"{name}={value}" for name, value in values.items()))
            batch = f"{self.task.batch:08d}" if self.task.batch else "moved"
            path = place / f"{batch}-{secrets.token_hex(8)}.parquet"
            target = PurePath(self.task.lake) / table / path
            laid_out = _laid_out(part)
            data, stats = encode_tables(laid_out.schema, [laid_out])
            self._pending.append((target, data))
            self.files.append(
                MadeFile(
                    rule=rule.filter,
                    table=table,
                    path=path.as_posix(),
                    size_bytes=data.size,
                    rows=part.num_rows,
                    partition=values,
                    stats=stats,
                )
            )

    def store(self) -> None:
        """Write the files to the disk, durably."""
        for_each(lambda file: _store(self.fs, *file), self._pending)
        self._pending.clear()


def for_each(act: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Do something that mostly waits for the disk for each item; return the results in order.

    A disk syncs several files in the time of one, so many items are done by several threads. After
    an error, the items that no thread has begun are left out.
    """
    if len(items) < _PARALLEL_MIN:
        return [act(item) for item in items]
    with ThreadPoolExecutor(_THREADS, "siltstone-lake") as threads:
        try:
            return list(threads.map(act, items))
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def write_file(fs: FileSystem, path: PurePath, rows: pa.Table) -> tuple[int, str]:
    """Write a file of a table, durably; return its size and its statistics for Delta."""
    return write_tables(fs, path, rows.schema, [rows])


def write_tables(
    fs: FileSystem, path: PurePath, schema: pa.Schema, tables: Iterable[pa.Table]
) -> tuple[int, str]:
    """Write rows that come in parts to one file, as `write_file` does."""
    data, stats = encode_tables(schema, tables)
    _store(fs, path, data)
    return data.size, stats


def _store(fs: FileSystem, path: PurePath, data: pa.Buffer) -> None:
    create_directories(fs, path.parent)
    with fs.create(path) as file:
        file.write(memoryview(data))
        file.sync()
    fs.sync_directory(path.parent)


def encode_tables(schema: pa.Schema, tables: Iterable[pa.Table]) -> tuple[pa.Buffer, str]:
    """Return rows that come in parts as one Parquet file, and its statistics for Delta."""
    sink = pa.BufferOutputStream()
    words = [
        _WORDS if name == _LEVELS.name else name for name in schema.names if name not in _UNIQUE
    ]
    with pq.ParquetWriter(sink, schema, compression="zstd", use_dictionary=words) as writer:
        for rows in tables:
            writer.write_table(rows, row_group_size=_GROUP_ROWS)
    data = sink.getvalue()
    return data, statistics_of(pq.read_metadata(pa.BufferReader(data)))


def _count_slabs(batch: pa.RecordBatch, slabs: dict[str, int]) -> None:
    places = pc.add(
        pc.multiply(batch.column("shard").cast(pa.int64()), 1 << 32),
        batch.column("generation").cast(pa.int64()),
    )
    for item in places.value_counts().to_pylist():
        slab = f"{item['values'] >> 32}/{item['values'] & 0xFFFFFFFF}"
        slabs[slab] = slabs.get(slab, 0) + item["counts"]


def _by_rule(batch: pa.RecordBatch, rules: Rules) -> Iterator[tuple[TableRule, pa.RecordBatch]]:
    """Yield the rows of each rule, in order."""
    topics = batch.column("topic").dictionary_encode()
    chosen = [rules.find(topic) for topic in topics.dictionary.to_pylist()]
    numbers = {rule.filter: number for number, rule in enumerate(dict.fromkeys(chosen))}
    if len(numbers) == 1:
        yield chosen[0], batch
        return
    of_topic = pa.array([numbers[rule.filter] for rule in chosen], pa.int32())
    of_row = of_topic.take(topics.indices)
    order = pc.array_sort_indices(of_row)
    ordered = batch.take(order)
    counts = {item["values"]: item["counts"] for item in of_row.value_counts().to_pylist()}
    start = 0
    for number, rule in enumerate(dict.fromkeys(chosen)):
        yield rule, ordered.slice(start, counts[number])
        start += counts[number]


def _decode(chunk: pa.Table, rule: TableRule) -> Decoded:
    payload = _array(chunk, "payload")
    decoded = decode_rows(payload, rule.decode, rule.fields, rule.drift)
    if rule.drift == "reject" and decoded.bad is not None:
        dead = chunk.filter(decoded.bad).slice(0, 1).to_pylist()[0]
        reason = reason_of(dead["payload"], rule.decode, rule.fields)
        raise UsageError(
            f"table {rule.table} rejects a payload of {dead['topic']!r}: {reason}; correct the "
            f"rule of {rule.filter!r} in rules.toml, or set its drift to rescue"
        )
    return decoded


def _array(chunk: pa.Table, name: str) -> pa.Array:
    column = chunk.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _good(chunk: pa.Table, decoded: Decoded, rule: TableRule) -> pa.Table:
    """Return the rows that were decoded, with their columns."""
    topics = _array(chunk, "topic").dictionary_encode()
    words = pc.split_pattern(topics.dictionary, "/")
    levels = [pc.list_element(words, place).take(topics.indices) for place in rule.level_places()]
    columns = [*chunk.columns, *levels, *decoded.columns.values()]
    table = pa.Table.from_arrays(columns, schema=_decoded_schema(rule))
    return table if decoded.bad is None else table.filter(pc.invert(decoded.bad))


def _dead(chunk: pa.Table, decoded: Decoded, rule: TableRule) -> pa.Table:
    """Return the rows that could not be decoded, with the reasons."""
    if decoded.bad is None:
        return _UNDECODED.empty_table()
    dead = chunk.filter(decoded.bad)
    reasons = [
        reason_of(payload, rule.decode, rule.fields)
        for payload in dead.column("payload").to_pylist()
    ]
    columns = [
        *dead.columns,
        pa.array([rule.table] * len(reasons), pa.string()),
        pa.array(reasons, pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=_UNDECODED)


def _partitions(rows: pa.Table, partition: Partition) -> Iterator[tuple[dict[str, str], pa.Table]]:
    """Yield the rows of each day, or hour of a day, with the values of its directories."""
    times = rows.column("timestamp")
    hours = pc.floor_temporal(times, unit="day" if partition == "day" else "hour")
    distinct = hours.unique().to_pylist()
    for moment in sorted(distinct):
        values = {"date": moment.date().isoformat()}
        if partition == "hour":
            values["hour"] = str(moment.hour)
        yield (
            values,
            rows
            if len(distinct) == 1
            else rows.filter(pc.equal(hours, pa.scalar(moment, times.type))),
        )


def _laid_out(rows: pa.Table) -> pa.Table:
    """Return rows sorted by topic, with their levels; the order inside a topic does not change."""
    topics = rows.column("topic").combine_chunks().dictionary_encode()
    ranks = pc.rank(topics.dictionary).cast(pa.int32())
    order = pc.array_sort_indices(ranks.take(topics.indices))
    numbers = topics.indices.take(order)
    levels = [
        level_lists(topics.dictionary, numbers.slice(start, ROWS_MAX), _LEVELS.type)
        for start in range(0, len(numbers), ROWS_MAX)
    ]
    return rows.take(order).add_column(
        len(ROW_SCHEMA), _LEVELS, pa.chunked_array(levels, _LEVELS.type)
    )


def statistics_of(metadata: Any) -> str:
    """Return the statistics of a file for Delta: number of rows, bounds and nulls."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number in range(metadata.num_columns):
        name = metadata.schema.column(number).path
        found = [
            metadata.row_group(group).column(number).statistics
            for group in range(metadata.num_row_groups)
        ]
        if "." in name or any(item is None for item in found):
            continue
        nulls[name] = sum(item.null_count or 0 for item in found)
        known = [item for item in found if item.has_min_max]
        # A row group with only nulls has no bounds and needs none.
        if any(not item.has_min_max and item.num_values for item in found) or not known:
            continue
        bounds = [_bound(item.min) for item in known], [_bound(item.max) for item in known]
        if None not in bounds[0] and None not in bounds[1]:
            lowest[name], highest[name] = min(bounds[0]), max(bounds[1])
    return json.dumps(
        {
            "numRecords": metadata.num_rows,
            "minValues": lowest,
            "maxValues": highest,
            "nullCount": nulls,
        }
    )


def _bound(value: Any) -> Any:
    """Return a bound in the form of Delta; None if it is left out."""
    match value:
        case bool():
            return None
        case int():
            return value
        case float() if math.isfinite(value):
            return value
        case str() if len(value) <= _WORD_MAX:
            return value
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        case _:
            return None


def rows_in(files: Iterable[MadeFile]) -> int:
    """Return the number of rows in files."""
    return sum(file.rows for file in files)


def by_table(files: Sequence[MadeFile]) -> dict[str, list[MadeFile]]:
    """Return files grouped by table."""
    tables: dict[str, list[MadeFile]] = {}
    for file in files:
        tables.setdefault(file.table, []).append(file)
    return tables
