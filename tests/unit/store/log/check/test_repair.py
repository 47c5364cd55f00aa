from __future__ import annotations

from dataclasses import replace

import pytest

from siltstone.errors import StorageFullError
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.store.log.check.findings import Finding
from siltstone.store.log.check.repair import mend_database, slabs_of
from siltstone.store.log.read.pieces import Row
from siltstone.store.segment.segment import open_segment, segment_path
from siltstone.store.segment.sift import index_path
from siltstone.store.slab.manifest import Manifest, SlabId, read_manifest
from siltstone.topic.structure import Structure
from tests.support.builders import World
from tests.support.damage import (
    CURRENT,
    DATABASE,
    FRAMES,
    QUARANTINE,
    SEALED,
    clone,
    flip,
    frames_of,
    patch,
    read_all,
    small_world,
    verify,
)


def mend(world: World) -> list[Finding]:
    return mend_database(world.fs, DATABASE, QUARANTINE)


def manifest_of(world: World) -> Manifest:
    return read_manifest(world.fs, DATABASE)


class TestSlabs:
    def test_the_slabs_of_a_shard_come_oldest_first_with_where_the_next_begins(self) -> None:
        manifest = manifest_of(small_world())
        reversed_slabs = replace(manifest, slabs=tuple(reversed(manifest.slabs)))
        mixed = Manifest.decode(reversed_slabs.encode(), DATABASE)
        assert [(record.id, base) for record, base in slabs_of(mixed, 0)] == [
            (SlabId(0, 1), 12),
            (SlabId(0, 2), None),
        ]

    def test_behind_a_slab_that_was_dropped_nothing_is_known(self) -> None:
        manifest = manifest_of(small_world())
        first, second = manifest.slabs
        gone = replace(manifest, slabs=(first, replace(second, generation=3)))
        assert [base for _, base in slabs_of(gone, 0)] == [None, None]


class TestNothingToDo:
    def test_a_whole_database_is_not_touched(self) -> None:
        world = small_world()
        assert isinstance(world.fs, MemoryFileSystem)
        world.fs.operations.clear()
        assert (mend(world), world.fs.operations) == ([], [])

    def test_something_else_under_the_name_of_an_index_is_left_alone(self) -> None:
        world = small_world()
        world.fs.remove(index_path(SEALED))
        world.fs.make_directory(index_path(SEALED))
        assert mend(world) == []


class TestFrames:
    def test_each_repair_is_told_with_what_was_lost_and_where_it_is_kept(self) -> None:
        world = small_world()
        frame = frames_of(world.fs, SEALED)[2]
        flip(world.fs, SEALED, frame.start + 100)
        kept = QUARANTINE / f"messages-0-1-{SEALED.stem}-{frame.start}.frame"
        assert mend(world) == [
            Finding(
                path=SEALED,
                offset=frame.start,
                problem="the frame does not match its checksum; 3 rows are lost: serials 3 to 5",
                repaired=f"a hole; kept as {kept}",
            )
        ]

    def test_the_reason_names_file_place_and_loss(self) -> None:
        world = small_world()
        frame = frames_of(world.fs, SEALED)[2]
        flip(world.fs, SEALED, frame.start)
        mend(world)
        reason = QUARANTINE / f"messages-0-1-{SEALED.stem}-{frame.start}.frame.reason.txt"
        assert world.fs.read(reason).decode() == (
            f"{SEALED} offset={frame.start}: a frame does not begin at this offset; "
            "3 rows are lost: serials 3 to 5\n"
        )

    def test_the_state_of_a_later_generation_is_what_it_inherited(self) -> None:
        world = small_world()
        before = world.fs.read(CURRENT)
        state = frames_of(world.fs, CURRENT)[0]
        flip(world.fs, CURRENT, state.start + 80)
        mend(world)
        assert world.fs.read(CURRENT)[4096:] == before[4096:]

    @pytest.mark.parametrize("earlier", [False, True])
    def test_the_state_is_restored_although_the_generation_joined_streams(
        self, monkeypatch: pytest.MonkeyPatch, earlier: bool
    ) -> None:
        if earlier:
            # Earlier versions kept each stream that varies.
            monkeypatch.setattr(Structure, "inherit", lambda self, _: self.varying_only())
        world = World()
        with world.database(thresholds=(-1, 1, 1)) as database:
            for number, topic in enumerate(("m/p/z", "m/p/y", "m/q/z", "m/r/y")):
                database.append([Row(topic, b"")], producer=("p", number)).wait()
            database.seal()
            database.append([Row("m/p/z", b"last")]).wait()
        monkeypatch.undo()
        current = segment_path(DATABASE / "0" / "2", 4)
        before = world.fs.read(current)
        flip(world.fs, current, frames_of(world.fs, current)[0].start + 80)
        mend(world)
        assert world.fs.read(current)[4096:] == before[4096:]

    def test_a_second_repair_finds_nothing_to_do(self) -> None:
        world = small_world()
        flip(world.fs, SEALED, frames_of(world.fs, SEALED)[2].start)
        mend(world)
        assert mend(world) == []

    def test_readers_and_the_header_agree_on_the_end_afterwards(self) -> None:
        world = small_world()
        frames = frames_of(world.fs, CURRENT)
        patch(world.fs, CURRENT, frames[2].start, bytes(len(frames[2]) + len(frames[3])))
        patch(world.fs, CURRENT, 2048, frames[3].start.to_bytes(8, "little"))
        mend(world)
        segment = open_segment(world.fs, CURRENT)
        positions = (segment.visible_position, segment.synced_position)
        assert positions == (frames[FRAMES].stop, frames[FRAMES].stop)
        assert len(read_all(world)) == 24 - 6

    def test_a_full_disk_ends_a_repair_before_anything_is_changed(self) -> None:
        world = small_world()
        fs = world.fs
        flip(fs, SEALED, frames_of(fs, SEALED)[2].start)
        before = fs.read(SEALED)
        assert isinstance(fs, MemoryFileSystem)
        fs.capacity_bytes -= fs.free_bytes(DATABASE)
        with pytest.raises(StorageFullError):
            mend(world)
        assert fs.read(SEALED) == before
        fs.capacity_bytes += 1 << 20
        assert len(mend(world)) == 1
        assert not verify(world).damaged


class TestProducers:
    @pytest.mark.parametrize("number", range(FRAMES + 1))
    def test_what_survives_of_them_still_knows_their_calls(self, number: int) -> None:
        world = small_world()
        frame = frames_of(world.fs, CURRENT)[number]
        flip(world.fs, CURRENT, frame.start)
        mend(world)
        with world.database() as database:
            for producer in range(2):
                # The last call of each is in one of the last two frames.
                last = 2 * FRAMES - 2 + producer
                again = database.append([Row("t", b"")], producer=(f"p{producer}", last)).wait()
                assert again.duplicate == (number != FRAMES - 1 + producer)


class TestWholeFiles:
    def test_a_file_that_is_given_up_has_its_name_taken_at_once(self) -> None:
        source = small_world()
        patch(source.fs, SEALED, 0, b"\xff" * len(source.fs.read(SEALED)))
        for operations in range(60):
            world = clone(source)
            fs = world.fs
            assert isinstance(fs, MemoryFileSystem)
            fs.operations_left = operations
            try:
                mend(world)
                break
            except PowerCut:
                assert fs.crash_clone().exists(SEALED)
        else:
            pytest.fail("a repair needs far too many operations")
