"""Copy a key-value shard from another site: for a site that is new, or lost its files, or is behind
the trim of the shared log.

The source takes views of everything that the shard has, on the shard's thread, so that all views
show the same moment. Another thread writes them to one file of records (`records.py`), each with
its length (u32, little endian) before it. The file is offered and fetched like a segment. The
copying site removes its own data of the shard, writes the records into its engine, and the mark
last.

The order at the copying site is: the file is fetched, compared by its digest, and synced; the offer
is written durably; the shard is loaded; the offer and the file are removed. After a crash the next
start loads the shard again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import PurePath
from threading import Lock, Thread
from time import monotonic
from typing import Final

from siltstone.errors import CorruptionError, SiltstoneError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import create_directories, remove_file, remove_tree
from siltstone.store.kv.api import DEFAULT_FAMILY, Changes, Engine, View
from siltstone.store.shard.replicated.copying import CopyFile, CopyStaging, Offer, offer_to_install
from siltstone.store.shard.replicated.kv.records import decode_record, encode_record
from siltstone.store.shard.replicated.mark_file import Marked, encode_marked
from siltstone.store.shard.replicated.payloads import BadPayloadError
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.tx import catalog
from siltstone.store.tx.commit.changes import CHANGES_FAMILY, changes_end, changes_key
from siltstone.store.tx.commit.committer import KeyValueRecord, Room
from siltstone.store.writer.commit_log import RecordKind

SUFFIX: Final = ".rows"
# An offer is reused for this time, so that a large file is not written for each request.
OFFER_SECONDS: Final = 60.0
_LENGTH: Final = struct.Struct("<I")
_RECORD_BYTES: Final = 1024 * 1024
_ITEMS: Final = 512
_END: Final = b"\xff" * 64

# A family, and the range of its keys that belongs to a shard.
_Range = tuple[str, bytes, bytes]


def _ranges(engine: Engine, shard: int) -> list[_Range]:
    """Return the ranges of keys of a shard that are not rows."""
    ranges = [(DEFAULT_FAMILY, start, stop) for start, stop in catalog.ranges_of(shard)]
    if CHANGES_FAMILY in engine.families():
        ranges.append((CHANGES_FAMILY, changes_key(shard, 0), changes_end(shard)))
    return ranges


def _families(engine: Engine, shard: int) -> list[str]:
    return [name for name in engine.families() if name.startswith(f"{shard}.")]


class Exports:
    """The offers of a shard to sites that copy it. Each has a directory of its own, which is kept
    while another site reads it.
    """

    def __init__(
        self, fs: FileSystem, place: PurePath, engine: Engine, shard: int, room: Room | None
    ) -> None:
        self._fs = fs
        self._place = place
        self._engine = engine
        self._shard = shard
        self._room = room
        self._lock = Lock()
        self._is_writing = False
        self._offer: Offer | None = None
        self._until = 0.0
        # The directories of the offers, with the times when they were last used.
        self._used: dict[str, float] = {}
        self._number = 0
        self._closed = False

    def clear(self) -> None:
        """Remove what an earlier process has left."""
        self._remove(self._place)

    def close(self) -> None:
        """Offer nothing more."""
        self._closed = True

    def note_read(self, path: str) -> None:
        """Note that another site reads a file of an offer. From any thread."""
        with self._lock:
            self._use(PurePath(path).parts[0])

    def offer(self, marked: Marked, then: Callable[[Offer | None], None]) -> None:
        """Call `then` with an offer, perhaps later; with None while another one is being written.

        On the thread of the shard, just after its mark was written.
        """
        with self._lock:
            if self._offer is not None and monotonic() < self._until:
                self._use(str(self._number))
                then(self._offer)
                return
            if self._is_writing or self._closed:
                then(None)
                return
            self._is_writing = True
        views: list[tuple[str, bytes, bytes, View]] = []
        try:
            for family, start, stop in self._all_ranges():
                views.append((family, start, stop, self._engine.view(family)))
            Thread(target=self._write, args=(marked, views, then), daemon=True).start()
        except BaseException:
            self._end_writing(views, None)
            raise

    def _all_ranges(self) -> list[_Range]:
        engine, shard = self._engine, self._shard
        ranges = _ranges(engine, shard)
        ranges += [(family, b"", _END) for family in _families(engine, shard)]
        if shard == 0:
            # Settings are committed through shard 0, so they come with it. Until then the copying
            # site uses the settings that it has.
            ranges.append((DEFAULT_FAMILY, *catalog.settings_range()))
        return ranges

    def _write(
        self,
        marked: Marked,
        views: list[tuple[str, bytes, bytes, View]],
        then: Callable[[Offer | None], None],
    ) -> None:
        offer: Offer | None = None
        try:
            # If the disk is full, or the database is being closed, the other site asks again, or
            # asks another site.
            with suppress(SiltstoneError):
                offer = self._written(marked, views)
        finally:
            self._end_writing(views, offer)
            then(offer)

    def _end_writing(
        self, views: list[tuple[str, bytes, bytes, View]], offer: Offer | None
    ) -> None:
        for *_, view in views:
            view.release()
        with self._lock:
            self._offer, self._until = offer, monotonic() + OFFER_SECONDS
            if offer is not None:
                self._use(str(self._number))
            self._is_writing = False

    def _written(self, marked: Marked, views: list[tuple[str, bytes, bytes, View]]) -> Offer:
        self._remove_unused()
        self._number += 1
        number = str(self._number)
        try:
            copied = self._write_file(f"{number}/{marked.position.sequence:020}{SUFFIX}", views)
        except BaseException:
            self._remove(self._place / number)
            raise
        return Offer(
            marked=marked,
            settings=DatabaseSettings(),
            slabs=(),
            reclaimed=None,
            files=(copied,),
        )

    def _write_file(self, path: str, views: list[tuple[str, bytes, bytes, View]]) -> CopyFile:
        create_directories(self._fs, (self._place / path).parent)
        size = 0
        with self._fs.create(self._place / path) as file:
            for family, start, stop, view in views:
                for payload in _payloads(family, start, stop, view):
                    needed = _LENGTH.size + len(payload)
                    if self._room is not None and (full := self._room(needed)) is not None:
                        raise full
                    file.write(_LENGTH.pack(len(payload)) + payload)
                    size += needed
        return CopyFile(path=path, size_bytes=size, end=size)

    def _remove_unused(self) -> None:
        """Remove the offers that no site reads."""
        since = monotonic() - OFFER_SECONDS
        with self._lock:
            unused = [number for number, used in self._used.items() if used <= since]
            for number in unused:
                del self._used[number]
        for number in unused:
            self._remove(self._place / number)

    def _remove(self, directory: PurePath) -> None:
        if self._fs.exists(directory):
            remove_tree(self._fs, directory)

    def _use(self, number: str) -> None:
        """Keep an offer for a while. The caller holds the lock."""
        if number == str(self._number) or number in self._used:
            self._used[number] = monotonic()


def _payloads(family: str, start: bytes, stop: bytes, view: View) -> Iterator[bytes]:
    """Yield records that set all values of a range."""
    at, is_first = start, True
    while True:
        changes, size = Changes(), 0
        values = changes.values[family] = {}
        items = view.items(at, stop, _ITEMS)
        for key, value in items:
            values[key] = value
            size += len(key) + len(value)
            at = key + b"\x00"
            if size >= _RECORD_BYTES:
                break
        # An empty family is a slab too.
        if values or is_first:
            yield encode_record(KeyValueRecord(RecordKind.KV, changes, b"", ""), [])
        is_first = False
        if not items:
            return


def check_copied(fs: FileSystem, staging: CopyStaging, offer: Offer) -> None:
    """Check that the file of an offer can be loaded, and sync it. Raises: CorruptionError."""
    for file in offer.files:
        path = staging.place / file.path
        for _ in _records(fs, path):
            # It is decoded, with all its values.
            continue
        with fs.open(path, writable=True) as opened:
            opened.sync()
        fs.sync_directory(path.parent)
    fs.sync_directory(staging.place)


def load(
    fs: FileSystem, directory: PurePath, engine: Engine, shard: int, room: Room | None
) -> Marked:
    """Replace the data of a shard in the engine by the copied data; return its mark.

    On the thread of the shard, or before it begins. Raises: CorruptionError, DiskError,
    StorageFullError; the next start does it again.
    """
    offer, path = offer_to_install(fs, directory, shard)
    staging = CopyStaging(fs, directory, shard)
    _remove(engine, shard)
    for file in offer.files:
        for record, size in _records(fs, staging.place / file.path):
            if room is not None and (full := room(size)) is not None:
                # RocksDB does not recover after the disk was full once.
                raise full
            for family in record.changes.values:
                if family not in engine.families():
                    engine.create_family(family)
            engine.write(record.changes)
    changes = Changes()
    catalog.put_mark(changes, shard, encode_marked(offer.marked))
    engine.write(changes)
    remove_file(fs, path)
    remove_tree(fs, staging.root)
    return offer.marked


def _remove(engine: Engine, shard: int) -> None:
    changes = Changes()
    changes.ranges += _ranges(engine, shard)
    engine.write(changes)
    for family in _families(engine, shard):
        engine.drop_family(family)


def _records(fs: FileSystem, path: PurePath) -> Iterator[tuple[KeyValueRecord, int]]:
    """Yield the records of a file, and the bytes of each. Raises: CorruptionError."""
    with fs.open(path, writable=False) as file:
        at, size = 0, file.size()
        while at < size:
            try:
                (length,) = _LENGTH.unpack(file.read_at(at, _LENGTH.size))
                record, _ = decode_record(RecordKind.KV, file.read_at(at + _LENGTH.size, length))
            except (struct.error, BadPayloadError) as exc:
                raise CorruptionError(f"a copied shard: {exc}", path=path, offset=at) from exc
            yield record, length
            at += _LENGTH.size + length
