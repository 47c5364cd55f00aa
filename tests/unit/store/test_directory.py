from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath
from threading import Event, Thread
from typing import Any

import pytest

from siltstone.errors import (
    ClosedError,
    CorruptionError,
    ExistsError,
    LockedError,
    NotFoundError,
    PoisonedError,
    SlabDroppedError,
    UsageError,
)
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.fs.publish import create_directories, replace_file
from siltstone.store.database import Database
from siltstone.store.directory import COMMITS_SETTINGS, VERSION, Store, open_store
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.log.iterator import StreamIterator, StreamRef
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.topic.grammar import TopicFilter
from tests.support.builders import HELD, NAME, PATH, World, read_topics, rows_on, settings_of
from tests.support.slow_disk import WAIT_SECONDS, SlowFileSystem

MIB = 1024 * 1024


class TestLayout:
    def test_a_new_directory_is_laid_out_and_whole_at_once(self) -> None:
        fs = MemoryFileSystem()
        with World(fs).store() as store:
            assert (store.path, store.read_only, store.names()) == (PATH, False, [])
        found = fs.crash_clone()
        assert found.read(PATH / "VERSION") == VERSION == b"siltstone 1\n"
        assert [entry.name for entry in found.list(PATH) if entry.name != "LOCK"] == [
            "VERSION",
            "commits",
            "data",
        ]

    def test_a_directory_is_created_with_those_above_it(self) -> None:
        fs = MemoryFileSystem()
        with Store(PurePath("/a/b/c"), fs=fs):
            pass
        assert fs.exists(PurePath("/a/b/c/VERSION"))

    def test_an_empty_directory_becomes_a_store(self) -> None:
        world = World()
        create_directories(world.fs, PATH)
        with world.store() as store:
            assert store.names() == []

    @pytest.mark.parametrize("left", [["LOCK"], ["data"], ["data", "commits", "VERSION.tmp"]])
    def test_what_a_crash_in_the_middle_of_the_layout_left_is_finished(
        self, left: list[str]
    ) -> None:
        world = World()
        create_directories(world.fs, PATH)
        for name in left:
            if name in ("data", "commits"):
                world.fs.make_directory(PATH / name)
            else:
                world.fs.create(PATH / name).close()
        with world.store() as store:
            store.create(NAME, settings_of())
        assert world.fs.read(PATH / "VERSION") == VERSION

    def test_a_directory_with_something_else_in_it_is_refused_and_left_as_it_was(self) -> None:
        world = World()
        create_directories(world.fs, PATH)
        world.fs.create(PATH / "thesis.doc").close()
        for _ in range(2):
            with pytest.raises(UsageError) as caught:
                world.store()
            assert str(caught.value) == (
                "/data is neither empty nor a Siltstone data directory; choose another one"
            )
        names = {entry.name for entry in world.fs.list(PATH)}
        assert names - {"LOCK"} == {"thesis.doc"}

    @pytest.mark.parametrize("read_only", [False, True])
    def test_a_directory_of_another_version_is_refused(self, *, read_only: bool) -> None:
        world = World()
        create_directories(world.fs, PATH)
        with world.fs.create(PATH / "VERSION") as file:
            file.write(b"siltstone 2\n")
        with pytest.raises(UsageError, match="another version of Siltstone wrote"):
            world.store(read_only=read_only)

    @pytest.mark.parametrize("path", ["\0", "a\0b", "\ud800"])
    @pytest.mark.parametrize("read_only", [True, False])
    def test_what_can_be_no_path_is_refused(self, path: str, *, read_only: bool) -> None:
        for given in (path, PurePath(path)):
            with pytest.raises(UsageError, match=r"^path (must not have|is not valid)"):
                open_store(given, read_only=read_only)


class TestLock:
    def test_a_second_writer_is_refused_until_the_first_is_closed(self) -> None:
        world = World()
        with world.store(), pytest.raises(LockedError):
            world.store()
        with world.store():
            pass

    def test_a_refused_directory_is_not_left_locked(self) -> None:
        world = World()
        create_directories(world.fs, PATH)
        with world.fs.create(PATH / "VERSION") as file:
            file.write(b"other")
        with pytest.raises(UsageError):
            world.store()
        world.fs.remove(PATH / "VERSION")
        with world.store():
            pass

    def test_readers_need_no_lock(self) -> None:
        world = World()
        with world.store() as writer:
            writer.create(NAME, settings_of())
            with world.store(read_only=True) as one, world.store(read_only=True) as two:
                assert one.names() == two.names() == [NAME]


class TestReadOnly:
    def test_nothing_to_read_is_not_found_and_nothing_is_created(self) -> None:
        world = World()
        with pytest.raises(NotFoundError, match="/data is not a Siltstone data directory"):
            world.store(read_only=True)
        assert not world.fs.exists(PATH)

    def test_it_creates_and_drops_nothing(self) -> None:
        fs = MemoryFileSystem()
        world = World(fs)
        with world.store() as store:
            store.create(NAME, settings_of())
        before = len(fs.operations)
        with world.store(read_only=True) as store:
            actions: list[Callable[[], Any]] = [
                lambda: store.create("other"),
                lambda: store.ensure("other"),
                lambda: store.drop(NAME),
            ]
            for refused in actions:
                with pytest.raises(UsageError, match="opened for reading only"):
                    refused()
            assert store.ensure(NAME) is store.database(NAME)
        assert len(fs.operations) == before


class TestCreate:
    def test_names_are_those_of_the_databases_in_order(self) -> None:
        world = World()
        with world.store() as store:
            for name in ("b", "a", "C"):
                assert store.create(name, settings_of()).name == name
            assert store.names() == ["C", "a", "b"]
        with world.store() as store:
            assert store.names() == ["C", "a", "b"]

    def test_what_is_no_database_has_no_name(self) -> None:
        world = World()
        with world.store() as store:
            world.fs.make_directory(PATH / "data" / "directory")
            world.fs.create(PATH / "data" / "file").close()
            assert store.names() == []

    def test_twice_is_refused_and_the_first_stays(self) -> None:
        with World().store() as store:
            database = store.create(NAME, settings_of())
            database.append(rows_on("t")).wait()
            with pytest.raises(ExistsError, match=f"database '{NAME}' exists already"):
                store.create(NAME)
            assert store.database(NAME) is database
            assert read_topics(database) == ["t"]

    @pytest.mark.parametrize(
        "name",
        ["a", "A", "0", "_", "a.b", "a-b", "a_b", "messages.2024-01", "x" * 100, "a..b", "a."],
    )
    def test_a_good_name_is_taken(self, name: str) -> None:
        with World().store() as store:
            store.create(name, settings_of())
            assert store.names() == [name]

    @pytest.mark.parametrize(
        "name",
        ["", ".", "..", ".a", "-a", "a/b", "/", "../a", "a b", "a\n", "ä", "a\x00", "x" * 101, "*"],
    )
    def test_a_bad_name_is_refused(self, name: str) -> None:
        with World().store() as store:
            for refused in (store.create, store.database, store.ensure):
                with pytest.raises(UsageError, match="must have 1 to 100 letters"):
                    refused(name)
            assert store.names() == []

    def test_what_a_crash_left_of_a_creation_is_no_database_and_in_nobodys_way(self) -> None:
        world = World()
        with world.store() as store:
            create_directories(world.fs, PATH / "data" / NAME / "0" / "1")
            world.fs.create(PATH / "data" / NAME / "0" / "1" / f"{9:020}.seg.tmp").close()
            assert store.names() == []
            with pytest.raises(NotFoundError):
                store.database(NAME)
            assert store.create(NAME, settings_of()).count() == 0

    def test_rows_without_a_manifest_are_damage_and_no_place_for_a_new_database(self) -> None:
        world = World()
        with world.store() as store:
            store.create(NAME, settings_of()).append(rows_on("t")).wait()
        manifest = PATH / "data" / NAME / "manifest"
        saved = world.fs.read(manifest)
        world.fs.remove(manifest)
        with world.store() as store:
            for make in (store.create, store.ensure):
                with pytest.raises(CorruptionError, match="the manifest is missing, run"):
                    make(NAME, settings_of())
            replace_file(world.fs, manifest, saved)
            assert read_topics(store.database(NAME)) == ["t"]

    def test_a_database_that_is_draining_is_not_opened_twice(self) -> None:
        world = World()
        with world.store() as store:
            database = store.create(NAME, settings_of(**HELD))
            tickets = [database.append(rows_on("t")) for _ in range(3)]
            closers = [Thread(target=database.close) for _ in range(2)]
            for closer in closers:
                closer.start()
            for closer in closers:
                closer.join()
            again = store.database(NAME)
            again.append(rows_on("u"))
            again.sync()
            assert [ticket.error for ticket in tickets] == [None, None, None]
            assert read_topics(again) == ["t", "t", "t", "u"]

    def test_a_new_database_is_durable_when_create_returns(self) -> None:
        fs = MemoryFileSystem()
        with World(fs).store() as store:
            store.create(NAME, settings_of())
            found = fs.crash_clone()
        with World(found).store() as store:
            assert store.names() == [NAME]
            assert store.database(NAME).settings == settings_of()

    def test_two_databases_do_not_share_a_secret(self) -> None:
        world = World()
        with world.store() as store:
            for name in ("a", "b"):
                store.create(name, settings_of())
        salts = {
            world.fs.read(PATH / "data" / name / "0" / "1" / f"{0:020}.seg")[40:44]
            for name in ("a", "b")
        }
        assert len(salts) == 2


class TestSettings:
    def test_they_are_stored_with_the_database(self) -> None:
        world = World()
        settings = settings_of(shards=3, shard_by="topic", thresholds=(5, 0, -1), quota_bytes=10**9)
        with world.store() as store:
            assert store.create(NAME, settings).settings == settings
        with world.store() as store:
            assert store.database(NAME).settings == settings

    def test_those_of_an_existing_database_win(self) -> None:
        world = World()
        with world.store() as store:
            store.create(NAME, settings_of(shards=2))
            assert store.ensure(NAME, settings_of(shards=5)).settings == settings_of(shards=2)
        with world.store() as store:
            assert store.ensure(NAME, settings_of(shards=5)).settings == settings_of(shards=2)

    def test_ensure_creates_what_is_missing_with_them(self) -> None:
        with World().store() as store:
            database = store.ensure(NAME, settings_of(shards=2))
            assert (database.settings, store.names()) == (settings_of(shards=2), [NAME])

    def test_ensure_opens_what_another_thread_creates_meanwhile(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with World().store() as store:
            database = store.create(NAME, settings_of())
            # What was seen just before the other thread had created it.
            monkeypatch.setattr(store, "names", list)
            assert store.ensure(NAME) is database


class TestBackend:
    def test_a_replicated_one_needs_a_cluster(self) -> None:
        with World().store() as store:
            with pytest.raises(UsageError, match="'replicated' needs a cluster"):
                store.create(NAME, settings_of(backend="replicated"))
            with pytest.raises(UsageError, match="'replicated' needs a cluster"):
                store.keyvalue(NAME, KeyValueSettings(backend="replicated"))
            assert (store.names(), store.keyvalue_names()) == ([], [])

    def test_it_is_fixed_when_the_database_is_created(self) -> None:
        world = World()
        with Store(PATH, fs=world.fs, clock=world.clock, open_engine=Engines()) as store:
            database = store.create(NAME, settings_of())
            assert database.settings.backend == "local"
            for known in (database, store.keyvalue(NAME)):
                with pytest.raises(UsageError, match=r"cannot change .*: backend"):
                    known.configure(backend="replicated")


class TestOpen:
    def test_a_database_is_opened_once(self) -> None:
        world = World()
        with world.store() as store:
            first = store.create(NAME, settings_of())
            assert store.database(NAME) is first
            assert store.ensure(NAME) is first

    def test_a_missing_one_is_not_found_and_the_others_are_named(self) -> None:
        with World().store() as store:
            with pytest.raises(NotFoundError) as caught:
                store.database("missing")
            assert str(caught.value) == (
                "database 'missing' does not exist in /data (databases: none)"
            )
            store.create("a", settings_of())
            store.create("b", settings_of())
            with pytest.raises(NotFoundError, match="databases: a, b"):
                store.database("missing")

    def test_a_database_that_was_closed_is_opened_anew(self) -> None:
        with World().store() as store:
            store.create(NAME, settings_of()).append(rows_on("a")).wait()
            store.database(NAME).close()
            database = store.database(NAME)
            database.append(rows_on("b")).wait()
            assert read_topics(database) == ["a", "b"]

    def test_a_poisoned_database_is_closed_and_opened_again_as_its_error_says(self) -> None:
        fs = FaultyFileSystem(MemoryFileSystem())
        with World(fs).store() as store:
            database = store.create(NAME, settings_of())
            database.append(rows_on("a")).wait()
            fs.add(Fault(operation="sync", errno=errno.EIO))
            with pytest.raises(PoisonedError, match="close the database and open it again"):
                database.append(rows_on("b")).wait()
            fs.clear()
            database.close()
            store.database(NAME).append(rows_on("c")).wait()
            assert "c" in read_topics(store.database(NAME))

    def test_a_damaged_manifest_is_corruption_and_names_the_file(self) -> None:
        world = World()
        with world.store() as store:
            store.create(NAME, settings_of())
        path = PATH / "data" / NAME / "manifest"
        with world.fs.open(path, writable=True) as file:
            file.write_at(60, b"?")
        with world.store() as store, pytest.raises(CorruptionError) as caught:
            store.database(NAME)
        assert caught.value.path == path


class TestDrop:
    def test_a_dropped_database_is_gone_with_its_rows(self) -> None:
        fs = MemoryFileSystem()
        world = World(fs)
        with world.store() as store:
            store.create(NAME, settings_of()).append(rows_on("t")).wait()
            store.create("other", settings_of())
            store.drop(NAME)
            assert store.names() == ["other"]
            assert not fs.exists(PATH / "data" / NAME)
            with pytest.raises(NotFoundError):
                store.database(NAME)
        with World(fs.crash_clone()).store() as store:
            assert store.names() == ["other"]

    def test_twice_is_not_found(self) -> None:
        with World().store() as store:
            store.create(NAME, settings_of())
            store.drop(NAME)
            with pytest.raises(NotFoundError, match=f"database '{NAME}' does not exist"):
                store.drop(NAME)

    def test_what_was_saved_of_it_is_refused_by_a_later_one_of_its_name(self) -> None:
        with World().store() as store:
            first = store.create(NAME, settings_of())
            first.append(rows_on("t", "t", "t")).wait()
            stream = first.streams()[0]
            found = first.next(first.iterator(stream), 2).iterator
            assert first.identity == stream.identity == found.identity
            store.drop(NAME)
            later = store.create(NAME, settings_of())
            later.append(rows_on("t", "t", "t", "t")).wait()
            position = StreamIterator.from_bytes(found.to_bytes())
            for refused in (
                lambda: later.next(position),
                lambda: later.feed(position),
                lambda: later.iterator(StreamRef.from_bytes(stream.to_bytes())),
            ):
                with pytest.raises(SlabDroppedError, match="belongs to an earlier database"):
                    refused()

    def test_what_was_saved_without_an_identity_is_taken_by_name_and_gets_one(self) -> None:
        with World().store() as store:
            database = store.create(NAME, settings_of())
            database.append(rows_on("t", "t")).wait()
            old = replace(database.iterator(database.streams()[0]), identity="")
            read = database.next(StreamIterator.from_bytes(old.to_bytes()))
            assert (len(read.batch), read.iterator.identity) == (2, database.identity)
            ended = database.next(replace(old, filter=TopicFilter.parse("other")))
            assert (len(ended.batch), ended.iterator.identity) == (0, database.identity)

    def test_one_that_is_not_open_is_dropped_too(self) -> None:
        world = World()
        with world.store() as store:
            store.create(NAME, settings_of())
        with world.store() as store:
            store.drop(NAME)
            assert store.names() == []

    def test_who_still_holds_it_is_told_that_it_is_closed(self) -> None:
        with World().store() as store:
            database = store.create(NAME, settings_of())
            store.drop(NAME)
            with pytest.raises(ClosedError):
                database.append(rows_on("t"))

    def test_its_name_may_be_used_again_for_an_empty_one(self) -> None:
        with World().store() as store:
            store.create(NAME, settings_of()).append(rows_on("t")).wait()
            store.drop(NAME)
            assert store.create(NAME, settings_of(shards=2)).count() == 0

    def test_a_drop_that_a_crash_cut_short_leaves_no_database(self) -> None:
        fs = MemoryFileSystem()
        with World(fs).store() as store:
            store.create(NAME, settings_of()).append(rows_on("t")).wait()
            store.drop(NAME)
        removed = next(
            number
            for number, operation in enumerate(fs.operations)
            if operation == f"remove {PATH}/data/{NAME}/manifest"
        )
        # The name of the manifest is durably gone before anything else is removed.
        assert fs.operations[removed + 1] == f"sync_directory {PATH}/data/{NAME}"


class TestClose:
    def test_a_closed_store_refuses_and_its_databases_are_closed(self) -> None:
        world = World()
        with world.store() as store:
            database: Database = store.create(NAME, settings_of())
        actions: list[Callable[[], Any]] = [
            lambda: store.create("other"),
            lambda: store.database(NAME),
            lambda: store.ensure(NAME),
            lambda: store.drop(NAME),
        ]
        for refused in actions:
            with pytest.raises(ClosedError, match="the store is closed"):
                refused()
        with pytest.raises(ClosedError, match="the database is closed"):
            database.append(rows_on("t"))
        store.close()

    def test_close_stores_what_is_queued(self) -> None:
        world = World()
        with world.store() as store:
            database = store.create(
                NAME, settings_of(flush_interval=3600, idle_flush_interval=3600)
            )
            database.append(rows_on("a"))
            database.append(rows_on("b"), durability="none")
        with world.database() as database:
            assert read_topics(database) == ["a", "b"]

    def test_an_error_inside_still_closes(self) -> None:
        world = World()
        with pytest.raises(ZeroDivisionError), world.store():
            raise ZeroDivisionError
        with world.store():
            pass


class Engines:
    """Opens engines in memory, each as the one before it in its directory left it."""

    def __init__(self) -> None:
        self.opened: dict[PurePath, MemoryEngine] = {}

    def __call__(self, path: PurePath) -> MemoryEngine:
        engine = self.opened[path].reopened() if path in self.opened else MemoryEngine()
        self.opened[path] = engine
        return engine


class TestKeyValue:
    def store(self, world: World, engines: Engines, *, read_only: bool = False) -> Store:
        return Store(PATH, fs=world.fs, clock=world.clock, open_engine=engines, read_only=read_only)

    def test_a_key_value_database_is_created_and_found_again(self) -> None:
        world, engines = World(), Engines()
        settings = KeyValueSettings(timed=False)
        with self.store(world, engines) as store:
            assert store.keyvalue_names() == []
            database = store.keyvalue("state", settings)
            assert store.keyvalue("state") is database
            with database.transaction() as tx:
                tx.write("a", b"v")
            assert (store.keyvalue_names(), store.names()) == (["state"], [])
        assert database.closed
        with self.store(world, engines) as store:
            again = store.keyvalue("state", KeyValueSettings(timed=True))
            assert (again.settings, again.get("a")) == (settings, b"v")
            again.close()
            assert store.keyvalue("state").get("a") == b"v"

    def test_the_positions_have_a_place_and_settings_of_their_own(self) -> None:
        world, engines = World(), Engines()
        with self.store(world, engines) as store:
            database = store.keyvalue("commits", KeyValueSettings(timed=True))
            assert database.settings == COMMITS_SETTINGS
            assert [*engines.opened] == [PATH / "commits"]
            assert store.keyvalue_names() == []
            with pytest.raises(NotFoundError):
                store.drop_keyvalue("commits")

    @pytest.mark.parametrize(
        ("disk_bytes", "reserve_bytes"), [(1024 * MIB, 16 * MIB), (96 * MIB, 6 * MIB)]
    )
    def test_the_positions_have_a_reserve_that_publishers_cannot_take_when_it_is_given_up(
        self, disk_bytes: int, reserve_bytes: int
    ) -> None:
        # A broker's publishers leave 64 MiB, or an eighth of the disk.
        assert 4 * MIB + reserve_bytes < min(64 * MIB, disk_bytes // 8)
        world, engines = World(fs=MemoryFileSystem(capacity_bytes=disk_bytes)), Engines()
        with self.store(world, engines) as store:
            with store.keyvalue("commits").transaction() as tx:
                tx.write("a", b"v")
            [reserve] = [each for each in world.fs.list(PATH / "commits") if each.name == "RESERVE"]
            assert reserve.allocated_bytes == reserve_bytes

    def test_those_that_were_opened_have_a_place(self) -> None:
        world, engines = World(), Engines()
        with self.store(world, engines) as store:
            for name in ("state", "commits", "empty"):
                store.keyvalue(name)
            assert store.keyvalue_places() == {}
            places = {"state": PATH / "kv" / "state", "commits": PATH / "commits"}
            for place in places.values():
                world.fs.create(place / "CURRENT").close()
            assert store.keyvalue_places() == places

    def test_it_may_be_called_as_a_database_of_messages_is(self) -> None:
        world, engines = World(), Engines()
        with self.store(world, engines) as store:
            store.create(NAME, settings_of())
            store.keyvalue(NAME)
            store.drop(NAME)
            assert (store.names(), store.keyvalue_names()) == ([], [NAME])

    def test_bad_names_closed_stores_and_readers_are_refused(self) -> None:
        world, engines = World(), Engines()
        with self.store(world, engines) as store, pytest.raises(UsageError, match=r"name='\.\./x'"):
            store.keyvalue("../x")
        with pytest.raises(ClosedError):
            store.keyvalue("state")
        with (
            self.store(world, engines, read_only=True) as reader,
            pytest.raises(UsageError, match="opened for reading only"),
        ):
            reader.keyvalue("state")

    def test_a_reader_is_told_that_a_name_is_that_of_a_key_value_database(self) -> None:
        world, engines = World(), Engines()
        with self.store(world, engines) as store:
            store.keyvalue("state")
            world.fs.create(PATH / "kv" / "state" / "CURRENT").close()
        with (
            self.store(world, engines, read_only=True) as reader,
            pytest.raises(UsageError, match="'state' is a key-value database"),
        ):
            reader.database("state")

    def test_a_dropped_one_is_gone_and_may_be_created_anew(self) -> None:
        world, engines = World(), Engines()
        with self.store(world, engines) as store:
            database = store.keyvalue("state")
            world.fs.create(PATH / "kv" / "state" / "CURRENT").close()
            world.fs.make_directory(PATH / "kv" / "state" / "below")
            store.drop_keyvalue("state")
            assert database.closed
            assert (store.keyvalue_names(), world.fs.exists(PATH / "kv" / "state")) == ([], False)
            with pytest.raises(NotFoundError, match="key-value database 'state' does not exist"):
                store.drop_keyvalue("state")
            store.keyvalue("other")
            assert store.keyvalue_names() == ["other"]

    @pytest.mark.parametrize("operations", range(1, 8))
    def test_a_drop_that_was_cut_short_is_finished_before_it_is_created_anew(
        self, operations: int
    ) -> None:
        memory = MemoryFileSystem()
        world, engines = World(memory), Engines()
        with self.store(world, engines) as store:
            store.keyvalue("state")
        place = PATH / "kv" / "state"
        for name in ("CURRENT", "LOG"):
            memory.create(place / name).close()
        faulty = FaultyFileSystem(memory)
        store = self.store(World(faulty), engines)
        faulty.operations_left = operations
        try:
            store.drop_keyvalue("state")
        except PowerCut:
            pass
        else:
            pytest.fail("the power was not cut")
        left = World(memory.crash_clone())
        with self.store(left, engines) as store:
            dropped = store.keyvalue_names() == []
            store.keyvalue("state")
            names = {entry.name for entry in left.fs.list(place)}
            # Whole as it was, or gone; never a part of it.
            assert names in ([set()] if dropped else [set(), {"CURRENT", "LOG"}])

    def test_closing_closes_all_whatever_keeps_one_from_it(self) -> None:
        world, engines = World(), Engines()
        store = self.store(world, engines)
        first, second = store.keyvalue("first"), store.keyvalue("second")

        def fail() -> None:
            raise PoisonedError("no")

        close = second.close
        second.close = fail  # type: ignore[method-assign]
        with pytest.raises(PoisonedError):
            store.close()
        assert first.closed
        close()
        with self.store(world, engines) as again:
            assert again.keyvalue_names() == ["first", "second"]


class TestLooksThatWaitForNothing:
    """The loop of a broker looks every second, also while a thread opens or closes a database."""

    def test_while_a_database_is_being_opened(self) -> None:
        fs = SlowFileSystem()
        with World(fs).store() as store:
            newest_us = store.create("known", settings_of()).newest_us()
            store.create("slow", settings_of()).close()
            fs.slow = PATH / "data" / "slow"
            opening = Thread(target=lambda: store.database("slow"))
            opening.start()
            try:
                assert fs.reached.wait(WAIT_SECONDS)
                looked = answered(lambda: (store.newest_us(), store.failure()))
            finally:
                fs.go_on.set()
                opening.join()
            assert looked == ({"known": newest_us}, None)

    def test_while_a_database_is_being_closed(self) -> None:
        reached, go_on = Event(), Event()

        def hold(_: object) -> None:
            reached.set()
            assert go_on.wait(WAIT_SECONDS)

        with World().store() as store:
            database = store.create(NAME, settings_of())
            database.on_commit(hold)
            database.append(rows_on("t"), durability="none")
            assert reached.wait(WAIT_SECONDS)
            closing = Thread(target=database.close)
            closing.start()
            try:
                while not refuses(database):
                    assert not database.closed
                looked = answered(lambda: (store.newest_us(), store.failure()))
            finally:
                go_on.set()
                closing.join()
            assert looked == ({}, None)


def refuses(database: Database) -> bool:
    try:
        database.newest_us()
    except ClosedError:
        return True
    return False


def answered(look: Callable[[], object]) -> object:
    """Return what a look finds, in a thread so that one that waits is told from others."""
    found: list[object] = []
    thread = Thread(target=lambda: found.append(look()), daemon=True)
    thread.start()
    thread.join(WAIT_SECONDS / 2)
    return found[0] if found else "it waits"


@pytest.mark.parametrize("name", ["a\0b", "../messages", "m" * 300, ""])
def test_a_name_that_no_database_can_have_is_not_looked_for(name: str) -> None:
    with World().store() as store:
        store.create("messages", settings_of())
        with pytest.raises(UsageError, match=r"^the name of a database must have 1 to 100"):
            store.database(name)


@pytest.mark.parametrize("name", [5, None, b"messages"])
def test_a_name_that_is_no_text_is_refused_by_every_call(name: Any) -> None:
    with World().store() as store:
        for call in (
            store.create,
            store.database,
            store.drop,
            store.keyvalue,
            store.drop_keyvalue,
        ):
            with pytest.raises(UsageError, match="name must be text: type="):
                call(name)
