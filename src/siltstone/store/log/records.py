"""The records of a log shard that are not rows: rolls, generations, drops and settings.

    ROLL        JSON, structure, producers    begin the next segment
    GENERATION  JSON, final structure, final producers, structure    seal the slab, begin the next
    DROP        JSON    remove sealed slabs from the manifest
    SETTINGS    JSON    change settings of the database

`parts` is everything that a replica needs to store the record, and `record_of` makes a record of
parts again. Invariant: everything that a replica writes comes from the record and from the records
before it. A replica does not read the clock, its own settings, or the seed file of learned
structure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from siltstone.store.slab.manifest import Manifest, SlabId, SlabRecord, SlabState, keep_encoding
from siltstone.store.writer.commit_log import Record, RecordKind


class RollRecord(Record):
    """The start of the next segment of a slab, with the state in its first frame.

    The file has `segment_bytes`, or more if the state and `room_bytes` need more.
    """

    def __init__(
        self,
        *,
        serial: int,
        timestamp_us: int,
        created_us: int,
        segment_bytes: int,
        room_bytes: int,
        structure: bytes,
        producers: bytes,
    ) -> None:
        super().__init__(RecordKind.ROLL)
        self.serial = serial
        self.timestamp_us = timestamp_us
        self.created_us = created_us
        self.segment_bytes = segment_bytes
        self.room_bytes = room_bytes
        self.structure = structure
        self.producers = producers

    def parts(self) -> tuple[bytes, ...]:
        """Return the bytes that a replica needs."""
        values = {
            "serial": self.serial,
            "timestamp_us": self.timestamp_us,
            "created_us": self.created_us,
            "segment_bytes": self.segment_bytes,
            "room_bytes": self.room_bytes,
        }
        return (_json(values), self.structure, self.producers)


class GenerationRecord(Record):
    """The end of a generation and the start of the next one.

    `ended` has the records of the slabs that change, `begun` the one of the new slab. The index of
    the old slab gets the final structure. The new slab begins with `structure`, which has the
    patterns of the seed file, and both have the same producers.
    """

    def __init__(
        self,
        *,
        ended: Sequence[SlabRecord],
        begun: SlabRecord,
        thresholds: Sequence[int],
        segment_bytes: int,
        final_structure: bytes,
        producers: bytes,
        structure: bytes,
    ) -> None:
        super().__init__(RecordKind.GENERATION)
        self.ended = tuple(ended)
        self.begun = begun
        self.thresholds = tuple(thresholds)
        self.segment_bytes = segment_bytes
        self.final_structure = final_structure
        self.producers = producers
        self.structure = structure

    def parts(self) -> tuple[bytes, ...]:
        """Return the bytes that a replica needs."""
        values = {
            "ended": [slab.to_json() for slab in self.ended],
            "begun": self.begun.to_json(),
            "thresholds": self.thresholds,
            "segment_bytes": self.segment_bytes,
        }
        return (_json(values), self.final_structure, self.producers, self.structure)

    def change(self, manifest: Manifest) -> Manifest:
        """Return the manifest after this record."""
        known = {slab.id: slab for slab in manifest.slabs_of(self.begun.shard)}
        # An older slab may have been dropped or tiered since the record was prepared, and a segment
        # compacted.
        ended = [
            replace(
                slab,
                state=slab.state if before.state is SlabState.CURRENT else before.state,
                compacted=before.compacted,
                compacting=before.compacting,
            )
            for slab in self.ended
            if (before := known.get(slab.id)) is not None
        ]
        settings = replace(manifest.settings, thresholds=self.thresholds)
        begun = keep_encoding(self.begun, settings, settings)
        return manifest.with_settings(settings).with_slabs([*ended, begun])


class DropRecord(Record):
    """The removal of sealed slabs of a shard.

    `reclaimed` is the serial after their last row if all their rows were delivered, else None.
    """

    def __init__(self, slabs: Iterable[SlabId], reclaimed: int | None) -> None:
        super().__init__(RecordKind.DROP)
        self.slabs = tuple(slabs)
        self.reclaimed = reclaimed

    def parts(self) -> tuple[bytes, ...]:
        """Return the bytes that a replica needs."""
        slabs = [[slab.shard, slab.generation] for slab in self.slabs]
        return (_json({"slabs": slabs, "reclaimed": self.reclaimed}),)

    def change(self, manifest: Manifest) -> Manifest:
        """Return the manifest after this record."""
        reclaimed = dict(manifest.reclaimed)
        if self.reclaimed is not None:
            reclaimed[self.slabs[0].shard] = self.reclaimed
        gone = set(self.slabs)
        return replace(
            manifest,
            slabs=tuple(record for record in manifest.slabs if record.id not in gone),
            dropping=(*manifest.dropping, *self.slabs),
            reclaimed=reclaimed,
        )


class SettingsRecord(Record):
    """Settings that change, by name; all others stay as they are."""

    def __init__(self, changes: Mapping[str, Any]) -> None:
        super().__init__(RecordKind.SETTINGS)
        self.changes = dict(changes)

    def parts(self) -> tuple[bytes, ...]:
        """Return the bytes that a replica needs."""
        return (_json(self.changes),)

    def change(self, manifest: Manifest) -> Manifest:
        """Return the manifest after this record. Raises: UsageError."""
        return manifest.with_settings(manifest.settings.changed(self.changes))


ManifestRecord = GenerationRecord | DropRecord | SettingsRecord


def record_of(kind: RecordKind, parts: Sequence[bytes]) -> RollRecord | ManifestRecord:
    """Return the record that has these parts; rows and key-value changes are not made here."""
    values: dict[str, Any] = json.loads(parts[0])
    if kind is RecordKind.ROLL:
        return RollRecord(**values, structure=parts[1], producers=parts[2])
    if kind is RecordKind.GENERATION:
        return GenerationRecord(
            ended=[SlabRecord.from_json(slab) for slab in values["ended"]],
            begun=SlabRecord.from_json(values["begun"]),
            thresholds=values["thresholds"],
            segment_bytes=values["segment_bytes"],
            final_structure=parts[1],
            producers=parts[2],
            structure=parts[3],
        )
    if kind is RecordKind.DROP:
        return DropRecord(
            [SlabId(shard, generation) for shard, generation in values["slabs"]],
            values["reclaimed"],
        )
    assert kind is RecordKind.SETTINGS
    return SettingsRecord(values)


def _json(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values).encode()
