"""Restores a data directory from the records of a backup.

The order: the whole file is checked before anything is created; then come the files, the key-value
databases, and the state of a broker. VERSION comes last, so a directory whose restore was
interrupted is not a data directory. Contents are kept in a file next to the new data, so the
restore temporarily needs about twice the space. Memory does not grow with the contents.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import PurePath, PurePosixPath
from typing import Final

from siltstone.clock import Clock
from siltstone.errors import CorruptionError, ExistsError, StorageFullError, UsageError
from siltstone.fs.api import EntryKind, File, FileSystem
from siltstone.fs.paths import COMMITS, DATA, KEYVALUES, LOCK, SPOOL, StorePaths
from siltstone.fs.publish import create_directories, remove_file, remove_tree, replace_file
from siltstone.snapshot.directory import SnapshotDirectory
from siltstone.snapshot.format.contents import ContentsInFile
from siltstone.snapshot.format.records import (
    FilePart,
    KeyValueFamily,
    KeyValuePair,
    LearnedStructure,
    Record,
    StoredFile,
)
from siltstone.snapshot.format.totals import Summary
from siltstone.snapshot.loader import SnapshotReader, verify_snapshot
from siltstone.store.directory import VERSION
from siltstone.store.kv.api import DEFAULT_FAMILY, Changes, Engine, EngineOpener
from siltstone.store.slab.manifest import MANIFEST, read_manifest

_CONTENTS: Final = "contents.tmp"
_FILES: Final = frozenset({DATA, SPOOL})
_ENGINES: Final = frozenset({KEYVALUES, COMMITS})
_WRITE_BYTES: Final = 1024 * 1024
_OF_STORE: Final = StoredFile | FilePart | KeyValueFamily | KeyValuePair | LearnedStructure


class DirectorySink:
    """Writes files and key-value databases below a directory; `close` makes them durable."""

    def __init__(
        self, fs: FileSystem, directory: PurePath, open_engine: EngineOpener, size_bytes_max: int
    ) -> None:
        self._size_bytes_max = size_bytes_max
        self._size_bytes = 0
        self._fs = fs
        self._directory = directory
        self._open_engine = open_engine
        self._made: set[PurePath] = set()
        self._file: File | None = None
        self._database = ""
        self._engine: Engine | None = None
        self._family = ""
        self._changes = Changes()
        self._changed_bytes = 0

    def apply(self, record: Record) -> None:
        """Apply one record. Raises: CorruptionError for a path outside of the directory; what the
        file system and the engine raise.
        """
        match record:
            case StoredFile():
                self._begin_file(record)
            case FilePart():
                assert self._file is not None, "the loader has seen its file"
                self._count(len(record.data))
                self._file.write_at(record.offset, record.data)
            case KeyValueFamily():
                self._begin_family(record)
            case KeyValuePair():
                self._changes.put(self._family, record.key, record.value)
                self._count(len(record.key) + len(record.value))
                self._changed_bytes += len(record.key) + len(record.value)
                if self._changed_bytes >= _WRITE_BYTES:
                    self._write_pairs()
            case _:
                pass

    def _count(self, size_bytes: int) -> None:
        """Count the written bytes: a backup stores equal parts only once. Raises: UsageError."""
        self._size_bytes += size_bytes
        if self._size_bytes > self._size_bytes_max:
            raise UsageError(
                "the backup has more data than allowed; raise the limit, or free disk space: "
                f"max={self._size_bytes_max} path={self._directory}"
            )

    def close(self) -> None:
        """Make everything durable."""
        self._end_file()
        self._end_database()
        for directory in self._made:
            self._fs.sync_directory(directory)

    def release(self) -> None:
        """Close the open file and engine, without making them durable."""
        if self._file is not None:
            self._file.close()
        if self._engine is not None:
            self._engine.close()

    def _begin_file(self, record: StoredFile) -> None:
        self._end_file()
        target = self._below(record.path, _FILES)
        if target.parent not in self._made:
            create_directories(self._fs, target.parent)
            self._made.add(target.parent)
        self._file = self._fs.create(target)
        self._file.truncate(record.size_bytes)

    def _below(self, text: str, tops: frozenset[str]) -> PurePath:
        """Return a path in the new directory. Raises: CorruptionError for a path outside of it."""
        path = PurePosixPath(text)
        if path.is_absolute() or ".." in path.parts or not tops.intersection(path.parts[:1]):
            raise CorruptionError(
                f"the path is not part of a data directory: {text!r}", path=self._directory
            )
        return self._directory / path

    def _end_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with file:
                file.sync()

    def _begin_family(self, record: KeyValueFamily) -> None:
        self._write_pairs()
        if self._engine is None or record.database != self._database:
            self._end_database()
            directory = self._below(record.database, _ENGINES)
            create_directories(self._fs, directory)
            self._engine = self._open_engine(directory)
            self._database = record.database
        self._family = record.family
        if record.family != DEFAULT_FAMILY:
            self._engine.create_family(record.family)

    def _write_pairs(self) -> None:
        if self._engine is not None and self._changes.values:
            self._engine.write(self._changes)
        self._changes = Changes()
        self._changed_bytes = 0

    def _end_database(self) -> None:
        self._write_pairs()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()


def restore_directory(
    fs: FileSystem,
    clock: Clock,
    source: File,
    directory: PurePath,
    open_engine: EngineOpener,
    *,
    size_bytes_max: int | None = None,
) -> Summary:
    """Create a data directory from a backup; the directory must be missing or empty.

    The restore is refused before anything is created if the unpacked data exceed the limit, or need
    more space than the disk has. Without a limit, no more is written than the disk had free.

    Raises: CorruptionError, ExistsError, UsageError, StorageFullError, DiskError. The files created
    until then are not a data directory, and may be removed.
    """
    if fs.exists(directory) and any(entry.name != LOCK for entry in fs.list(directory)):
        raise ExistsError(f"{directory} is not empty: restore the backup to a new directory")
    free_bytes = _free_bytes(fs, directory)
    room_bytes = free_bytes if size_bytes_max is None else size_bytes_max
    checked = verify_snapshot(source, plain_bytes_max=room_bytes)
    # The contents are in a separate file until they are written to their place.
    needed_bytes = checked.plain_bytes + checked.content_bytes
    if needed_bytes > free_bytes:
        raise StorageFullError(directory, needed_bytes=needed_bytes)
    create_directories(fs, directory)
    with ExitStack() as closing:
        lock = fs.lock(StorePaths(directory).lock)
        closing.callback(lock.release)
        spill = closing.enter_context(fs.create(directory / _CONTENTS))
        sink = DirectorySink(fs, directory, open_engine, room_bytes)
        closing.callback(sink.release)
        for name in (DATA, COMMITS):
            create_directories(fs, directory / name)
        for record in SnapshotReader(source, ContentsInFile(spill)).records():
            sink.apply(record)
        sink.close()
        _remove_dropped(fs, StorePaths(directory).data)
        _restore_state(fs, clock, source, directory, spill)
        remove_file(fs, directory / _CONTENTS)
        replace_file(fs, StorePaths(directory).version, VERSION)
    return checked


def _free_bytes(fs: FileSystem, directory: PurePath) -> int:
    """Return the free space of the disk for a directory that may not exist yet; at least 1."""
    while not fs.exists(directory):
        directory = directory.parent
    return max(fs.free_bytes(directory), 1)


def _remove_dropped(fs: FileSystem, data: PurePath) -> None:
    """Remove the slabs that no manifest lists: they were dropped while the backup was made."""
    for entry in fs.list(data):
        directory = data / entry.name
        if entry.kind is not EntryKind.DIRECTORY or not fs.exists(directory / MANIFEST):
            continue
        slabs = read_manifest(fs, directory).slabs
        known = {(str(slab.shard), str(slab.generation)) for slab in slabs}
        for shard in fs.list(directory):
            if shard.kind is not EntryKind.DIRECTORY or not shard.name.isdecimal():
                continue
            for generation in fs.list(directory / shard.name):
                if (shard.name, generation.name) not in known:
                    remove_tree(fs, directory / shard.name / generation.name)


def _restore_state(
    fs: FileSystem, clock: Clock, source: File, directory: PurePath, spill: File
) -> None:
    """Write the state of the broker's memory as the first snapshot of the new directory."""
    spill.truncate(0)
    state = _state_records(SnapshotReader(source, ContentsInFile(spill)))
    first = next(state, None)
    if first is None:
        return
    paths = StorePaths(directory)
    keeper = SnapshotDirectory(fs, clock, paths.snapshots, paths.quarantine)
    try:
        keeper.save(_chained(first, state), source="broker")
    finally:
        keeper.close()


def _state_records(reader: SnapshotReader) -> Iterator[Record]:
    return (record for record in reader.records() if not isinstance(record, _OF_STORE))


def _chained(first: Record, rest: Iterator[Record]) -> Iterator[Record]:
    yield first
    yield from rest
