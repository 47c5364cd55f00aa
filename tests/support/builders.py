"""Stores on a disk in memory with a stopped clock; rows; and a naive topic match.

The clock does not move, so the rows of a shard get the times NOW_US, NOW_US + 1, … in order of
arrival. Segments have the minimum size: the disk in memory copies a file to sync it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Final

from siltstone.clock import ManualClock
from siltstone.fs.api import FileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.fs.publish import create_directories
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.log.iterator import StreamIterator
from siltstone.store.log.opening import RecoveryReport, begin_slab, reopen_slab
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.read.scan import Status
from siltstone.store.log.write.committer import Committer
from siltstone.store.log.write.frame_builder import ROW_OVERHEAD, Call
from siltstone.store.log.write.partition import batch_of, columns_of
from siltstone.store.segment.chain import SlabIdentity
from siltstone.store.slab.manifest import SlabRecord, SlabState
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.topic.structure import Structure
from tests.support.row_batches import row_batch
from tests.support.rows import rows_of

PATH: Final = PurePath("/data")
NAME: Final = "messages"
NOW_US: Final = 1_700_000_000_000_000
SEGMENT_BYTES: Final = 64 * 1024

# Nothing is flushed before max_items are pending, or a sync or close is requested.
HELD: Final[dict[str, Any]] = {"flush_interval": 3600.0, "idle_flush_interval": 3600.0}


def settings_of(**changes: Any) -> DatabaseSettings:
    """Return settings for small segments, with these changes."""
    return DatabaseSettings(**({"segment_bytes": SEGMENT_BYTES} | changes))


@dataclass(slots=True)
class World:
    """A disk and a clock, which outlive the stores that are opened on them."""

    fs: FileSystem = field(default_factory=MemoryFileSystem)
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_US))

    def store(self, *, read_only: bool = False) -> Store:
        """Open the data directory; create it if necessary."""
        return Store(PATH, read_only=read_only, fs=self.fs, clock=self.clock)

    @contextmanager
    def database(self, **changes: Any) -> Iterator[Database]:
        """Open the database for writing; changes are settings for a new one."""
        with self.store() as store:
            yield store.ensure(NAME, settings_of(**changes))

    @contextmanager
    def reader(self) -> Iterator[Database]:
        """Open the database for reading, as another process would."""
        with self.store(read_only=True) as store:
            yield store.database(NAME)


@contextmanager
def new_database(**changes: Any) -> Iterator[Database]:
    """Open an empty database in a new world."""
    with World().database(**changes) as database:
        yield database


def slab_place(shard: int = 0) -> PurePath:
    """Return the directory of the slabs of `begun` and `reopened`."""
    return PATH / str(shard) / "1"


def begun(world: World, *, shard: int = 0, **changes: Any) -> Committer:
    """Begin a slab without a database, and therefore without a thread."""
    settings = settings_of(**changes)
    create_directories(world.fs, slab_place(shard))
    return begin_slab(
        world.fs,
        world.clock,
        slab_place(shard),
        _record(shard),
        _identity(shard),
        settings,
        structure=Structure(list(settings.thresholds)).export(),
        producers=b"",
        serial=0,
        timestamp_us=NOW_US - 1,
    )


def reopened(world: World, *, shard: int = 0, **changes: Any) -> tuple[Committer, RecoveryReport]:
    """Open a slab of `begun` again."""
    settings = settings_of(**changes)
    return reopen_slab(
        world.fs, world.clock, slab_place(shard), _record(shard), _identity(shard), settings
    )


def _record(shard: int) -> SlabRecord:
    return SlabRecord(
        shard=shard,
        generation=1,
        state=SlabState.CURRENT,
        since_us=NOW_US,
        until_us=None,
        created_us=NOW_US,
    )


def _identity(shard: int) -> SlabIdentity:
    return SlabIdentity(database=NAME, shard=shard, generation=1, seed=7 + shard)


def rows_on(*topics: str) -> list[Row]:
    """Return a row for each topic; its value is its number."""
    return [Row(topic, b"%d" % number) for number, topic in enumerate(topics)]


def call_on(*topics: str, sync: bool = True, producer: bytes = b"", sequence: int = 0) -> Call:
    """Return a call for a committer, with a row for each topic."""
    values = [b"%d" % number for number in range(len(topics))]
    call = Call(row_batch([topic.encode() for topic in topics], values, b""))
    call.wants_sync = sync
    call.producer = producer
    call.sequence = sequence
    call.size_bytes = call.batch.size_bytes + ROW_OVERHEAD * len(topics)
    return call


def call_of(*rows: Row) -> Call:
    """Return a call for a committer, with these rows."""
    columns = columns_of(rows)
    assert isinstance(columns.flags, list)
    if len(set(columns.flags)) == 1:
        # As a broker does.
        columns = replace(columns, flags=columns.flags[0])
    call = Call(batch_of(columns))
    call.wants_sync = True
    call.size_bytes = call.batch.size_bytes + ROW_OVERHEAD * len(rows)
    return call


def as_given(rows: Iterable[Row]) -> list[Row]:
    """Return rows without the fields that the store sets."""
    return [row._replace(timestamp_us=0, shard=0, generation=0, stream=0, serial=0) for row in rows]


def read_rows(database: Database, topic_filter: str = "#", **options: Any) -> list[Row]:
    """Return the result of `read` as rows."""
    return [row for batch in database.read(topic_filter, **options) for row in rows_of(batch)]


def read_topics(database: Database, topic_filter: str = "#", **options: Any) -> list[str]:
    """Return the topics of the result of `read`."""
    return [row.topic for row in read_rows(database, topic_filter, **options)]


def drain(
    database: Database,
    iterator: StreamIterator,
    *,
    rows_max: int = 1000,
    until_us: int | None = None,
) -> tuple[list[Row], StreamIterator, Status]:
    """Read until there is no more; return the rows, the position and the last status."""
    rows: list[Row] = []
    while True:
        found = database.next(iterator, rows_max, until_us=until_us)
        rows += found.batch.rows()
        iterator = found.iterator
        if found.status is not Status.MORE:
            return rows, iterator, found.status


def drain_streams(
    database: Database, topic_filter: str = "#", *, rows_max: int = 1000
) -> list[Row]:
    """Return the rows of a filter, stream by stream."""
    return [
        row
        for stream in database.streams(topic_filter)
        for row in drain(database, database.iterator(stream, topic_filter), rows_max=rows_max)[0]
    ]


def naive_match(topic_filter: str, topic: str) -> bool:
    """Return whether a filter matches a topic, by a literal implementation of MQTT 4.7."""
    if topic.startswith("$") and topic_filter[0] in "+#":
        return False
    return _match_levels(topic_filter.split("/"), topic.split("/"))


def _match_levels(levels: Sequence[str], words: Sequence[str]) -> bool:
    if levels == ["#"]:
        return True
    if not levels:
        return not words
    if not words:
        return False
    return levels[0] in ("+", words[0]) and _match_levels(levels[1:], words[1:])
