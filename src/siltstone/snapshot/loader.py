"""Loads a snapshot file: the whole file is checked first, then read again and applied.

Nothing is applied before the end record was found to be correct, so a damaged snapshot changes
nothing. Memory is a buffer plus what `Contents` keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from siltstone.errors import CorruptionError, UsageError
from siltstone.fs.api import File
from siltstone.snapshot.format.codec import (
    CONTENT,
    FIELDS,
    KINDS,
    RecordError,
    decode_record,
    decode_values,
)
from siltstone.snapshot.format.contents import Contents, NoContents
from siltstone.snapshot.format.records import OWNERS, About, Record, StateSink
from siltstone.snapshot.format.stream import PART, RecordReader
from siltstone.snapshot.format.totals import Summary
from siltstone.snapshot.writer import CONTENT_BYTES_MAX

_OWNERS: Final = {KINDS[record]: KINDS[owner] for record, owner in OWNERS.items()}


class SnapshotReader:
    """The records of one file, in order."""

    def __init__(
        self,
        file: File,
        contents: Contents,
        content_bytes_max: int = CONTENT_BYTES_MAX,
        plain_bytes_max: int = 0,
    ) -> None:
        """Read up to the first record. Raises: CorruptionError; UsageError for a newer version.

        If `plain_bytes_max` is not 0, reading beyond it raises UsageError.
        """
        self._file = file
        self._plain_bytes_max = plain_bytes_max
        self._stream = RecordReader(file)
        self._contents = contents
        self._content_bytes_max = content_bytes_max
        self._finished = 0
        self._under_way = 0
        self._content_bytes = 0
        self._seen: set[int] = set()
        self.about = self._read_about()

    def records(self) -> Iterator[Record]:
        """Yield all records; raises CorruptionError at the first invalid one, and at the end if the
        file is incomplete.
        """
        while (found := self._next()) is not None:
            record = self._decode(*found)
            assert not isinstance(record, About), "the stream lets one pass, which comes first"
            yield record

    def check(self) -> None:
        """Read all records without creating them; raises what `records` does."""
        while (found := self._next()) is not None:
            try:
                decode_values(*found, self._content)
            except RecordError as exc:
                raise self._stream.corrupt(str(exc)) from exc

    def _next(self) -> tuple[int, bytes] | None:
        """Return the next record other than content, after a check that its owner came before; None
        at the end of a complete file.
        """
        while (found := self._stream.next()) is not None:
            kind, body = found
            if 0 < self._plain_bytes_max < self._stream.plain_bytes:
                raise UsageError(
                    "the backup has more data than allowed; raise the limit, or free disk space: "
                    f"max={self._plain_bytes_max} path={self._file.path}"
                )
            if kind == CONTENT:
                self._take_part(body)
                continue
            if kind not in self._seen:
                owner = _OWNERS.get(kind)
                if owner is not None and owner not in self._seen:
                    name, before = FIELDS[kind][0].__name__, FIELDS[owner][0].__name__
                    raise self._stream.corrupt(
                        f"a {name} record comes before the first {before} record"
                    )
                self._seen.add(kind)
            return found
        totals = self._stream.totals
        assert totals is not None, "the stream ends with them"
        if self._under_way:
            raise self._stream.corrupt(
                f"the last payload is cut short: number={self._finished + 1}"
            )
        if totals.contents != self._finished or totals.content_bytes != self._content_bytes:
            raise self._stream.corrupt(
                f"the end record counts other payloads than the file has: "
                f"counted={totals.contents} found={self._finished} "
                f"counted_bytes={totals.content_bytes} found_bytes={self._content_bytes}"
            )
        return None

    def summary(self) -> Summary:
        """Return a summary of the file; all records must have been read."""
        totals = self._stream.totals
        assert totals is not None, "all records were read"
        return Summary(
            about=self.about,
            contents=totals.contents,
            content_bytes=totals.content_bytes,
            size_bytes=self._file.size(),
            plain_bytes=self._stream.plain_bytes,
            digest=totals.digest,
            counts={
                FIELDS[kind][0].__name__: count
                for kind, count in sorted(totals.counts.items())
                if kind in FIELDS and FIELDS[kind][0] is not About
            },
        )

    def _read_about(self) -> About:
        found = self._stream.next()
        about = None if found is None else self._decode(*found)
        if not isinstance(about, About):
            raise self._stream.corrupt("the first record is missing")
        return about

    def _decode(self, kind: int, body: bytes) -> About | Record:
        try:
            return decode_record(kind, body, self._content)
        except RecordError as exc:
            raise self._stream.corrupt(str(exc)) from exc

    def _content(self, number: int) -> bytes:
        if number > self._finished:
            raise RecordError(f"a record refers to a payload that is missing: number={number}")
        return self._contents.get(number)

    def _take_part(self, body: bytes) -> None:
        if len(body) <= PART.size:
            raise self._stream.corrupt("a part of a payload is empty")
        number, is_last = PART.unpack_from(body)
        part = body[PART.size :]
        if number != self._finished + 1:
            raise self._stream.corrupt(
                f"a payload is out of order: number={number} expected={self._finished + 1}"
            )
        if is_last > 1:
            raise self._stream.corrupt(
                f"a part of a payload has an invalid flag: number={number} flag={is_last}"
            )
        self._under_way += len(part)
        if self._under_way > self._content_bytes_max:
            raise self._stream.corrupt(
                f"a payload is too large: number={number} max={self._content_bytes_max}"
            )
        self._contents.append(part)
        self._content_bytes += len(part)
        if is_last:
            self._contents.finish()
            self._finished += 1
            self._under_way = 0


def verify_snapshot(file: File, plain_bytes_max: int = 0) -> Summary:
    """Check a whole snapshot. Raises: CorruptionError; UsageError for a newer version, and for a
    snapshot larger than `plain_bytes_max`, if that is not 0.
    """
    reader = SnapshotReader(file, NoContents(), plain_bytes_max=plain_bytes_max)
    reader.check()
    return reader.summary()


def apply_snapshot(file: File, contents: Contents, sink: StateSink, checked: Summary) -> None:
    """Pass the records of a snapshot that was checked before to the sink.

    Raises: CorruptionError if the file has changed since; the sink has then received a part of it.
    """
    reader = SnapshotReader(file, contents)
    for record in reader.records():
        sink.apply(record)
    if reader.summary() != checked:
        raise CorruptionError("the snapshot changed while it was loaded", path=file.path)
