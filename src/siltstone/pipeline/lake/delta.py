"""The Delta tables of the lake: create, widen, add files, list, compact and vacuum.

Every operation can be repeated after a crash: creating an existing table does nothing, adding an
existing column does nothing, and files are added once for each batch, because their transaction has
the number of the batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from threading import Lock
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Schema,
    Transaction,
)
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from siltstone.clock import Clock, SystemClock
from siltstone.errors import CorruptionError, RetryError, StorageFullError, UsageError
from siltstone.fs.api import EntryKind, FileSystem
from siltstone.fs.publish import remove_file
from siltstone.pipeline.lake.files import MadeFile
from siltstone.pipeline.lake.merge import TableFile
from siltstone.pipeline.lake.names import CONTENTS, PARTITION_COLUMNS, Content, content_of
from siltstone.pipeline.lake.tables.commits import (
    LOG,
    READER,
    WRITER,
    commit_files,
    commit_path,
    create_log,
)
from siltstone.pipeline.lake.tables.rewrite import TableChange, read_rewrites

_DRAWN: Final = re.compile("\x1b\\[[0-9;]*m|↳")
_LAST_CHECKPOINT: Final = "_last_checkpoint"
# A log whose commits are lost may still have a checkpoint: its table is damaged, not absent.
_OF_TABLE: Final = re.compile(rf".*\.json|{_LAST_CHECKPOINT}|.*\.checkpoint.*\.parquet")
_PARQUET_END: Final = b"PAR1"
# delta-rs writes a checkpoint after some commits, and removes commits, but syncs nothing. After a
# power cut, a table with an empty checkpoint cannot be opened.
_NO_CHECKPOINT: Final = PostCommitHookProperties(
    create_checkpoint=False, cleanup_expired_logs=False
)
# The number of commits after which a log gets a checkpoint.
_CHECKPOINT_EVERY: Final = 100
OFFSETS: Final = "siltstone.offsets"
Opener = Callable[[PurePath], DeltaTable]
# The number of tables that a process keeps open.
_OPEN_MAX: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFile:
    """A file of a table with the bounds of its values; None for unknown bounds.

    `batch` is the batch that wrote it; None for a file that compaction made.
    """

    path: str
    batch: int | None
    size_bytes: int
    rows: int
    topics: tuple[str, str] | None
    times_us: tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCompaction:
    """The result of compacting a table."""

    table: str
    files_removed: int
    files_added: int


def open_table(table: PurePath, version: int | None = None) -> DeltaTable:
    """Open a table, as it is or was: delta-rs reads its whole log."""
    return DeltaTable(str(table), version=version)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHead:
    """The newest version of a table, and the number of the last batch of an application in it.

    A plain table has no feature whose commits need more entries than files and transactions.
    """

    version: int
    batch: int
    is_plain: bool


class OpenTables:
    """Tables that stay open; an opened one reads only the commits that it does not know.

    Several threads may open different tables.
    """

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._held: dict[PurePath, DeltaTable] = {}
        self._heads: dict[tuple[PurePath, str], TableHead] = {}
        self._mutex = Lock()

    def head(self, table: PurePath, application: str) -> TableHead:
        """Return the head of a table; delta-rs opens it only after a commit of others."""
        head = self._heads.get((table, application))
        if head is not None and self._is_newest(table, head.version):
            return head
        delta = self(table)
        protocol = delta.protocol()
        head = TableHead(
            version=delta.version(),
            batch=delta.transaction_version(application) or 0,
            is_plain=protocol.min_reader_version <= READER
            and protocol.min_writer_version <= WRITER,
        )
        self.keep_head(table, application, head)
        return head

    def keep_head(self, table: PurePath, application: str, head: TableHead) -> None:
        """Remember the head of a table after a commit of this process."""
        with self._mutex:
            self._heads[table, application] = head
            if len(self._heads) > _OPEN_MAX:
                del self._heads[next(iter(self._heads))]

    def _is_newest(self, table: PurePath, version: int) -> bool:
        return self._fs.exists(commit_path(table, version)) and not self._fs.exists(
            commit_path(table, version + 1)
        )

    def __call__(self, table: PurePath) -> DeltaTable:
        """Return a table with its newest commits."""
        with self._mutex:
            delta = self._held.pop(table, None)
        # Without its newest commit, the table was removed, or the log begins with a checkpoint.
        if delta is not None and self._fs.exists(commit_path(table, delta.version())):
            delta.update_incremental()
        else:
            delta = open_table(table)
        with self._mutex:
            self._held[table] = delta
            if len(self._held) > _OPEN_MAX:
                del self._held[next(iter(self._held))]
        return delta


@contextmanager
def _told(table: PurePath) -> Iterator[None]:
    try:
        yield
    except DeltaError as exc:
        # A retry finds what was already done.
        raise RetryError(
            f"table {table.name} of the lake refused the write, try again: {_plain(exc)}"
        ) from exc
    except OSError as exc:
        # The error has no errno.
        if "No space left on device" in str(exc):
            raise StorageFullError(table) from exc
        raise RetryError(
            f"table {table.name} of the lake failed, try again: {_plain(exc)}"
        ) from exc


def _plain(error: Exception) -> str:
    """Return the message of delta-rs without colours and arrows."""
    return " ".join(_DRAWN.sub(" ", str(error)).split())


def list_tables(fs: FileSystem, lake: PurePath) -> list[str]:
    """Return the names of the tables in a lake."""
    if not fs.exists(lake):
        return []
    return [
        entry.name
        for entry in fs.list(lake)
        if entry.kind is EntryKind.DIRECTORY and has_table(fs, lake / entry.name)
    ]


def present_tables(fs: FileSystem, lake: PurePath) -> list[str]:
    """Return the names of the tables, without those whose rows went to other tables."""
    moved = read_rewrites(fs, lake).moved
    return [
        name for name in list_tables(fs, lake) if name not in moved or stored_files(lake / name)
    ]


def has_table(fs: FileSystem, table: PurePath) -> bool:
    """Return whether a table exists, which means that it has a commit or a checkpoint."""
    log = table / LOG
    return fs.exists(log) and any(_OF_TABLE.fullmatch(entry.name) for entry in fs.scan_entries(log))


def ensure_table(
    fs: FileSystem,
    table: PurePath,
    columns: pa.Schema,
    partition: pa.Schema,
    opened: Opener = open_table,
    clock: Clock | None = None,
) -> None:
    """Create a table, or add its missing columns.

    Raises: UsageError for a table of other data or a column of another type, RetryError.
    """
    with _told(table):
        if not has_table(fs, table) and create_log(
            fs,
            clock or SystemClock(),
            table,
            schema=Schema.from_arrow(pa.schema([*columns, *partition])).to_json(),
            partition_by=partition.names,
        ):
            return
        delta = opened(table)
        there, wanted = _content_of(delta), content_of(columns.names)
        if there != wanted:
            raise UsageError(
                f"table {table.name} contains {CONTENTS[there]} and cannot contain "
                f"{CONTENTS[wanted]}; choose another table, or move this one away"
            )
        version = delta.version()
        laid_out = list(delta.metadata().partition_columns)
        if laid_out != partition.names:
            raise UsageError(
                f"table {table.name} is partitioned by {' and '.join(laid_out)}, which cannot "
                "change; choose another table for the rule in rules.toml"
            )
        _add_columns(delta, table, Schema.from_arrow(columns))
        if delta.version() > version:
            _sync_commits(fs, table, delta, version)


def _add_columns(delta: DeltaTable, table: PurePath, columns: Schema) -> None:
    known = {item.name.lower(): item for item in delta.schema().fields}
    for item in columns.fields:
        there = known.get(item.name.lower(), item)
        if there.type != item.type:
            raise UsageError(
                f"column {item.name} of table {table.name} is {_type_text(there.type)} and cannot "
                f"become {_type_text(item.type)}; choose another column for the field in "
                "rules.toml"
            )
    missing = [item for item in columns.fields if item.name.lower() not in known]
    if missing:
        delta.alter.add_columns(missing, post_commithook_properties=_NO_CHECKPOINT)


def last_batch(
    fs: FileSystem, table: PurePath, application: str, opened: Opener = open_table
) -> int:
    """Return the number of the last batch that was added to a table; 0 if there is none."""
    if not has_table(fs, table):
        return 0
    with _told(table):
        return opened(table).transaction_version(application) or 0


def add_files(
    fs: FileSystem,
    clock: Clock,
    table: PurePath,
    files: Sequence[MadeFile],
    *,
    application: str,
    batch: int,
    offsets: Mapping[str, Any],
    opened: OpenTables | None = None,
) -> None:
    """Add the files of a batch in one transaction, durably, unless they were added before."""
    tables = opened or OpenTables(fs)
    about = {OFFSETS: json.dumps(offsets)}
    with _told(table):
        head = tables.head(table, application)
        while head.batch < batch:
            version = head.version + 1
            if not head.is_plain:
                delta = tables(table)
                delta.create_write_transaction(
                    _additions(clock, files),
                    "append",
                    delta.schema(),
                    list(delta.metadata().partition_columns),
                    commit_properties=CommitProperties(
                        custom_metadata=about, app_transactions=[Transaction(application, batch)]
                    ),
                    post_commithook_properties=_NO_CHECKPOINT,
                )
                _sync_commits(fs, table, delta, delta.version())
                version = delta.version()
            elif not commit_files(
                fs, clock, table, version, files, transaction=(application, batch), about=about
            ):
                # Another program has committed meanwhile.
                head = tables.head(table, application)
                continue
            head = TableHead(version=version, batch=batch, is_plain=head.is_plain)
            tables.keep_head(table, application, head)
            if version - (_checkpointed(fs, table) or 0) >= _CHECKPOINT_EVERY:
                _write_checkpoint(fs, table, tables(table))
            return
    # A killed process may have committed the batch without syncing it.
    sync_log(fs, table)


def replace_files(fs: FileSystem, clock: Clock, table: PurePath, files: Sequence[MadeFile]) -> None:
    """Replace all files of a table by these, durably."""
    with _told(table):
        delta = open_table(table)
        delta.create_write_transaction(
            _additions(clock, files),
            "overwrite",
            delta.schema(),
            list(delta.metadata().partition_columns),
            post_commithook_properties=_NO_CHECKPOINT,
        )
    sync_log(fs, table)


def _additions(
    clock: Clock, files: Sequence[MadeFile], *, is_new: bool = True
) -> list[AddAction | RemoveAction]:
    """Return the entries of files in the log; rows that only moved to another file are not new."""
    now_ms = clock.now_us() // 1000
    return [
        AddAction(file.path, file.size_bytes, dict(file.partition), now_ms, is_new, file.stats)
        for file in files
    ]


def _sync_commits(fs: FileSystem, table: PurePath, delta: DeltaTable, known: int) -> None:
    """Sync the commits from a known version on, without listing the log, which may be long."""
    delta.update_incremental()
    for number in range(max(known, 0), delta.version() + 1):
        path = commit_path(table, number)
        if fs.exists(path):
            with fs.open(path, writable=True) as file:
                file.sync()
    fs.sync_directory(table / LOG)


def sync_log(fs: FileSystem, table: PurePath) -> None:
    """Sync the last commits of a table: delta-rs does not sync them."""
    log = table / LOG
    newest = [entry.name for entry in fs.list(log) if entry.name.endswith(".json")][-2:]
    for name in newest:
        with fs.open(log / name, writable=True) as file:
            file.sync()
    fs.sync_directory(log)


def list_files(table: PurePath, version: int | None = None) -> list[LakeFile]:
    """Return the files of a table, as it is or was, with their bounds."""
    with _told(table):
        return _files_of(table, _additions_of(open_table(table, version)))


def list_row_files(
    fs: FileSystem,
    lake: PurePath,
    application: str,
    versions: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, list[LakeFile]]:
    """Return the files of all tables with rows of a store, by table; some at a known version.

    Raises: CorruptionError if another program has overwritten the rows.
    """
    found: dict[str, list[LakeFile]] = {}
    for name in list_tables(fs, lake):
        with _told(lake / name):
            delta = open_table(lake / name, versions.get(name))
            if delta.transaction_version(application):
                actions = _additions_of(delta)
                _refuse_strangers(lake / name, actions)
                found[name] = _files_of(lake / name, actions)
    return found


def refuse_overwritten(
    fs: FileSystem,
    lake: PurePath,
    tables: Sequence[str] | None = None,
    opened: Opener = open_table,
) -> None:
    """Raise CorruptionError if a table of rows has files without rows of the store.

    Such a table can be restored only while its old files exist.
    """
    for name in list_tables(fs, lake) if tables is None else tables:
        with _told(lake / name):
            delta = opened(lake / name)
            if _content_of(delta) == "rows":
                _refuse_strangers(lake / name, _additions_of(delta))


def _refuse_strangers(table: PurePath, actions: pa.Table) -> None:
    known = "min.serial" in actions.column_names
    bounds = actions.column("min.serial") if known else pa.nulls(actions.num_rows)
    # Every file of Siltstone has bounds of its serials. Only files without them are opened.
    for path in actions.column("path").filter(bounds.is_null()).to_pylist():
        if not _has_serials(table / path):
            raise CorruptionError(
                f"table {table.name} of the lake was overwritten by another program; restore an "
                "earlier version of it",
                path=table / path,
            )


def _has_serials(path: PurePath) -> bool:
    with pq.ParquetFile(path) as file:
        known = "serial" in file.schema_arrow.names
        return known and file.read(columns=["serial"]).column(0).null_count == 0


def _additions_of(delta: DeltaTable) -> pa.Table:
    return pa.table(delta.get_add_actions(flatten=True))


def _files_of(table: PurePath, actions: pa.Table) -> list[LakeFile]:
    columns = {name: actions.column(name).to_pylist() for name in actions.column_names}
    empty = [None] * actions.num_rows

    def bounds(name: str) -> list[tuple[Any, Any] | None]:
        low, high = columns.get(f"min.{name}", empty), columns.get(f"max.{name}", empty)
        return [
            None if first is None or last is None else (first, last)
            for first, last in zip(low, high, strict=True)
        ]

    topics, times = bounds("topic"), bounds("timestamp")
    return [
        LakeFile(
            path=str(table / columns["path"][place]),
            batch=batch_of(columns["path"][place]),
            size_bytes=columns["size_bytes"][place],
            rows=columns["num_records"][place] or 0,
            topics=topics[place],
            times_us=_microseconds(times[place]),
        )
        for place in range(actions.num_rows)
    ]


def batch_of(path: str) -> int | None:
    """Return the batch of a file, from its name; None for a file that compaction made."""
    number, dash, _ = PurePath(path).name.partition("-")
    return int(number) if dash and number.isdecimal() else None


def _microseconds(times: tuple[Any, Any] | None) -> tuple[int, int] | None:
    if times is None:
        return None
    first, last = pa.array(times, pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    # Other writers may round bounds down to milliseconds.
    return first, last + 999


def stored_files(table: PurePath, opened: Opener = open_table) -> list[TableFile]:
    """Return the current files of a table, as they can be merged."""
    with _told(table):
        return _stored_of(_additions_of(opened(table)))


def _stored_of(actions: pa.Table) -> list[TableFile]:
    columns = {name: actions.column(name).to_pylist() for name in actions.column_names}
    keys = [name for name in columns if name.startswith("partition.")]
    return [
        TableFile(
            path=path,
            batch=batch_of(path),
            size_bytes=columns["size_bytes"][place],
            rows=columns["num_records"][place] or 0,
            partition={key.removeprefix("partition."): str(columns[key][place]) for key in keys},
        )
        for place, path in enumerate(columns["path"])
    ]


def replace_merged(
    fs: FileSystem,
    clock: Clock,
    table: PurePath,
    merged: Sequence[tuple[Sequence[TableFile], MadeFile]],
    opened: Opener = open_table,
) -> None:
    """Put merged files in place of their inputs in one transaction, durably.

    Running readers keep using the old files. Batches that are added meanwhile stay.

    Raises: RetryError if an input is no longer in the table.
    """
    now_ms = clock.now_us() // 1000
    actions: list[AddAction | RemoveAction] = []
    with _told(table):
        delta = opened(table)
        there = set(_additions_of(delta).column("path").to_pylist())
        for inputs, made in merged:
            if gone := [file.path for file in inputs if file.path not in there]:
                raise RetryError(f"table {table.name} has changed meanwhile: {gone[0]} is replaced")
            actions += [_removal(file, now_ms, changes=False) for file in inputs]
            actions += _additions(clock, [made], is_new=False)
        columns = list(delta.metadata().partition_columns)
        delta.create_write_transaction(
            actions, "append", delta.schema(), columns, post_commithook_properties=_NO_CHECKPOINT
        )
    sync_log(fs, table)


def swap_files(
    fs: FileSystem,
    clock: Clock,
    table: PurePath,
    change: TableChange,
    *,
    transactions: Mapping[str, int],
    opened: Opener = open_table,
) -> None:
    """Change the files and columns of a table in one transaction, durably.

    `transactions` has numbers by application id; the first one identifies the change, which is left
    out if the table has it already.
    """
    with _told(table):
        delta = opened(table)
        version = delta.version()
        application, number = next(iter(transactions.items()))
        if (delta.transaction_version(application) or 0) < number:
            actions = _additions(clock, change.add)
            if change.remove is not None:
                actions += _removals(clock, delta, set(change.remove))
            delta.create_write_transaction(
                actions,
                "overwrite" if change.remove is None else "append",
                Schema.from_json(change.schema),
                list(delta.metadata().partition_columns),
                commit_properties=CommitProperties(
                    app_transactions=[
                        Transaction(name, last) for name, last in transactions.items()
                    ],
                ),
                post_commithook_properties=_NO_CHECKPOINT,
            )
        # A killed process may have committed the change without syncing it.
        _sync_commits(fs, table, delta, version)


def restore_version(
    fs: FileSystem,
    table: PurePath,
    version: int,
    *,
    transaction: tuple[str, int],
    opened: Opener = open_table,
) -> None:
    """Give a table the files and columns of an earlier version, durably, if it has a transaction.

    Raises: RetryError; see also `refuse_lost_version`.
    """
    application, number = transaction
    with _told(table):
        delta = opened(table)
        known = delta.version()
        if (delta.transaction_version(application) or 0) >= number:
            delta.restore(version, post_commithook_properties=_NO_CHECKPOINT)
        _sync_commits(fs, table, delta, known)


def refuse_lost_version(
    fs: FileSystem,
    table: PurePath,
    version: int,
    *,
    transaction: tuple[str, int],
    opened: Opener = open_table,
) -> None:
    """Raise UsageError if `restore_version` cannot give a table back its earlier files."""
    application, number = transaction
    with _told(table):
        if (opened(table).transaction_version(application) or 0) < number:
            return
    try:
        files = stored_files(table, lambda place: open_table(place, version))
    except RetryError as exc:
        raise UsageError(
            f"version {version} of table {table.name} is gone, so it cannot be restored: {exc}"
        ) from exc
    for file in files:
        if not fs.exists(table / file.path):
            raise UsageError(
                f"a file of version {version} of table {table.name} is gone, so it cannot be "
                f"restored: {file.path}"
            )


def _removals(
    clock: Clock, delta: DeltaTable, paths: Collection[str]
) -> list[AddAction | RemoveAction]:
    files = _stored_of(_additions_of(delta))
    return [
        _removal(file, clock.now_us() // 1000, changes=True) for file in files if file.path in paths
    ]


def _removal(file: TableFile, now_ms: int, *, changes: bool) -> RemoveAction:
    return RemoveAction(
        file.path,
        data_change=changes,
        deletion_timestamp=now_ms,
        size=file.size_bytes,
        partition_values=dict(file.partition),
    )


def unused_files(table: PurePath, *, hours: int, opened: Opener = open_table) -> list[str]:
    """Return the files that no version of the last hours has, including those of killed tasks."""
    with _told(table):
        return opened(table).vacuum(
            hours, dry_run=True, enforce_retention_duration=False, full=True
        )


def shorten_log(
    fs: FileSystem, table: PurePath, *, hours: int, opened: Opener = open_table
) -> None:
    """Write a checkpoint of a table, and remove its versions from before the last hours."""
    with _told(table):
        delta = opened(table)
        wanted = {"delta.logRetentionDuration": f"interval {hours} hours"}
        if wanted.items() - delta.metadata().configuration.items():
            delta.alter.set_table_properties(wanted, post_commithook_properties=_NO_CHECKPOINT)
        if _checkpointed(fs, table) == delta.version():
            return
        # The last commits and the checkpoint are on the disk before older commits are removed.
        sync_log(fs, table)
        _write_checkpoint(fs, table, delta)
        delta.cleanup_metadata()
    fs.sync_directory(table / LOG)


def _write_checkpoint(fs: FileSystem, table: PurePath, delta: DeltaTable) -> None:
    """Write a checkpoint of the current version, durably: delta-rs does not sync it."""
    delta.create_checkpoint()
    log = table / LOG
    for name in (f"{delta.version():020}.checkpoint.parquet", _LAST_CHECKPOINT):
        with fs.open(log / name, writable=True) as file:
            file.sync()
    fs.sync_directory(log)


def remove_torn_checkpoint(fs: FileSystem, table: PurePath) -> None:
    """Remove a last checkpoint that a power cut has left incomplete: no reader can open the table.

    The commits before it are still there, because they are removed after the sync. The caller holds
    the lock of the lake, so no other process writes a checkpoint.
    """
    log = table / LOG
    version = _checkpointed(fs, table)
    checkpoint = log / f"{version or 0:020}.checkpoint.parquet"
    if version is None or not fs.exists(checkpoint):
        return
    with fs.open(checkpoint, writable=False) as file:
        end = file.size() - len(_PARQUET_END)
        if end > 0 and file.read_at(end, len(_PARQUET_END)) == _PARQUET_END:
            return
    remove_file(fs, log / _LAST_CHECKPOINT)
    remove_file(fs, checkpoint)


def _checkpointed(fs: FileSystem, table: PurePath) -> int | None:
    """Return the version of the last checkpoint; None if there is none."""
    path = table / LOG / _LAST_CHECKPOINT
    if not fs.exists(path):
        return None
    try:
        return int(json.loads(fs.read(path))["version"])
    except (ValueError, KeyError, TypeError):
        # A power cut can leave the file empty. A new checkpoint replaces it.
        return None


def columns_of(table: PurePath) -> list[tuple[str, str]]:
    """Return the columns of a table with their types, partition columns last."""
    with _told(table):
        fields = open_table(table).schema().fields
    shown = [(item.name, _type_text(item.type)) for item in fields]
    return sorted(shown, key=lambda item: item[0] in PARTITION_COLUMNS)


def content(table: PurePath, opened: Opener = open_table) -> Content:
    """Return the content of a table."""
    with _told(table):
        return _content_of(opened(table))


def _content_of(delta: DeltaTable) -> Content:
    return content_of(item.name for item in delta.schema().fields)


def _type_text(kind: Any) -> str:
    text = getattr(kind, "type", None)
    if text == "array":
        return f"array<{_type_text(kind.element_type)}>"
    if text == "map":
        return f"map<{_type_text(kind.key_type)},{_type_text(kind.value_type)}>"
    return str(text)
