"""The differences between two snapshots, by topic, client id, path and key.

Only a digest of each item is kept in memory, so that large snapshots can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Literal

from siltstone.fs.api import File
from siltstone.snapshot.format.codec import encode_record
from siltstone.snapshot.format.contents import Contents
from siltstone.snapshot.format.records import (
    OWNERS,
    KeyValueFamily,
    KeyValuePair,
    LearnedStructure,
    ReaderPosition,
    Record,
    RetainedMessage,
    SessionState,
    StoredFile,
)
from siltstone.snapshot.loader import SnapshotReader

Change = Literal["added", "removed", "changed"]


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """One item that differs: its kind, its name, and how it differs."""

    kind: str
    name: str
    change: Change


def find_differences(
    old: File, new: File, contents_of_old: Contents, contents_of_new: Contents
) -> list[Difference]:
    """Return the differences, sorted. Raises: CorruptionError."""
    before = _digests(SnapshotReader(old, contents_of_old))
    after = _digests(SnapshotReader(new, contents_of_new))
    found = [Difference(*key, "removed") for key in before.keys() - after.keys()]
    found += [Difference(*key, "added") for key in after.keys() - before.keys()]
    found += [
        Difference(*key, "changed")
        for key in before.keys() & after.keys()
        if before[key] != after[key]
    ]
    return sorted(found)


def _digests(reader: SnapshotReader) -> dict[tuple[str, str], bytes]:
    digests: dict[tuple[str, str], bytes] = {}
    for key, record in _named(reader.records()):
        digest = blake2b(digests.get(key, b""), digest_size=16)

        def put(content: bytes, digest: blake2b = digest) -> int:
            digest.update(b"%d " % len(content))
            digest.update(content)
            return 0

        digest.update(encode_record(record, put)[1])
        digests[key] = digest.digest()
    return digests


def _named(records: Iterator[Record]) -> Iterator[tuple[tuple[str, str], Record]]:
    """Yield each record with the kind and name of the item that it belongs to."""
    owner = ("", "")
    family = ""
    for record in records:
        key = owner
        match record:
            case RetainedMessage():
                key = ("retained message", record.topic.decode("utf-8", "replace"))
            case SessionState():
                key = ("session", record.client_id)
                # The time of the last activity is not a difference: for a connected client it is
                # the time of the snapshot.
                yield key, replace(record, last_active_us=0)
                owner = key
                continue
            case StoredFile():
                key = ("file", record.path)
            case ReaderPosition():
                key = ("position", f"{record.owner} {record.name}")
            case LearnedStructure():
                slab = f"{record.database} {record.shard}/{record.generation}"
                key = ("structure", f"{slab} {record.pattern}")
            case KeyValueFamily():
                family = f"{record.database} {record.family}"
                key = ("family", family)
            case KeyValuePair():
                key = ("pair", f"{family} {record.key.hex()}")
            case _:
                pass
        if type(record) not in OWNERS:
            owner = key
        yield key, record
