"""Records to a file: contents de-duplicated, each before the first record that refers to it.

What is kept while writing is a buffer and a digest of each content, and no more contents than a few
thousand small ones: most messages that wait for many sessions are the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import PurePath
from typing import Final

from siltstone.errors import SiltstoneError, UsageError
from siltstone.fs.api import File, FileSystem
from siltstone.fs.publish import TEMPORARY_SUFFIX
from siltstone.snapshot.codec import encode_record
from siltstone.snapshot.digests import DIGEST_BYTES, DigestTable
from siltstone.snapshot.records import About, Record
from siltstone.snapshot.stream import RecordWriter
from siltstone.snapshot.totals import Totals

CONTENT_BYTES_MAX: Final = 512 * 1024 * 1024
# Contents that are known without a digest: so many, and so long at most.
_RECENT_MAX: Final = 8192
_RECENT_BYTES_MAX: Final = 1024


class SnapshotWriter:
    """Writes one snapshot to a new file."""

    def __init__(
        self, file: File, about: About, content_bytes_max: int = CONTENT_BYTES_MAX
    ) -> None:
        self._content_bytes_max = content_bytes_max
        self._stream = RecordWriter(file)
        self._known = DigestTable()
        self._content_bytes = 0
        self._recent: dict[bytes, int] = {}
        self._stream.write(*encode_record(about, self._number))

    def add(self, record: Record) -> None:
        """Add one record. Raises: UsageError when it is too large; what File.write raises."""
        self._stream.write(*encode_record(record, self._number))

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
        if len(content) > self._content_bytes_max:
            raise UsageError(
                f"too much for one content of a snapshot: size_bytes={len(content)} "
                f"max={self._content_bytes_max}"
            )
        digest = blake2b(content, digest_size=DIGEST_BYTES).digest()
        number, is_new = self._known.number_of(digest)
        if is_new:
            self._stream.write_content(number, content)
            self._content_bytes += len(content)
        return number


def write_snapshot(
    file: File,
    about: About,
    records: Iterable[Record],
    *,
    pause: Callable[[], None] | None = None,
) -> Totals:
    """Write all records to a new file, whole and not synced.

    `pause` is called behind each record, so that other threads may get their turn.
    """
    writer = SnapshotWriter(file, about)
    for record in records:
        writer.add(record)
        if pause is not None:
            pause()
    return writer.finish()


def publish_snapshot(
    fs: FileSystem,
    path: PurePath,
    about: About,
    records: Iterable[Record],
    *,
    pause: Callable[[], None] | None = None,
) -> tuple[Totals, int]:
    """Write a snapshot under its own name, whole and durable, or not at all; return its size too.

    Raises: what the records raise, StorageFullError, DiskError.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        with fs.create(temporary) as file:
            totals = write_snapshot(file, about, records, pause=pause)
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
