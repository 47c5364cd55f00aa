"""Verbs on the databases of messages: create, change, seal and drop."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from siltstone.errors import SiltstoneError, UsageError
from siltstone.manage.verb import Host, Request, RequiredRight, Response, Verb
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.log.compact.encode import UnfitError
from siltstone.store.log.compact.process import ChildRewriter
from siltstone.store.shard.compaction import Compacted, Compaction, Job
from siltstone.store.slab.manifest import SlabId
from siltstone.store.slab.settings import DatabaseSettings

# Names of databases that belong to the broker begin with it.
_INTERNAL: Final = "_"


class CreateDatabase(Request):
    """The name of a new database, and the settings that differ from the defaults."""

    database: str
    settings: dict[str, Any] = Field(default_factory=dict)


class ConfigureDatabase(Request):
    """Changes of the settings of a database."""

    database: str
    changes: dict[str, Any]


class NameDatabase(Request):
    """A database."""

    database: str


class NameSlab(Request):
    """A slab of a database."""

    database: str
    shard: int
    generation: int


class NameSegment(Request):
    """A segment of a slab."""

    database: str
    shard: int
    generation: int
    base_serial: int


class CompactableSegment(Response):
    """A sealed segment of small frames."""

    shard: int
    generation: int
    base_serial: int
    rows: int
    frames: int
    size_bytes: int


class CompactableSegments(Response):
    """The sealed segments of small frames, the newest first."""

    segments: list[CompactableSegment]


class CompactedSegment(Response):
    """The contents of a compacted segment; 0 rows if there was nothing to do."""

    rows: int
    frames: int
    size_bytes: int


class KnownSettings(Response):
    """A database and all its settings.

    `pending` has the settings that apply from the next generation on, with the values until then.
    """

    database: str
    settings: dict[str, Any]
    pending: dict[str, list[Any]] = Field(default_factory=dict)


class Dropped(Response):
    """The name of the database or slab that was dropped."""

    dropped: str


class Changed(Response):
    """The database that was changed."""

    database: str


def create_database(host: Host, request: CreateDatabase) -> KnownSettings:
    """Create a database. Raises: ExistsError, UsageError."""
    settings = DatabaseSettings.from_json(request.settings)
    if host.creates_none:
        raise UsageError(f"database {request.database!r} cannot be created: {host.creates_none}")
    store, name = host.store, request.database
    exists = name in store.names()
    try:
        store.create(name, settings)
    except SiltstoneError as exc:
        if not exists and settings.backend == "local":
            _take_back(store, name, exc)
        raise
    return KnownSettings(database=name, settings=settings.to_json())


def _take_back(store: Store, name: str, failure: SiltstoneError) -> None:
    """Drop a database that was created but could not be opened, because the verb failed.

    If that fails too, for example without a free descriptor, the message says so.
    """
    try:
        if name in store.names():
            store.drop(name)
    except SiltstoneError:
        hint = f"database {name!r} may exist in part; remove it with 'siltstone db drop'"
        failure.args = (f"{failure}; {hint}", *failure.args[1:])


def configure_database(host: Host, request: ConfigureDatabase) -> KnownSettings:
    """Change settings for everything that is written from now on; those of the encoding apply to
    the next generation. Raises: UsageError.
    """
    check_foreign(host, request.database, "changed")
    database = opened(host, request.database)
    settings = database.configure(**request.changes)
    return KnownSettings(
        database=request.database,
        settings=settings.to_json(),
        pending=database.pending_settings(),
    )


def drop_database(host: Host, request: NameDatabase) -> Dropped:
    """Delete a database with all its rows. Raises: NotFoundError, UsageError."""
    host.check_free(request.database, "dropped")
    host.store.drop(request.database)
    return Dropped(dropped=request.database)


def list_compactable(host: Host, request: NameDatabase) -> CompactableSegments:
    """Return the sealed segments of small frames. Raises: NotFoundError, UsageError."""
    jobs = opened(host, request.database).compaction.jobs()
    return CompactableSegments(
        segments=[
            CompactableSegment(
                shard=job.slab.shard,
                generation=job.slab.generation,
                base_serial=job.base_serial,
                rows=job.rows,
                frames=job.frames,
                size_bytes=job.size_bytes,
            )
            for job in jobs
        ]
    )


def compact_segment(host: Host, request: NameSegment) -> CompactedSegment:
    """Compact a sealed segment, in another process. Raises: NotFoundError, UsageError."""
    compaction = opened(host, request.database).compaction
    slab = SlabId(request.shard, request.generation)
    for job in compaction.jobs():
        if (job.slab, job.base_serial) == (slab, request.base_serial):
            done = _compacted(compaction, job)
            if done is not None:
                return CompactedSegment(
                    rows=done.rows, frames=done.frames, size_bytes=done.size_bytes
                )
    # Another command or the broker itself was faster, or the slab was dropped.
    return CompactedSegment(rows=0, frames=0, size_bytes=0)


def _compacted(compaction: Compaction, job: Job) -> Compacted | None:
    rewriter = ChildRewriter(rest=0.0)
    try:
        return compaction.run(job, rewriter)
    except UnfitError as exc:
        raise UsageError(f"the segment cannot be compacted: {exc}: path={job.source}") from exc
    finally:
        rewriter.rest()


def seal_database(host: Host, request: NameDatabase) -> Changed:
    """Begin a new generation of every shard. Raises: NotFoundError, UsageError."""
    check_foreign(host, request.database, "sealed")
    opened(host, request.database).seal()
    return Changed(database=request.database)


def drop_slab(host: Host, request: NameSlab) -> Dropped:
    """Delete a sealed slab. Raises: NotFoundError, SlabDroppedError, UsageError."""
    check_foreign(host, request.database, "changed")
    slab = SlabId(request.shard, request.generation)
    opened(host, request.database).drop_slab(slab)
    return Dropped(dropped=str(slab))


def opened(host: Host, name: str) -> Database:
    """Open a database; tell the host. Raises: NotFoundError."""
    database = host.store.database(name)
    host.opened(database)
    return database


def check_foreign(host: Host, name: str, action: str) -> None:
    """Refuse to change a database that a running broker has for itself. Raises: UsageError."""
    if name.startswith(_INTERNAL):
        host.check_free(name, action)


DATABASE_VERBS: Final = (
    Verb(
        name="db-create",
        request=CreateDatabase,
        response=KnownSettings,
        role=RequiredRight.MANAGE,
        where="either",
        run=create_database,
    ),
    Verb(
        name="db-set",
        request=ConfigureDatabase,
        response=KnownSettings,
        role=RequiredRight.MANAGE,
        where="either",
        run=configure_database,
    ),
    Verb(
        name="db-drop",
        request=NameDatabase,
        response=Dropped,
        role=RequiredRight.MANAGE,
        where="either",
        run=drop_database,
    ),
    Verb(
        name="seal",
        request=NameDatabase,
        response=Changed,
        role=RequiredRight.MANAGE,
        where="either",
        run=seal_database,
    ),
    Verb(
        name="compactable",
        request=NameDatabase,
        response=CompactableSegments,
        role=RequiredRight.READ,
        where="either",
        run=list_compactable,
    ),
    Verb(
        name="compact",
        request=NameSegment,
        response=CompactedSegment,
        role=RequiredRight.MANAGE,
        where="either",
        run=compact_segment,
    ),
    Verb(
        name="drop-slab",
        request=NameSlab,
        response=Dropped,
        role=RequiredRight.MANAGE,
        where="either",
        run=drop_slab,
    ),
)
