"""Staged rows: many tasks write them, one commit appends them, exactly once.

    DIR/staging/<write>/<batch>/<name>.arrow   the rows of one task, whole and synced
    DIR/staging/<write>/<batch>.json           which of these files the batch is: {"names": [...]}
    DIR/staging/<write>/committed              the number of the last batch that is in the store

A write has a name, in Spark the id of the query. The numbers of its batches rise. Tasks that fail
or run twice leave files that no batch names. The first commit of a batch decides its files before
any row is appended. A repeated commit, for example after a crash and with other files, continues
with the files of the first commit. The rows of a file are appended in pieces. Each piece has a
sequence of the producer, which is the write, so the store recognizes a repeated piece.

Invariant: once `<batch>.json` exists, the rows of the batch are stored once, or will be by the next
commit. Before that, none is stored.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import PurePath
from typing import Final

import pyarrow as pa

from siltstone.errors import NotFoundError, SiltstoneError, UsageError
from siltstone.fs.api import EntryKind, File, FileSystem
from siltstone.fs.paths import StorePaths
from siltstone.fs.publish import create_directories, remove_tree, replace_file
from siltstone.scan.ingest.columns import ROWS_SCHEMA
from siltstone.store.writer.ticket import Ticket

_COMMITTED: Final = "committed"
_NAME: Final = re.compile(r"[0-9a-f]{32}\.arrow")
# A sequence consists of the number of the batch and the number of the piece in it.
_PIECE_BITS: Final = 24
_BATCHES_MAX: Final = 1 << (64 - _PIECE_BITS)
_UNDER_WAY_MAX: Final = 8

# Append rows of ROWS_SCHEMA for a producer; the arguments are rows, and (producer, sequence).
Append = Callable[[pa.RecordBatch, tuple[str, int]], Ticket]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteBatch:
    """One batch of a write; the same name and number always mean the same rows."""

    write: str
    number: int

    def __post_init__(self) -> None:
        if not self.write:
            raise UsageError("a write must have a name")
        if not 0 <= self.number < _BATCHES_MAX:
            raise UsageError(f"the number of a batch is out of range: batch={self.number}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingResult:
    """The result of a commit; `repeated` means that an earlier commit had stored all rows."""

    rows: int
    repeated: bool


class Staging:
    """The staging area of a data directory. Many tasks may stage; one caller at a time commits."""

    def __init__(self, fs: FileSystem, data: PurePath) -> None:
        self._fs = fs
        self._root = StorePaths(data).staging

    def stage(self, batch: WriteBatch, rows: Iterable[pa.RecordBatch]) -> str | None:
        """Write rows of ROWS_SCHEMA to a new file and sync it; return its name, None for no rows.

        Raises: StorageFullError.
        """
        pieces = iter(rows)
        first = next(pieces, None)
        if first is None:
            return None
        directory = self._directory(batch)
        name = f"{secrets.token_hex(16)}.arrow"
        # Another task may commit the batch and remove its directory at this moment.
        while True:
            create_directories(self._fs, directory)
            try:
                file = self._fs.create(directory / name)
                break
            except NotFoundError:
                continue
        with file:
            sink = pa.PythonFile(_Writable(file), mode="w")
            with pa.ipc.new_stream(sink, ROWS_SCHEMA) as writer:
                writer.write_batch(first)
                for piece in pieces:
                    writer.write_batch(piece)
            file.sync()
        self._fs.sync_directory(directory)
        return name

    def commit(
        self, batch: WriteBatch, names: Sequence[str], append: Append, *, forget: bool = False
    ) -> StagingResult:
        """Append the files of a batch exactly once, and remove them; with `forget` the write too.

        A forgotten write is not recognized if it is repeated.

        Raises: UsageError; the errors of `append` and its tickets: commit again.
        """
        home = self._home(batch)
        last = self._last_committed(home)
        if last >= batch.number:
            self._sweep(home, last)
            return StagingResult(rows=0, repeated=True)
        chosen = self._decide(batch, names)
        rows = self._append_all(batch, chosen, append)
        if forget:
            with suppress(NotFoundError):
                remove_tree(self._fs, home)
            return StagingResult(rows=rows, repeated=False)
        if chosen or self._fs.exists(home):
            create_directories(self._fs, home)
            replace_file(self._fs, home / _COMMITTED, b"%d\n" % batch.number)
            self._sweep(home, batch.number)
        return StagingResult(rows=rows, repeated=False)

    def discard(self, batch: WriteBatch, names: Sequence[str]) -> None:
        """Remove files that no commit will name; files of a decided batch stay."""
        manifest = self._manifest(batch)
        kept = set(_read_names(self._fs.read(manifest))) if self._fs.exists(manifest) else set()
        for name in _checked(names):
            if name not in kept:
                with suppress(NotFoundError):
                    self._fs.remove(self._directory(batch) / name)

    def _decide(self, batch: WriteBatch, names: Sequence[str]) -> list[str]:
        """Return the files of the batch, as its first commit decided."""
        manifest = self._manifest(batch)
        if self._fs.exists(manifest):
            return _read_names(self._fs.read(manifest))
        chosen = _checked(names)
        if chosen:
            replace_file(self._fs, manifest, json.dumps({"names": chosen}).encode())
        return chosen

    def _append_all(self, batch: WriteBatch, names: Sequence[str], append: Append) -> int:
        """Append the pieces of all files, a limited number at a time; return the number of rows."""
        under_way: list[Ticket] = []
        rows = 0
        for piece_number, piece in enumerate(self._pieces(batch, names)):
            if piece_number >> _PIECE_BITS:
                raise UsageError(
                    f"the batch is too large, write smaller batches: pieces={piece_number}"
                )
            sequence = batch.number << _PIECE_BITS | piece_number
            under_way.append(append(piece, (batch.write, sequence)))
            rows += piece.num_rows
            if len(under_way) == _UNDER_WAY_MAX:
                under_way.pop(0).wait()
        for ticket in under_way:
            ticket.wait()
        return rows

    def _pieces(self, batch: WriteBatch, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for name in names:
            with self._fs.open(self._directory(batch) / name, writable=False) as file:
                buffer = pa.py_buffer(file.map(writable=False))
            with pa.ipc.open_stream(buffer) as reader:
                yield from reader

    def _last_committed(self, home: PurePath) -> int:
        if not self._fs.exists(home / _COMMITTED):
            return -1
        return int(self._fs.read(home / _COMMITTED))

    def _sweep(self, home: PurePath, last: int) -> None:
        """Remove the files of batches that are in the store."""
        for entry in self._fs.list(home):
            number = entry.name.removesuffix(".json")
            if not number.isdecimal() or int(number) > last:
                continue
            # An abandoned task may still write there; the next commit sweeps again.
            with suppress(SiltstoneError):
                if entry.kind is EntryKind.DIRECTORY:
                    remove_tree(self._fs, home / entry.name)
                else:
                    self._fs.remove(home / entry.name)

    def _home(self, batch: WriteBatch) -> PurePath:
        return self._root / blake2b(batch.write.encode(), digest_size=16).hexdigest()

    def _directory(self, batch: WriteBatch) -> PurePath:
        return self._home(batch) / f"{batch.number:020d}"

    def _manifest(self, batch: WriteBatch) -> PurePath:
        return self._home(batch) / f"{batch.number:020d}.json"


class _Writable:
    """A file with the interface that Arrow writes to."""

    closed = False

    def __init__(self, file: File) -> None:
        self._file = file
        self._end = 0

    def write(self, data: bytes | memoryview) -> int:
        self._file.write_at(self._end, data)
        self._end += len(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def close(self) -> None:
        """Do nothing: the code that opened the file closes it."""


def _checked(names: Sequence[str]) -> list[str]:
    """Return the names if each has the form of a staged file. Raises: UsageError."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise UsageError(f"invalid name of a staged file: name={name!r}")
    return list(names)


def _read_names(encoded: bytes) -> list[str]:
    names: list[str] = json.loads(encoded)["names"]
    return names
