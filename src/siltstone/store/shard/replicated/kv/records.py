"""The payloads of key-value records in the shared log, which every site writes into its engine.

    0   1  version: 1
    1   1  zero
    2   2  length of the name of a family: the one that a GENERATION begins or a DROP removes
    4   4  length of the learned structure
    8   4  number of transactions
    12  4  number of ranges to delete
    16  4  number of families with values
    20     the name, the structure, then

    transaction  sender 16, number u64, serial u64
    range        lengths of family, start and stop (u32 each), then their bytes
    family       length of its name u32, number of values u32, the name, then for each value the
                 lengths of key and value (u32 each; ff ff ff ff: the key is deleted), key, value

Integers are little endian. Invariant: everything that a replica writes comes from the record and
from the records before it. A replica does not read the clock, and makes no decisions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from siltstone.store.kv.api import Changes
from siltstone.store.shard.replicated.payloads import BadPayloadError
from siltstone.store.tx.commit.attempts import StoredAttempt
from siltstone.store.tx.commit.committer import KeyValueRecord
from siltstone.store.writer.commit_log import RecordKind

VERSION: Final = 1
_HEAD: Final = struct.Struct("<BBHIIII")
_STORED: Final = struct.Struct("<16sQQ")
_RANGE: Final = struct.Struct("<III")
_PAIR: Final = struct.Struct("<II")
_DELETED: Final = 0xFFFFFFFF


def encode_record(record: KeyValueRecord, stored: Sequence[StoredAttempt]) -> bytes:
    """Return the payload of a record that stores these transactions."""
    changes, family = record.changes, record.family.encode()
    head = _HEAD.pack(
        *(VERSION, 0, len(family), len(record.edges)),
        *(len(stored), len(changes.ranges), len(changes.values)),
    )
    parts = [head, family, record.edges]
    parts += [_STORED.pack(each.sender, each.number, each.serial) for each in stored]
    for name, start, stop in changes.ranges:
        encoded = name.encode()
        parts += [_RANGE.pack(len(encoded), len(start), len(stop)), encoded, start, stop]
    for name, values in changes.values.items():
        encoded = name.encode()
        parts += [_PAIR.pack(len(encoded), len(values)), encoded]
        for key, value in values.items():
            if value is None:
                parts += [_PAIR.pack(len(key), _DELETED), key]
            else:
                parts += [_PAIR.pack(len(key), len(value)), key, value]
    return b"".join(parts)


def decode_record(kind: RecordKind, payload: bytes) -> tuple[KeyValueRecord, list[StoredAttempt]]:
    """Return the record and the transactions that it stores. Raises: BadPayloadError."""
    try:
        return _decode_record(kind, payload)
    except (struct.error, ValueError) as exc:
        raise BadPayloadError(f"a {kind.name} record cannot be read: {exc}") from exc


def _decode_record(kind: RecordKind, payload: bytes) -> tuple[KeyValueRecord, list[StoredAttempt]]:
    version, zero, family_bytes, edge_bytes, count, ranges, families = _HEAD.unpack_from(payload)
    if version != VERSION or zero:
        raise ValueError(f"it has an unknown version: version={version} supported={VERSION}")
    rest = _Rest(payload, _HEAD.size)
    family, edges = rest.take(family_bytes).decode(), rest.take(edge_bytes)
    stored = [StoredAttempt(*_STORED.unpack(rest.take(_STORED.size))) for _ in range(count)]
    changes = Changes()
    for _ in range(ranges):
        name_bytes, start_bytes, stop_bytes = _RANGE.unpack(rest.take(_RANGE.size))
        name = rest.take(name_bytes).decode()
        changes.ranges.append((name, rest.take(start_bytes), rest.take(stop_bytes)))
    for _ in range(families):
        name_bytes, number = _PAIR.unpack(rest.take(_PAIR.size))
        values = changes.values[rest.take(name_bytes).decode()] = {}
        for _ in range(number):
            key_bytes, value_bytes = _PAIR.unpack(rest.take(_PAIR.size))
            key = rest.take(key_bytes)
            values[key] = None if value_bytes == _DELETED else rest.take(value_bytes)
    if rest.at != len(payload):
        raise ValueError(f"it has {len(payload) - rest.at} bytes too many")
    return KeyValueRecord(kind, changes, edges, family), stored


class _Rest:
    """The bytes that were not taken yet."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self.at = at

    def take(self, size: int) -> bytes:
        start = self.at
        self.at += size
        if self.at > len(self._data):
            raise ValueError("it is cut short")
        return self._data[start : self.at]
