"""The data of one call before it is committed: small entries share files, large ones do not.

A single entry or a large entry has a file of its own. The small entries of a batch share packs. No
file of this module has the name of an entry yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import PurePath
from typing import Final

from siltstone.errors import DiskError, OverloadedError, SiltstoneError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import free_name
from siltstone.spool.contents import PROOF_BYTES, Source, chunks_of
from siltstone.spool.drafts import (
    NO_LINKS,
    Draft,
    Kept,
    keep_draft,
    move_aside,
    remove_drafts,
    write_draft,
)
from siltstone.spool.packs import PACKED_BYTES_MAX, PACKED_ENTRIES_MAX, Pack

# The limit of files that are open at the same time during one call.
_OPEN_FILES_MAX: Final = 64


class Gathering:
    """The files of one call, and the file of each entry."""

    def __init__(
        self, fs: FileSystem, next_path: Callable[[], PurePath], *, room_bytes: int | None
    ) -> None:
        self._fs = fs
        self._next_path = next_path
        self._room_bytes = room_bytes
        # The first small entry. It gets a file of its own if no second entry follows.
        self._first: bytes | None = None
        self._unsynced: list[Draft] = []
        self._can_link = True
        self.size_bytes = 0
        # The error of a sync, after all data of the entry had been read.
        self.failed_sync: SiltstoneError | None = None
        # The file of each entry, in order. The file of the first entry may be decided last.
        self.files: list[Draft | Pack] = []

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.files) + (self._first is not None)

    def add(self, source: Source) -> None:
        """Add the data of another entry.

        Raises: StorageFullError; OverloadedError if the limit is exceeded; any error of reading the
        source.
        """
        chunks = chunks_of(source)
        begun: list[bytes] = []
        size = 0
        for chunk in chunks:
            begun.append(bytes(chunk))
            size += len(chunk)
            if size > PACKED_BYTES_MAX:
                self._flush_first()
                self._add_draft(chain(begun, map(bytes, chunks)))
                return
        self._add_small(b"".join(begun))

    def finish(self) -> None:
        """Write the waiting entry, and sync the files of single entries."""
        self._flush_first()
        self._sync()

    def seal(self, names: Sequence[str]) -> None:
        """Write the table of entries into each pack, and sync it."""
        named: dict[Pack, list[str]] = {}
        for file, name in zip(self.files, names, strict=True):
            if isinstance(file, Pack):
                named.setdefault(file, []).append(name)
        for pack, held in named.items():
            pack.seal(held)

    def remove(self, error: BaseException) -> None:
        """Remove the files that were written before an error. Raises: CleanupFailedError."""
        remove_drafts(self._fs, list(dict.fromkeys(self.files)), error)

    def keep(self, directory: PurePath) -> list[Kept]:
        """Move the data of all entries to a place that is not swept; return the places in order.

        An entry of a pack gets a file of its own if there is space.
        """
        kept = {
            file: iter(
                self._keep_pack(file, directory)
                if isinstance(file, Pack)
                else [keep_draft(self._fs, file, directory)]
            )
            for file in dict.fromkeys(self.files)
        }
        return [next(kept[file]) for file in self.files]

    def _add_small(self, data: bytes) -> None:
        self._take_room(len(data))
        if not self.files and self._first is None:
            self._first = data
            return
        pack = self._pack()
        if pack is None:
            self._flush_first()
            self._write([data])
            return
        if self._first is not None:
            first, self._first = self._first, None
            self.files.append(pack)
            pack.add(first)
        self.files.append(pack)
        pack.add(data)

    def _pack(self) -> Pack | None:
        """Return the pack for the next entry; None if the file system has no hard links."""
        for file in reversed(self.files):
            if isinstance(file, Pack):
                if len(file.parts) < PACKED_ENTRIES_MAX:
                    return file
                break
        if not self._can_link:
            return None
        pack = Pack(self._fs.create(self._next_path()))
        second = self._next_path()
        try:
            self._fs.link(pack.path, second)
            self._fs.remove(second)
        except SiltstoneError as exc:
            remove_drafts(self._fs, [pack], exc)
            if not isinstance(exc, DiskError) or exc.errno not in NO_LINKS:
                raise
            self._can_link = False
            return None
        return pack

    def _flush_first(self) -> None:
        if self._first is not None:
            first, self._first = self._first, None
            self._write([first])

    def _add_draft(self, source: Source) -> None:
        room = self._room_bytes
        left = None if room is None else room - self.size_bytes
        self.size_bytes += self._write(source, left).size_bytes

    def _write(self, source: Source, room_bytes: int | None = None) -> Draft:
        draft = write_draft(self._fs, self._next_path(), source, room_bytes=room_bytes)
        self.files.append(draft)
        self._unsynced.append(draft)
        if len(self._unsynced) == _OPEN_FILES_MAX:
            self._sync()
        return draft

    def _sync(self) -> None:
        unsynced, self._unsynced = self._unsynced, []
        try:
            for draft in unsynced:
                draft.sync()
        except SiltstoneError as exc:
            self.failed_sync = exc
            raise

    def _take_room(self, length: int) -> None:
        size = length + PROOF_BYTES
        room = self._room_bytes
        if room is not None and self.size_bytes + size > room:
            raise OverloadedError(f"the spool is full: room_bytes={room - self.size_bytes}")
        self.size_bytes += size

    def _keep_pack(self, pack: Pack, directory: PurePath) -> list[Kept]:
        with suppress(SiltstoneError):
            pack.file.close()
        made: list[PurePath] = []
        try:
            with self._fs.open(pack.path, writable=False) as file:
                for part in pack.parts:
                    target = free_name(self._fs, directory, pack.path.stem)
                    made.append(target)
                    with self._fs.create(target) as copy:
                        copy.write_at(0, file.read_at(part.offset, part.length))
                        copy.sync()
            self._fs.sync_directory(directory)
        except SiltstoneError:
            for path in made:
                with suppress(SiltstoneError):
                    self._fs.remove(path)
            return self._keep_together(pack, directory)
        with suppress(SiltstoneError):
            # If this fails, the next opening sweeps the pack.
            self._fs.remove(pack.path)
        return [
            Kept(path, 0, part.length, stays=True)
            for path, part in zip(made, pack.parts, strict=True)
        ]

    def _keep_together(self, pack: Pack, directory: PurePath) -> list[Kept]:
        """Keep a pack as one file, with a table of its entries by their numbers in the call.

        A pack without a table must not be kept: it would look like the data of one entry.
        """
        numbers = [str(number) for number, file in enumerate(self.files) if file is pack]
        path, stays = pack.path, False
        with suppress(SiltstoneError):
            with self._fs.open(pack.path, writable=True) as file:
                file.truncate(pack.end)
                pack.write_table(file, numbers)
                file.sync()
            path, stays = move_aside(self._fs, pack.path, directory, f"{pack.path.stem}.pack")
        return [Kept(path, part.offset, part.length, stays=stays) for part in pack.parts]
