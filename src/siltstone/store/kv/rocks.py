"""RocksDB, through rocksdict: the only module that imports it.

Invariants: every write is synced before it is visible. A database that lost data is not opened
(witness.py). rocksdict raises bare exceptions that differ only in their text; they are translated
here. RocksDB stays open, and its directory locked, as long as any of its objects exists. The engine
therefore keeps the iterators, and views only have their numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import PurePath
from threading import Lock
from types import TracebackType
from typing import Final, ParamSpec, TypeVar

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    ColumnFamily,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
    WriteOptions,
)

from siltstone.errors import (
    ClosedError,
    CorruptionError,
    DiskError,
    ExistsError,
    LockedError,
    NotFoundError,
    SiltstoneError,
    StorageFullError,
)
from siltstone.fs.api import FileSystem
from siltstone.fs.posix import PosixFileSystem
from siltstone.store.kv.api import DEFAULT_FAMILY, Changes, Item
from siltstone.store.kv.wal import check_live_logs, has_begun, last_sequence
from siltstone.store.kv.witness import (
    Evidence,
    Witness,
    check_manifest,
    check_sequence,
    read_evidence,
)

P = ParamSpec("P")
T = TypeVar("T")

_MIB: Final = 1024 * 1024
_WRITE_BUFFER_BYTES: Final = 64 * _MIB
_WAL_BYTES_MAX: Final = 256 * _MIB
_LOG_FILES: Final = 4
_LOG_BYTES: Final = _MIB
_BLOOM_BITS: Final = 10
_DELETED_WINDOW: Final = 4096
_DELETED_MAX: Final = 1024
_DELETED_RATIO: Final = 0.5
_LOOKS: Final = 3
_SIZES: Final = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")


class _Translated:
    """A context that translates exceptions of rocksdict to our errors."""

    __slots__ = ("operation", "path")

    def __init__(self, path: PurePath, operation: str) -> None:
        self.path = path
        self.operation = operation

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, SiltstoneError):
            raise translate(error, self.operation, self.path) from error


class _Passing:
    """A context that suppresses an error with this text: rocksdict has no other way to report that
    something does not exist.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return error is not None and self._text in str(error)


def translate(error: Exception, operation: str, path: PurePath) -> SiltstoneError:
    """Return our error for an exception of rocksdict."""
    text = str(error)
    if isinstance(error, DbClosedError):
        return ClosedError("the database is closed")
    if "No space left" in text or "Disk quota exceeded" in text:
        return StorageFullError(path)
    if "lock hold by" in text or "While lock file" in text:
        return LockedError(f"another process has the database open, stop that process: path={path}")
    if text.startswith("Corruption"):
        return CorruptionError(f"{operation} failed: {text}", path=path)
    return DiskError(path, operation, text, errno=0)


def _read(path: PurePath, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function of rocksdict that reads; translate its exceptions.

    Each transaction and each save of a session comes here several times, and a context manager
    costs more than the search.
    """
    try:
        return act(*args, **kwargs)
    except Exception as exc:
        raise translate(exc, "read", path) from exc


def _found_at(iterator: RdictIter, key: bytes, before: bool) -> Item | None:
    """Return the first item from a key on, or the last item before it."""
    if before:
        iterator.seek_for_prev(key)
        if iterator.valid() and iterator.key() == key:
            iterator.prev()
    else:
        iterator.seek(key)
    if iterator.valid():
        return iterator.key(), iterator.value()
    iterator.status()
    return None


class RocksView:
    """A column family at one moment: an iterator, which sees the data at the time of its creation.

    Snapshots of rocksdict cannot be used: their iterators see all later changes.
    """

    __slots__ = ("_iterators", "_number", "_reading")

    def __init__(self, iterators: dict[int, RdictIter], number: int, reading: _Translated) -> None:
        self._iterators = iterators
        self._number = number
        self._reading = reading

    def get(self, key: bytes) -> bytes | None:
        item = self._item(key, before=False)
        return item[1] if item is not None and item[0] == key else None

    def items(self, start: bytes, stop: bytes, limit: int) -> list[Item]:
        iterator = self._iterator()
        found: list[Item] = []
        with self._reading:
            iterator.seek(start)
            while len(found) < limit and iterator.valid():
                key: bytes = iterator.key()
                if key >= stop:
                    return found
                found.append((key, iterator.value()))
                iterator.next()
            iterator.status()
        return found

    def last(self, start: bytes, stop: bytes) -> Item | None:
        item = self._item(stop, before=True)
        return item if item is not None and item[0] >= start else None

    def release(self) -> None:
        self._iterators.pop(self._number, None)

    def __del__(self) -> None:
        self.release()

    def _item(self, key: bytes, *, before: bool) -> Item | None:
        """Return the first item from a key on, or the last item before it."""
        iterator = self._iterators.get(self._number)
        if iterator is None:
            iterator = self._iterator()
        return _read(self._reading.path, _found_at, iterator, key, before)

    def _iterator(self) -> RdictIter:
        iterator = self._iterators.get(self._number)
        if iterator is None:
            raise ClosedError("the snapshot view or its database is closed")
        return iterator


class RocksEngine:
    """RocksDB in a directory, one column family for each family."""

    def __init__(
        self, path: PurePath, *, read_only: bool = False, fs: FileSystem | None = None
    ) -> None:
        """Open or create a database. A read-only engine changes nothing, and another process may
        have the database open.

        Raises: LockedError, CorruptionError, DiskError; NotFoundError if it is read-only and was
        never created.
        """
        self._path = path
        self._iterators: dict[int, RdictIter] = {}
        self._numbers = count()
        self._reading = _Translated(path, "read")
        self._synced = WriteOptions()
        self._synced.sync = True
        self._tables: dict[str, Rdict] = {}
        self._handles: dict[str, ColumnFamily] = {}
        self._changing = Lock()
        fs = fs or PosixFileSystem()
        evidence = read_evidence(fs, path)
        if evidence is not None:
            check_manifest(fs, path, evidence)
            if not read_only:
                _check_before_opening(fs, path, evidence)
        if read_only and not has_begun(fs, path):
            # The binding would create a file in the directory before it fails.
            raise NotFoundError(f"no key-value store at {path}")
        self._witness: Witness | None = None if read_only else Witness(fs, path)
        self._root: Rdict | None = None
        try:
            with _Translated(path, "open"):
                self._root = _opened(path, read_only=read_only)
                check_sequence(path, evidence, self._root.latest_sequence_number())
                for name in _names_in(path):
                    self._adopt(name)
            self._cover()
        except SiltstoneError:
            self._let_go()
            raise

    def families(self) -> list[str]:
        self._open()
        return sorted(self._tables)

    def create_family(self, name: str) -> None:
        root = self._open()
        with self._changing, _Translated(self._path, "create_family"):
            if name in self._tables:
                raise ExistsError(f"the column family exists already: name={name}")
            root.create_column_family(name, _options())
            self._adopt(name)
            self._cover()

    def drop_family(self, name: str) -> None:
        root = self._open()
        with self._changing, _Translated(self._path, "drop_family"):
            self._table(name)
            root.drop_column_family(name)
            # Views of the family stay valid; only the name is gone.
            del self._tables[name], self._handles[name]
            self._cover()

    def get(self, family: str, key: bytes) -> bytes | None:
        table = self._tables.get(family)
        if table is None:
            table = self._table(family)
        value: bytes | None = _read(self._path, table.get, key)
        return value

    def view(self, family: str) -> RocksView:
        table = self._tables.get(family)
        if table is None:
            table = self._table(family)
        number = next(self._numbers)
        self._iterators[number] = _read(self._path, table.iter)
        return RocksView(self._iterators, number, self._reading)

    def write(self, changes: Changes) -> None:
        root = self._open()
        with _Translated(self._path, "write"):
            batch = WriteBatch(raw_mode=True)
            for family, start, stop in changes.ranges:
                batch.delete_range(start, stop, self._handle(family))
            for family, values in changes.values.items():
                # The family is set once, because naming it with every key takes three times as
                # long.
                batch.set_default_column_family(self._handle(family))
                # In order, because inserting a neighbouring key into the memtable takes half the
                # time.
                for key in sorted(values):
                    value = values[key]
                    if value is None:
                        batch.delete(key)
                    else:
                        batch.put(key, value)
            root.write(batch, self._synced)
            if self._witness is not None:
                self._witness.note(root.latest_sequence_number())

    def size_bytes(self, family: str | None = None) -> int:
        self._open()
        tables = list(self._tables.values()) if family is None else [self._table(family)]
        with _Translated(self._path, "size"):
            return sum(table.property_int_value(name) or 0 for table in tables for name in _SIZES)

    def write_back(self) -> None:
        self._open()
        with self._changing, _Translated(self._path, "write_back"):
            # Flush all of them, because the log is kept until the last table does not need it.
            for table in self._tables.values():
                table.flush(wait=True)
            self._cover()

    def close(self) -> None:
        with self._changing:
            if self._root is None:
                return
            sequence = self._root.latest_sequence_number()
            self._let_go()
            witness, self._witness = self._witness, None
            if witness is not None:
                # Data that was only in memory is in tables now, which the MANIFEST names.
                witness.cover(sequence)
                witness.close()

    def _let_go(self) -> None:
        root, self._root = self._root, None
        if root is None:
            return
        tables = list(self._tables.values())
        self._iterators.clear()
        self._tables.clear()
        self._handles.clear()
        with _Translated(self._path, "close"):
            for table in tables:
                table.close()
            root.close()

    def _cover(self) -> None:
        if self._witness is not None and self._root is not None:
            self._witness.cover(self._root.latest_sequence_number())

    def _open(self) -> Rdict:
        root = self._root
        if root is None:
            raise ClosedError("the database is closed")
        return root

    def _adopt(self, name: str) -> None:
        assert self._root is not None
        self._tables[name] = self._root.get_column_family(name)
        self._handles[name] = self._root.get_column_family_handle(name)

    def _table(self, name: str) -> Rdict:
        self._open()
        table = self._tables.get(name)
        if table is None:
            raise NotFoundError(f"unknown column family: name={name}")
        return table

    def _handle(self, name: str) -> ColumnFamily:
        handle = self._handles.get(name)
        if handle is None:
            raise NotFoundError(f"unknown column family: name={name}")
        return handle


def _opened(path: PurePath, *, read_only: bool) -> Rdict:
    return Rdict(
        str(path),
        _options(),
        {name: _options() for name in _names_in(path) if name != DEFAULT_FAMILY},
        AccessType.read_only() if read_only else AccessType.read_write(),
    )


def _check_before_opening(fs: FileSystem, path: PurePath, evidence: Evidence) -> None:
    """Check for missing acknowledged writes before the files change.

    RocksDB writes its log to tables, and removes files without a reference, as soon as it is opened
    for writing.
    """
    if last_sequence(fs, path) >= evidence.sequence:
        return
    check_sequence(path, evidence, sequence_in(path))


def sequence_in(path: PurePath) -> int:
    """Return the last sequence number of a database that no process has open."""
    with _Translated(path, "open"):
        opened = _opened(path, read_only=True)
        sequence: int = opened.latest_sequence_number()
        opened.close()
    return sequence


def _names_in(path: PurePath) -> list[str]:
    """Return the families in a directory; a new one, or one whose creation was interrupted, has
    only the default family.
    """
    with _Passing(f"{path / 'CURRENT'}: No such file"):
        return list(Rdict.list_cf(str(path)))
    return [DEFAULT_FAMILY]


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(create_if_missing=True)
    options.set_db_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_total_wal_size(_WAL_BYTES_MAX)
    options.set_keep_log_file_num(_LOG_FILES)
    options.set_max_log_file_size(_LOG_BYTES)
    options.set_compression_type(DBCompressionType.lz4())
    # A record that a power cut tore was never acknowledged: the log ends before it.
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    # Many consecutive deleted keys slow down every seek to a key before them.
    options.add_compact_on_deletion_collector_factory(_DELETED_WINDOW, _DELETED_MAX, _DELETED_RATIO)
    tables = BlockBasedOptions()
    tables.set_bloom_filter(_BLOOM_BITS, block_based=False)
    options.set_block_based_table_factory(tables)
    return options


def rebuild(path: PurePath) -> None:
    """Rebuild the list of files from the tables and logs in the directory. Raises: DiskError."""
    with _Translated(path, "repair"):
        Rdict.repair(str(path), _options())


def open_read_only(fs: FileSystem, path: PurePath) -> RocksEngine:
    """Open a directory for reading, also while another process has it open.

    Raises: CorruptionError, also for a damaged log, of which RocksDB would serve the valid part;
    NotFoundError if it was never created.
    """
    check_live_logs(fs, path)
    for _ in range(_LOOKS - 1):
        try:
            return RocksEngine(path, read_only=True, fs=fs)
        except (CorruptionError, NotFoundError):
            # Data that another process was just writing to tables is complete at the next attempt.
            continue
    return RocksEngine(path, read_only=True, fs=fs)
