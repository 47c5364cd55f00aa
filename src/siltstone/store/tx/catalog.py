"""The catalog: the metadata of a key-value database, in the default family of its engine.

    settings                                 JSON
    identity                                 16 bytes, u8: 1 if all saved positions have it
    shard | shard u32                        term u64, serial u64, last timestamp_us u64
    mark  | shard u32                        of a replicated shard: how far it has read its log
    changes | shard u32                      state of the changes kept for feeds
    slab  | shard u32 | generation u32       JSON, as a slab in a manifest
    edges | shard u32 | generation u32 | number u32    learned structure, in order
    id    | shard u32 | digest 16            serial u64, timestamp_us u64
    id at | shard u32 | timestamp_us u64 | digest 16   empty

Numbers are big endian. A name and a zero byte precede each key. The rows of a slab are in a family
of their own, `<shard>.<generation>`. The family `changes` has the last changes, see
`commit/changes.py`. Any other family was left by a crash, and is dropped at the next start.
"""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Final

from siltstone.clock import Clock
from siltstone.errors import CorruptionError, UsageError
from siltstone.settings.declare import encoding_of
from siltstone.store.kv.api import DEFAULT_FAMILY, Changes, Engine
from siltstone.store.kv.slab import KeyValueSlab
from siltstone.store.slab.identity import DatabaseIdentity
from siltstone.store.slab.manifest import SlabId, SlabRecord, SlabState
from siltstone.store.tx.commit.changes import CHANGES_FAMILY, ChangeLogState, decode_state
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.topic.structure import Structure

FORMAT: Final = 1

_SETTINGS: Final = b"settings\x00"
_IDENTITY: Final = b"identity\x00"
_SHARD: Final = b"shard\x00"
_MARK: Final = b"mark\x00"
_CHANGES: Final = b"changes\x00"
_SLAB: Final = b"slab\x00"
_EDGES: Final = b"edges\x00"
_ID: Final = b"id\x00"
_ID_AT: Final = b"id at\x00"
_NUMBER: Final = struct.Struct(">I")
_STATE: Final = struct.Struct(">QQQ")
_REMEMBERED: Final = struct.Struct(">QQ")
_IDENTITY_BYTES: Final = 16
_CHUNK: Final = 1024
_PATH: Final = PurePath("catalog")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardState:
    """The counters of a shard."""

    term: int
    serial: int
    timestamp_us: int

    def encode(self) -> bytes:
        """Return the stored value."""
        return _STATE.pack(self.term, self.serial, self.timestamp_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedId:
    """A transaction that was committed with an id."""

    digest: bytes
    serial: int
    at_us: int


def family_of(slab: SlabId) -> str:
    """Return the family that holds the rows of a slab."""
    return f"{slab.shard}.{slab.generation}"


def is_created(engine: Engine) -> bool:
    """Return whether the engine holds a key-value database."""
    return engine.get(DEFAULT_FAMILY, _SETTINGS) is not None


def create(
    engine: Engine,
    clock: Clock,
    settings: KeyValueSettings,
    *,
    identity: bytes = b"",
    created_us: int = 0,
) -> None:
    """Create an empty database; all of it is written at once.

    The sites of a cluster have agreed on its identity and its time.
    """
    changes = Changes()
    put_settings(changes, settings)
    ensure_changes(engine, settings)
    _put_identity(changes, identity or secrets.token_bytes(_IDENTITY_BYTES), identified=True)
    now = created_us or clock.now_us()
    present = engine.families()
    for number in range(settings.shards):
        slab = SlabId(number, 1)
        if family_of(slab) not in present:
            engine.create_family(family_of(slab))
        put_state(changes, number, ShardState(term=0, serial=0, timestamp_us=0))
        put_slab(
            changes,
            SlabRecord(
                shard=number,
                generation=1,
                state=SlabState.CURRENT,
                since_us=now,
                until_us=None,
                created_us=now,
                encoding=encoding_of(settings),
            ),
        )
    engine.write(changes)


def read_settings(engine: Engine) -> KeyValueSettings:
    """Return the settings of a database. Raises: CorruptionError, UsageError."""
    stored = engine.get(DEFAULT_FAMILY, _SETTINGS)
    if stored is None:
        raise CorruptionError("the settings of the key-value database are missing", path=_PATH)
    values: dict[str, Any] = json.loads(stored)
    if values.pop("format", None) != FORMAT:
        raise UsageError(
            "another version of Siltstone wrote the key-value database: use that version"
        )
    return KeyValueSettings.from_json(values)


def put_settings(changes: Changes, settings: KeyValueSettings) -> None:
    """Store settings."""
    values = json.dumps({"format": FORMAT} | settings.to_json()).encode()
    changes.put(DEFAULT_FAMILY, _SETTINGS, values)


def read_identity(engine: Engine) -> DatabaseIdentity:
    """Return the identity; a later database of this name has another. Raises: CorruptionError."""
    stored = engine.get(DEFAULT_FAMILY, _IDENTITY)
    if stored is None or len(stored) != _IDENTITY_BYTES + 1:
        raise CorruptionError("the identity of the key-value database is missing", path=_PATH)
    return DatabaseIdentity(stored[:-1].hex(), identified=bool(stored[-1]))


def _put_identity(changes: Changes, identity: bytes, *, identified: bool) -> None:
    changes.put(DEFAULT_FAMILY, _IDENTITY, identity + bytes([identified]))


def read_state(engine: Engine, shard: int) -> ShardState:
    """Return the counters of a shard. Raises: CorruptionError."""
    stored = engine.get(DEFAULT_FAMILY, _SHARD + _NUMBER.pack(shard))
    if stored is None or len(stored) != _STATE.size:
        raise CorruptionError(f"the state of shard {shard} is missing", path=_PATH)
    term, serial, timestamp_us = _STATE.unpack(stored)
    return ShardState(term=term, serial=serial, timestamp_us=timestamp_us)


def put_state(changes: Changes, shard: int, state: ShardState) -> None:
    """Store the counters of a shard."""
    changes.put(DEFAULT_FAMILY, _SHARD + _NUMBER.pack(shard), state.encode())


def read_mark(engine: Engine, shard: int) -> bytes | None:
    """Return the mark of a replicated shard, None if it has none yet."""
    return engine.get(DEFAULT_FAMILY, _MARK + _NUMBER.pack(shard))


def put_mark(changes: Changes, shard: int, mark: bytes | None) -> None:
    """Store the mark of a replicated shard; None removes it."""
    changes.put(DEFAULT_FAMILY, _MARK + _NUMBER.pack(shard), mark)


def read_changes(engine: Engine, shard: int) -> ChangeLogState | None:
    """Return the state of the changes of a shard, None if it never kept any.

    Raises: CorruptionError.
    """
    stored = engine.get(DEFAULT_FAMILY, _CHANGES + _NUMBER.pack(shard))
    return None if stored is None else decode_state(stored)


def put_changes(changes: Changes, shard: int, state: bytes) -> None:
    """Store the state of the changes of a shard."""
    changes.put(DEFAULT_FAMILY, _CHANGES + _NUMBER.pack(shard), state)


def ensure_changes(engine: Engine, settings: KeyValueSettings) -> None:
    """Create the family of the changes if they are to be kept."""
    if settings.feed_bytes and CHANGES_FAMILY not in engine.families():
        engine.create_family(CHANGES_FAMILY)


def begin_terms(engine: Engine, shards: int) -> list[ShardState]:
    """Begin a new term of every shard: transactions of an earlier term are refused.

    A database that an earlier version created gets its identity now.
    """
    changes = Changes()
    if engine.get(DEFAULT_FAMILY, _IDENTITY) is None:
        _put_identity(changes, secrets.token_bytes(_IDENTITY_BYTES), identified=False)
    states: list[ShardState] = []
    for number in range(shards):
        state = read_state(engine, number)
        states.append(replace(state, term=state.term + 1))
        put_state(changes, number, states[number])
    engine.write(changes)
    return states


def drop_orphans(engine: Engine, records: Mapping[SlabId, SlabRecord]) -> None:
    """Drop the families that a crash left without a record."""
    named = {DEFAULT_FAMILY, CHANGES_FAMILY} | {family_of(slab) for slab in records}
    for family in engine.families():
        if family not in named:
            engine.drop_family(family)


def read_slabs(engine: Engine) -> dict[SlabId, SlabRecord]:
    """Return all slabs, by shard and then generation."""
    records = {}
    for _, stored in _items(engine, _SLAB):
        values: dict[str, Any] = json.loads(stored)
        record = SlabRecord.from_json(values)
        records[record.id] = record
    return records


def put_slab(changes: Changes, record: SlabRecord) -> None:
    """Store the record of a slab."""
    values = json.dumps(record.to_json() | {"closed_us": record.closed_us}).encode()
    changes.put(DEFAULT_FAMILY, _slab_key(_SLAB, record.id), values)


def remove_slab(changes: Changes, slab: SlabId) -> None:
    """Remove a slab with its structure."""
    changes.put(DEFAULT_FAMILY, _slab_key(_SLAB, slab), None)
    edges = _slab_key(_EDGES, slab)
    changes.ranges.append((DEFAULT_FAMILY, edges, edges + b"\xff" * (_NUMBER.size + 1)))


def open_slab(engine: Engine, slab: SlabId, settings: KeyValueSettings) -> tuple[KeyValueSlab, int]:
    """Open a slab; return it with the number of its next edges. Raises: CorruptionError."""
    structure = Structure(list(settings.thresholds))
    number = 0
    for _, edges in _items(engine, _slab_key(_EDGES, slab)):
        try:
            structure.apply(edges)
        except ValueError as exc:
            raise CorruptionError(f"learned structure is damaged: {exc}", path=_PATH) from exc
        number += 1
    opened = KeyValueSlab(
        engine,
        family_of(slab),
        structure,
        timed=settings.timed,
        topics_max=settings.topic_cache,
    )
    return opened, number


def count_edges(engine: Engine, slab: SlabId) -> int:
    """Return the number of the next edges of a slab."""
    return len(_items(engine, _slab_key(_EDGES, slab)))


def ranges_of(shard: int) -> list[tuple[bytes, bytes]]:
    """Return the ranges of keys that belong to a shard alone."""
    number, after = _NUMBER.pack(shard), _NUMBER.pack(shard + 1)
    names = (_SHARD, _MARK, _CHANGES, _SLAB, _EDGES, _ID, _ID_AT)
    return [(name + number, name + after) for name in names]


def shared_ranges_of(shard: int) -> list[tuple[bytes, bytes]]:
    """Return the ranges of keys of a shard that are the same at all sites: all but its mark."""
    mark = _MARK + _NUMBER.pack(shard)
    return [each for each in ranges_of(shard) if each[0] != mark]


def settings_range() -> tuple[bytes, bytes]:
    """Return the range of keys with the settings."""
    return _SETTINGS, _SETTINGS + b"\x00"


def put_edges(changes: Changes, slab: SlabId, number: int, edges: bytes) -> None:
    """Store learned edges."""
    changes.put(DEFAULT_FAMILY, _slab_key(_EDGES, slab) + _NUMBER.pack(number), edges)


def find_id(engine: Engine, shard: int, digest: bytes) -> int | None:
    """Return the serial of the transaction that was committed with this id, None if none was."""
    stored = engine.get(DEFAULT_FAMILY, _ID + _NUMBER.pack(shard) + digest)
    if stored is None:
        return None
    serial: int = _REMEMBERED.unpack(stored)[0]
    return serial


def put_id(changes: Changes, shard: int, remembered: RememberedId) -> None:
    """Store an id."""
    number = _NUMBER.pack(shard)
    value = _REMEMBERED.pack(remembered.serial, remembered.at_us)
    changes.put(DEFAULT_FAMILY, _ID + number + remembered.digest, value)
    changes.put(DEFAULT_FAMILY, _id_at_key(shard, remembered), b"")


def remove_id(changes: Changes, shard: int, remembered: RememberedId) -> None:
    """Remove an id."""
    changes.put(DEFAULT_FAMILY, _ID + _NUMBER.pack(shard) + remembered.digest, None)
    changes.put(DEFAULT_FAMILY, _id_at_key(shard, remembered), None)


def oldest_ids(engine: Engine, shard: int, limit: int) -> list[RememberedId]:
    """Return the oldest stored ids."""
    prefix = _ID_AT + _NUMBER.pack(shard)
    view = engine.view(DEFAULT_FAMILY)
    try:
        keys = [key for key, _ in view.items(prefix, prefix + b"\xff" * 25, limit)]
    finally:
        view.release()
    ids = []
    for key in keys:
        at_us = int.from_bytes(key[len(prefix) : len(prefix) + 8], "big")
        ids.append(RememberedId(digest=key[len(prefix) + 8 :], serial=0, at_us=at_us))
    return ids


def id_problems(engine: Engine, states: Mapping[int, ShardState]) -> Iterator[str]:
    """Yield the problems of the stored ids: each must be stored twice, by digest and by time, and
    none may have a serial after its shard's last one.
    """
    by_time = {key[len(_ID_AT) :] for key, _ in _items(engine, _ID_AT)}
    for key, value in _items(engine, _ID):
        shard = int.from_bytes(key[len(_ID) : len(_ID) + _NUMBER.size], "big")
        if len(value) != _REMEMBERED.size or shard not in states:
            yield f"a transaction id is damaged or belongs to an unknown shard: shard={shard}"
            continue
        serial, at_us = _REMEMBERED.unpack(value)
        if serial > states[shard].serial:
            yield f"a transaction id has a serial after the last one of its shard: serial={serial}"
        digest = key[len(_ID) + _NUMBER.size :]
        at_key = _NUMBER.pack(shard) + at_us.to_bytes(8, "big") + digest
        if at_key not in by_time:
            yield f"a transaction id has no expiry entry: serial={serial}"
        by_time.discard(at_key)
    if by_time:
        yield f"expiry entries name transaction ids that do not exist: count={len(by_time)}"


def _id_at_key(shard: int, remembered: RememberedId) -> bytes:
    return _ID_AT + _NUMBER.pack(shard) + remembered.at_us.to_bytes(8, "big") + remembered.digest


def _slab_key(name: bytes, slab: SlabId) -> bytes:
    return name + _NUMBER.pack(slab.shard) + _NUMBER.pack(slab.generation)


def _items(engine: Engine, prefix: bytes) -> list[tuple[bytes, bytes]]:
    """Return all items whose key begins with a prefix."""
    view = engine.view(DEFAULT_FAMILY)
    found: list[tuple[bytes, bytes]] = []
    start = prefix
    try:
        while items := view.items(start, prefix + b"\xff" * 32, _CHUNK):
            found += items
            start = items[-1][0] + b"\x00"
    finally:
        view.release()
    return found
