"""The witness: a file beside the files of RocksDB that says what RocksDB must still have.

RocksDB does not notice that the end of its MANIFEST or of its log is missing. If the tail of a
MANIFEST is cut or zeroed, or has a length that reaches past the end of the file, RocksDB opens an
older database, and removes the tables that only the lost part names. WITNESS records how far both
had come.

    0   magic 8 | MANIFEST number u64 | its bytes u64 | CRC-32C of these bytes u32 | zero u32
    32  sequence number u64 | CRC-32C of the 40 bytes before u32
    256 sequence number u64 | CRC-32C of it u32

Little endian, 512 bytes. RocksDB numbers every key that it writes; the sequence number is the last.

Invariants: the file never says more than is durable. The first part is replaced as a whole, after
the MANIFEST was synced: when RocksDB is opened or closed, and when its MANIFEST has grown. The
number at 256 is stored through a map after every synced write; it is not synced itself, so it costs
nothing. If the process is killed, the number survives. A power cut may leave an older number, or a
torn one, which is ignored. A MANIFEST that is newer than the recorded one was begun when RocksDB
was opened: its bytes are unknown, and only the sequence number is checked.
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
        """Return the bytes of the file."""
        fixed = _FIXED.pack(
            _MAGIC, self.manifest, self.manifest_bytes, self.manifest_crc, 0, self.sequence
        )
        head = (fixed + _CRC.pack(crc32c(fixed))).ljust(_RUNNING_OFFSET, b"\0")
        return (head + _running(self.sequence)).ljust(WITNESS_BYTES, b"\0")


def read_evidence(fs: FileSystem, directory: PurePath) -> Evidence | None:
    """Return the contents of the witness; None if there is none, as in older versions.

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
    """Return whether the MANIFEST of a directory matches the witness. Raises: NotFoundError."""
    number = _current(fs, directory)
    if number is None or number > evidence.manifest:
        return True
    path = _manifest_path(directory, number)
    with fs.open(path, writable=False) as file:
        crc, size = _grown(file, 0, 0, evidence.manifest_bytes)
    wanted = (evidence.manifest, evidence.manifest_bytes, evidence.manifest_crc)
    return (number, size, crc) == wanted


def check_manifest(fs: FileSystem, directory: PurePath, evidence: Evidence) -> None:
    """Compare the MANIFEST of a directory with the witness.

    Raises: CorruptionError if it or a part of it is missing, or different; NotFoundError if RocksDB
    replaced it meanwhile.
    """
    try:
        is_same = is_manifest_of(fs, directory, evidence)
    except NotFoundError as exc:
        number = _current(fs, directory)
        if number is None or fs.exists(_manifest_path(directory, number)):
            raise
        raise CorruptionError(
            f"the list of files (MANIFEST) is missing; {_REMEDY}",
            path=_manifest_path(directory, number),
        ) from exc
    if not is_same:
        raise CorruptionError(
            f"the list of files (MANIFEST) differs from the one that was written; {_REMEDY}",
            path=directory,
        )


def check_sequence(directory: PurePath, evidence: Evidence | None, sequence: int) -> None:
    """Compare the sequence number of RocksDB with the witness.

    Raises: CorruptionError if acknowledged writes are missing.
    """
    if evidence is not None and sequence < evidence.sequence:
        raise CorruptionError(
            f"acknowledged writes are missing: {evidence.sequence - sequence} of "
            f"{evidence.sequence} keys at the end; {_REMEDY}",
            path=directory,
        )


class Witness:
    """Writes the witness of an open database. From any thread."""

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
        """Record the sequence number and the whole MANIFEST of RocksDB. Raises: DiskError."""
        with self._lock:
            self._sequence = max(sequence, self._sequence)
            self._cover()

    def note(self, sequence: int) -> None:
        """Record that everything up to this number is durable. Raises: DiskError."""
        with self._lock:
            if sequence <= self._sequence:
                return
            self._sequence = sequence
            if self._manifest is None or self._manifest.size() != self._size:
                self._cover()
            elif self._view is not None:
                self._view[_RUNNING_OFFSET : _RUNNING_OFFSET + _RUNNING_BYTES] = _running(sequence)

    def close(self) -> None:
        """Close the files; a second call does nothing."""
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
        # RocksDB syncs the part that it added, but perhaps it has not done so yet.
        self._manifest.sync()
        evidence = Evidence(
            manifest=number,
            manifest_bytes=self._size,
            manifest_crc=self._crc,
            sequence=self._sequence,
        )
        path = self._directory / WITNESS
        # On a full disk the previous file stays. It is older, but also true.
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
    """Return the number of the current MANIFEST; None if RocksDB itself cannot find it."""
    try:
        name = fs.read(directory / _CURRENT).strip().decode(errors="replace")
    except NotFoundError:
        return None
    digits = name.removeprefix(MANIFEST_PREFIX)
    return int(digits) if name != digits and digits.isdecimal() else None


def _manifest_path(directory: PurePath, number: int) -> PurePath:
    return directory / f"{MANIFEST_PREFIX}{number:06}"


def _grown(file: File, offset: int, crc: int, until: int) -> tuple[int, int]:
    """Continue a CRC from offset up to `until` or the end of the file; return it and the end."""
    while offset < until:
        part = file.read_at(offset, min(_READ_BYTES, until - offset))
        if not part:
            break
        crc = crc32c(part, crc)
        offset += len(part)
    return crc, offset
