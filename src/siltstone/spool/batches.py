"""Several entries that are stored together or not at all, whatever crashes.

    tmp/<number>.batch    `siltstone batch 1`, then a line for each entry: its draft, and its name;
                          the last line has the CRC-32C of those before it

The small entries of a batch share a draft, which is a pack (packs.py). The order for a batch is:
write and sync the drafts, write and sync the record, sync `tmp/`, link the drafts to their names,
sync `q/`, remove the record and the drafts, sync `tmp/`. Opening finishes a batch that has a
record: a crash before the record is durable leaves none of the entries, and a crash after it leaves
all.

Invariant: while a record may be found by the next opening, no entry of it is discarded.
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
from siltstone.spool.layout import Layout

RECORD_SUFFIX: Final = ".batch"
_FIRST_LINE: Final = b"siltstone batch 1\n"


class Planned(NamedTuple):
    """A draft and the name that it is to have: both without their directories."""

    draft: str
    name: str


def write_record(
    fs: FileSystem, path: PurePath, drafts: Sequence[Temporary], names: Sequence[str]
) -> None:
    """Decide that these drafts become these entries; durable when this returns."""
    pairs = zip(drafts, names, strict=True)
    lines = [f"{draft.path.name} {name}\n".encode("ascii") for draft, name in pairs]
    body = _FIRST_LINE + b"".join(lines)
    replace_file(fs, path, body + b"%08x\n" % crc32c(body))


def read_record(data: bytes) -> list[Planned] | None:
    """Return what a record says; None for what is none."""
    body = data[:-9]
    if not body.startswith(_FIRST_LINE) or data[-9:] != b"%08x\n" % crc32c(body):
        return None
    lines = body.decode("ascii").splitlines()[1:]
    return [Planned(*line.split(" ")) for line in lines]


def undo(
    fs: FileSystem, record: PurePath | None, drafts: Sequence[Temporary], names: Sequence[PurePath]
) -> SiltstoneError | None:
    """Take back what a commit did before it failed, the record first; return what kept the record
    or a name from going for good.
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
            # Else a power cut could bring back some of them.
            fs.sync_directory(names[0].parent)
        except SiltstoneError as exc:
            error = error or exc
    return error


def forget(
    fs: FileSystem, record: PurePath | None, drafts: Sequence[Temporary]
) -> SiltstoneError | None:
    """Remove the temporary names of what is stored; return what kept a record from going for good.

    A single draft has no record, and is swept later if need be.
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


def finish_batches(fs: FileSystem, layout: Layout) -> None:
    """Store the entries of the batches that a crash has cut short, and forget their records."""
    records = [
        layout.temporary / found.name
        for found in fs.scan(layout.temporary)
        if found.kind is EntryKind.FILE and found.name.endswith(RECORD_SUFFIX)
    ]
    for record in sorted(records):
        planned = read_record(fs.read(record))
        if planned is None:
            # Damaged later: what it was about is as it was without it.
            continue
        _finish(fs, layout, planned)
        for draft in dict.fromkeys(each.draft for each in planned):
            with suppress(NotFoundError):
                fs.remove(layout.temporary / draft)
        fs.remove(record)
        fs.sync_directory(layout.temporary)


def _finish(fs: FileSystem, layout: Layout, planned: Sequence[Planned]) -> None:
    drafts = [layout.temporary / each.draft for each in planned]
    names = [layout.entries / each.name for each in planned]
    whole = all(
        fs.exists(draft) or fs.exists(name) for draft, name in zip(drafts, names, strict=True)
    )
    if not whole:
        # The record outlived the crash by chance, and not all the drafts: nothing was linked yet.
        return
    for draft, name in zip(drafts, names, strict=True):
        with suppress(ExistsError):
            if fs.exists(draft):
                give_name(fs, draft, name)
    fs.sync_directory(layout.entries)
