"""A data directory as records: one file that holds all of it, made while others write.

Files are taken as they are, up to the position that readers may see: rows keep their serials and
generations, so that every saved position stays right. Key-value databases are read first and rows
after them, so that no session or reader is further than the rows that come with it; what is
appended meanwhile may be left out. A slab that is dropped meanwhile is left out whole, because the
manifest that names the slabs comes behind all of them.

The order: key-value databases, databases with their files and then their manifest, the queues of
the spool, and the state of a broker that only keeps snapshots.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import PurePath
from typing import Final

from siltstone.directory import Store
from siltstone.errors import NotFoundError, SlabDroppedError
from siltstone.fs.api import EntryKind, FileSystem
from siltstone.fs.publish import TEMPORARY_SUFFIX
from siltstone.kv.api import Engine, EngineOpener
from siltstone.segment.chain import index_path, list_segments
from siltstone.segment.segment import SEGMENT_HEADER_BYTES, open_segment
from siltstone.snapshot.contents import Contents, ContentsInMemory
from siltstone.snapshot.keeper import LINK, link_target
from siltstone.snapshot.loader import SnapshotReader
from siltstone.snapshot.records import (
    FilePart,
    KeyValueFamily,
    KeyValuePair,
    LearnedStructure,
    Record,
    StoredFile,
)
from siltstone.snapshot.stream import PART_BYTES
from siltstone.store.manifest import MANIFEST, RESERVE, SlabId, read_manifest
from siltstone.store.opening import slab_directory

SNAPSHOTS: Final = "snapshots"
SPOOL: Final = "spool"
COMMITS: Final = "commits"
MARKS: Final = "marks"
_PAIRS: Final = 1000
# Above every key: they begin with 8 bytes of a stream, and have UTF-8 behind them.
_ABOVE: Final = b"\xff" * 16
_VISIBLE: Final = 2048
_SYNCED: Final = 2112


class StoreSource:
    """A data directory that is open elsewhere for writing, or nowhere."""

    def __init__(
        self,
        fs: FileSystem,
        directory: PurePath,
        open_engine: EngineOpener,
        contents: Contents | None = None,
    ) -> None:
        """Look at it. `open_engine` opens for reading; contents are those of a snapshot in it.

        Raises: NotFoundError.
        """
        self._contents = contents or ContentsInMemory()
        self._fs = fs
        self._directory = directory
        self._open_engine = open_engine
        self._store = Store(directory, read_only=True, fs=fs)

    def records(self) -> Iterator[Record]:
        """Yield everything. Raises: CorruptionError, DiskError."""
        with self._store as store:
            for path in self._engines(store):
                with closing(self._open_engine(self._directory / path)) as engine:
                    yield from _engine_records(engine, str(path))
            for name in store.names():
                yield from self._database(name)
        yield from self._tree(PurePath(SPOOL))
        yield from self._broker_state()

    def _engines(self, store: Store) -> list[PurePath]:
        """Return where the key-value databases are."""
        paths = [PurePath("kv") / name for name in store.keyvalue_names()]
        if self._fs.exists(self._directory / COMMITS / "CURRENT"):
            paths.append(PurePath(COMMITS))
        return paths

    def _database(self, name: str) -> Iterator[Record]:
        path = PurePath("data") / name
        manifest = read_manifest(self._fs, self._directory / path)
        kept = []
        for slab in manifest.slabs:
            try:
                yield from self._slab(slab_directory(path, slab.id))
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
        data = replace(manifest, slabs=tuple(kept), dropping=()).encode()
        yield StoredFile(path=str(path / MANIFEST), size_bytes=len(data))
        yield FilePart(offset=0, data=data)

    def _check_dropped(self, path: PurePath, slab: SlabId) -> None:
        """Raise what is being handled, unless the slab has gone from the manifest as well."""
        now = read_manifest(self._fs, self._directory / path)
        if any(known.id == slab for known in now.slabs):
            raise SlabDroppedError(f"files of slab {slab} are gone: path={path}")

    def _slab(self, path: PurePath) -> Iterator[Record]:
        segments, _ = list_segments(self._fs.list(self._directory / path))
        for entry in segments:
            yield from self._segment(path / entry.name)
            index = index_path(path / entry.name)
            if self._fs.exists(self._directory / index):
                yield from self._file(index)

    def _segment(self, path: PurePath) -> Iterator[Record]:
        """Yield a segment up to where its readers may read, as if it was synced just there."""
        segment = open_segment(self._fs, self._directory / path)
        end = segment.visible_position
        view = segment.view
        head = bytearray(view[:SEGMENT_HEADER_BYTES])
        struct.pack_into("<Q", head, _VISIBLE, end)
        struct.pack_into("<Q", head, _SYNCED, end)
        yield StoredFile(path=str(path), size_bytes=len(view))
        yield FilePart(offset=0, data=bytes(head))
        for start in range(SEGMENT_HEADER_BYTES, end, PART_BYTES):
            yield FilePart(offset=start, data=bytes(view[start : min(start + PART_BYTES, end)]))

    def _tree(self, path: PurePath) -> Iterator[Record]:
        """Yield the files below a directory that other processes change by whole files."""
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
            # Somebody has just removed it: then it is no part of the directory.
            return
        with file:
            size = file.size()
            yield StoredFile(path=str(path), size_bytes=size)
            for start in range(0, size, PART_BYTES):
                length = min(PART_BYTES, size - start)
                yield FilePart(offset=start, data=file.read_at(start, length))

    def _broker_state(self) -> Iterator[Record]:
        """Yield what the newest snapshot of a broker holds, should there be one."""
        directory = self._directory / SNAPSHOTS
        if not self._fs.exists(directory / LINK):
            return
        with self._fs.open(directory / link_target(self._fs, directory), writable=False) as file:
            reader = SnapshotReader(file, self._contents)
            if reader.about.source == "broker":
                yield from reader.records()


def _is_ours_alone(name: str) -> bool:
    """Tell whether a file has no meaning elsewhere: a lock, a reserve, something half written."""
    return name in {"LOCK", MANIFEST, RESERVE} or name.endswith(TEMPORARY_SUFFIX)


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
