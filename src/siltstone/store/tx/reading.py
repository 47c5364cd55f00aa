"""Read a key-value database without opening it for changes: for commands and checks.

The rows are those at the time when the engine was opened. The engine may be read-only, while
another process has the database open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from siltstone.errors import NotFoundError
from siltstone.store.kv.api import Engine
from siltstone.store.kv.keys import TIME_END
from siltstone.store.kv.slab import KeyValueSlab
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.manifest import SlabRecord
from siltstone.store.tx import catalog
from siltstone.store.tx.iterator import row_of
from siltstone.topic.grammar import TopicFilter


class ReadableSlab(NamedTuple):
    """A slab and its record."""

    record: SlabRecord
    slab: KeyValueSlab


class KeyValueReader:
    """The rows of a key-value database. It owns the engine from now on."""

    def __init__(self, engine: Engine) -> None:
        """Read the metadata of the database. Raises: NotFoundError, CorruptionError."""
        self._engine = engine
        ready = False
        try:
            if not catalog.is_created(engine):
                raise NotFoundError("the directory does not contain a key-value database")
            self.settings = catalog.read_settings(engine)
            self._slabs = [
                ReadableSlab(record, catalog.open_slab(engine, record.id, self.settings)[0])
                for record in catalog.read_slabs(engine).values()
            ]
            ready = True
        finally:
            if not ready:
                engine.close()

    def slabs(self) -> list[SlabRecord]:
        """Return all slabs, by shard and then by generation."""
        return [record for record, _ in self._slabs]

    def read(
        self, topic_filter: str = "#", since_us: int = 0, until_us: int = TIME_END
    ) -> Iterator[Row]:
        """Yield the rows of a filter in [since, until), as KeyValueDatabase.read does."""
        ordered = sorted(self._slabs, key=lambda one: (one.record.generation, one.record.shard))
        return rows_of(ordered, TopicFilter.parse(topic_filter), since_us, until_us)

    def size_bytes(self) -> int:
        """Return the approximate disk space of the database in bytes."""
        return self._engine.size_bytes()

    def close(self) -> None:
        """Close the files."""
        self._engine.close()


def rows_of(
    slabs: Iterable[ReadableSlab],
    topic_filter: TopicFilter,
    since_us: int,
    until_us: int,
    first_topic: bytes = b"",
) -> Iterator[Row]:
    """Yield the rows of a filter, slab by slab; each slab is viewed when its turn comes."""
    for record, slab in slabs:
        view = slab.view()
        try:
            for found in slab.rows(view, topic_filter, since_us, until_us, first_topic):
                yield row_of(found, record.id)
        finally:
            view.release()
