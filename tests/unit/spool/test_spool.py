from __future__ import annotations

import errno
import io
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, NoReturn, cast

import pytest

from siltstone.errors import (
    ClosedError,
    DiskError,
    ExistsError,
    LockedError,
    NotFoundError,
    OverloadedError,
    PoisonedError,
    SiltstoneError,
    StorageFullError,
    UsageError,
)
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem, MemoryLock
from siltstone.fs.publish import replace_file
from siltstone.spool.errors import NoSuchEntryError, UnableToCommitError
from siltstone.spool.names import Entry
from siltstone.spool.spool import Done, Spool, SpoolStats, create, ensure, open_spool

ROOT = PurePath("/s")


@pytest.fixture
def fs() -> MemoryFileSystem:
    return MemoryFileSystem()


def names(fs: MemoryFileSystem, *parts: str) -> list[str]:
    return [found.name for found in fs.list(ROOT.joinpath(*parts))]


def read(spool: Spool, stored: Entry) -> bytes:
    with spool.stream(stored) as stream:
        return stream.read()


def test_a_new_spool_gives_ids_from_zero(fs: MemoryFileSystem) -> None:
    with create(ROOT, fs=fs) as spool:
        assert spool.next_likely_id() == 0
        assert spool.store(b"foo") == Entry(0)
        assert spool.store(b"bar", "*so* meta") == Entry(1, "*so* meta")
        assert spool.next_likely_id() == 2
        assert sorted(spool) == [Entry(0), Entry(1, "*so* meta")]
        assert (read(spool, Entry(0)), read(spool, Entry(1, "*so* meta"))) == (b"foo", b"bar")
        spool.discard(Entry(0))
        assert names(fs, "q") == ["1-%2aso%2a%20meta"]
    assert names(fs) == ["LOCK", "kept", "next", "q", "spool", "tmp"]
    assert (names(fs, "tmp"), names(fs, "kept")) == ([], [])


def test_create_wants_a_place_where_nothing_is(fs: MemoryFileSystem) -> None:
    fs.make_directory(ROOT)
    with pytest.raises(ExistsError):
        create(ROOT, fs=fs)


def test_entries_stay_over_opening_and_ids_go_on_above_all_that_were_ever_given(
    fs: MemoryFileSystem,
) -> None:
    with create(ROOT, fs=fs) as spool:
        stored = [spool.store(b"1"), spool.store(b"2", "two")]
    with open_spool(ROOT, fs=fs) as spool:
        assert sorted(spool) == stored
        assert [read(spool, one) for one in stored] == [b"1", b"2"]
        spool.discard_many(stored)
    with open_spool(ROOT, fs=fs) as spool:
        assert list(spool) == []
        assert spool.store(b"3").id > stored[-1].id
        with pytest.raises(NoSuchEntryError):
            spool.stream(stored[0])


def test_a_second_writer_is_refused_and_readers_are_not(fs: MemoryFileSystem) -> None:
    with create(ROOT, fs=fs) as spool:
        first = spool.store(b"1")
        with pytest.raises(LockedError):
            open_spool(ROOT, fs=fs)
        reader = open_spool(ROOT, read_only=True, fs=fs)
        assert list(reader) == [first]
        assert read(reader, first) == b"1"
        assert reader.next_likely_id() == 1
        for change in (lambda: reader.store(b""), lambda: reader.discard(first)):
            with pytest.raises(UsageError, match="reading only"):
                change()
    open_spool(ROOT, fs=fs).close()


def test_a_closed_spool_does_nothing(fs: MemoryFileSystem) -> None:
    spool = create(ROOT, fs=fs)
    stored = spool.store(b"1")
    spool.close()
    spool.close()
    for use in (
        lambda: spool.store(b""),
        lambda: spool.stream(stored),
        lambda: spool.discard(stored),
        lambda: list(spool),
        spool.stats,
    ):
        with pytest.raises(ClosedError):
            use()


def test_the_order_of_a_store_is_write_sync_link_sync_remove(fs: MemoryFileSystem) -> None:
    with create(ROOT, fs=fs) as spool:
        spool.store(b"first, which reserves ids")
        before = len(fs.operations)
        spool.store(b"data", "m")
    assert fs.operations[before:] == [
        "create /s/tmp/1.tmp",
        "write_at /s/tmp/1.tmp",
        "write_at /s/tmp/1.tmp",
        "sync /s/tmp/1.tmp",
        "link /s/tmp/1.tmp /s/q/1-m",
        "sync_directory /s/q",
        "remove /s/tmp/1.tmp",
    ]


def test_many_are_stored_and_discarded_with_one_sync_of_their_names(fs: MemoryFileSystem) -> None:
    with create(ROOT, fs=fs) as spool:
        before = len(fs.operations)
        stored = spool.store_many([(b"%d" % n, f"{n}") for n in range(150)])
        assert fs.operations[before:].count("sync_directory /s/q") == 1
        # Two packs and the record, however many entries there are.
        syncs = [each for each in fs.operations[before:] if each.startswith("sync /s/tmp")]
        assert len(syncs) == 3
        assert stored == [Entry(n, f"{n}") for n in range(150)]
        assert [read(spool, one) for one in stored] == [b"%d" % n for n in range(150)]
        before = len(fs.operations)
        spool.discard_many(stored)
        assert fs.operations[before:].count("sync_directory /s/q") == 1
        assert list(spool) == []
        assert spool.store_many([]) == []


def test_metadata_that_go_into_no_name_are_refused_before_anything_is_read(
    fs: MemoryFileSystem,
) -> None:
    source = io.BytesIO(b"data")
    with create(ROOT, fs=fs) as spool, pytest.raises(UsageError, match="too long"):
        spool.store(source, "x" * 236)
    assert source.read() == b"data"
    assert names(fs, "tmp") == []


@pytest.mark.parametrize(
    ("operation", "suffix", "poisoned"),
    [
        ("sync", ".tmp", False),
        ("link", "1-m", False),
        ("sync_directory", "/q", True),
    ],
)
def test_data_that_cannot_be_committed_are_kept_and_no_entry_is_seen(
    fs: MemoryFileSystem, operation: str, suffix: str, poisoned: bool
) -> None:
    faulty = FaultyFileSystem(fs)
    with create(ROOT, fs=faulty) as spool:
        spool.store(b"first")
        faulty.add(
            Fault(operation=operation, errno=errno.EIO, path_suffix=suffix)  # type: ignore[arg-type]
        )
        with pytest.raises(UnableToCommitError) as caught:
            spool.store_many([(b"data", "m"), (iter([b"mo", b"re"]), None)])
        assert [fs.read(path) for path in caught.value.paths] == [b"data", b"more"]
        assert list(spool) == [Entry(0)]
        if poisoned:
            with pytest.raises(PoisonedError):
                spool.store(b"more")
        else:
            assert spool.store(b"more") in list(spool)
    with open_spool(ROOT, fs=fs) as spool:
        assert spool.stats().kept == 2
        assert fs.read(caught.value.path) == b"data"


def test_a_name_too_long_for_the_disk_keeps_the_data(fs: MemoryFileSystem) -> None:
    faulty = FaultyFileSystem(fs)
    with create(ROOT, fs=faulty) as spool:
        faulty.add(Fault(operation="link", errno=errno.ENAMETOOLONG))
        with pytest.raises(UnableToCommitError) as caught:
            spool.store(b"data", "m" * 200)
    assert fs.read(caught.value.path) == b"data"


def test_of_many_none_is_stored_when_one_cannot_be_written(fs: MemoryFileSystem) -> None:
    faulty = FaultyFileSystem(fs)
    with create(ROOT, fs=faulty) as spool:
        faulty.add(Fault(operation="write_at", errno=errno.ENOSPC, nth=70))
        with pytest.raises(StorageFullError):
            spool.store_many([(b"x", None)] * 100)
        assert (list(spool), names(fs, "tmp"), names(fs, "kept")) == ([], [], [])
        assert spool.store(b"x") == Entry(0)


def test_a_temporary_name_that_stays_does_no_harm(fs: MemoryFileSystem) -> None:
    faulty = FaultyFileSystem(fs)
    with create(ROOT, fs=faulty) as spool:
        faulty.add(Fault(operation="remove", errno=errno.EIO))
        stored = spool.store(b"data")
    with open_spool(ROOT, fs=fs) as spool:
        assert spool.swept == ("0.tmp",)
        assert read(spool, stored) == b"data"


def test_what_is_discarded_twice_is_no_entry_the_second_time(fs: MemoryFileSystem) -> None:
    with create(ROOT, fs=fs) as spool:
        stored = spool.store(b"1", "m")
        spool.discard(stored)
        for use in (lambda: spool.discard(stored), lambda: spool.stream(stored)):
            with pytest.raises(NoSuchEntryError) as caught:
                use()
            assert (caught.value.entry, caught.value.source) == (stored, ROOT / "q" / "0-m")


def test_an_entry_is_read_on_though_it_is_discarded_meanwhile(fs: MemoryFileSystem) -> None:
    with create(ROOT, fs=fs) as spool:
        stored = spool.store(b"abcdef")
        with spool.stream(stored) as stream:
            assert stream.read(3) == b"abc"
            spool.discard(stored)
            assert stream.read() == b"def"


def test_a_discard_whose_sync_fails_poisons_the_spool(fs: MemoryFileSystem) -> None:
    faulty = FaultyFileSystem(fs)
    with create(ROOT, fs=faulty) as spool:
        stored = spool.store(b"1")
        faulty.add(Fault(operation="sync_directory", errno=errno.EIO, path_suffix="/q"))
        with pytest.raises(PoisonedError):
            spool.discard(stored)
        with pytest.raises(PoisonedError):
            spool.store(b"2")
    assert list(open_spool(ROOT, fs=fs)) == []


def test_a_discard_to_a_destination_moves_the_data_with_their_reason(
    fs: MemoryFileSystem,
) -> None:
    fs.make_directory(PurePath("/out"))
    with create(ROOT, fs=fs) as spool:
        stored = spool.store(b"data", "m")
        spool.discard(stored, PurePath("/out/a"), reason="poison")
        assert list(spool) == []
        with pytest.raises(NoSuchEntryError):
            spool.discard(stored, PurePath("/out/b"))
        with pytest.raises(UsageError, match="a reason needs a destination"):
            spool.discard(spool.store(b""), reason="none")
        with pytest.raises(UsageError, match="a reason must be valid Unicode: position=1"):
            spool.discard(spool.store(b""), PurePath("/out/c"), reason="a\udcff")
    assert {n.name: fs.read(PurePath("/out") / n.name) for n in fs.list(PurePath("/out"))} == {
        "a": b"data",
        "a.reason.txt": b"poison\n",
    }


def test_reduce_gives_every_entry_once_and_ends_where_it_is_told_to(
    fs: MemoryFileSystem,
) -> None:
    with create(ROOT, fs=fs) as spool:
        assert spool.reduce(lambda total, _: total + 1, 0) == 0
        spool.store_many([(b"", f"{n}") for n in range(5)])
        assert spool.reduce(lambda total, found: total + found.id, 0) == 10
        seen: list[Entry] = []

        def first_two(so_far: int, found: Entry) -> int | Done[int]:
            seen.append(found)
            return Done(so_far + 1) if so_far == 1 else so_far + 1

        assert spool.reduce(first_two, 0) == 2
        assert len(seen) == 2


def test_traversal_opens_no_entry(fs: MemoryFileSystem) -> None:
    faulty = FaultyFileSystem(fs)
    with create(ROOT, fs=faulty) as spool:
        stored = spool.store_many([(b"x", "a/b"), (b"y", None)])
        faulty.add(Fault(operation="open", errno=errno.EIO, repeat=True))
        faulty.add(Fault(operation="size", errno=errno.EIO, repeat=True))
        assert sorted(spool) == stored


def test_unexpected_names_are_ignored_and_counted(fs: MemoryFileSystem) -> None:
    with create(ROOT, fs=fs) as spool:
        stored = spool.store(b"data")
        for name in ("1foo", "007", "-3", "9.tmp", "2-A"):
            fs.create(ROOT / "q" / name).close()
        fs.make_directory(ROOT / "q" / "5")
        fs.symlink(PurePath("0"), ROOT / "q" / "6")
    with open_spool(ROOT, fs=fs) as spool:
        assert list(spool) == [stored]
        assert spool.stats() == SpoolStats(
            entries=1, size_bytes=20, unexpected=7, kept=0, next_likely_id=1000
        )
    assert len(names(fs, "q")) == 8


def test_a_spool_that_is_full_says_so_until_something_is_discarded(fs: MemoryFileSystem) -> None:
    create(ROOT, fs=fs).close()
    with open_spool(ROOT, size_bytes_max=100, fs=fs) as spool:
        first = spool.store(bytes(30))
        spool.store(bytes(20))
        for items in ([bytes(3)], [b"", b""]):
            with pytest.raises(OverloadedError, match="the spool is full"):
                spool.store_many([(item, None) for item in items])
        spool.discard(first)
        spool.store(bytes(30))
    with open_spool(ROOT, size_bytes_max=100, fs=fs) as spool, pytest.raises(OverloadedError):
        spool.store(bytes(3))


def test_ids_end_where_63_bits_do(fs: MemoryFileSystem) -> None:
    create(ROOT, fs=fs).close()
    replace_file(fs, ROOT / "next", b"9223372036854775807\n")
    with open_spool(ROOT, fs=fs) as spool:
        assert spool.store(b"").id == 2**63 - 1
        with pytest.raises(
            UnableToCommitError, match="the spool has used all its ids: create a new one"
        ):
            spool.store(b"")


def test_ensure_makes_a_spool_opens_one_and_finishes_one(fs: MemoryFileSystem) -> None:
    with ensure(ROOT / "deep", fs=fs) as spool:
        stored = spool.store(b"1")
    with ensure(ROOT / "deep", fs=fs) as spool:
        assert list(spool) == [stored]
        spool.discard(stored)
    fs.remove(ROOT / "deep" / "spool")
    with pytest.raises(NotFoundError):
        open_spool(ROOT / "deep", fs=fs)
    ensure(ROOT / "deep", fs=fs).close()
    fs.create(ROOT / "other").close()
    with pytest.raises(ExistsError):
        ensure(ROOT, fs=fs)


def test_opening_that_fails_lets_go_of_the_lock(fs: MemoryFileSystem) -> None:
    create(ROOT, fs=fs).close()
    faulty = FaultyFileSystem(fs, Fault(operation="list", errno=errno.EIO))
    with pytest.raises(DiskError):
        open_spool(ROOT, fs=faulty)
    open_spool(ROOT, fs=faulty).close()


class Unlocked(MemoryFileSystem):
    """A disk on which locks mean nothing, as on some networks."""

    def lock(self, path: PurePath, *, shared: bool = False, wait: bool = False) -> MemoryLock:
        return MemoryLock(lambda: None)


def test_two_writers_overwrite_nothing_even_where_locks_mean_nothing() -> None:
    fs = Unlocked()
    with create(ROOT, fs=fs) as one, open_spool(ROOT, fs=fs) as other:
        stored = [one.store(b"1"), other.store(b"2"), one.store(b"3"), other.store(b"4")]
        assert [read(one, entry) for entry in stored] == [b"1", b"2", b"3", b"4"]
        assert len(set(stored)) == 4


def test_an_entry_that_cannot_be_read_is_moved_as_it_is(fs: MemoryFileSystem) -> None:
    with create(ROOT, fs=fs) as spool:
        stored = spool.store(b"data", "m")
        raw = fs.read(spool.path_of(stored))
        moved = spool.quarantine(stored, PurePath("/bad"), "damaged")
        assert (fs.read(moved), fs.read(PurePath("/bad/0-m.reason.txt"))) == (raw, b"damaged\n")
        assert list(spool) == []
        with pytest.raises(NoSuchEntryError):
            spool.quarantine(stored, PurePath("/bad"), "damaged")


def fill_and_fail(spool: Spool, faulty: FaultyFileSystem, *faults: Fault) -> UnableToCommitError:
    for fault in faults:
        faulty.add(fault)
    with pytest.raises(UnableToCommitError) as caught:
        spool.store(b"data")
    return caught.value


NO_LINK = Fault(operation="link", errno=errno.EIO)


def test_data_that_cannot_be_linked_nor_moved_outlives_the_next_opening(
    fs: MemoryFileSystem,
) -> None:
    faulty = FaultyFileSystem(fs)
    with create(ROOT, fs=faulty) as spool:
        lost_kept = Fault(operation="rename", errno=errno.EIO, path_suffix="0.tmp")
        error = fill_and_fail(spool, faulty, NO_LINK, lost_kept)
    assert (error.paths, error.at_risk) == ((ROOT / "tmp" / "0",), ())
    with open_spool(ROOT, fs=fs) as spool:
        assert (fs.read(error.path), list(spool)) == (b"data", [])


def test_data_that_nothing_can_keep_is_told_to_be_at_risk(fs: MemoryFileSystem) -> None:
    faulty = FaultyFileSystem(fs)
    with create(ROOT, fs=faulty) as spool:
        stuck = Fault(operation="rename", errno=errno.EIO, path_suffix="0.tmp", repeat=True)
        error = fill_and_fail(spool, faulty, NO_LINK, stuck)
    assert error.paths == error.at_risk == (ROOT / "tmp" / "0.tmp",)
    assert str(error).startswith(
        "not stored, the data is kept until the spool is opened again, copy it now: "
    )
    assert fs.read(error.path) == b"data"


class NoLists(FaultyFileSystem):
    """A disk whose directories are too large to be listed whole."""

    def list(self, path: PurePath) -> NoReturn:
        raise AssertionError(path)


def test_statistics_list_no_directory(fs: MemoryFileSystem) -> None:
    with create(ROOT, fs=fs) as spool:
        spool.store_many([(b"1", None), (b"22", None)])
    with open_spool(ROOT, fs=NoLists(fs), read_only=True) as spool:
        assert spool.stats() == SpoolStats(
            entries=2, size_bytes=3 + 2 * 16, unexpected=0, kept=0, next_likely_id=2
        )


def test_a_missing_entry_does_not_keep_the_others_from_being_discarded(
    fs: MemoryFileSystem,
) -> None:
    with create(ROOT, fs=fs) as spool:
        stored = spool.store_many([(b"%d" % number, None) for number in range(5)])
        spool.discard(stored[1])
        strange = Entry(77, "never")
        with pytest.raises(NoSuchEntryError) as caught:
            spool.discard_many([*stored[:3], strange, *stored[3:]])
        assert caught.value.entries == (stored[1], strange)
        assert (caught.value.entry, caught.value.source) == (stored[1], ROOT / "q" / "1")
        assert list(spool) == []
    with open_spool(ROOT, fs=fs.crash_clone()) as spool:
        assert list(spool) == []


@pytest.mark.parametrize(
    ("operation", "nth"),
    [("make_directory", 3), ("create", 1), ("create", 2), ("write", 2), ("sync_directory", 4)],
)
def test_a_creation_that_fails_frees_the_name(
    fs: MemoryFileSystem, operation: str, nth: int
) -> None:
    fault = Fault(operation=operation, errno=errno.ENOSPC, nth=nth)  # type: ignore[arg-type]
    faulty = FaultyFileSystem(fs, fault)
    with pytest.raises(SiltstoneError):
        create(ROOT, fs=faulty)
    assert not fs.exists(ROOT)
    with create(ROOT, fs=fs) as spool:
        assert spool.store(b"x") == Entry(0)


def test_arguments_of_the_wrong_kind_are_refused_and_change_nothing(fs: MemoryFileSystem) -> None:
    wrong: Any = 1.5
    with create(ROOT, fs=fs) as spool:
        stored = spool.store(b"x")
        calls: list[tuple[str, Callable[[], object]]] = [
            (
                "a source must be bytes, a binary stream or an iterator of bytes",
                lambda: spool.store(wrong),
            ),
            (
                "a source must be bytes, a binary stream or an iterator of bytes",
                lambda: spool.store(cast("Any", "text")),
            ),
            ("a source must yield bytes", lambda: spool.store([wrong])),
            ("a source must yield bytes", lambda: spool.store(cast("Any", io.StringIO("a")))),
            ("metadata must be text", lambda: spool.store(b"", wrong)),
            ("items must be pairs", lambda: spool.store_many(wrong)),
            ("an item must be a source", lambda: spool.store_many([wrong])),
            ("entry must be an Entry", lambda: spool.stream(wrong)),
            ("entry must be an Entry", lambda: spool.discard(wrong)),
            ("entries must be entries", lambda: spool.discard_many(wrong)),
            ("entry must be an Entry", lambda: spool.discard_many([stored, wrong])),
            ("a path must be text or a path", lambda: spool.discard(stored, wrong)),
            ("entry must be an Entry", lambda: spool.quarantine(wrong, ROOT, "")),
            ("a function must be callable", lambda: spool.reduce(wrong, 0)),
            ("metadata must be text", lambda: Entry(1, wrong)),
            ("a path must be text or a path", lambda: create(wrong, fs=fs)),
            ("a path must be text or a path", lambda: open_spool(wrong, fs=fs)),
            ("a path must be text or a path", lambda: ensure(wrong, fs=fs)),
            ("size_bytes_max must be a", lambda: open_spool(ROOT, size_bytes_max=wrong, fs=fs)),
        ]
        for message, call in calls:
            with pytest.raises(UsageError, match=f"^{message}.*type="):
                call()
        assert (list(spool), names(fs, "tmp"), names(fs, "kept")) == ([stored], [], [])
