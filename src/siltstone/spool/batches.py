"""Batches: several entries that are stored together or not at all, even after a crash.

    tmp/<number>.batch    `siltstone batch 1`, then a line for each entry: its draft, and its name;
                          the last line has the CRC-32C of those before it

The small entries of a batch share a draft, which is a pack (packs.py). The order for a batch is:
write and sync the drafts, write and sync the record, sync `tmp/`, link the drafts to their names,
sync `q/`, remove the record and the drafts, sync `tmp/`. Opening the spool completes a batch that
has a record: a crash before the record is durable leaves none of the entries, and a crash after it
leaves all.

Invariant: while the next opening may find a record, no entry of its batch is discarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Final, NamedTuple

from crc32c import crc32c

from siltstone.errors import ExistsError, NotFoundError, SiltstoneError
from siltstone.fs.api import EntryKind, FileSystem
from siltstone.fs.publish import replace_file
from siltstone.spool.drafts import Temporary, give_name, take_name_back
from siltstone.spool.layout import SpoolPaths

RECORD_SUFFIX: Final = ".batch"
_FIRST_LINE: Final = b"siltstone batch 1\n"


class Planned(NamedTuple):
    """A draft and the name of its entry, both without their directories."""

    draft: str
    name: str


def write_record(
    fs: FileSystem, path: PurePath, drafts: Sequence[Temporary], names: Sequence[str]
) -> None:
    """Record that these drafts become these entries; durable when this returns."""
    pairs = zip(drafts, names, strict=True)
    lines = [f"{draft.path.name} {name}\n".encode("ascii") for draft, name in pairs]
    body = _FIRST_LINE + b"".join(lines)
    replace_file(fs, path, body + b"%08x\n" % crc32c(body))


def read_record(data: bytes) -> list[Planned] | None:
    """Return the contents of a record; None if the data is not a valid record."""
    body = data[:-9]
    if not body.startswith(_FIRST_LINE) or data[-9:] != b"%08x\n" % crc32c(body):
        return None
    lines = body.decode("ascii").splitlines()[1:]
    return [Planned(*line.split(" ")) for line in lines]


def undo(
    fs: FileSystem, record: PurePath | None, drafts: Sequence[Temporary], names: Sequence[PurePath]
) -> SiltstoneError | None:
    """Undo a commit that failed, the record first.

    Return the first error that prevented the durable removal of the record or of a name, or None.
    """
    error: SiltstoneError | None = None
    if record is not None and fs.exists(record):
        try:
            fs.remove(record)
            fs.sync_directory(record.parent)
        except SiltstoneError as exc:
            error = exc
    for draft, name in zip(drafts, names, strict=False):
        try:
            take_name_back(fs, draft.path, name)
        except SiltstoneError as exc:
            error = error or exc
    if names:
        try:
            # Without this sync, some names could reappear after a power cut.
            fs.sync_directory(names[0].parent)
        except SiltstoneError as exc:
            error = error or exc
    return error


def forget(
    fs: FileSystem, record: PurePath | None, drafts: Sequence[Temporary]
) -> SiltstoneError | None:
    """Remove the temporary names of stored entries.

    Return the error that prevented the durable removal of a record, or None. A single draft has no
    record; if its removal fails, it is swept later.
    """
    if record is None:
        with suppress(SiltstoneError):
            fs.remove(drafts[0].path)
        return None
    try:
        fs.remove(record)
        for path in dict.fromkeys(draft.path for draft in drafts):
            with suppress(NotFoundError):
                fs.remove(path)
        fs.sync_directory(record.parent)
    except SiltstoneError as exc:
        return exc
    return None


def finish_batches(fs: FileSystem, layout: SpoolPaths) -> None:
    """Store the entries of batches that a crash interrupted, and remove their records."""
    records = [
        layout.temporary / found.name
        for found in fs.scan(layout.temporary)
        if found.kind is EntryKind.FILE and found.name.endswith(RECORD_SUFFIX)
    ]
    for record in sorted(records):
        planned = read_record(fs.read(record))
        if planned is None:
            # The record is damaged. The batch is treated as if it had no record.
            continue
        _finish(fs, layout, planned)
        for draft in dict.fromkeys(each.draft for each in planned):
            with suppress(NotFoundError):
                fs.remove(layout.temporary / draft)
        fs.remove(record)
        fs.sync_directory(layout.temporary)


def _finish(fs: FileSystem, layout: SpoolPaths, planned: Sequence[Planned]) -> None:
    drafts = [layout.temporary / each.draft for each in planned]
    names = [layout.entries / each.name for each in planned]
    whole = all(
        fs.exists(draft) or fs.exists(name) for draft, name in zip(drafts, names, strict=True)
    )
    if not whole:
        # The record survived the crash but some drafts did not, so no draft was linked yet.
        return
    for draft, name in zip(drafts, names, strict=True):
        with suppress(ExistsError):
            if fs.exists(draft):
                give_name(fs, draft, name)
    fs.sync_directory(layout.entries)
