from __future__ import annotations

from pathlib import PurePath
from typing import Any

import pytest

from siltstone.errors import CorruptionError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.log.opening import RecoveryReport, identity_of, slab_directory
from siltstone.store.log.read.pieces import Batch
from siltstone.store.log.read.scan import Span, read_slab
from siltstone.store.log.write.committer import Committer
from siltstone.store.segment.chain import directory_bytes
from siltstone.store.slab.manifest import Manifest, SlabId
from siltstone.store.writer.producers import producer_key
from siltstone.store.writer.ticket import Outcome
from siltstone.topic.grammar import TopicFilter
from tests.support.builders import (
    NAME,
    NOW_US,
    SEGMENT_BYTES,
    World,
    begun,
    call_on,
    reopened,
    settings_of,
    slab_place,
)

SLAB = SlabId(0, 1)
CLEAN = RecoveryReport(slab=SLAB, torn_bytes=0, rebuilt=(), foreign=())


def segment_name(serial: int) -> str:
    return f"{serial:020}.seg"


def topics_of(committer: Committer) -> list[str]:
    slab = committer.slab
    frames = read_slab(slab, slab.match(TopicFilter.parse("#")), Span())
    rows = [row for pieces in frames for row in Batch(pieces, 0).rows()]
    return [row.topic for row in sorted(rows, key=lambda row: row.timestamp_us)]


def rolled(world: World, **changes: Any) -> Committer:
    """Begin a slab and fill three segments with two rows each, the last one open."""
    committer = begun(world, **changes)
    for number in range(6):
        call = call_on(f"t/{number}", producer=producer_key("p"), sequence=number)
        call.batch.values = [bytes(SEGMENT_BYTES // 3)]
        committer.commit([call])
    assert [handle.base_serial for handle in committer.slab.handles()] == [0, 2, 4]
    return committer


SIX = [f"t/{number}" for number in range(6)]


def manifest_of(database: str, salt: int) -> Manifest:
    return Manifest(database=database, salt=salt, settings=settings_of(), slabs=())


def test_a_slab_lies_under_its_shard_and_generation() -> None:
    assert slab_directory(PurePath("/d"), SlabId(3, 12)) == PurePath("/d/3/12")


def test_a_slab_is_known_by_its_database_shard_and_generation() -> None:
    identity = identity_of(manifest_of("db", 5), SlabId(3, 12))
    assert (identity.database, identity.shard, identity.generation) == ("db", 3, 12)
    assert 0 <= identity.seed < 1 << 32


def test_every_slab_of_every_database_has_a_seed_of_its_own() -> None:
    seeds = {
        identity_of(manifest_of("db", salt), SlabId(shard, generation)).seed
        for salt in range(5)
        for shard in range(5)
        for generation in range(1, 6)
    }
    assert len(seeds) == 125


def test_a_slab_begins_empty_with_one_durable_segment() -> None:
    fs = MemoryFileSystem()
    committer = begun(World(fs))
    assert [entry.name for entry in fs.list(slab_place())] == [segment_name(0)]
    assert (committer.next_serial, committer.last_timestamp_us) == (0, NOW_US - 1)
    assert (committer.rows, topics_of(committer)) == (0, [])
    assert fs.crash_clone().read(slab_place() / segment_name(0)) == fs.read(
        slab_place() / segment_name(0)
    )


def test_serials_times_and_rows_go_on_after_a_clean_stop() -> None:
    world = World()
    committer = begun(world)
    committer.commit([call_on("a", "b")])
    committer.close()
    again, report = reopened(world)
    assert (again.next_serial, again.last_timestamp_us, report) == (2, NOW_US + 1, CLEAN)
    again.commit([call_on("a")])
    assert topics_of(again) == ["a", "b", "a"]


def test_times_do_not_go_back_when_the_clock_did_during_the_stop() -> None:
    world = World()
    committer = begun(world)
    committer.commit([call_on("a")])
    committer.close()
    world.clock.jump(-1000)
    again, _ = reopened(world)
    again.commit([call_on("b")])
    assert again.last_timestamp_us == NOW_US + 1


def test_an_empty_slab_comes_back_empty() -> None:
    world = World()
    begun(world).close()
    again, report = reopened(world)
    assert (again.next_serial, again.last_timestamp_us, report) == (0, NOW_US - 1, CLEAN)


def test_what_was_learned_goes_on_and_topics_keep_their_streams() -> None:
    world = World()
    committer = begun(world, thresholds=(-1, 1))
    committer.commit([call_on("t/1", "t/2")])
    before = committer.slab.export()
    committer.close()
    again, _ = reopened(world, thresholds=(-1, 1))
    assert again.slab.export() == before
    again.commit([call_on("t/1", "t/2", "t/3")])
    assert again.slab.export() == before
    rows = {
        match.stream.pattern: again.slab.stream_rows()[match.stream.id]
        for match in again.slab.match(TopicFilter.parse("#"))
    }
    assert rows == {b"t/1": 2, b"t/+": 3}


def test_all_segments_come_back() -> None:
    world = World()
    rolled(world).close()
    again, report = reopened(world)
    assert (topics_of(again), again.next_serial, report) == (SIX, 6, CLEAN)
    assert [(handle.base_serial, handle.sealed) for handle in again.slab.handles()] == [
        (0, True),
        (2, True),
        (4, False),
    ]


def test_an_index_that_a_crash_kept_away_is_written_again() -> None:
    world = World()
    rolled(world).close()
    index = slab_place() / f"{2:020}.idx"
    whole = world.fs.read(index)
    world.fs.remove(index)
    again, report = reopened(world)
    assert report == RecoveryReport(slab=SLAB, torn_bytes=0, rebuilt=(segment_name(2),), foreign=())
    assert (topics_of(again), world.fs.read(index)) == (SIX, whole)


def test_a_slab_whose_last_segment_is_sealed_goes_on_in_a_new_one() -> None:
    world = World()
    committer = rolled(world)
    committer.seal(*committer.state())
    again, report = reopened(world)
    assert (topics_of(again), again.next_serial, report) == (SIX, 6, CLEAN)
    assert again.last_timestamp_us == NOW_US + 5
    duplicate, fresh = again.commit(
        [
            call_on("t/6", producer=producer_key("p"), sequence=5),
            call_on("t/6", producer=producer_key("p"), sequence=6),
        ]
    )
    assert [getattr(outcome, "duplicate", None) for outcome in (duplicate, fresh)] == [True, False]
    assert topics_of(again) == [*SIX, "t/6"]
    assert [handle.base_serial for handle in again.slab.handles()] == [0, 2, 4, 6]


def test_files_that_are_not_ours_are_told_and_left_alone() -> None:
    world = World()
    begun(world).close()
    for name in ("notes.txt", "0.seg", f"{7:020}.idx", f"{0:020}.seg.bak"):
        world.fs.create(slab_place() / name).close()
    world.fs.make_directory(slab_place() / f"{9:020}.seg")
    _, report = reopened(world)
    assert report == RecoveryReport(
        slab=SLAB,
        torn_bytes=0,
        rebuilt=(),
        foreign=(
            "0.seg",
            f"{0:020}.seg.bak",
            f"{7:020}.idx",
            f"{9:020}.seg",
            "notes.txt",
        ),
    )
    assert world.fs.exists(slab_place() / "notes.txt")


def test_what_a_crash_left_half_made_is_swept() -> None:
    world = World()
    begun(world).close()
    world.fs.create(slab_place() / f"{5:020}.seg.tmp").close()
    _, report = reopened(world)
    assert report == CLEAN
    assert [entry.name for entry in world.fs.list(slab_place())] == [segment_name(0)]


def test_a_slab_without_segments_is_corrupt() -> None:
    world = World()
    begun(world).close()
    world.fs.remove(slab_place() / segment_name(0))
    with pytest.raises(CorruptionError, match="the slab does not have a segment") as caught:
        reopened(world)
    assert caught.value.path == slab_place()


@pytest.mark.parametrize("missing", [0, 2])
def test_a_segment_that_is_missing_before_another_is_corruption(missing: int) -> None:
    world = World()
    rolled(world).close()
    world.fs.remove(slab_place() / segment_name(missing))
    world.fs.remove(slab_place() / f"{missing:020}.idx")
    with pytest.raises(CorruptionError, match="missing"):
        reopened(world)


def test_a_torn_tail_is_cut_off_and_its_size_told() -> None:
    world = World()
    committer = begun(world)
    committer.commit([call_on("kept")])
    end = end_of(committer)
    committer.close()
    with world.fs.open(slab_place() / segment_name(0), writable=True) as file:
        file.write_at(end, b"SFRM torn")
    again, report = reopened(world)
    assert report == RecoveryReport(slab=SLAB, torn_bytes=9, rebuilt=(), foreign=())
    again.commit([call_on("after")])
    assert topics_of(again) == ["kept", "after"]


def test_serials_that_readers_may_have_seen_are_not_used_again_after_a_power_cut() -> None:
    fs = MemoryFileSystem()
    committer = begun(World(fs))
    committer.commit([call_on("kept", "kept")])
    committer.commit([call_on("lost", sync=False)])
    again, _ = reopened(World(fs.crash_clone()))
    assert topics_of(again) == ["kept", "kept"]
    assert again.next_serial >= 3
    again.commit([call_on("after")])
    assert topics_of(again) == ["kept", "kept", "after"]


def test_the_gap_is_left_once_and_not_at_every_start() -> None:
    fs = MemoryFileSystem()
    committer = begun(World(fs))
    committer.commit([call_on("lost", sync=False)])
    world = World(fs.crash_clone())
    serials = []
    for _ in range(3):
        again, _ = reopened(world)
        serials.append(again.next_serial)
        again.close()
    assert serials[1:] == serials[:-1]


def end_of(committer: Committer) -> int:
    return committer.slab.handles()[-1].segment().index.end_position


def test_the_gap_is_left_though_the_segment_has_no_room_for_a_frame() -> None:
    fs = MemoryFileSystem()
    committer = begun(World(fs))
    committer.commit([call_on("t", sync=False)])
    filler = call_on("t")
    filler.batch.values = [bytes(8)]
    before = end_of(committer)
    committer.commit([filler])
    overhead = end_of(committer) - before - 8
    filler.batch.values = [bytes(SEGMENT_BYTES - end_of(committer) - overhead)]
    committer.commit([filler])
    assert (end_of(committer), len(committer.slab.handles())) == (SEGMENT_BYTES, 1)
    again, _ = reopened(World(fs.crash_clone()))
    (outcome,) = again.commit([call_on("after")])
    assert topics_of(again) == ["t", "t", "t", "after"]
    assert isinstance(outcome, Outcome)
    assert outcome.serials()[0] > 3
    assert [handle.sealed for handle in again.slab.handles()] == [True, False]


def test_the_size_of_a_directory_leaves_one_file_out() -> None:
    world = World(MemoryFileSystem(page_bytes=512))
    for name, size in (("a", 1), ("b", 513), ("c", 5000)):
        with world.fs.create(PurePath("/") / name) as file:
            file.write(bytes(size))
    root = PurePath("/")
    assert directory_bytes(world.fs, root) == 512 + 1024 + 5120
    assert directory_bytes(world.fs, root, but="b") == 512 + 5120


def test_a_segment_of_another_slab_is_refused() -> None:
    world = World()
    begun(world).close()
    other = begun(world, shard=1)
    other.commit([call_on("foreign")])
    other.close()
    stranger = world.fs.read(slab_place(1) / segment_name(0))
    world.fs.remove(slab_place() / segment_name(0))
    with world.fs.create(slab_place() / segment_name(0)) as file:
        file.write(stranger)
    with pytest.raises(CorruptionError):
        reopened(world)


def test_the_database_of_these_tests_is_named_in_its_segments() -> None:
    committer = begun(World())
    assert committer.slab.handles()[0].segment().header.database == NAME
