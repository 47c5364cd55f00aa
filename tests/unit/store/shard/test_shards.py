from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import PurePath
from random import Random
from threading import Barrier, BrokenBarrierError, Event, Thread
from typing import Any

import pytest

from siltstone.errors import (
    ClosedError,
    NotFoundError,
    PoisonedError,
    QuotaExceededError,
    RetryError,
    SiltstoneError,
    SlabDroppedError,
    StorageFullError,
    UsageError,
)
from siltstone.fs.api import EntryKind
from siltstone.fs.memory import MemoryFile, MemoryFileSystem, PowerCut
from siltstone.fs.publish import create_directories, replace_file
from siltstone.store.log.opening import slab_directory
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.records import (
    DropRecord,
    GenerationRecord,
    RollRecord,
    SettingsRecord,
    record_of,
)
from siltstone.store.log.slab import Slab
from siltstone.store.log.write.committer import COMPRESSION, Committer
from siltstone.store.segment.chain import directory_bytes
from siltstone.store.segment.frame import PACKED, PLAIN
from siltstone.store.shard.shards import Shards
from siltstone.store.shard.upkeep import Reclaimable
from siltstone.store.shard.writable import Leading, WritableShard
from siltstone.store.slab.drops import Why
from siltstone.store.slab.manifest import (
    MANIFEST,
    SlabId,
    SlabRecord,
    SlabState,
    read_manifest,
)
from siltstone.store.slab.marks import Seed, write_seed
from siltstone.store.slab.retention import due_for_drop
from siltstone.store.writer.commit_log import LOCAL_LOG, Record, Replica
from siltstone.topic.grammar import TopicFilter
from tests.support.builders import NAME, NOW_US, SEGMENT_BYTES, World
from tests.support.slabs import HOME, append, created, opened
from tests.support.slow_disk import WAIT_SECONDS


def current(shard: int, generation: int, since: int, created_: int) -> SlabRecord:
    return SlabRecord(
        shard=shard,
        generation=generation,
        state=SlabState.CURRENT,
        since_us=NOW_US + since,
        until_us=None,
        created_us=NOW_US + created_,
    )


def sealed(record: SlabRecord, until: int) -> SlabRecord:
    return replace(record, state=SlabState.SEALED, until_us=NOW_US + until)


def patterns_of(slab: Slab) -> list[bytes]:
    return sorted(match.stream.pattern for match in slab.match(TopicFilter.parse("#")))


def encodings_of(slab: Slab) -> set[int]:
    segments = [handle.segment() for handle in slab.handles()]
    found = {
        segment.checked_header(number).compression
        for segment in segments
        for number in range(segment.index.frame_count)
    }
    # A slab without compression has packed frames too.
    return {PLAIN if compression == PACKED else compression for compression in found}


def ids(slabs: Shards) -> list[tuple[int, int]]:
    return [(slab.id.shard, slab.id.generation) for slab in slabs.all()]


class TestCreation:
    def test_every_shard_has_exactly_generation_1(self) -> None:
        world = World()
        manifest = created(world, shards=3)
        assert manifest.slabs == tuple(current(number, 1, 0, 0) for number in range(3))
        assert [entry.name for entry in world.fs.list(HOME / "2" / "1")] == [f"{0:020}.seg"]

    def test_what_a_crash_left_in_the_place_of_a_slab_is_removed(self) -> None:
        world = World()
        create_directories(world.fs, HOME / "0" / "1")
        world.fs.create(HOME / "0" / "1" / f"{5:020}.seg").close()
        created(world)
        assert [entry.name for entry in world.fs.list(HOME / "0" / "1")] == [f"{0:020}.seg"]


class TestTurnOver:
    def test_until_of_the_old_is_since_of_the_new(self) -> None:
        world = World()
        with opened(world) as slabs:
            append(slabs, "a", "b")
            world.clock.advance(1)
            slabs.seal()
            world.clock.advance(1)
            slabs.seal()
            records = [slab.record for slab in slabs.all()]
        assert records == [
            replace(sealed(current(0, 1, 0, 0), 1_000_000), until_serial=2),
            replace(
                sealed(current(0, 2, 1_000_000, 1_000_000), 2_000_000),
                first_serial=2,
                until_serial=2,
            ),
            replace(current(0, 3, 2_000_000, 2_000_000), first_serial=2),
        ]
        assert read_manifest(world.fs, HOME).slabs == tuple(records)

    def test_a_clock_that_went_back_does_not_make_bounds_overlap(self) -> None:
        world = World()
        with opened(world) as slabs:
            append(slabs, "a", "b", "c")
            world.clock.jump(-100)
            slabs.seal()
            append(slabs, "d")
            slabs.seal()
            bounds = [(slab.record.since_us, slab.record.until_us) for slab in slabs.all()]
        assert bounds == [
            (NOW_US, NOW_US + 3),
            (NOW_US + 3, NOW_US + 4),
            (NOW_US + 4, None),
        ]

    def test_every_shard_turns(self) -> None:
        with opened(World(), shards=3) as slabs:
            slabs.seal()
            assert ids(slabs) == [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2)]

    def test_serials_go_on_in_the_next_generation(self) -> None:
        with opened(World()) as slabs:
            append(slabs, "a", "b")
            slabs.seal()
            append(slabs, "c")
            assert [slab.next_serial() for slab in slabs.all()] == [2, 3]
            assert [slab.row_count() for slab in slabs.all()] == [2, 1]

    def test_the_next_generation_begins_with_what_varies_special_topics_included(self) -> None:
        with opened(World(), thresholds=(-1, 1)) as slabs:
            append(slabs, "a/1", "a/2", "$SYS/1/x", "$SYS/2/x", "b")
            slabs.seal()
            append(slabs, "a/1", "$SYS/1/x", "b")
            new = slabs.slab(SlabId(0, 2))
            found = {
                topic_filter: [
                    match.stream.pattern for match in new.match(TopicFilter.parse(topic_filter))
                ]
                for topic_filter in ("a/#", "$SYS/#", "b")
            }
        assert found == {"a/#": [b"a/+"], "$SYS/#": [b"$SYS/+/x"], "b": [b"b"]}

    def test_a_stream_has_the_same_id_in_every_generation(self) -> None:
        with opened(World(), thresholds=(-1, 0)) as slabs:
            for _ in range(3):
                append(slabs, "a/1", "b")
                slabs.seal()
            streams = [set(slab.stream_rows()) for slab in slabs.all()]
        assert streams == [streams[0]] * 3 + [set()]

    def test_new_thresholds_hold_from_the_next_generation_on(self) -> None:
        with opened(World(), thresholds=(-1,)) as slabs:
            append(slabs, "a/1", "a/2")
            slabs.configure({"thresholds": [-1, 0]})
            slabs.seal()
            append(slabs, "a/1", "a/2")
            patterns = [
                sorted(match.stream.pattern for match in slab.match(TopicFilter.parse("#")))
                for slab in slabs.all()
            ]
        assert patterns == [[b"a/1", b"a/2"], [b"a/+"]]

    @pytest.mark.parametrize("sealed_by", ["command", "size"])
    def test_the_encoding_of_a_generation_never_changes(self, sealed_by: str) -> None:
        fs = MemoryFileSystem()
        with opened(World(fs), thresholds=(-1,), rotate_bytes=3 * SEGMENT_BYTES) as slabs:
            append(slabs, "a/1", "a/2")
            slabs.configure({"thresholds": [-1, 0], "compression": "zstd", "max_items": 7})
            # Live settings apply at once.
            assert slabs.leader(0).queue().committer.settings.max_items == 7
            append(slabs, "a/3", "b/1", "b/2")
            assert slabs.pending_settings() == {"thresholds": [(-1,)], "compression": ["none"]}
            # The power is cut here: the disk has only what was synced.
            crashed = fs.crash_clone()
        for _ in range(2):
            with opened(World(crashed)) as slabs:
                assert slabs.manifest.settings.thresholds == (-1, 0)
                assert slabs.pending_settings() == {"thresholds": [(-1,)], "compression": ["none"]}
                append(slabs, "c/1", "c/2")
        with opened(World(crashed)) as slabs:
            if sealed_by == "command":
                slabs.seal()
            else:
                append(slabs, "a/1", size_bytes=SEGMENT_BYTES)
                append(slabs, "a/1", size_bytes=SEGMENT_BYTES)
                append(slabs, "a/1", size_bytes=SEGMENT_BYTES)
            assert slabs.pending_settings() == {}
            append(slabs, "a/1", "b/1", "c/2", size_bytes=1000)
        with opened(World(crashed)) as slabs:
            assert slabs.pending_settings() == {}
            first, second = slabs.all()
            assert (patterns_of(first), encodings_of(first)) == (
                [b"a/1", b"a/2", b"a/3", b"b/1", b"b/2", b"c/1", b"c/2"],
                {PLAIN},
            )
            assert patterns_of(second) == [b"a/+", b"b/+", b"c/+"]
            assert COMPRESSION["zstd"] in encodings_of(second)

    def test_the_former_encoding_may_be_set_again_before_the_roll(self) -> None:
        with opened(World(), thresholds=(-1,)) as slabs:
            before = slabs.manifest
            slabs.configure({"thresholds": [5]})
            slabs.configure({"thresholds": [7]})
            assert slabs.pending_settings() == {"thresholds": [(-1,)]}
            slabs.configure({"thresholds": [-1]})
            assert slabs.pending_settings() == {}
            assert slabs.manifest == before

    def test_the_seed_of_one_shard_does_not_change_the_encoding_of_another(self) -> None:
        world = World()
        with opened(world, shards=2, thresholds=(-1,)) as slabs:
            write_seed(world.fs, HOME, Seed((), (-1, 0)))
            slabs.leader(0).queue().turn()
            assert slabs.manifest.settings.thresholds == (-1, 0)
            assert slabs.pending_settings() == {"thresholds": [(-1,)]}
            for shard in (0, 1):
                append(slabs, "a/1", shard=shard)
        with opened(world) as slabs:
            append(slabs, "a/2", shard=1)
            found = {str(slab.id): patterns_of(slab) for slab in slabs.all()}
        assert found == {"0/1": [], "0/2": [b"a/+"], "1/1": [b"a/1", b"a/2"]}

    def test_a_generation_turns_by_size(self) -> None:
        with opened(World(), rotate_bytes=2 * SEGMENT_BYTES) as slabs:
            for _ in range(4):
                append(slabs, "t", size_bytes=SEGMENT_BYTES // 2)
            assert ids(slabs) == [(0, 1), (0, 2), (0, 3)]
            assert [slab.row_count() for slab in slabs.all()] == [2, 2, 0]

    def test_a_generation_turns_by_time_with_the_flush_behind_it(self) -> None:
        world = World()
        with opened(world, rotate_seconds=60.0) as slabs:
            append(slabs, "a")
            world.clock.advance(59)
            append(slabs, "b")
            assert ids(slabs) == [(0, 1)]
            world.clock.advance(1)
            append(slabs, "c")
            assert ids(slabs) == [(0, 1), (0, 2)]
            assert [slab.row_count() for slab in slabs.all()] == [3, 0]

    def test_an_empty_generation_does_not_turn_by_itself(self) -> None:
        world = World()
        with opened(world, rotate_seconds=60.0, shards=2) as slabs:
            world.clock.advance(1000)
            append(slabs, "a", shard=1)
            assert ids(slabs) == [(0, 1), (1, 1), (1, 2)]

    def test_a_full_disk_at_the_turn_is_no_reason_to_stop_for_good(self) -> None:
        fs = MemoryFileSystem()
        world = World(fs)
        with opened(world, rotate_bytes=SEGMENT_BYTES, reserve_bytes=0) as slabs:
            # There is room for the frame, which lies in what was allocated, and for no segment.
            fs.capacity_bytes = (1 << 60) - fs.free_bytes(HOME) + 100
            append(slabs, "a")
            fs.capacity_bytes = 1 << 60
            append(slabs, "b")
            rows = sum(slab.row_count() for slab in slabs.all())
        assert rows == 2


class TestDrop:
    def test_a_dropped_slab_is_gone_from_manifest_and_disk(self) -> None:
        world = World()
        with opened(world) as slabs:
            slabs.seal()
            slabs.drop(SlabId(0, 1))
            assert ids(slabs) == [(0, 2)]
            assert not world.fs.exists(HOME / "0" / "1")
            assert read_manifest(world.fs, HOME).slabs == (current(0, 2, 0, 0),)
            assert read_manifest(world.fs, HOME).dropping == ()
        with opened(world) as slabs:
            assert ids(slabs) == [(0, 2)]

    def test_the_current_one_is_not_dropped(self) -> None:
        with opened(World()) as slabs:
            with pytest.raises(UsageError, match=r"^slab 0/1 is current: seal it, then drop it$"):
                slabs.drop(SlabId(0, 1))
            assert ids(slabs) == [(0, 1)]

    @pytest.mark.parametrize("slab", [SlabId(0, 2), SlabId(1, 1), SlabId(7, 7)], ids=str)
    def test_one_that_never_was_is_not_found(self, slab: SlabId) -> None:
        with opened(World()) as slabs:
            for action in (slabs.drop, slabs.slab, slabs.ended):
                with pytest.raises(NotFoundError, match=f"unknown slab {slab}"):
                    action(slab)

    def test_one_that_was_dropped_says_so(self) -> None:
        world = World()
        with opened(world) as slabs:
            slabs.seal()
            slabs.drop(SlabId(0, 1))
            for action in (slabs.drop, slabs.slab, slabs.ended):
                with pytest.raises(SlabDroppedError, match="slab 0/1 was dropped"):
                    action(SlabId(0, 1))
        with opened(world) as slabs, pytest.raises(SlabDroppedError):
            slabs.slab(SlabId(0, 1))

    def test_one_in_the_middle_goes_and_the_older_ones_stay(self) -> None:
        world = World()
        with opened(world) as slabs:
            for topic in "abc":
                append(slabs, topic)
                slabs.seal()
            slabs.drop(SlabId(0, 2))
            assert ids(slabs) == [(0, 1), (0, 3), (0, 4)]
        with opened(world) as slabs:
            assert ids(slabs) == [(0, 1), (0, 3), (0, 4)]
            assert [slab.row_count() for slab in slabs.all()] == [1, 1, 0]

    def test_a_drop_that_a_crash_cut_short_is_finished_at_the_next_start(self) -> None:
        world = World()
        with opened(world) as slabs:
            slabs.seal()
        manifest = read_manifest(world.fs, HOME)
        halfway = replace(manifest, slabs=manifest.slabs[1:], dropping=(SlabId(0, 1),))
        replace_file(world.fs, HOME / MANIFEST, halfway.encode())
        world.fs.remove(HOME / "0" / "1" / f"{0:020}.idx")
        with opened(world) as slabs:
            assert (ids(slabs), slabs.manifest.dropping) == ([(0, 2)], ())
        assert not world.fs.exists(HOME / "0" / "1")

    def test_a_drop_whose_files_a_crash_had_removed_already_is_finished_too(self) -> None:
        world = World()
        with opened(world) as slabs:
            slabs.seal()
            slabs.drop(SlabId(0, 1))
        manifest = read_manifest(world.fs, HOME)
        halfway = replace(manifest, dropping=(SlabId(0, 1),))
        replace_file(world.fs, HOME / MANIFEST, halfway.encode())
        with opened(world) as slabs:
            assert (ids(slabs), slabs.manifest.dropping) == ([(0, 2)], ())

    @pytest.mark.parametrize("seed", [None, 1, 2])
    def test_after_a_crash_at_any_step_of_a_drop_no_directory_is_left_behind(
        self, seed: int | None
    ) -> None:
        ended = False
        for operations in range(60):
            fs = MemoryFileSystem()
            with suppress(PowerCut, PoisonedError), opened(World(fs=fs)) as slabs:
                append(slabs, "t")
                slabs.seal()
                fs.operations_left = operations
                slabs.drop(SlabId(0, 1))
                ended = True
                fs.operations_left = None
            disk = fs.crash_clone(None if seed is None else Random(seed), in_order=seed != 2)
            with opened(World(fs=disk)) as slabs:
                there = [slab.id for slab in slabs.all()]
                assert slabs.manifest.dropping == ()
            assert disk.exists(HOME / "0" / "1") == (SlabId(0, 1) in there)
            if ended:
                assert there == [SlabId(0, 2)]
                return
        pytest.fail("the drop has more steps than were tried")


class TestRetention:
    def test_slabs_that_ended_too_long_ago_are_dropped(self) -> None:
        world = World()
        with opened(world, retain_seconds=100.0) as slabs:
            for _ in range(3):
                slabs.seal()
                world.clock.advance(50)
            assert slabs.enforce_retention() == [SlabId(0, 1), SlabId(0, 2)]
            assert ids(slabs) == [(0, 3), (0, 4)]
            assert slabs.enforce_retention() == []

    def test_the_oldest_are_dropped_while_there_is_too_much(self) -> None:
        with opened(World(), retain_bytes=3 * SEGMENT_BYTES, rotate_bytes=1 << 40) as slabs:
            for _ in range(4):
                append(slabs, "t")
                slabs.seal()
            assert slabs.enforce_retention() == [SlabId(0, 1), SlabId(0, 2), SlabId(0, 3)]
            assert ids(slabs) == [(0, 4), (0, 5)]

    @pytest.mark.parametrize("count", [1, 20])
    def test_any_number_of_slabs_is_dropped_by_two_changes_of_the_manifest(
        self, count: int
    ) -> None:
        world = World()
        fs = world.fs
        assert isinstance(fs, MemoryFileSystem)
        with opened(world, retain_seconds=100.0, rotate_bytes=1 << 40) as slabs:
            for _ in range(count):
                append(slabs, "t")
                slabs.seal()
            fs.operations.clear()
            world.clock.advance(200)
            slabs.enforce_retention()
            assert ids(slabs) == [(0, count + 1)]
            assert slabs.manifest.dropping == ()
        path = HOME / MANIFEST
        renames = [step for step in fs.operations if step == f"rename {path}.tmp {path}"]
        # One names the slabs to drop, the other one forgets them.
        assert len(renames) == 2

    def test_without_settings_all_is_kept(self) -> None:
        world = World()
        with opened(world) as slabs:
            slabs.seal()
            world.clock.advance(1e9)
            assert slabs.enforce_retention() == []
            assert ids(slabs) == [(0, 1), (0, 2)]

    def test_it_is_enforced_by_the_shard_when_a_generation_turns(self) -> None:
        world = World()
        with opened(world, rotate_bytes=SEGMENT_BYTES, retain_bytes=2 * SEGMENT_BYTES) as slabs:
            for _ in range(5):
                append(slabs, "t")
            assert ids(slabs) == [(0, 6)]

    def test_each_drop_is_told_with_its_rows_its_bytes_and_the_reason(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "siltstone.store")
        world = World()
        with opened(world, retain_seconds=5.0, rotate_bytes=1 << 40) as slabs:
            append(slabs, "t")
            append(slabs, "t")
            slabs.seal()
            sizes = [slabs.slab_bytes(SlabId(0, 1))]
            world.clock.advance(10)
            slabs.enforce_retention()
            append(slabs, "t")
            slabs.seal()
            sizes += [slabs.slab_bytes(SlabId(0, 2))]
            slabs.configure({"retain_seconds": None, "retain_bytes": 1})
            slabs.enforce_retention()
            slabs.configure({"retain_bytes": None})
            slabs.seal()
            sizes += [slabs.slab_bytes(SlabId(0, 3))]
            slabs.drop(SlabId(0, 3))
        told = [vars(each)["facts"] for each in caplog.records if each.msg == "slab_dropped"]
        assert [tuple(facts.values()) for facts in told] == [
            (NAME, "0/1", 2, sizes[0], "age"),
            (NAME, "0/2", 1, sizes[1], "size"),
            (NAME, "0/3", 0, sizes[2], "command"),
        ]

    def test_what_is_delivered_is_dropped_in_order_as_long_as_it_may_be(self) -> None:
        world = World()
        with opened(world) as slabs:
            for _ in range(3):
                append(slabs, "t")
                slabs.seal()
            assert slabs.upkeep.reclaimable() == Reclaimable({0: [1, 2, 3]}, {})
            reclaim = slabs.upkeep.reclaim
            assert reclaim({0: 0}, lambda: nullcontext(enter_result=True)) == []
            allowed = iter([True, False])
            assert reclaim({0: 2}, lambda: nullcontext(next(allowed))) == [SlabId(0, 1)]
            assert slabs.manifest.reclaimed == {0: 1}
            assert reclaim({0: 2}, lambda: nullcontext(enter_result=True)) == [SlabId(0, 2)]
            assert (ids(slabs), slabs.manifest.reclaimed) == ([(0, 3), (0, 4)], {0: 2})
        with opened(world) as slabs:
            assert (ids(slabs), slabs.manifest.reclaimed) == ([(0, 3), (0, 4)], {0: 2})

    def test_a_slab_that_another_thread_drops_meanwhile_is_no_error(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        threads: list[Thread] = []

        def decided(*arguments: Any, **options: Any) -> dict[SlabId, Why]:
            due = due_for_drop(*arguments, **options)
            if not threads:
                threads.append(Thread(target=lambda: suppressed_drop(slabs, next(iter(due)))))
                threads[0].start()
                # Where deciding and dropping are one step, the other thread waits for its end.
                threads[0].join(0.2)
            return due

        world = World()
        with opened(world, retain_seconds=1.0) as slabs:
            slabs.seal()
            slabs.seal()
            world.clock.advance(10)
            monkeypatch.setattr("siltstone.store.shard.upkeep.due_for_drop", decided)
            slabs.enforce_retention()
            threads[0].join()
            assert ids(slabs) == [(0, 3)]


def suppressed_drop(slabs: Shards, slab: SlabId) -> None:
    with suppress(SlabDroppedError):
        slabs.drop(slab)


class TestAdmission:
    def test_appends_are_refused_over_the_quota_and_go_on_when_slabs_were_dropped(self) -> None:
        with opened(World(), quota_bytes=2 * SEGMENT_BYTES) as slabs:
            append(slabs, "a")
            slabs.seal()
            with pytest.raises(QuotaExceededError) as caught:
                append(slabs, "b")
            assert (caught.value.database, caught.value.quota_bytes) == (NAME, 2 * SEGMENT_BYTES)
            assert caught.value.used_bytes == slabs.slab_bytes(SlabId(0, 1)) + SEGMENT_BYTES
            slabs.drop(SlabId(0, 1))
            append(slabs, "c")
            assert [slab.row_count() for slab in slabs.all()] == [1]

    def test_a_quota_that_was_raised_lets_appends_go_on(self) -> None:
        with opened(World(), quota_bytes=1) as slabs:
            with pytest.raises(QuotaExceededError):
                append(slabs, "a")
            slabs.configure({"quota_bytes": None})
            append(slabs, "b")

    def test_the_reserve_of_the_disk_is_kept_and_drops_give_room(self) -> None:
        fs = MemoryFileSystem()
        world = World(fs)
        with opened(world, reserve_bytes=10_000) as slabs:
            append(slabs, "a")
            slabs.seal()
            fs.capacity_bytes -= fs.free_bytes(HOME) - 9_999
            row_bytes = 18
            with pytest.raises(StorageFullError) as caught:
                append(slabs, "b")
            assert (caught.value.path, caught.value.needed_bytes) == (HOME, 10_000 + row_bytes)
            slabs.drop(SlabId(0, 1))
            append(slabs, "c")
            assert [slab.row_count() for slab in slabs.all()] == [1]


class TestSizes:
    def test_a_slab_is_as_large_as_its_files_sealed_or_not_and_after_a_restart(self) -> None:
        world = World()
        with opened(world) as slabs:
            append(slabs, "a", size_bytes=3 * SEGMENT_BYTES)
            slabs.seal()
            append(slabs, "b")
            both = SlabId(0, 1), SlabId(0, 2)
            on_disk = [directory_bytes(world.fs, slab_directory(HOME, slab)) for slab in both]
            told = [slabs.slab_bytes(slab) for slab in both]
        with opened(world) as slabs:
            after = [slabs.slab_bytes(slab) for slab in both]
        assert (told, after) == (on_disk, on_disk)

    def test_sizes_are_known_when_a_slab_is_there_and_its_shard_does_not_write_it_yet(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[list[SlabId]] = []
        turn_over = vars(WritableShard)["_turn_over"]

        def watched(leader: WritableShard, leading: Leading, committer: Committer) -> Committer:
            following: Committer = turn_over(leader, leading, committer)
            # The layout takes the committer when this returns.
            seen.append([slab.id for slab in slabs.all() if slabs.slab_bytes(slab.id)])
            return following

        monkeypatch.setattr(WritableShard, "_turn_over", watched)
        with opened(World()) as slabs:
            slabs.seal()
        assert seen == [[SlabId(0, 1), SlabId(0, 2)]]


class TestReading:
    def test_the_writer_has_no_need_to_look(self) -> None:
        with opened(World()) as slabs:
            assert slabs.refresh() is False


class TestClose:
    def test_a_closed_writer_has_no_shards(self) -> None:
        with opened(World()) as slabs:
            pass
        with pytest.raises(ClosedError, match="the database is closed"):
            slabs.leader(0).queue()
        slabs.close()

    def test_a_closed_writer_changes_nothing_on_the_disk(self) -> None:
        fs = MemoryFileSystem()
        with opened(World(fs)) as slabs:
            slabs.seal()
        before = len(fs.operations)
        changed = {"max_items": 7}
        for action in (
            lambda: slabs.configure(changed),
            slabs.seal,
            slabs.sync,
            slabs.enforce_retention,
            lambda: slabs.drop(SlabId(0, 1)),
        ):
            with pytest.raises(ClosedError):
                action()
        assert len(fs.operations) == before

    @pytest.mark.parametrize(("call", "place"), [("add_log", "1"), ("drop", "0/1")])
    def test_closing_waits_for_a_call_that_is_at_the_disk(self, call: str, place: str) -> None:
        """Behind it another process may open the database, and its files must stay as they are."""
        fs = SlowChanges()
        with opened(World(fs)) as slabs, ThreadPoolExecutor(2) as threads:
            slabs.add_log("a")
            slabs.seal()
            first = slabs.leader(0)
            acts = {"add_log": lambda: slabs.add_log("b"), "drop": lambda: slabs.drop(SlabId(0, 1))}
            fs.slow = HOME / place
            try:
                acting = threads.submit(acts[call])
                assert fs.reached.wait(WAIT_SECONDS)
                closing = threads.submit(slabs.close)
                # Once the shards are let go of, only the locks keep it.
                while first.opened is not None:
                    assert not closing.done()
                with pytest.raises(TimeoutError):
                    closing.result(0.2)
                assert not slabs.closed
            finally:
                fs.go_on.set()
            closing.result(WAIT_SECONDS)
            acting.exception(WAIT_SECONDS)
        assert read_manifest(fs, HOME).logs == (("a", "b") if call == "add_log" else ("a",))

    def test_temporary_files_of_a_crash_are_swept_at_the_start(self) -> None:
        world = World()
        created(world)
        world.fs.create(HOME / "manifest.tmp").close()
        with opened(world):
            pass
        assert not world.fs.exists(HOME / "manifest.tmp")


class SlowChanges(MemoryFileSystem):
    """A disk on which creating and removing files in a directory waits until it is let go on."""

    slow: PurePath | None = None

    def __init__(self) -> None:
        super().__init__()
        self.reached = Event()
        self.go_on = Event()

    def create(self, path: PurePath) -> MemoryFile:
        self._wait_at(path)
        return super().create(path)

    def remove(self, path: PurePath) -> None:
        self._wait_at(path)
        super().remove(path)

    def _wait_at(self, path: PurePath) -> None:
        if self.slow is not None and self.slow in path.parents:
            self.reached.set()
            assert self.go_on.wait(WAIT_SECONDS)


class Meeting(MemoryFileSystem):
    """A disk on which two threads that remove the same slab meet before either of them does."""

    def __init__(self) -> None:
        super().__init__()
        self.barrier: Barrier | None = None

    def remove_directory(self, path: PurePath) -> None:
        if self.barrier is not None:
            with suppress(BrokenBarrierError):
                self.barrier.wait(0.2)
        super().remove_directory(path)


def test_shards_that_drop_at_once_do_not_remove_the_same_files() -> None:
    fs = Meeting()
    with World(fs=fs).database(shards=2, retain_bytes=1, rotate_bytes=1 << 40) as database:
        database.append([Row(f"t/{number}", bytes(5000)) for number in range(20)]).wait()
        database.seal()
        fs.barrier = Barrier(2)
        errors: list[Exception] = []

        def drop() -> None:
            try:
                database.enforce_retention()
            except SiltstoneError as exc:
                errors.append(exc)

        threads = [Thread(target=drop) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        fs.barrier = None
        assert errors == []
        assert [slab.slab.generation for slab in database.slabs()] == [2, 2]


class ParsingLog:
    """A commit log that stores what it reads from the bytes of a record, as a follower does."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.refuses = False

    def commit(self, record: Record, replica: Replica, *, sync: bool) -> None:
        self.kinds.append(record.kind.name)
        if self.refuses:
            raise RetryError("another machine leads the shard")
        if isinstance(record, RollRecord | GenerationRecord | DropRecord | SettingsRecord):
            parts = record.parts()
            record = record_of(record.kind, parts)
            assert record.parts() == parts
        replica.store(record)
        if sync:
            replica.sync()


def files_below(fs: MemoryFileSystem, place: PurePath) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry in fs.list(place):
        path = place / entry.name
        if entry.kind is EntryKind.DIRECTORY:
            found |= files_below(fs, path)
        else:
            found[str(path)] = fs.read(path)
    return found


class TestRecords:
    def test_the_bytes_of_the_records_are_all_that_the_files_are_made_of(self) -> None:
        disks: list[dict[str, bytes]] = []
        for log in (LOCAL_LOG, ParsingLog()):
            fs = MemoryFileSystem()
            world = World(fs)
            created(world, thresholds=(-1, 1))
            write_seed(fs, HOME, Seed(("seeded/+",), (-1, 2)))
            with opened(world) as slabs:
                slabs.leader(0).queue().committer.log = log
                append(slabs, "a/1", "a/2", "b")
                append(slabs, "large", size_bytes=SEGMENT_BYTES)
                slabs.seal()
                append(slabs, "a/3", "c/1")
                slabs.seal()
                slabs.configure({"max_items": 7, "thresholds": (-1, 3)})
                slabs.drop(SlabId(0, 1))
                append(slabs, "d")
                # The next generation has the log of the one before.
                assert slabs.leader(0).log is log
            disks.append(files_below(fs, HOME))
            if isinstance(log, ParsingLog):
                kinds = ["ROWS", "ROLL", "ROWS", "GENERATION", "ROWS", "GENERATION"]
                assert log.kinds == [*kinds, "SETTINGS", "DROP", "ROWS"]
        assert disks[0] == disks[1]

    def test_what_the_log_refuses_does_not_happen(self) -> None:
        world = World()
        log = ParsingLog()
        with opened(world) as slabs:
            slabs.leader(0).queue().committer.log = log
            append(slabs, "a")
            slabs.seal()
            before = slabs.manifest
            log.refuses = True
            for act in (
                slabs.seal,
                lambda: slabs.configure({"max_items": 7}),
                lambda: slabs.drop(SlabId(0, 1)),
            ):
                with pytest.raises(RetryError, match="another machine"):
                    act()
            assert (slabs.manifest, read_manifest(world.fs, HOME)) == (before, before)
            assert ids(slabs) == [(0, 1), (0, 2)]
            log.refuses = False
            append(slabs, "b")
            slabs.drop(SlabId(0, 1))
            assert ids(slabs) == [(0, 2)]

    def test_the_drop_of_one_shard_happens_though_the_log_of_another_refuses_its_own(self) -> None:
        world = World()
        log = ParsingLog()
        with opened(world, shards=2, retain_seconds=1.0, rotate_bytes=1 << 40) as slabs:
            slabs.seal()
            world.clock.advance(10)
            slabs.leader(1).queue().committer.log = log
            log.refuses = True
            with pytest.raises(RetryError):
                slabs.enforce_retention()
            assert ids(slabs) == [(1, 1), (0, 2), (1, 2)]
            log.refuses = False
            assert slabs.enforce_retention() == [SlabId(1, 1)]
