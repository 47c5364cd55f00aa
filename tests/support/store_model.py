"""A model of the contents of a store, as plain lists: rows by shard and generation.

Rows are compared as a whole: the ticket gives time and serial, and a structure that has learned
only the surviving rows of the generation gives the stream. Between two restarts the model is exact.
A power cut may remove a tail of the current generation of each shard, at the border of a call, and
never a row that was acknowledged as durable. `survive` checks this and adopts the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from siltstone.errors import SlabDroppedError
from siltstone.store.database import Database
from siltstone.store.log.info import SlabInfo
from siltstone.store.log.iterator import StreamIterator
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.read.scan import Status
from siltstone.store.log.write.partition import shard_of
from siltstone.store.slab.manifest import SlabId
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.topic.structure import Structure
from tests.support.reading import EVERYTHING

Producer = tuple[str, int]


@dataclass
class Part:
    """The part of one call that goes to one shard; its rows survive together or not at all."""

    rows: list[Row]
    producer: Producer | None
    numbers: list[int]


@dataclass
class ShardModel:
    """One shard: sealed generations, which only a drop removes, and the current one."""

    number: int
    thresholds: list[int]
    generation: int = 1
    sealed: dict[int, list[Row]] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    synced: int = 0
    written: int = 0

    def __post_init__(self) -> None:
        self.inherited = Structure(self.thresholds)
        self.structure = Structure(self.thresholds)
        self.inherited_sequences: dict[str, int] = {}

    def sequence(self, producer: str) -> int:
        """Return the last stored sequence of a producer, -1 if there is none."""
        own = [
            part.producer[1]
            for part in self.parts
            if part.producer is not None and part.producer[0] == producer
        ]
        return max(own, default=self.inherited_sequences.get(producer, -1))

    def expected(self, row: Row) -> Row:
        """Return a row as it must be stored next, without its time and serial."""
        stream = self.structure.learn(row.topic.encode()).stream
        return row._replace(shard=self.number, generation=self.generation, stream=stream.id)

    def acknowledge(self, durability: str, count: int) -> None:
        """Record that the first parts are this durable."""
        self.written = max(self.written, count)
        if durability == "synced":
            self.synced = max(self.synced, count)

    def rows(self) -> list[Row]:
        """Return all rows, in order of time."""
        generations = [rows for _, rows in sorted(self.sealed.items())]
        return [row for rows in [*generations, self.current()] for row in rows]

    def current(self) -> list[Row]:
        """Return the rows of the current generation."""
        return [row for part in self.parts for row in part.rows]

    def turn(self) -> None:
        """Start the next generation; all of the last one is durable."""
        for part in self.parts:
            if part.producer is not None:
                self.inherited_sequences[part.producer[0]] = self.sequence(part.producer[0])
        self.sealed[self.generation] = self.current()
        self.parts = []
        self.synced = self.written = 0
        self.structure.take_pending()
        self.inherited = self.structure.inherit(self.thresholds)
        self.structure = copy_of(self.inherited)
        self.generation += 1

    def survive(self, found: list[Row], at_least: int) -> None:
        """Check that the found rows of the current generation are a prefix, and continue from
        there.
        """
        left: list[Part] = []
        start = 0
        for part in self.parts:
            stop = start + len(part.rows)
            if stop > len(found):
                break
            as_found = found[start:stop]
            assert [as_submitted(row) for row in as_found] == [
                as_submitted(row) for row in part.rows
            ]
            for row, known in zip(as_found, part.rows, strict=True):
                if known.timestamp_us:
                    assert (row.timestamp_us, row.serial) == (known.timestamp_us, known.serial)
            left.append(Part(rows=as_found, producer=part.producer, numbers=part.numbers))
            start = stop
        assert start == len(found), "a part of a call survived, or rows that nobody sent"
        assert len(left) >= at_least, "an acknowledged row is lost"
        self.structure = copy_of(self.inherited)
        for part in left:
            part.rows = [
                row._replace(stream=self.structure.learn(row.topic.encode()).stream.id)
                for row in part.rows
            ]
        self.parts = left
        # A restart makes everything that it finds durable.
        self.synced = self.written = len(left)


def copy_of(structure: Structure) -> Structure:
    copy = Structure(structure.thresholds)
    copy.apply(structure.export())
    return copy


def as_submitted(row: Row) -> Row:
    """Return the fields of a row that the caller gave."""
    return Row(*row[:6])


class Submitted(NamedTuple):
    """The parts of a call by shard, and the producer if it is a duplicate."""

    parts: dict[int, Part]
    repeated: dict[int, Producer]


class StoreModel:
    """One database: its submitted, acknowledged, sealed and dropped rows."""

    def __init__(self, settings: DatabaseSettings) -> None:
        self.settings = settings
        self.shards = [
            ShardModel(number=number, thresholds=list(settings.thresholds))
            for number in range(settings.shards)
        ]
        # Every serial that a caller or a reader has ever seen, with its row.
        self.serials: dict[tuple[int, int], Row] = {}

    def rows(self) -> list[Row]:
        """Return all rows that must exist."""
        return [row for shard in self.shards for row in shard.rows()]

    def _split(self, rows: list[Row]) -> dict[int, list[int]]:
        """Return the indexes of the rows of each shard."""
        numbers: dict[int, list[int]] = {}
        for number, row in enumerate(rows):
            key = row.publisher if self.settings.shard_by == "publisher" else row.topic
            numbers.setdefault(shard_of(key.encode(), self.settings.shards), []).append(number)
        return numbers

    def submit(self, rows: list[Row], producer: Producer | None) -> Submitted:
        """Add a call that is not acknowledged yet."""
        submitted = Submitted({}, {})
        for shard_number, mine in self._split(rows).items():
            shard = self.shards[shard_number]
            if producer is not None and producer[1] <= shard.sequence(producer[0]):
                submitted.repeated[shard_number] = producer
                continue
            part = Part([shard.expected(rows[number]) for number in mine], producer, mine)
            shard.parts.append(part)
            submitted.parts[shard_number] = part
        return submitted

    def acknowledge(
        self, submitted: Submitted, durability: str, serials: list[int], timestamps: list[int]
    ) -> None:
        """Record the result of a ticket; a duplicate's rows must be as durable as requested."""
        for number, part in submitted.parts.items():
            part.rows = [
                row._replace(serial=serials[i], timestamp_us=timestamps[i])
                for row, i in zip(part.rows, part.numbers, strict=True)
            ]
            for row in part.rows:
                self.see(row)
            self.shards[number].acknowledge(durability, len(self.shards[number].parts))
        for number, producer in submitted.repeated.items():
            shard = self.shards[number]
            counts = [i for i, part in enumerate(shard.parts, 1) if part.producer == producer]
            shard.acknowledge(durability, max(counts, default=0))

    def see(self, row: Row) -> None:
        """Record a row that has been seen; its serial is never reused."""
        mine = self.serials.setdefault((row.shard, row.serial), as_submitted(row))
        assert mine == as_submitted(row), "a serial was used again"

    def sealed_slabs(self) -> list[SlabId]:
        return [
            SlabId(shard.number, generation)
            for shard in self.shards
            for generation in sorted(shard.sealed)
        ]

    def drop(self, slab: SlabId) -> None:
        del self.shards[slab.shard].sealed[slab.generation]

    def survive(self, rows: list[Row], slabs: list[SlabInfo], *, killed: bool, during: str) -> None:
        """Check the rows that a restart found against the model, and continue from them.

        `during` is the operation that was interrupted, "seal" or "drop", which may have happened.
        """
        for shard in self.shards:
            mine = {info.slab.generation: info for info in slabs if info.slab.shard == shard.number}
            assert [g for g, info in mine.items() if info.state == "current"] == [max(mine)]
            if during == "seal" and max(mine) == shard.generation + 1:
                shard.written = shard.synced = len(shard.parts)
                shard.turn()
            gone = set(shard.sealed) - set(mine)
            if during == "drop" and len(gone) == 1:
                del shard.sealed[gone.pop()]
            assert sorted(mine) == [*sorted(shard.sealed), shard.generation]
            found = [
                row
                for row in rows
                if (row.shard, row.generation) == (shard.number, shard.generation)
            ]
            shard.survive(found, shard.written if killed else shard.synced)
        for row in rows:
            self.see(row)


class Follower:
    """A reader that saves its positions as bytes and continues from them after every event."""

    def __init__(self, model: StoreModel) -> None:
        self._model = model
        self._positions: dict[tuple[SlabId, int], bytes] = {}
        self._seen: dict[tuple[SlabId, int], dict[int, Row]] = {}

    def read(self, database: Database, rows_max: int) -> None:
        """Read once from every stream that exists or existed."""
        self._discover(database)
        slabs = {info.slab for info in database.slabs()}
        for slab, stream in list(self._positions):
            if slab in slabs:
                self._step(database, slab, stream, rows_max)
            else:
                with pytest.raises(SlabDroppedError):
                    self._step(database, slab, stream, rows_max)
                del self._positions[slab, stream]

    def catch_up(self, database: Database) -> None:
        """Read every stream to its end, and check that no row was repeated or skipped."""
        self.read(database, 1)
        for slab, stream in self._positions:
            while self._step(database, slab, stream, 1000) is Status.MORE:
                pass
        for row in self._model.rows():
            # Rows that were seen and then lost in a power cut are gone. All others are as they were
            # seen.
            assert self._seen[SlabId(row.shard, row.generation), row.stream][row.serial] == row

    def _discover(self, database: Database) -> None:
        for name in EVERYTHING:
            for stream in database.streams(name):
                key = (stream.slab, stream.stream_id)
                if key not in self._positions:
                    self._positions[key] = database.iterator(stream, name).to_bytes()
                    self._seen.setdefault(key, {})

    def _step(self, database: Database, slab: SlabId, stream: int, rows_max: int) -> Status:
        iterator = StreamIterator.from_bytes(self._positions[slab, stream])
        read = database.next(iterator, rows_max)
        seen = self._seen[slab, stream]
        for row in read.batch.rows():
            assert row.serial > max(seen, default=-1), "a row was met twice"
            self._model.see(row)
            seen[row.serial] = row
        self._positions[slab, stream] = read.iterator.to_bytes()
        return read.status
