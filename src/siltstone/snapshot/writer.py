"""Writes records to a file; equal contents once, each before the first record that refers to it.

In memory are a buffer, a digest of each content, and at most a few thousand small contents: most
messages that wait for many sessions are the same object.

Writing has two parts, so that it can run beside an event loop that must not wait. `take` encodes
records, for as short a time as the caller wants. `drain` does the longer work: large contents,
compression, writing to the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import PurePath
from typing import Final, Protocol

from siltstone.errors import SiltstoneError, UsageError
from siltstone.fs.api import File, FileSystem
from siltstone.fs.publish import TEMPORARY_SUFFIX
from siltstone.snapshot.format.codec import encode_record
from siltstone.snapshot.format.digests import DIGEST_BYTES, DigestTable
from siltstone.snapshot.format.records import About, Record
from siltstone.snapshot.format.stream import RecordWriter
from siltstone.snapshot.format.totals import Totals

CONTENT_BYTES_MAX: Final = 512 * 1024 * 1024
# Contents that are recognised without a digest: their maximum number and size.
_RECENT_MAX: Final = 8192
_RECENT_BYTES_MAX: Final = 1024
# For a larger content, the digest alone takes too long for `take`.
_LIGHT_BYTES_MAX: Final = 16 * 1024


class _HeavyError(ValueError):
    """A content is too large for `take`."""


class SnapshotWriter:
    """Writes one snapshot to a new file; not safe for concurrent threads."""

    def __init__(
        self,
        file: File,
        about: About,
        content_bytes_max: int = CONTENT_BYTES_MAX,
        rest: Callable[[], None] | None = None,
    ) -> None:
        self._content_bytes_max = content_bytes_max
        self._stream = RecordWriter(file, rest)
        # The record that `take` left for `drain`.
        self._left: Record | None = None
        self._is_taking = False
        self._known = DigestTable()
        self._content_bytes = 0
        self._recent: dict[bytes, int] = {}
        self._stream.write(*encode_record(about, self._number))

    def add(self, record: Record) -> None:
        """Add one record. Raises: UsageError if it is too large; what File.write raises."""
        self._stream.write(*encode_record(record, self._number))
        if self._stream.is_full:
            self._stream.drain()

    @property
    def is_full(self) -> bool:
        """Whether `drain` must be called before `take`."""
        return self._left is not None or self._stream.is_full

    def take(self, records: Iterator[Record | None], goes_on: Callable[[], bool]) -> bool:
        """Add records until the buffer is full or `goes_on` returns False; return whether there may
        be more.

        None stands for work that produced no record. This uses neither the disk nor much processor
        time, whatever the records are. Raises: what the records raise, UsageError.
        """
        assert not self.is_full, "it was drained"
        self._is_taking = True
        try:
            for record in records:
                if record is not None:
                    self._take(record)
                if self._left is not None or self._stream.is_full or not goes_on():
                    return True
        finally:
            self._is_taking = False
        return False

    def _take(self, record: Record) -> None:
        try:
            self._stream.write(*encode_record(record, self._number))
        except _HeavyError:
            # Earlier contents of this record are written and known, so they are not written again.
            self._left = record

    def drain(self) -> None:
        """Write the taken records to the file. Raises: UsageError; what File.write raises."""
        left, self._left = self._left, None
        if left is not None:
            self.add(left)
        self._stream.drain()

    def finish(self) -> Totals:
        """End the file; it is complete, but not synced."""
        return self._stream.finish(contents=len(self._known), content_bytes=self._content_bytes)

    def _number(self, content: bytes) -> int:
        """Return the number of a content; write the content if it is new."""
        if not content:
            return 0
        size = len(content)
        if size <= _RECENT_BYTES_MAX:
            known = self._recent.get(content)
            if known is not None:
                return known
        number = self._number_by_digest(content)
        if size <= _RECENT_BYTES_MAX:
            if len(self._recent) >= _RECENT_MAX:
                self._recent.clear()
            self._recent[content] = number
        return number

    def _number_by_digest(self, content: bytes) -> int:
        if self._is_taking and len(content) > _LIGHT_BYTES_MAX:
            raise _HeavyError
        if len(content) > self._content_bytes_max:
            raise UsageError(
                f"the payload is too large for a snapshot: size_bytes={len(content)} "
                f"max={self._content_bytes_max}"
            )
        digest = blake2b(content, digest_size=DIGEST_BYTES).digest()
        number, is_new = self._known.number_of(digest)
        if is_new:
            self._stream.write_content(number, content)
            self._content_bytes += len(content)
        return number


class Pace(Protocol):
    """Controls when a snapshot is written, so that other work gets its turn."""

    def fill(self, writer: SnapshotWriter, records: Iterator[Record | None]) -> bool:
        """Let the writer take records until it is full; return whether there may be more."""

    def rest(self) -> None:
        """Pause, so that other threads can run."""


def write_snapshot(
    file: File, about: About, records: Iterable[Record | None], *, pace: Pace | None = None
) -> Totals:
    """Write all records to a new file, complete but not synced; `pace` None means no pauses."""
    if pace is None:
        writer = SnapshotWriter(file, about)
        for record in records:
            if record is not None:
                writer.add(record)
        return writer.finish()
    writer = SnapshotWriter(file, about, rest=pace.rest)
    left = iter(records)
    while pace.fill(writer, left):
        writer.drain()
    return writer.finish()


def publish_snapshot(
    fs: FileSystem,
    path: PurePath,
    about: About,
    records: Iterable[Record | None],
    *,
    pace: Pace | None = None,
) -> tuple[Totals, int]:
    """Write a snapshot, complete and durable, or nothing; return its totals and its size in bytes.

    Raises: what the records raise, StorageFullError, DiskError.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        with fs.create(temporary) as file:
            totals = write_snapshot(file, about, records, pace=pace)
            file.sync()
            size_bytes = file.size()
        fs.rename(temporary, path)
    except BaseException:
        # If the file cannot be removed now, it is removed or reported when the name is next used.
        with suppress(SiltstoneError):
            fs.remove(temporary)
        raise
    fs.sync_directory(path.parent)
    return totals, size_bytes
