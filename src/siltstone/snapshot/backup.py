"""The records of a backup: a whole data directory in one file, made while other processes write.

Files are copied as they are, up to the position that readers may see. Rows keep their serials and
generations, so every saved position stays valid. Before anything is copied, `cut` records where
every database ends, for all of them together; rows that are stored later are left out. Key-value
databases are opened first, which fixes what is read from them, and the ends of the rows are read
after that. So no session or reader is further than the rows in the backup. Nothing is stored
between the two if the broker pauses meanwhile. A slab that is dropped before it is copied is left
out completely, because the manifest, which lists the slabs, comes after all of them.

The order: key-value databases, databases with their files and then their manifest, the queues of
the spool, and the state of a broker that only keeps snapshots.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import PurePath
from typing import Final, NamedTuple

from siltstone.errors import CorruptionError, NotFoundError, UsageError
from siltstone.fs.api import DirectoryEntry, EntryKind, File, FileSystem
from siltstone.fs.paths import COMMITS, DATA, KEYVALUES, LOCK, SPOOL, StorePaths
from siltstone.fs.publish import TEMPORARY_SUFFIX
from siltstone.snapshot.directory import LINK, link_target
from siltstone.snapshot.format.contents import Contents, ContentsInMemory
from siltstone.snapshot.format.records import (
    FilePart,
    KeyValueFamily,
    KeyValuePair,
    LearnedStructure,
    Record,
    StoredFile,
)
from siltstone.snapshot.format.stream import PART_BYTES
from siltstone.snapshot.loader import SnapshotReader
from siltstone.spool.contents import unpacked
from siltstone.spool.layout import ENTRIES
from siltstone.store.directory import Store
from siltstone.store.kv.api import Engine, EngineOpener
from siltstone.store.log.opening import identity_of, slab_directory
from siltstone.store.log.slab import bounds_of
from siltstone.store.segment.ahead import PREPARED, takes_rows
from siltstone.store.segment.segment import SEGMENT_HEADER_BYTES, open_segment
from siltstone.store.segment.sift import SlabBounds, index_path, list_segments
from siltstone.store.slab.added_logs import is_journal
from siltstone.store.slab.manifest import (
    MANIFEST,
    RESERVE,
    Manifest,
    SlabId,
    SlabState,
    read_manifest,
)

MARKS: Final = "marks"
_PAIRS: Final = 1000
# Above every key: a key starts with 8 bytes of a stream, followed by UTF-8.
_ABOVE: Final = b"\xff" * 16
_VISIBLE: Final = 2048
_SYNCED: Final = 2112


class _Ends(NamedTuple):
    """The end of a slab: its last segment, the end position in it, and whether it is sealed."""

    last: str
    position: int
    is_sealed: bool


class _Database(NamedTuple):
    """A database at the time of the cut: its manifest, and the ends of the slabs that take rows."""

    name: str
    manifest: Manifest
    ends: dict[SlabId, _Ends]


class BackupSource:
    """A data directory that another process may have open for writing."""

    def __init__(
        self,
        fs: FileSystem,
        directory: PurePath,
        open_engine: EngineOpener,
        contents: Contents | None = None,
    ) -> None:
        """Open the directory for reading, with `open_engine` for key-value databases. `contents`
        holds the payloads of a snapshot of the broker in it.

        Raises: NotFoundError.
        """
        self._contents = contents or ContentsInMemory()
        self._fs = fs
        self._directory = directory
        self._open_engine = open_engine
        self._store = Store(directory, read_only=True, fs=fs)
        self._opened: list[tuple[PurePath, Engine]] = []
        self._databases: list[_Database] | None = None

    def cut(self) -> None:
        """Fix what `records` yields for each database; a second call does it again.

        It opens the key-value databases and reads little else. Raises: CorruptionError, DiskError.
        """
        self.close()
        if lost := self._store.without_manifest():
            raise CorruptionError(
                f"database {lost[0]} has lost its manifest, "
                f"run `siltstone verify {lost[0]} --repair`",
                path=StorePaths(self._directory).database(lost[0]),
            )
        for path in self._engines(self._store):
            self._opened.append((path, self._open_engine(self._directory / path)))
        self._databases = [self._look(name) for name in self._store.names()]

    def close(self) -> None:
        """Close the key-value databases that `cut` opened."""
        opened, self._opened = self._opened, []
        with ExitStack() as closing:
            for _, engine in opened:
                closing.callback(engine.close)

    def records(self) -> Iterator[Record]:
        """Yield all records. Raises: CorruptionError, DiskError."""
        if self._databases is None:
            self.cut()
        with self._store, closing(self):
            for path, engine in self._opened:
                yield from _engine_records(engine, str(path))
            for database in self._databases or ():
                yield from self._database(database)
        yield from self._tree(PurePath(SPOOL))
        yield from self._broker_state()

    def _engines(self, store: Store) -> list[PurePath]:
        """Return the paths of the key-value databases."""
        paths = [PurePath(KEYVALUES) / name for name in store.keyvalue_names()]
        if self._fs.exists(StorePaths(self._directory).commits / "CURRENT"):
            paths.append(PurePath(COMMITS))
        return paths

    def _look(self, name: str) -> _Database:
        """Record where a database ends."""
        path = PurePath(DATA) / name
        manifest = read_manifest(self._fs, self._directory / path)
        ends: dict[SlabId, _Ends] = {}
        for slab in manifest.slabs:
            if slab.state is SlabState.CURRENT:
                bounds = bounds_of(slab, identity_of(manifest, slab.id).seed)
                # A slab that is dropped at this moment is found missing when it is copied.
                with suppress(NotFoundError):
                    ends[slab.id] = self._look_at_slab(slab_directory(path, slab.id), bounds)
        return _Database(name, manifest, ends)

    def _look_at_slab(self, path: PurePath, bounds: SlabBounds) -> _Ends:
        place = self._directory / path
        listed = self._fs.list(place)
        segments, _ = list_segments(self._fs, place, listed, bounds)
        self._check_prepared(place, listed)
        if not segments:
            return _Ends("", 0, is_sealed=False)
        last = place / segments[-1].name
        # This check comes first: an index that is created later may include rows after the end.
        is_sealed = self._fs.exists(index_path(last))
        return _Ends(last.name, open_segment(self._fs, last).visible_position, is_sealed=is_sealed)

    def _check_prepared(self, place: PurePath, listed: Sequence[DirectoryEntry]) -> None:
        """Refuse a slab whose last segment has lost its name in a power cut: its rows would be
        missing. A segment that a writer begins at this moment has its name before it has rows.
        """
        prepared = place / PREPARED
        for entry in listed:
            if entry.name != PREPARED:
                continue
            with suppress(NotFoundError):
                if takes_rows(self._fs, prepared, entry) and self._fs.exists(prepared):
                    raise UsageError(
                        "a power cut left rows that only the next start finds: start the broker "
                        "once, or run `siltstone verify --repair`, before the backup, "
                        f"path={place}"
                    )

    def _database(self, database: _Database) -> Iterator[Record]:
        name, manifest, ends = database
        path = PurePath(DATA) / name
        kept = []
        for slab in manifest.slabs:
            try:
                bounds = bounds_of(slab, identity_of(manifest, slab.id).seed)
                place = slab_directory(path, slab.id)
                yield from self._slab(place, bounds, ends.get(slab.id))
            except NotFoundError:
                self._check_dropped(path, slab.id)
            else:
                kept.append(slab)
        for info in self._store.database(name).structure():
            yield LearnedStructure(
                database=name,
                shard=info.slab.shard,
                generation=info.slab.generation,
                stream_id=info.stream_id,
                pattern=info.pattern,
                rows=info.rows,
            )
        for entry in self._fs.list(self._directory / path):
            if entry.kind is EntryKind.FILE and not _is_ours_alone(entry.name):
                yield from self._file(path / entry.name)
        yield from self._tree(path / MARKS)
        data = replace(manifest, slabs=tuple(kept), dropping=(), has_journal=False).encode()
        yield StoredFile(path=str(path / MANIFEST), size_bytes=len(data))
        yield FilePart(offset=0, data=data)

    def _check_dropped(self, path: PurePath, slab: SlabId) -> None:
        """Check that a slab whose files are missing is no longer in the manifest.

        Raises: CorruptionError.
        """
        now = read_manifest(self._fs, self._directory / path)
        if any(known.id == slab for known in now.slabs):
            raise CorruptionError(
                f"files of slab {slab} are missing, run `siltstone verify` or restore a backup",
                path=slab_directory(self._directory / path, slab),
            )

    def _slab(self, path: PurePath, bounds: SlabBounds, ends: _Ends | None) -> Iterator[Record]:
        place = self._directory / path
        segments, _ = list_segments(self._fs, place, self._fs.list(place), bounds)
        for entry in segments:
            if ends is not None and entry.name > ends.last:
                # This segment was created after the cut.
                break
            is_last = ends is not None and entry.name == ends.last
            yield from self._segment(path / entry.name, ends if is_last else None)
            index = index_path(path / entry.name)
            is_whole = ends is None or not is_last or ends.is_sealed
            if is_whole and self._fs.exists(self._directory / index):
                yield from self._file(index)

    def _segment(self, path: PurePath, ends: _Ends | None) -> Iterator[Record]:
        """Yield a segment up to the position that readers may see, now or at the time of the cut,
        as if it was synced exactly to there.
        """
        segment = open_segment(self._fs, self._directory / path)
        end = segment.visible_position if ends is None else ends.position
        view = segment.view
        head = bytearray(view[:SEGMENT_HEADER_BYTES])
        struct.pack_into("<Q", head, _VISIBLE, end)
        struct.pack_into("<Q", head, _SYNCED, end)
        yield StoredFile(path=str(path), size_bytes=len(view))
        yield FilePart(offset=0, data=bytes(head))
        for start in range(SEGMENT_HEADER_BYTES, end, PART_BYTES):
            yield FilePart(offset=start, data=bytes(view[start : min(start + PART_BYTES, end)]))

    def _tree(self, path: PurePath) -> Iterator[Record]:
        """Yield the files below a directory in which other processes replace only whole files."""
        if not self._fs.exists(self._directory / path):
            return
        for entry in self._fs.list(self._directory / path):
            if entry.kind is EntryKind.DIRECTORY:
                yield from self._tree(path / entry.name)
            elif entry.kind is EntryKind.FILE and not _is_ours_alone(entry.name):
                yield from self._file(path / entry.name)

    def _file(self, path: PurePath) -> Iterator[Record]:
        try:
            file = self._fs.open(self._directory / path, writable=False)
        except NotFoundError:
            # Another process has just removed the file, so it is not part of the directory.
            return
        with file:
            alone = self._alone(path, file)
            if alone is not None:
                yield StoredFile(path=str(path), size_bytes=len(alone))
                yield FilePart(offset=0, data=alone)
                return
            size = file.size()
            yield StoredFile(path=str(path), size_bytes=size)
            for start in range(0, size, PART_BYTES):
                length = min(PART_BYTES, size - start)
                yield FilePart(offset=start, data=file.read_at(start, length))

    def _alone(self, path: PurePath, file: File) -> bytes | None:
        """Return a spool entry that shares its file with other entries as a file of its own; None
        for any other file. Otherwise each entry would include the data of all of them.
        """
        if path.parts[0] != SPOOL or path.parent.name != ENTRIES:
            return None
        # A damaged entry is copied as it is.
        with suppress(CorruptionError):
            return unpacked(file)
        return None

    def _broker_state(self) -> Iterator[Record]:
        """Yield the records of the newest snapshot of a broker, if there is one."""
        directory = StorePaths(self._directory).snapshots
        if not self._fs.exists(directory / LINK):
            return
        with self._fs.open(directory / link_target(self._fs, directory), writable=False) as file:
            reader = SnapshotReader(file, self._contents)
            if reader.about.source == "broker":
                yield from reader.records()


def _is_ours_alone(name: str) -> bool:
    """Tell whether a file is not copied: a lock, manifest, reserve, journal or temporary file."""
    return name in {LOCK, MANIFEST, RESERVE} or name.endswith(TEMPORARY_SUFFIX) or is_journal(name)


def _engine_records(engine: Engine, database: str) -> Iterator[Record]:
    for family in engine.families():
        yield KeyValueFamily(database=database, family=family)
        view = engine.view(family)
        try:
            start = b""
            while items := view.items(start, _ABOVE, _PAIRS):
                for key, value in items:
                    yield KeyValuePair(key=key, value=value)
                start = items[-1][0] + b"\0"
        finally:
            view.release()
