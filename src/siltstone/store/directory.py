"""A data directory: the lock, the version, and the databases in it.

    DIR/LOCK  DIR/VERSION  DIR/CLOCK  DIR/data/<database>/…  DIR/kv/<database>/  DIR/commits/
    DIR/quarantine/

VERSION is written last, so a directory that has it is complete. CLOCK has the state of the clocks
at the last write: a wall clock that jumped meanwhile is not trusted at once. Key-value databases
have a namespace of their own: one may have the same name as a database of messages. `commits` is a
key-value database with a directory of its own.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import PurePath
from threading import Lock
from types import TracebackType
from typing import Final, Self, TypeVar

from siltstone.clock import (
    CONFIRM_SECONDS,
    JUMP_SECONDS,
    Clock,
    GuardedClock,
    Sighting,
    SystemClock,
)
from siltstone.errors import (
    ClosedError,
    CorruptionError,
    ExistsError,
    NotFoundError,
    SiltstoneError,
    StorageFullError,
    UsageError,
)
from siltstone.fs.api import EntryKind, FileSystem
from siltstone.fs.paths import COMMITS, DATA, LOCK, VERSION_FILE, StorePaths
from siltstone.fs.posix import PosixFileSystem, absolute_path
from siltstone.fs.process import boot_id
from siltstone.fs.publish import create_directories, remove_tree, replace_file
from siltstone.store.database import Database
from siltstone.store.keyvalue import KeyValueDatabase
from siltstone.store.kv.api import Engine, EngineOpener
from siltstone.store.kv.rocks import RocksEngine
from siltstone.store.kv.room import DiskRoom
from siltstone.store.kv.wal import check_begin, check_logs, has_begun, set_odd_aside
from siltstone.store.last_seen import newest_row_us, read_last_seen, write_last_seen
from siltstone.store.log.arguments import require_kind
from siltstone.store.log.first_slab import create_slabs
from siltstone.store.log.slab_names import holds_rows
from siltstone.store.shard.replicated.exporting import make_local
from siltstone.store.shard.replicated.founding import (
    begin_anew,
    begin_as_follower,
    found_from_files,
    is_founding,
    make_replicated,
)
from siltstone.store.shard.replicated.kv.exporting import make_map_local
from siltstone.store.shard.replicated.kv.replica import ReplicaPlace
from siltstone.store.shard.replicated.mark_file import Marked, read_mark
from siltstone.store.shard.replicated.port import (
    Founding,
    Replication,
    cluster_name,
    identity_of_map,
)
from siltstone.store.shard.shard import LEADING, READING, Role, Roles
from siltstone.store.shard.shards import Shards
from siltstone.store.slab.manifest import MANIFEST, Manifest, read_manifest
from siltstone.store.slab.retention import require_retention
from siltstone.store.slab.settings import DatabaseSettings, require_local
from siltstone.store.tx import catalog
from siltstone.store.tx.owned_map import OWNED_MAP_SETTINGS
from siltstone.store.tx.settings import KeyValueSettings

VERSION: Final = b"siltstone 1\n"
# The key-value database of positions: sessions, share groups, offsets of topic logs. It always has
# these settings: every fixed word of its topics is a stream of its own, and almost nothing there is
# read in a transaction, so few writes need to be remembered for conflicts.
COMMITS_SETTINGS: Final = replace(OWNED_MAP_SETTINGS, conflict_writes_max=50_000)
# The disk space that a key-value database leaves free, because RocksDB writes its memory to tables.
# `commits` leaves less free, and also has a reserve: on a full disk, returning clients must be able
# to record what they acknowledge, which frees space.
KEYVALUE_FLOOR_BYTES: Final = 16 * 1024 * 1024
COMMITS_FLOOR_BYTES: Final = 4 * 1024 * 1024
COMMITS_RESERVE_BYTES: Final = 16 * 1024 * 1024
# The reserve is at most this part of the disk: half of what a broker's publishers leave free. When
# it is given up on a small disk, publishers must not take its space.
_RESERVE_SHARE: Final = 16
_DROPPING: Final = "dropping"
# More than any sequence of operations needs open at the same time.
_SPARE_DESCRIPTORS: Final = 8
_T = TypeVar("_T")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def guarded_clock(
    *, jump_seconds: float = JUMP_SECONDS, confirm_seconds: float = CONFIRM_SECONDS
) -> GuardedClock:
    """Return the machine's clock with a guard: after a jump, a store does not trust it at once."""
    return GuardedClock(
        SystemClock(), jump_seconds=jump_seconds, confirm_seconds=confirm_seconds, boot=boot_id()
    )


class Store:
    """An open data directory.

    Without a `clock` argument it uses a guarded clock: if the wall clock has jumped, now or since
    the last write to the directory, nothing is dropped by its age because of the jump.
    """

    def __init__(
        self,
        path: PurePath,
        *,
        read_only: bool = False,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        open_engine: EngineOpener = RocksEngine,
        leads: Mapping[str, Collection[int]] | None = None,
        cluster: Replication | None = None,
    ) -> None:
        """Open a directory. `cluster` commits the rows of its replicated databases.

        With `leads`, several stores share the lock of an existing directory. Each leads the shards
        that it names, by database, and reads the others. None of them creates or drops databases,
        changes settings, or opens key-value databases.
        """
        self.path = path
        self._paths = StorePaths(path)
        self.read_only = read_only
        self._fs = fs or PosixFileSystem(spare=0 if read_only else _SPARE_DESCRIPTORS)
        self._clock = clock or (SystemClock() if read_only else guarded_clock())
        # Held while a database is opened, created, dropped or closed, which may take long. Lookups
        # of open databases do not need it, because the dictionaries are replaced and not changed.
        self._mutex = Lock()
        self._databases: Mapping[str, Database] = {}
        self._open_engine = open_engine
        self._keyvalues: Mapping[str, KeyValueDatabase] = {}
        self._closed = False
        self._file_lock = None
        self._leads = leads
        self._cluster = cluster
        if read_only:
            self._check_version()
            return
        if leads is not None:
            self._check_version()
            self._file_lock = self._fs.lock(self._paths.lock, shared=True)
            return
        create_directories(self._fs, path)
        self._file_lock = self._fs.lock(self._paths.lock)
        try:
            self._prepare()
            self._resume_clock()
        except BaseException:
            self._file_lock.release()
            raise

    def __enter__(self) -> Self:
        """Return the store itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the store."""
        self.close()

    @property
    def clock(self) -> Clock:
        """The clock of the store."""
        return self._clock

    def note_time(self) -> None:
        """Record the state of the clocks, durably: a later start compares its clocks with it."""
        if isinstance(self._clock, GuardedClock):
            write_last_seen(self._fs, self.path, self._clock.sighting())

    def last_seen(self) -> Sighting | None:
        """Return the state of the clocks at the last write to the directory; None if nothing was
        ever stored.
        """
        seen = read_last_seen(self._fs, self.path)
        if seen is not None:
            return seen
        newest_us = newest_row_us(self._fs, [self._paths.database(name) for name in self.names()])
        return None if newest_us is None else Sighting(time_us=newest_us)

    def newest_us(self) -> dict[str, int]:
        """Return the latest time of the rows of each open database, without the databases of the
        broker, whose times are not shown.

        It does not block.
        """
        newest: dict[str, int] = {}
        for name, database in self._databases.items():
            # A database that is being closed is not open any more.
            with suppress(ClosedError):
                if not name.startswith("_") and not database.closed:
                    newest[name] = database.newest_us()
        return newest

    def names(self) -> list[str]:
        """Return the names of the databases."""
        return [each.name for each in self._places() if self._fs.exists(each / MANIFEST)]

    def without_manifest(self) -> list[str]:
        """Return the names of databases that hold rows and have lost their manifest."""
        return [each.name for each in self._places() if self._has_lost_manifest(each)]

    def _places(self) -> list[PurePath]:
        """Return the directories that may be databases."""
        data = self._paths.data
        if not self._fs.exists(data):
            return []
        return [
            data / entry.name for entry in self._fs.list(data) if entry.kind is EntryKind.DIRECTORY
        ]

    def _has_lost_manifest(self, directory: PurePath) -> bool:
        """Return whether a database has rows, but no manifest, and was not being dropped."""
        known = (MANIFEST, _DROPPING)
        return not any(self._fs.exists(directory / name) for name in known) and holds_rows(
            self._fs, directory
        )

    def create(self, name: str, settings: DatabaseSettings | None = None) -> Database:
        """Create a database and open it. Raises: ExistsError, UsageError."""
        with self._mutex:
            self._check_writable()
            _check_name(name)
            if settings is not None:
                require_kind("settings", settings, DatabaseSettings, "a DatabaseSettings")
                require_retention(settings)
            directory = self._paths.database(name)
            if self._fs.exists(directory / MANIFEST):
                raise ExistsError(f"database {name!r} exists already")
            if self._fs.exists(directory):
                self._clear_remains(directory)
            founding = self._founding(name, settings or DatabaseSettings())
            create_directories(self._fs, directory)
            manifest = Manifest(
                database=name, salt=founding.salt, settings=founding.settings, slabs=()
            )
            manifest = create_slabs(self._fs, self._clock, directory, manifest, founding.created_us)
            replace_file(self._fs, directory / MANIFEST, manifest.encode())
            return self._open(name)

    def _founding(self, name: str, settings: DatabaseSettings) -> Founding[DatabaseSettings]:
        """Return the values that are chosen once for a new database, by all sites if it is
        replicated.
        """
        if settings.backend == "local":
            return Founding(
                salt=secrets.randbits(63), created_us=self._clock.now_us(), settings=settings
            )
        if self._cluster is None:
            require_local(settings.backend)
        assert self._cluster is not None
        return self._cluster.found(name, settings)

    def database(self, name: str) -> Database:
        """Open a database with its own settings, also a key-value database if no database of
        messages has the name.

        Raises: NotFoundError, CorruptionError; UsageError for a key-value database if the store is
        read-only.
        """
        if self._is_keyvalue(name):
            self._check_open()
            if self.read_only:
                raise UsageError(
                    f"{name!r} is a key-value database, which a store for reading does not open; "
                    f"'siltstone kv' has the commands that read it"
                )
            return Database(self.keyvalue(name, create=False))
        with self._mutex:
            self._check_open()
            require_kind("name", name, str, "text")
            if name not in self._databases or self._databases[name].closed:
                _check_name(name)
                if not self._fs.exists(self._paths.database(name) / MANIFEST):
                    raise self._missing(name)
                self._open(name)
            return self._databases[name]

    def ensure(self, name: str, settings: DatabaseSettings | None = None) -> Database:
        """Open a database, or create it; an existing one keeps its settings."""
        if name not in self.names():
            try:
                return self.create(name, settings)
            except ExistsError:
                # Another thread has created it meanwhile.
                return self.database(name)
        return self.database(name)

    def make_local(self, name: str) -> bool:
        """Make a replicated database a local one; return whether it was replicated.

        Only without a cluster, and before the database is opened. Raises: NotFoundError; UsageError
        if it is open, or while a copy from another site is being installed.
        """
        with self._mutex:
            return make_local(self._fs, self._unused(name))

    def make_keyvalue_local(self, name: str) -> bool:
        """Make a replicated key-value database a local one; return whether it was replicated.

        Only without a cluster, and before the database is opened. Raises: NotFoundError; UsageError
        if it is open, or while a copy from another site is being installed.
        """
        with self._mutex:
            self._check_writable()
            if name not in self.keyvalue_names():
                raise NotFoundError(f"key-value database {name!r} does not exist in {self.path}")
            if name in self._keyvalues or self._cluster is not None:
                raise UsageError(f"key-value database {name!r} is in use")
            directory = self._paths.keyvalue(name)
            engine = self._open_engine(directory)
            try:
                return make_map_local(self._fs, directory, engine)
            finally:
                engine.close()

    def make_replicated(self, name: str) -> bool:
        """Make a local database a replicated one, whose logs begin with its rows at the next start
        of the site; return whether it was local.

        Only without a cluster, and before the database is opened. Raises: NotFoundError;
        UsageError if it is open, or cannot be replicated.
        """
        with self._mutex:
            directory = self._unused(name)
            if read_manifest(self._fs, directory).settings.backend == "local":
                # Finish what a crash has interrupted, as each start does.
                self._open(name).close()
                self._databases = _without(self._databases, name)
            return make_replicated(self._fs, self._clock, directory)

    def begin_anew(self, name: str, *, follows: bool) -> bool:
        """Let the logs of a replicated database begin again in another epoch, with the rows of this
        site, or, if it `follows`, with those of another one; return whether it is replicated.

        Only without a cluster, and before the database is opened. Raises: NotFoundError; UsageError
        if it is open, or while a copy from another site is being installed.
        """
        with self._mutex:
            directory = self._unused(name)
            if follows:
                return begin_as_follower(self._fs, directory)
            return begin_anew(self._fs, self._clock, directory)

    def check_begins_anew(self) -> None:
        """Check that all replicated databases may begin again in another epoch.

        Raises: UsageError if there is a replicated key-value database, which cannot begin again.
        """
        names: list[str] = []
        for name in self.keyvalue_names():
            # Only a site of its cluster opens the database.
            engine = self._open_engine(self._paths.keyvalue(name))
            try:
                if catalog.is_created(engine) and catalog.read_settings(engine).backend != "local":
                    names.append(name)
            finally:
                engine.close()
        if names:
            raise UsageError(
                f"replicated key-value databases cannot begin anew: {', '.join(names)}; make "
                f"them local ones with 'siltstone cluster export-local NAME' at the site that "
                f"begins, and remove them from the others with 'siltstone kv drop NAME'"
            )

    def progress(self, name: str) -> list[Marked]:
        """Return the marks of the shards of a replicated database: how far this site has come.

        Raises: CorruptionError.
        """
        directory = self._paths.database(name)
        shards = range(read_manifest(self._fs, directory).settings.shards)
        marks = [read_mark(self._fs, directory, shard) for shard in shards]
        return [mark for mark in marks if mark is not None]

    def founding(self) -> list[str]:
        """Return the databases whose logs begin with the rows of this site."""
        return [name for name in self.names() if is_founding(self._fs, self._paths.database(name))]

    def _unused(self, name: str) -> PurePath:
        """Return the directory of a database that nothing uses. The caller holds the lock."""
        self._check_writable()
        if name not in self.names():
            raise self._missing(name)
        if name in self._databases or self._cluster is not None:
            raise UsageError(f"database {name!r} is in use")
        return self._paths.database(name)

    def drop(self, name: str) -> None:
        """Delete a database with all its rows.

        Raises: NotFoundError; UsageError, also for a replicated database in a store with a cluster:
        the other sites have it too, so this site would copy it again.
        """
        require_kind("name", name, str, "text")
        with self._mutex:
            self._check_writable()
            if name not in self.names():
                raise self._missing(name)
            if self._cluster is not None and self._is_shared(name):
                raise UsageError(
                    f"database {name!r} is replicated, and a cluster cannot drop it: delete its "
                    f"rows with 'siltstone drop', or let it keep less with 'siltstone db set "
                    f"{name} retain=…'; to delete only the copy of this site, stop its broker first"
                )
            if name in self._databases:
                known = self._databases[name]
                self._databases = _without(self._databases, name)
                known.close()
            directory = self._paths.database(name)
            # The mark distinguishes the remains after a crash from a database that lost its
            # manifest.
            replace_file(self._fs, directory / _DROPPING, b"")
            self._fs.remove(directory / MANIFEST)
            self._fs.sync_directory(directory)
            self._clear_remains(directory)

    def _is_shared(self, name: str) -> bool:
        """Return whether a database of messages is replicated; False if its manifest is damaged.
        The caller holds the lock.
        """
        with suppress(CorruptionError):
            manifest = read_manifest(self._fs, self._paths.database(name))
            return manifest.settings.backend != "local"
        return False

    def keyvalue(
        self, name: str, settings: KeyValueSettings | None = None, *, create: bool = True
    ) -> KeyValueDatabase:
        """Open a key-value database, or create it; an existing one keeps its settings, and
        `commits` has settings of its own.

        Raises: NotFoundError if it does not exist and `create` is off; UsageError, also if the
        store is read-only; CorruptionError.
        """
        require_kind("name", name, str, "text")
        if settings is None:
            return self._kept_keyvalue(name, None, None, create=create)
        require_kind("settings", settings, KeyValueSettings, "a KeyValueSettings")
        # Ask the other sites before the mutex is taken: they may be away.
        is_here = name in self.keyvalue_names()
        founding = None if is_here else self._map_founding(name, settings)
        try:
            return self._kept_keyvalue(name, settings, founding, create=create)
        except _UnfoundedError:
            # The process ended while it created the database.
            founding = self._map_founding(name, settings)
            return self._kept_keyvalue(name, settings, founding, create=create)

    def _kept_keyvalue(
        self,
        name: str,
        settings: KeyValueSettings | None,
        founding: Founding[KeyValueSettings] | None,
        *,
        create: bool,
    ) -> KeyValueDatabase:
        """Return a key-value database, which is opened or created only once."""
        with self._mutex:
            self._check_writable()
            known = self._keyvalues.get(name)
            if known is None or known.closed:
                _check_name(name)
                if not create and name != COMMITS and name not in self.keyvalue_names():
                    raise self._missing_keyvalue(name)
                directory = self._paths.keyvalue(name)
                if name == COMMITS:
                    settings = COMMITS_SETTINGS
                if self._fs.exists(directory / _DROPPING):
                    self._remove_keyvalue(directory)
                create_directories(self._fs, directory)
                self._check_engine(directory)
                known = self._open_keyvalue(name, directory, settings, founding)
                self._keyvalues = {**self._keyvalues, name: known}
            if settings is not None and name != COMMITS:
                _check_backend(name, settings, known.settings)
            return known

    def _check_engine(self, directory: PurePath) -> None:
        """Check that opening an engine loses nothing. Raises: CorruptionError."""
        check_begin(self._fs, directory)
        set_odd_aside(self._fs, directory)
        check_logs(self._fs, directory)

    def _map_founding(
        self, name: str, settings: KeyValueSettings
    ) -> Founding[KeyValueSettings] | None:
        """Return the values on which the sites agree for a replicated key-value database, else
        None.

        Raises: UsageError, OutcomeUnknownError.
        """
        if settings.backend == "local" or name == COMMITS:
            return None
        if self._cluster is None:
            require_local(settings.backend)
        assert self._cluster is not None
        _check_name(name)
        return self._cluster.found(cluster_name(name), settings)

    def _open_keyvalue(
        self,
        name: str,
        directory: PurePath,
        settings: KeyValueSettings | None,
        founding: Founding[KeyValueSettings] | None,
    ) -> KeyValueDatabase:
        """Open a key-value database; on a full disk, release its reserve first."""
        room = (
            DiskRoom(
                self._fs,
                directory,
                floor_bytes=COMMITS_FLOOR_BYTES,
                reserve_bytes=min(
                    COMMITS_RESERVE_BYTES, self._fs.disk_bytes(directory) // _RESERVE_SHARE
                ),
            )
            if name == COMMITS
            else DiskRoom(self._fs, directory, floor_bytes=KEYVALUE_FLOOR_BYTES)
        )
        try:
            return self._with_engine(name, directory, settings, room, founding)
        except StorageFullError:
            if not room.give_up_reserve():
                raise
        database = self._with_engine(name, directory, settings, room, founding)
        room.keep_opening()
        return database

    def _with_engine(
        self,
        name: str,
        directory: PurePath,
        settings: KeyValueSettings | None,
        room: DiskRoom,
        founding: Founding[KeyValueSettings] | None,
    ) -> KeyValueDatabase:
        engine = self._open_engine(directory)
        room.write_back = engine.write_back
        if founding is not None:
            settings = founding.settings
        wants_sites = settings is not None and settings.backend != "local"
        if self._cluster is not None and founding is None and wants_sites:
            self._check_founded(name, engine)
        return KeyValueDatabase(
            engine,
            self._clock,
            name,
            settings,
            room=room.lacks,
            place=self._map_place(name, directory, engine, founding),
            founding=founding,
        )

    def _check_founded(self, name: str, engine: Engine) -> None:
        """Check that an engine has a database; close it otherwise. Raises: _UnfoundedError."""
        if not catalog.is_created(engine):
            engine.close()
            raise _UnfoundedError(name)

    def _map_place(
        self,
        name: str,
        directory: PurePath,
        engine: Engine,
        founding: Founding[KeyValueSettings] | None,
    ) -> ReplicaPlace | None:
        """Return the place of a key-value database in the cluster; None if it is not replicated."""
        if self._cluster is None:
            return None
        if catalog.is_created(engine):
            if catalog.read_settings(engine).backend == "local":
                return None
            identity = bytes.fromhex(catalog.read_identity(engine).text)
        elif founding is None:
            return None
        else:
            identity = identity_of_map(cluster_name(name), founding)
        return ReplicaPlace(
            fs=self._fs,
            clock=self._clock,
            directory=directory,
            name=cluster_name(name),
            identity=identity,
            cluster=self._cluster,
        )

    def keyvalue_names(self) -> list[str]:
        """Return the names of the key-value databases, without `commits`, which always exists."""
        directory = self._paths.keyvalues
        if not self._fs.exists(directory):
            return []
        return [
            entry.name
            for entry in self._fs.list(directory)
            if entry.kind is EntryKind.DIRECTORY
            and not self._fs.exists(directory / entry.name / _DROPPING)
        ]

    def keyvalue_places(self) -> dict[str, PurePath]:
        """Return the directories of the key-value databases that were ever opened, with `commits`,
        by name.
        """
        places = {name: self._paths.keyvalue(name) for name in self.keyvalue_names()}
        places[COMMITS] = self._paths.commits
        return {name: place for name, place in places.items() if has_begun(self._fs, place)}

    def drop_keyvalue(self, name: str) -> None:
        """Delete a key-value database with all its rows. In a store with a cluster, a replicated
        database is deleted at all sites. A site that is away deletes it when it returns.

        Raises: NotFoundError, UsageError; with a cluster also RetryError, OutcomeUnknownError.
        """
        require_kind("name", name, str, "text")
        if self._cluster is not None and name in self.keyvalue_names():
            database = self.keyvalue(name, create=False)
            if database.settings.backend != "local":
                identity = bytes.fromhex(database.origin.text)
                self._cluster.drop(cluster_name(name), identity)
                # Every site deletes its copy from here on, also this one if it ends now.
                self.drop_copy(name, identity)
                return
        with self._mutex:
            self._check_writable()
            if name not in self.keyvalue_names():
                raise self._missing_keyvalue(name)
            self._drop_keyvalue(name)

    def drop_copy(self, name: str, identity: bytes) -> bool:
        """Delete the copy of a replicated key-value database that was dropped in the cluster;
        return whether there was one. Another database of this name stays.

        Raises: CorruptionError if it cannot be opened to find out.
        """
        with self._mutex:
            self._check_writable()
            if name not in self.keyvalue_names() or self._shared_identity(name) != identity:
                return False
            self._drop_keyvalue(name)
            return True

    def _shared_identity(self, name: str) -> bytes | None:
        """Return the identity of a replicated key-value database; None if it is local now, or was
        not created completely. The caller holds the lock.
        """
        known = self._keyvalues.get(name)
        if known is not None and not known.closed:
            is_shared = known.settings.backend != "local"
            return bytes.fromhex(known.origin.text) if is_shared else None
        directory = self._paths.keyvalue(name)
        self._check_engine(directory)
        engine = self._open_engine(directory)
        try:
            if not catalog.is_created(engine) or catalog.read_settings(engine).backend == "local":
                return None
            return bytes.fromhex(catalog.read_identity(engine).text)
        finally:
            engine.close()

    def _drop_keyvalue(self, name: str) -> None:
        """Delete a key-value database of this directory. The caller holds the lock."""
        if name in self._keyvalues:
            known = self._keyvalues[name]
            self._keyvalues = _without(self._keyvalues, name)
            known.close()
        directory = self._paths.keyvalue(name)
        replace_file(self._fs, directory / _DROPPING, b"")
        self._remove_keyvalue(directory)

    def failure(self) -> tuple[str, Exception] | None:
        """Return a database in which a write or sync has failed, and the cause; None if there is
        none.

        This database stores nothing more until the store is closed and opened again. The call does
        not block.
        """
        causes = {name: known.failure() for name, known in self._databases.items()}
        causes |= {name: known.failure() for name, known in self._keyvalues.items()}
        return next(((name, cause) for name, cause in causes.items() if cause is not None), None)

    def close(self) -> None:
        """Close every database and release the lock."""
        with self._mutex:
            self._closed = True
            open_databases = [known for known in self._databases.values() if not known.closed]
            open_keyvalues = [known for known in self._keyvalues.values() if not known.closed]
            self._databases, self._keyvalues = {}, {}
            try:
                # Close all of them, even if the last sync of one fails.
                with ExitStack() as closing:
                    for database in open_databases:
                        closing.callback(database.close)
                    for keyvalue in open_keyvalues:
                        closing.callback(keyvalue.close)
            finally:
                if self._file_lock is not None and self._leads is None:
                    # On a full or failing disk only this record is lost.
                    with suppress(SiltstoneError):
                        self.note_time()
                if self._file_lock is not None:
                    self._file_lock.release()
                    self._file_lock = None

    def _clear_remains(self, directory: PurePath) -> None:
        """Remove the files that a crash left of a database that was being created or dropped.

        Raises: CorruptionError if there are rows that were not dropped.
        """
        if self._has_lost_manifest(directory):
            raise CorruptionError(
                "the manifest is missing, run `siltstone verify --repair` or restore a backup",
                path=directory,
            )
        for entry in self._fs.list(directory):
            if entry.kind is EntryKind.DIRECTORY:
                remove_tree(self._fs, directory / entry.name)
        remove_tree(self._fs, directory)

    def _remove_keyvalue(self, directory: PurePath) -> None:
        """Remove the rest of a key-value database that was dropped; the mark is removed last."""
        for entry in self._fs.list(directory):
            if entry.kind is EntryKind.DIRECTORY:
                remove_tree(self._fs, directory / entry.name)
            elif entry.name != _DROPPING:
                self._fs.remove(directory / entry.name)
        self._fs.sync_directory(directory)
        remove_tree(self._fs, directory)

    def _is_keyvalue(self, name: str) -> bool:
        """Return whether only a key-value database has this name."""
        self._check_open()
        require_kind("name", name, str, "text")
        if name in self._databases:
            return False
        _check_name(name)
        has_messages = self._fs.exists(self._paths.data / name / MANIFEST)
        return not has_messages and name in self.keyvalue_names()

    def _open(self, name: str) -> Database:
        directory = self._paths.database(name)
        if self._cluster is not None and not self.read_only:
            found_from_files(self._fs, directory, self._cluster)
        shards = Shards(self._fs, self._clock, directory, self._roles(name), self._cluster)
        database = Database(shards)
        self._databases = {**self._databases, name: database}
        return database

    def _roles(self, name: str) -> Roles:
        """Return the roles of the shards of a database."""
        if self.read_only:
            return READING
        if self._leads is None:
            return LEADING
        return Roles(Role.READER, dict.fromkeys(self._leads.get(name, ()), Role.LEADER))

    def _prepare(self) -> None:
        """Create the layout in an empty directory, or check the version of an existing one."""
        if self._fs.exists(self._paths.version):
            self._check_version()
            return
        strangers = [entry.name for entry in self._fs.list(self.path)]
        if set(strangers) - {LOCK, DATA, COMMITS, f"{VERSION_FILE}.tmp"}:
            raise UsageError(
                f"{self.path} is neither empty nor a Siltstone data directory; choose another one"
            )
        for directory in (self._paths.data, self._paths.commits):
            create_directories(self._fs, directory)
        replace_file(self._fs, self._paths.version, VERSION)

    def _resume_clock(self) -> None:
        """Compare the clocks with their state at the last write to the directory."""
        if isinstance(self._clock, GuardedClock):
            seen = self.last_seen()
            if seen is not None:
                self._clock.resume(seen)

    def _check_version(self) -> None:
        version = self._paths.version
        if not self._fs.exists(version):
            raise NotFoundError(f"{self.path} is not a Siltstone data directory")
        found = self._fs.read(version)
        if found != VERSION:
            raise UsageError(
                f"another version of Siltstone wrote {self.path}, use that version: "
                f"format={found[:40]!r} supported={VERSION!r}"
            )

    def _missing(self, name: str) -> NotFoundError:
        return NotFoundError(
            f"database {name!r} does not exist in {self.path} (databases: "
            f"{', '.join(self.names()) or 'none'})"
        )

    def _missing_keyvalue(self, name: str) -> NotFoundError:
        return NotFoundError(
            f"key-value database {name!r} does not exist in {self.path} (databases: "
            f"{', '.join(self.keyvalue_names()) or 'none'})"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the store is closed")

    def _check_writable(self) -> None:
        self._check_open()
        if self.read_only:
            raise UsageError("the store was opened for reading only")
        if self._leads is not None:
            raise UsageError("the store leads only some shards: open it alone to do this")


def open_store(
    path: str | PurePath,
    *,
    read_only: bool = False,
    clock: Clock | None = None,
    cluster: Replication | None = None,
) -> Store:
    """Open a data directory: for writing, which locks it and creates it if necessary, or for
    reading.

    Raises: LockedError when another process writes to it, NotFoundError when there is nothing to
    read, UsageError for an impossible path.
    """
    if not isinstance(path, str | PurePath):
        raise UsageError(f"path must be text or a path: type={type(path).__name__}")
    try:
        # File names that are not UTF-8 contain escapes for their bytes.
        encoded = str(path).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as exc:
        raise UsageError(f"path is not valid Unicode: path={str(path)!r}") from exc
    if 0 in encoded:
        raise UsageError(f"path must not have the character U+0000: path={str(path)!r}")
    return Store(absolute_path(path), read_only=read_only, clock=clock, cluster=cluster)


class _UnfoundedError(Exception):
    """A directory has no database yet, and the cluster must be asked about it."""


def _check_backend(name: str, wanted: KeyValueSettings, found: KeyValueSettings) -> None:
    """Check that a local database is not opened as a replicated one. Raises: UsageError."""
    if wanted.backend != "local" and found.backend == "local":
        raise UsageError(
            f"this site has a local key-value database {name!r}, so it cannot have the replicated "
            f"one of this name: copy its rows, drop it with 'siltstone kv drop {name}', and restart"
        )


def _without(known: Mapping[str, _T], name: str) -> dict[str, _T]:
    return {each: known[each] for each in known if each != name}


def _check_name(name: str) -> None:
    require_kind("name", name, str, "text")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"the name of a database must have 1 to 100 letters, digits, '_', '-' and '.', and "
            f"must begin with a letter, a digit or '_': name={name!r}"
        )
