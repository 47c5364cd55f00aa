"""A durable queue of files: store, stream, discard, reduce.

An entry that `store` returned survives a power cut until it is discarded. A discarded entry never
returns. Ids rise, and no id is used twice in the life of a spool. A spool uses the same memory with
a million entries as with none, and opening a spool reads none of them.

One process may store and discard, with any number of threads. Other processes may read at the same
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import PurePath
from threading import Lock
from types import TracebackType
from typing import Final, Generic, Self, TypeVar, cast

from siltstone.errors import (
    ClosedError,
    CorruptionError,
    NotFoundError,
    PoisonedError,
    SiltstoneError,
    UsageError,
)
from siltstone.fs.api import EntryKind, FileSystem
from siltstone.fs.posix import PosixFileSystem
from siltstone.fs.publish import TEMPORARY_SUFFIX, create_directories, quarantine_file
from siltstone.spool.arguments import (
    check_text,
    function_given,
    pairs_given,
    path_given,
    require_kind,
)
from siltstone.spool.batches import RECORD_SUFFIX, finish_batches, forget, undo, write_record
from siltstone.spool.contents import PROOF_BYTES, EntryStream, Source, part_of
from siltstone.spool.drafts import give_name
from siltstone.spool.errors import NoSuchEntryError, UnableToCommitError
from siltstone.spool.gathering import Gathering
from siltstone.spool.layout import SpoolPaths, read_next_id, scan_entries, write_next_id
from siltstone.spool.moving import copy_out
from siltstone.spool.names import ID_MAX, Entry, encode_metadata, file_name, parse_name

Value = TypeVar("Value")

# The number of ids that are reserved on disk at a time, so that few stores write the file.
_RESERVED_IDS: Final = 1000


@dataclass(frozen=True, slots=True)
class Done(Generic[Value]):
    """The value that a function given to `reduce` returns to stop early with a result."""

    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolStats:
    """The contents of a spool; unexpected counts the names that are not entries."""

    entries: int
    size_bytes: int
    unexpected: int
    kept: int
    next_likely_id: int


class Spool:
    """An open spool. Every call raises ClosedError once it is closed."""

    def __init__(
        self,
        layout: SpoolPaths,
        fs: FileSystem,
        *,
        read_only: bool = False,
        size_bytes_max: int | None = None,
    ) -> None:
        if size_bytes_max is not None:
            require_kind("size_bytes_max", size_bytes_max, int, "a whole number")
        layout.check(fs)
        self.path = layout.root
        self.read_only = read_only
        self._fs = fs
        self._layout = layout
        self._lock = None if read_only else fs.lock(layout.lock)
        self._mutex = Lock()
        # Held while a batch has a record: no entry of the batch may be discarded in this time.
        self._batching = Lock()
        self._drafts = count()
        self._poison: SiltstoneError | None = None
        self._closed = False
        self._size_bytes_max = size_bytes_max
        try:
            if not read_only:
                finish_batches(fs, layout)
            self.swept = () if read_only else tuple(layout.sweep(fs))
            self._next_id = self._reserved = read_next_id(fs, layout)
            self._size_bytes = 0 if size_bytes_max is None else self.stats().size_bytes
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Return the spool itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the spool."""
        self.close()

    def close(self) -> None:
        """Close the spool and release its lock; a second call does nothing."""
        self._closed = True
        if self._lock is not None:
            self._lock.release()

    # Storing

    def store(self, source: Source, metadata: str | None = None) -> Entry:
        """Store bytes, a binary stream or an iterator of bytes; durable when this returns.

        Raises: UsageError for metadata that does not fit into a file name, before the source is
        read; StorageFullError, OverloadedError, CleanupFailedError: nothing is stored;
        UnableToCommitError, with the path of the data; PoisonedError after a sync of names has
        failed; any error of reading the source.
        """
        [stored] = self.store_many([(source, metadata)])
        return stored

    def store_many(self, items: Iterable[tuple[Source, str | None]]) -> list[Entry]:
        """Store several items as one batch; return their entries in order.

        Raises: the errors of `store`; none of the items is then stored. A crash before this returns
        leaves all of them or none, once the spool is opened for writing.
        """
        self._check_writable()
        limit = self._size_bytes_max
        room = None if limit is None else limit - self._size_bytes
        gathering = Gathering(self._fs, self._next_path, room_bytes=room)
        metadata: list[str | None] = []
        try:
            for source, said in pairs_given(items):
                if said is not None:
                    encode_metadata(said)
                metadata.append(said)
                gathering.add(cast("Source", source))
            gathering.finish()
        except BaseException as exc:
            if gathering.failed_sync is not None:
                raise self._kept(gathering, gathering.failed_sync) from exc
            gathering.remove(exc)
            raise
        return self._commit(gathering, metadata) if metadata else []

    def _next_path(self) -> PurePath:
        return self._layout.temporary / f"{next(self._drafts)}{TEMPORARY_SUFFIX}"

    def _commit(self, gathering: Gathering, metadata: list[str | None]) -> list[Entry]:
        """Link the gathered files to the names of their entries."""
        named: list[Entry] = []
        drafts = gathering.files
        with self._batching if len(drafts) > 1 else nullcontext():
            record = drafts[0].path.with_suffix(RECORD_SUFFIX) if len(drafts) > 1 else None
            try:
                # Names appear in the order of their ids: a caller of next_likely_id has seen all
                # lower ids. Only here the lock is held during disk operations.
                with self._mutex:
                    entries = [self._free_entry(said) for said in metadata]
                    names = [file_name(stored) for stored in entries]
                    gathering.seal(names)
                    if record is not None:
                        write_record(self._fs, record, drafts, names)
                    for draft, stored in zip(drafts, entries, strict=True):
                        give_name(self._fs, draft.path, self.path_of(stored))
                        named.append(stored)
                self._sync_names()
            except SiltstoneError as exc:
                paths = [self.path_of(stored) for stored in named]
                undone = undo(self._fs, record, drafts, paths)
                self._poison = self._poison or undone
                raise self._kept(gathering, exc) from exc
            with self._mutex:
                self._size_bytes += gathering.size_bytes
            # All entries are stored. If the record cannot be removed, the next opening would
            # restore an entry that is discarded now, so the spool is poisoned.
            self._poison = forget(self._fs, record, drafts) or self._poison
        return named

    def _free_entry(self, metadata: str | None) -> Entry:
        """Return the next entry whose name is free.

        A name may exist already on file systems where locks do not work.
        """
        while True:
            stored = Entry(self._take_id(), metadata)
            if not self._fs.exists(self.path_of(stored)):
                return stored

    def _take_id(self) -> int:
        """Return the next id, after reserving it on disk so that it is never used again."""
        if self._next_id > ID_MAX:
            raise UsageError("the spool has used all its ids: create a new one")
        if self._next_id >= self._reserved:
            write_next_id(self._fs, self._layout.next_id, self._next_id + _RESERVED_IDS)
            self._reserved = self._next_id + _RESERVED_IDS
        self._next_id += 1
        return self._next_id - 1

    def _kept(self, gathering: Gathering, error: SiltstoneError) -> UnableToCommitError:
        kept = gathering.keep(self._layout.kept)
        return UnableToCommitError(
            str(error),
            paths=tuple(each.path for each in kept),
            spans=tuple((each.offset, each.offset + each.length) for each in kept),
            at_risk=tuple(dict.fromkeys(each.path for each in kept if not each.stays)),
        )

    # Reading

    def stream(self, stored: Entry) -> EntryStream:
        """Open the data of an entry; close it after use.

        Raises: NoSuchEntryError; CorruptionError here or at the end of the data.
        """
        self._check_open()
        path = self.path_of(stored)
        try:
            return EntryStream(self._fs.open(path, writable=False))
        except NotFoundError as exc:
            raise NoSuchEntryError(stored, path) from exc

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries in any order; this reads only their names.

        An entry that is stored or discarded meanwhile may be yielded or not.
        """
        self._check_open()
        yield from scan_entries(self._fs, self._layout)

    def reduce(
        self, function: Callable[[Value, Entry], Value | Done[Value]], initial: Value
    ) -> Value:
        """Call the function for each entry, in any order, and return its last value.

        The function receives the value so far and an entry. It stops early by returning Done.
        """
        function_given(function)
        value = initial
        for found in self:
            made = function(value, found)
            if isinstance(made, Done):
                return made.value
            value = made
        return value

    def next_likely_id(self) -> int:
        """Return an id above those of all existing entries; later entries have this id or a higher
        one.
        """
        if self.read_only:
            # The next id on disk is higher than the last id that was used.
            return max((found.id for found in self), default=-1) + 1
        with self._mutex:
            return self._next_id

    def stats(self) -> SpoolStats:
        """Count the contents; this opens every file, one at a time."""
        self._check_open()
        entries = unexpected = size_bytes = 0
        for found in self._fs.scan_entries(self._layout.entries):
            if found.kind is EntryKind.FILE and parse_name(found.name) is not None:
                entries += 1
                size_bytes += self._size_of(self._layout.entries / found.name)
            else:
                unexpected += 1
        return SpoolStats(
            entries=entries,
            size_bytes=size_bytes,
            unexpected=unexpected,
            kept=sum(1 for _ in self._fs.scan(self._layout.kept)),
            next_likely_id=self.next_likely_id(),
        )

    # Discarding

    def discard(
        self,
        stored: Entry,
        destination: str | PurePath | None = None,
        *,
        reason: str | None = None,
    ) -> None:
        """Remove an entry durably, after moving its data to a new file if destination is given.

        The reason is written beside that file, as `<name>.reason.txt`. Without a destination, no
        space is needed.

        Raises: NoSuchEntryError; UsageError for a reason without a destination; ExistsError if
            another file has that name; CorruptionError, StorageFullError: the entry still exists;
            PoisonedError when the entry may reappear.
        """
        self._check_writable()
        if reason is not None:
            check_text("a reason", reason)
        if destination is not None:
            with self.stream(stored) as source:
                copy_out(self._fs, source, path_given(destination), reason)
        elif reason is not None:
            raise UsageError("a reason needs a destination")
        self.discard_many([stored])

    def discard_many(self, entries: Iterable[Entry]) -> None:
        """Remove entries durably, with one sync for all.

        Raises: the errors of `discard`; NoSuchEntryError with the missing entries, after all others
        were removed.
        """
        require_kind("entries", entries, Iterable, "entries")
        wanted = list(entries)
        for stored in wanted:
            self.path_of(stored)
        with self._batching:
            self._check_writable()
            missing: list[NoSuchEntryError] = []
            try:
                for stored in wanted:
                    try:
                        self._remove(stored)
                    except NoSuchEntryError as exc:
                        missing.append(exc)
            finally:
                if len(missing) < len(wanted):
                    self._sync_names()
        if missing:
            gone = tuple(each.entry for each in missing)
            raise NoSuchEntryError(gone[0], self.path_of(gone[0]), gone)

    def quarantine(self, stored: Entry, directory: PurePath, reason: str) -> PurePath:
        """Move the file of an unreadable entry to quarantine, unchanged; return its new path.

        The reason is written beside it. Raises: NoSuchEntryError.
        """
        self._check_writable()
        try:
            return quarantine_file(self._fs, self.path_of(stored), directory, reason)
        except NotFoundError as exc:
            raise NoSuchEntryError(stored, self.path_of(stored)) from exc

    def _remove(self, stored: Entry) -> None:
        path = self.path_of(stored)
        try:
            size_bytes = 0 if self._size_bytes_max is None else self._size_of(path)
            self._fs.remove(path)
        except NotFoundError as exc:
            raise NoSuchEntryError(stored, path) from exc
        with self._mutex:
            self._size_bytes -= size_bytes

    def _size_of(self, path: PurePath) -> int:
        """Return the size of an entry; 0 if it does not exist."""
        with suppress(NotFoundError), self._fs.open(path, writable=False) as file:
            try:
                return part_of(file).length + PROOF_BYTES
            except CorruptionError:
                return file.size()
        return 0

    # Shared by all of the above

    def path_of(self, stored: Entry) -> PurePath:
        """Return the path of an entry's file, which need not exist."""
        return self._layout.path_of(stored)

    def _sync_names(self) -> None:
        try:
            self._fs.sync_directory(self._layout.entries)
        except SiltstoneError as exc:
            # A second sync may succeed although the data was lost.
            self._poison = exc
            raise PoisonedError(f"a sync of names failed, open the spool again: {exc}") from exc

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the spool is closed: path={self.path}")

    def _check_writable(self) -> None:
        self._check_open()
        if self.read_only:
            raise UsageError(f"the spool was opened for reading only: path={self.path}")
        if self._poison is not None:
            raise PoisonedError(f"a sync of names failed, open the spool again: {self._poison}")


def create(path: str | PurePath, *, fs: FileSystem | None = None) -> Spool:
    """Create a spool at a path that does not exist, and open it; on an error, remove it again.

    Raises: ExistsError.
    """
    disk = fs or PosixFileSystem()
    layout = SpoolPaths(path_given(path))
    create_directories(disk, layout.root.parent)
    disk.make_directory(layout.root)
    try:
        disk.sync_directory(layout.root.parent)
        layout.lay_out(disk)
        return Spool(layout, disk)
    except SiltstoneError:
        with suppress(SiltstoneError):
            layout.remove(disk)
        raise


def open_spool(
    path: str | PurePath,
    *,
    read_only: bool = False,
    size_bytes_max: int | None = None,
    fs: FileSystem | None = None,
) -> Spool:
    """Open a spool; it refuses new entries beyond size_bytes_max.

    Raises: NotFoundError; UsageError for a spool of another version; LockedError when another
    process has it open for writing.
    """
    layout = SpoolPaths(path_given(path))
    return Spool(
        layout, fs or PosixFileSystem(), read_only=read_only, size_bytes_max=size_bytes_max
    )


def ensure(
    path: str | PurePath, *, size_bytes_max: int | None = None, fs: FileSystem | None = None
) -> Spool:
    """Open a spool for writing; create it if it is missing or a crash interrupted its creation.

    Raises: ExistsError for a directory with other contents; the errors of `open`.
    """
    disk = fs or PosixFileSystem()
    layout = SpoolPaths(path_given(path))
    create_directories(disk, layout.root)
    if not disk.exists(layout.sentinel):
        lock = disk.lock(layout.lock)
        try:
            layout.check_remains(disk)
            layout.lay_out(disk)
        finally:
            lock.release()
    return Spool(layout, disk, size_bytes_max=size_bytes_max)
