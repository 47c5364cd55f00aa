"""Planning of a query on a store: the slabs, frames and streams that it reads."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from siltstone.errors import NotFoundError, RetryError, SlabDroppedError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.fs.paths import StorePaths
from siltstone.fs.posix import absolute_path
from siltstone.scan.offsets import Loss, bounds_of, find_losses, resolve
from siltstone.scan.options import ReadOptions, StartTimes
from siltstone.scan.plan import Admitted, PartitionLimits, QueryBacklog, SlabFrames, admit, pack
from siltstone.scan.portion import Portion, Readable
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.feed.position import END, LATEST, START, Position
from siltstone.store.log.read.selection import Choice, FramePlace, SlabExtent, Wanted
from siltstone.store.slab.identity import DatabaseIdentity, told
from siltstone.store.slab.manifest import SlabId

R_co = TypeVar("R_co", bound=Readable, covariant=True)
# The cost of a search in a frame, relative to reading all of its rows. It is lower if the filter
# names one topic of a stream, which needs a single search.
_SEARCH_WEIGHT: Final = 1 / 8
_NAMED_WEIGHT: Final = 1 / 32
_NAMED_MAX: Final = 8
# How long a site of a cluster waits for rows that another one had.
_BEHIND_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """The amounts that a query reads, and the totals; streams are counted in each slab."""

    slabs: int
    slabs_read: int
    streams: int
    streams_read: int
    frames: int
    frames_read: int
    size_bytes: int
    bytes_read: int
    partitions: int

    def __str__(self) -> str:
        return (
            f"{self.partitions} partitions read {self.slabs_read} of {self.slabs} slabs, "
            f"{self.streams_read} of {self.streams} streams, "
            f"{self.frames_read} of {self.frames} frames, "
            f"{self.bytes_read} of {self.size_bytes} bytes"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Generic[R_co]):
    """The part of each reader, and a report of what is read and skipped."""

    partitions: Sequence[R_co]
    report: PlanReport


@contextmanager
def opened(fs: FileSystem, options: ReadOptions) -> Iterator[Database]:
    """Open the database of a query for reading; this takes no lock."""
    with Store(absolute_path(options.path), read_only=True, fs=fs) as store:
        yield find_database(store, options.database)


def find_database(store: Store, name: str) -> Database:
    """Open a database by its name, or the only one if name is empty.

    Raises: NotFoundError, UsageError.
    """
    if name:
        return store.database(name)
    # A leading underscore marks the internal databases of the broker.
    names = [known for known in store.names() if not known.startswith("_")]
    if len(names) != 1:
        raise UsageError(
            f"database is missing, and the store does not have exactly one (found: "
            f"{', '.join(names) or 'none'}): set database"
        )
    return store.database(names[0])


def waits_for(database: Database, ends: Mapping[int, int]) -> bool:
    """Wait until a replicated database has all rows before these serials, which another site had;
    return False if that takes too long. A local database has no others.
    """
    if database.settings.backend == "local":
        return True
    deadline = time.monotonic() + _BEHIND_SECONDS
    while not database.has_read(ends):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True


def require_read(database: Database, ends: Mapping[int, int]) -> None:
    """Wait until this site has all rows before these serials, which another site had.

    Raises: RetryError, because the read must not return fewer rows.
    """
    if not waits_for(database, ends):
        raise RetryError(
            f"this site has not read all rows of the query yet, ask another one or try again; if "
            f"the cluster was restored from a backup, plan the query anew: database={database.name}"
        )


def plan_batch(database: Database, options: ReadOptions) -> Plan[Portion]:
    """Plan a batch query up to the current end of each shard."""
    extents = database.extents()
    starting = own_offsets(options.batch_start(), database.origin, options) or START
    ending = own_offsets(options.ending, database.origin, options) or END
    start = resolve(starting, extents)
    end = resolve(ending, extents)
    # A query from "earliest" reads the rows that exist. A query from a given serial must find it.
    if options.starting_times is not None:
        start = seek(database, options, options.starting_times)
    elif any(serial >= 0 for serial in starting.serials.values()):
        refuse_losses(find_losses(start, end, extents) + beyond(start, extents), options)
    return plan_between(database, options, start, end, extents)


def beyond(start: Mapping[int, int], extents: Sequence[SlabExtent]) -> list[Loss]:
    """Return the serials between the end of the store and a position that is ahead of it."""
    bounds = bounds_of(extents)
    return [
        Loss(shard=shard, serials=range(bounds[shard].stop, serial))
        for shard, serial in sorted(start.items())
        if serial > bounds[shard].stop
    ]


def refuse_losses(losses: Sequence[Loss], options: ReadOptions) -> None:
    """Raise SlabDroppedError if rows of a query are lost, unless the query accepts losses."""
    if losses and options.fails_on_loss:
        gone = "; ".join(str(loss) for loss in losses)
        raise SlabDroppedError(
            f"the query needs rows that are not in the store: {gone}; they were dropped, or the "
            f"offsets belong to another store; {options.accept_loss} to skip them"
        )


def own_offsets(
    offsets: Position, origin: DatabaseIdentity, options: ReadOptions
) -> Position | None:
    """Return the offsets if they belong to this database; otherwise None.

    Positions in an earlier database of the same name give None if the query accepts losses.

    Raises: SlabDroppedError if it does not.
    """
    if offsets.is_of(origin):
        return offsets
    if options.fails_on_loss:
        raise SlabDroppedError(
            f"the offsets belong to an earlier database of this name, which was dropped: "
            f"offsets={told(offsets.identity)} database={origin.text}; start with a new "
            f"checkpoint, or {options.accept_loss} to read the present database from its beginning"
        )
    return None


def plan_between(
    database: Database,
    options: ReadOptions,
    start: Mapping[int, int],
    end: Mapping[int, int],
    extents: Sequence[SlabExtent],
) -> Plan[Portion]:
    """Plan a read of the rows between two positions."""
    limits = PartitionLimits(
        bytes_max=options.bytes_per_partition,
        rows_max=options.rows_per_partition,
        partitions_min=options.partitions_min,
    )
    chosen: list[SlabFrames] = []
    choices: list[Choice] = []
    skipped = 0
    for extent in extents:
        serials = wanted_serials(extent, options, start, end)
        choice = choose(database, options, extent, serials) if serials else None
        if choice is None:
            skipped += 1
            continue
        choices.append(choice)
        search = _NAMED_WEIGHT if _names_one(choice.wanted) else _SEARCH_WEIGHT
        weight = search + (1 - search) * choice.whole_share
        chosen.append(
            SlabFrames(
                slab=extent.slab,
                wanted=choice.wanted,
                serials=serials,
                frames=limits.joined(choice),
                weight=weight,
            )
        )
    directory = StorePaths(absolute_path(options.path)).database(database.name)
    packed = pack(chosen, limits, str(directory))
    if len(packed.partitions) < limits.partitions_min:
        finer = limits.finer(packed.work)
        chosen = [
            replace(slab, frames=finer.joined(choice))
            for slab, choice in zip(chosen, choices, strict=True)
        ]
        packed = pack(chosen, finer, str(directory))
    report = PlanReport(
        slabs=len(choices) + skipped,
        slabs_read=len({run.slab for part in packed.partitions for run in part.runs}),
        streams=sum(choice.stream_count for choice in choices),
        streams_read=sum(len(choice.wanted.streams()) for choice in choices),
        frames=sum(choice.frame_count for choice in choices),
        frames_read=packed.frames,
        size_bytes=sum(choice.size_bytes for choice in choices),
        bytes_read=packed.size_bytes,
        partitions=len(packed.partitions),
    )
    return Plan(partitions=packed.partitions, report=report)


def _names_one(wanted: Wanted) -> bool:
    """Return whether only a few streams are not wanted whole, each by one named topic."""
    return len(wanted.bound) <= _NAMED_MAX and all(
        len(stream.constraints) == 1 and None not in stream.constraints[0]
        for stream in wanted.bound
    )


def plan_micro_batch(
    database: Database, options: ReadOptions, start: Mapping[int, int], end: Mapping[int, int]
) -> Plan[Portion]:
    """Plan a step of a stream; all of its rows must exist. Raises: SlabDroppedError."""
    extents = database.extents()
    refuse_losses(find_losses(start, end, extents), options)
    return plan_between(database, options, start, end, extents)


def admit_from(
    database: Database,
    options: ReadOptions,
    sought: Mapping[int, range],
    *,
    rows_max: int | None,
    bytes_max: int | None,
) -> Admitted:
    """Return the end of the next step of a stream, within these serials of each shard."""
    extents = database.extents()
    backlogs = {
        shard: _backlog(database, options, shard, serials, extents)
        for shard, serials in sought.items()
    }
    counts = options.rows_to_wait_for is not None
    return admit(backlogs, rows_max=rows_max, bytes_max=bytes_max, counts=counts)


def seek(database: Database, options: ReadOptions, times: StartTimes) -> dict[int, int]:
    """Return for each shard the serial of the first row at or after its time.

    It is the end of the shard if there is no such row.

    Raises: UsageError for a shard that does not exist.
    """
    extents = sorted(database.extents(), key=lambda extent: extent.serials.start)
    bounds = bounds_of(extents)
    starts = resolve(Position(dict.fromkeys(times.times_us, LATEST)), extents)
    for shard in starts:
        time_us = times.of(shard)
        if time_us is not None:
            of_shard = [extent for extent in extents if extent.slab.shard == shard]
            first = _first_since(database, options, of_shard, time_us)
            starts[shard] = bounds[shard].stop if first is None else first
    return starts


def _first_since(
    database: Database, options: ReadOptions, extents: Sequence[SlabExtent], time_us: int
) -> int | None:
    # Rows of any topic count, so that one position serves all filters.
    asked = replace(options, filters=(), since_us=time_us, until_us=None)
    for extent in extents:
        if extent.until_us is not None and extent.until_us <= time_us:
            continue
        choice = choose(database, asked, extent, extent.serials)
        if choice is None:
            continue
        for place in choice.frames:
            found = choice.find(place, range(place.first_serial, place.stop_serial))
            if found:
                return found[0]
    return None


def _backlog(
    database: Database,
    options: ReadOptions,
    shard: int,
    sought: range,
    extents: Sequence[SlabExtent],
) -> QueryBacklog:
    """Return the frames of a shard that may have wanted rows, slab after slab."""
    choices: dict[SlabId, Choice] = {}

    def frames() -> Iterator[FramePlace]:
        for extent in sorted(extents, key=lambda extent: extent.serials.start):
            between = {shard: sought.start}, {shard: sought.stop}
            serials = wanted_serials(extent, options, *between)
            if extent.slab.shard != shard or not serials:
                continue
            choice = choose(database, options, extent, serials)
            if choice is not None:
                choices[extent.slab] = choice
                yield from choice.frames

    def find(place: FramePlace, within: range) -> Sequence[int]:
        return choices[place.slab].find(place, within)

    return QueryBacklog(serials=sought, frames=frames(), find=find)


def wanted_serials(
    extent: SlabExtent, options: ReadOptions, start: Mapping[int, int], end: Mapping[int, int]
) -> range:
    """Return the wanted serials of a slab; an empty range if its times do not overlap the query."""
    shard, serials = extent.slab.shard, extent.serials
    early = extent.until_us is not None and extent.until_us <= options.since_us
    late = options.until_us is not None and extent.since_us >= options.until_us
    if early or late:
        return range(0)
    return range(
        max(serials.start, start.get(shard, serials.start)),
        min(serials.stop, end.get(shard, serials.start)),
    )


def choose(
    database: Database, options: ReadOptions, extent: SlabExtent, serials: range
) -> Choice | None:
    """Choose the frames of a slab that a query reads.

    Return None if the slab was dropped and the query accepts losses, or if its shard has no rows
    that match the filters.

    Raises: SlabDroppedError.
    """
    if not database.may_hold(extent.slab.shard, options.filters):
        return None
    try:
        return database.choose(
            extent.slab,
            options.filters,
            serials,
            since_us=options.since_us,
            until_us=options.until_us,
        )
    except (NotFoundError, SlabDroppedError) as exc:
        lost = [Loss(shard=extent.slab.shard, serials=serials)]
        try:
            refuse_losses(lost, options)
        except SlabDroppedError as refusal:
            raise refusal from exc
        return None
