"""Records to a file: contents de-duplicated, each before the first record that refers to it.

What is kept while writing is a buffer and a digest of each content, and no more contents than a few
thousand small ones: most messages that wait for many sessions are the same object.

Writing has two halves, so that it can be done beside a loop that must not wait. `take` makes bytes
of records, for as short a time as is asked for; `drain` does what takes longer: large contents,
compression, the disk.
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
# Contents that are known without a digest: so many, and so long at most.
_RECENT_MAX: Final = 8192
_RECENT_BYTES_MAX: Final = 1024
# Of a longer content the digest alone takes longer than a moment.
_LIGHT_BYTES_MAX: Final = 16 * 1024


class _HeavyError(ValueError):
    """A content is not for `take`."""


class SnapshotWriter:
    """Writes one snapshot to a new file; one thread at a time."""

    def __init__(
        self,
        file: File,
        about: About,
        content_bytes_max: int = CONTENT_BYTES_MAX,
        rest: Callable[[], None] | None = None,
    ) -> None:
        self._content_bytes_max = content_bytes_max
        self._stream = RecordWriter(file, rest)
        # The record that `take` has left to `drain`.
        self._left: Record | None = None
        self._is_taking = False
        self._known = DigestTable()
        self._content_bytes = 0
        self._recent: dict[bytes, int] = {}
        self._stream.write(*encode_record(about, self._number))

    def add(self, record: Record) -> None:
        """Add one record. Raises: UsageError when it is too large; what File.write raises."""
        self._stream.write(*encode_record(record, self._number))
        if self._stream.is_full:
            self._stream.drain()

    @property
    def is_full(self) -> bool:
        """Whether `drain` must be called before `take`."""
        return self._left is not None or self._stream.is_full

    def take(self, records: Iterator[Record | None], goes_on: Callable[[], bool]) -> bool:
        """Add records until it is full or does not go on; tell whether there may be more.

        None stands for work that led to no record. Neither the disk nor much of the processor is
        used, whatever the records are. Raises: what the records raise, UsageError.
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
            # A content that came before in it is written and known, and is not written again.
            self._left = record

    def drain(self) -> None:
        """Write what was taken to the file. Raises: UsageError; what File.write raises."""
        left, self._left = self._left, None
        if left is not None:
            self.add(left)
        self._stream.drain()

    def finish(self) -> Totals:
        """End the file; it is whole, and not synced."""
        return self._stream.finish(contents=len(self._known), content_bytes=self._content_bytes)

    def _number(self, content: bytes) -> int:
        """Return the number of a content, which is written if it is new."""
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
    """Where and when a snapshot is written, so that others get their turns."""

    def fill(self, writer: SnapshotWriter, records: Iterator[Record | None]) -> bool:
        """Let the writer take records until it is full; tell whether there may be more."""

    def rest(self) -> None:
        """Let others have what this thread has used for a moment."""


def write_snapshot(
    file: File, about: About, records: Iterable[Record | None], *, pace: Pace | None = None
) -> Totals:
    """Write all records to a new file, whole and not synced; at once, if no pace is given."""
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
    """Write a snapshot under its own name, whole and durable, or not at all; return its size too.

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
        # What cannot be removed now is swept, or told of, when the name is next wanted.
        with suppress(SiltstoneError):
            fs.remove(temporary)
        raise
    fs.sync_directory(path.parent)
    return totals, size_bytes
