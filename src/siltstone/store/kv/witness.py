"""What RocksDB must still have when it is opened again, in a file of our own beside its files.

RocksDB takes the end of its MANIFEST and of its log for granted: a manifest whose tail is cut,
zeroed or has a length that reaches past the end of the file opens as an older database, and the
tables that only the lost part names are removed. WITNESS says how far both had come.

    0   magic 8 | MANIFEST number u64 | its bytes u64 | CRC-32C of these bytes u32 | zero u32
    32  sequence number u64 | CRC-32C of the 40 bytes before u32
    256 sequence number u64 | CRC-32C of it u32

Little endian, 512 bytes. RocksDB numbers every key that it writes; the sequence number is the last.

Invariants: the file never says more than is durable. The first part is replaced whole, after the
MANIFEST was synced, when RocksDB is opened or closed and when its MANIFEST has grown. The number at
256 is stored through a map after every synced write and not synced itself, which costs nothing.
A kill loses nothing of it. A power cut may leave an older number, or a torn one, which does not
count. A MANIFEST that is newer than the one named was begun when RocksDB was opened: its bytes are
unknown, and only the sequence number must be reached.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from threading import Lock
from typing import Final

from crc32c import crc32c

from siltstone.errors import CorruptionError, NotFoundError, StorageFullError
from siltstone.fs.api import File, FileSystem
from siltstone.fs.publish import replace_file

WITNESS: Final = "WITNESS"
WITNESS_BYTES: Final = 512
MANIFEST_PREFIX: Final = "MANIFEST-"

_CURRENT: Final = "CURRENT"
_MAGIC: Final = b"SILTWIT1"
_FIXED: Final = struct.Struct("<8sQQIIQ")
_CRC: Final = struct.Struct("<I")
_RUNNING: Final = struct.Struct("<Q")
_RUNNING_OFFSET: Final = 256
_RUNNING_BYTES: Final = 12
_READ_BYTES: Final = 1024 * 1024
_REMEDY: Final = "restore a backup, or keep the rest with `siltstone verify --repair`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """How far RocksDB had come."""

    manifest: int
    manifest_bytes: int
    manifest_crc: int
    sequence: int

    def encode(self) -> bytes:
        """Return the file that says so."""
        fixed = _FIXED.pack(
            _MAGIC, self.manifest, self.manifest_bytes, self.manifest_crc, 0, self.sequence
        )
        head = (fixed + _CRC.pack(crc32c(fixed))).ljust(_RUNNING_OFFSET, b"\0")
        return (head + _running(self.sequence)).ljust(WITNESS_BYTES, b"\0")


def read_evidence(fs: FileSystem, directory: PurePath) -> Evidence | None:
    """Return what the witness says; None where there is none, as an older version left it.

    Raises: CorruptionError.
    """
    try:
        data = fs.read(directory / WITNESS)
    except NotFoundError:
        return None
    fixed = data[: _FIXED.size]
    if len(data) != WITNESS_BYTES or data[_FIXED.size :][:4] != _CRC.pack(crc32c(fixed)):
        raise CorruptionError(
            "the file with the last sequence number is damaged: check the database and write the "
            "file again with `siltstone verify --repair`",
            path=directory / WITNESS,
        )
    _, manifest, manifest_bytes, manifest_crc, _, sequence = _FIXED.unpack(fixed)
    running = data[_RUNNING_OFFSET:][:_RUNNING_BYTES]
    if running[_RUNNING.size :] == _CRC.pack(crc32c(running[: _RUNNING.size])):
        sequence = max(sequence, _RUNNING.unpack_from(running)[0])
    return Evidence(
        manifest=manifest,
        manifest_bytes=manifest_bytes,
        manifest_crc=manifest_crc,
        sequence=sequence,
    )


def is_manifest_of(fs: FileSystem, directory: PurePath, evidence: Evidence) -> bool:
    """Say whether the MANIFEST of a directory is what the witness says. Raises: NotFoundError."""
    number = _current(fs, directory)
    if number is None or number > evidence.manifest:
        return True
    path = _manifest_path(directory, number)
    with fs.open(path, writable=False) as file:
        crc, size = _grown(file, 0, 0, evidence.manifest_bytes)
    wanted = (evidence.manifest, evidence.manifest_bytes, evidence.manifest_crc)
    return (number, size, crc) == wanted


def check_manifest(fs: FileSystem, directory: PurePath, evidence: Evidence) -> None:
    """Hold the MANIFEST of a directory against what the witness says.

    Raises: CorruptionError when a part of it is gone or another; NotFoundError.
    """
    if not is_manifest_of(fs, directory, evidence):
        raise CorruptionError(
            f"the list of files (MANIFEST) differs from the one that was written; {_REMEDY}",
            path=directory,
        )


def check_sequence(directory: PurePath, evidence: Evidence | None, sequence: int) -> None:
    """Hold what RocksDB has opened against what the witness says.

    Raises: CorruptionError when acknowledged writes are missing.
    """
    if evidence is not None and sequence < evidence.sequence:
        raise CorruptionError(
            f"acknowledged writes are missing: {evidence.sequence - sequence} of "
            f"{evidence.sequence} keys at the end; {_REMEDY}",
            path=directory,
        )


class Witness:
    """Keeps the file of an open database. Its calls come from any thread."""

    def __init__(self, fs: FileSystem, directory: PurePath) -> None:
        self._fs = fs
        self._directory = directory
        self._lock = Lock()
        self._view: memoryview | None = None
        self._manifest: File | None = None
        self._number = 0
        self._size = 0
        self._crc = 0
        self._sequence = 0

    def cover(self, sequence: int) -> None:
        """Say how far RocksDB has come, with all of its MANIFEST. Raises: DiskError."""
        with self._lock:
            self._sequence = max(sequence, self._sequence)
            self._cover()

    def note(self, sequence: int) -> None:
        """Say that everything up to this number is durable. Raises: DiskError."""
        with self._lock:
            if sequence <= self._sequence:
                return
            self._sequence = sequence
            if self._manifest is None or self._manifest.size() != self._size:
                self._cover()
            elif self._view is not None:
                self._view[_RUNNING_OFFSET : _RUNNING_OFFSET + _RUNNING_BYTES] = _running(sequence)

    def close(self) -> None:
        """Let go of the files; a second call does nothing."""
        with self._lock:
            if self._manifest is not None:
                self._manifest.close()
            self._manifest = self._view = None

    def _cover(self) -> None:
        number = _current(self._fs, self._directory)
        if number is None:
            return
        if self._manifest is None or number != self._number:
            if self._manifest is not None:
                self._manifest.close()
            path = _manifest_path(self._directory, number)
            self._manifest = self._fs.open(path, writable=True)
            self._number, self._size, self._crc = number, 0, 0
        size = self._manifest.size()
        self._crc, self._size = _grown(self._manifest, self._size, self._crc, size)
        # RocksDB syncs what it has added, but perhaps not yet.
        self._manifest.sync()
        evidence = Evidence(
            manifest=number,
            manifest_bytes=self._size,
            manifest_crc=self._crc,
            sequence=self._sequence,
        )
        path = self._directory / WITNESS
        # On a full disk the file from before stays, which is true as well, only older.
        with suppress(StorageFullError):
            replace_file(self._fs, path, evidence.encode())
            self._view = None
        if self._view is None and self._fs.exists(path):
            with self._fs.open(path, writable=True) as file:
                self._view = file.map(writable=True)


def _running(sequence: int) -> bytes:
    packed = _RUNNING.pack(sequence)
    return packed + _CRC.pack(crc32c(packed))


def _current(fs: FileSystem, directory: PurePath) -> int | None:
    """Return the number of the MANIFEST in force; None where RocksDB itself will not find it."""
    try:
        name = fs.read(directory / _CURRENT).strip().decode(errors="replace")
    except NotFoundError:
        return None
    digits = name.removeprefix(MANIFEST_PREFIX)
    return int(digits) if name != digits and digits.isdecimal() else None


def _manifest_path(directory: PurePath, number: int) -> PurePath:
    return directory / f"{MANIFEST_PREFIX}{number:06}"


def _grown(file: File, offset: int, crc: int, until: int) -> tuple[int, int]:
    """Go on with a CRC from offset up to until, or the end of the file; return it and where."""
    while offset < until:
        part = file.read_at(offset, min(_READ_BYTES, until - offset))
        if not part:
            break
        crc = crc32c(part, crc)
        offset += len(part)
    return crc, offset
