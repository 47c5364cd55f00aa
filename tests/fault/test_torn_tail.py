"""A power cut in the middle of a write: what was synced stays, what is torn is cut off whole."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

import pytest

from siltstone.errors import CorruptionError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.slab import Slab
from siltstone.store.segment.segment import segment_path
from tests.support.builders import World, begun, call_on, read_topics, reopened, slab_place
from tests.support.damage import (
    DATABASE,
    clone,
    damage_in,
    frames_of,
    notes_in,
    patch,
    read_all,
    verify,
)

PATH = segment_path(slab_place(), 0)
IN_DATABASE = segment_path(DATABASE / "0" / "1", 0)
SYNCED_CELL = 2112


def written(*, synced: int, unsynced: int = 0) -> World:
    """Return what a killed process leaves of a slab: frames of two rows each, the last unsynced."""
    world = World()
    committer = begun(world, thresholds=(-1,))
    for number in range(synced + unsynced):
        topics = (f"t/{number}", f"t/{number}/b")
        committer.commit([call_on(*topics, sync=number < synced)])
    return clone(world)


def topics_in(world: World) -> list[str]:
    """Open the slab as a writer would, store one more row, and return the topics of all others."""
    committer, _ = reopened(world, thresholds=(-1,))
    committer.commit([call_on("after")])
    committer.close()
    again, report = reopened(world, thresholds=(-1,))
    assert report.torn_bytes == 0
    found = topics_of(again.slab)
    again.close()
    assert found[-1] == "after"
    return found[:-1]


def topics_of(slab: Slab) -> list[str]:
    """Return the topics of all rows, in order of time."""
    rows: list[tuple[int, str]] = []
    for handle in slab.handles():
        segment = handle.segment()
        for number in range(1, segment.index.frame_count):
            frame = segment.frame(number)
            if count := frame.header.row_count:
                topics = frame.all_topics().take(frame.topic_numbers(0, count)).to_pylist()
                rows += zip(frame.times(), topics, strict=True)
    return [topic for _, topic in sorted(rows)]


def expected(frames: int) -> list[str]:
    return [topic for number in range(frames) for topic in (f"t/{number}", f"t/{number}/b")]


def used_bytes(world: World) -> int:
    return len(world.fs.read(PATH).rstrip(b"\0"))


class TestEveryByteOfTheLastFrame:
    def test_zeros_from_any_byte_on_leave_all_frames_before_it(self) -> None:
        sound = written(synced=2, unsynced=1)
        last = frames_of(sound.fs, PATH)[3]
        content = sound.fs.read(PATH)[last.start : last.stop]
        for keep in range(len(last)):
            world = clone(sound)
            patch(world.fs, PATH, last.start + keep, bytes(len(last) - keep))
            whole = not any(content[keep:])
            used = 0 if whole else len(content[:keep].rstrip(b"\0"))
            committer, report = reopened(world)
            committer.close()
            assert report.torn_bytes == used, keep
            assert topics_in(world) == expected(3 if whole else 2), keep

    def test_a_garbled_byte_anywhere_leaves_all_frames_before_it(self) -> None:
        sound = written(synced=2, unsynced=1)
        last = frames_of(sound.fs, PATH)[3]
        used = used_bytes(sound)
        for offset in last:
            world = clone(sound)
            (byte,) = world.fs.read(PATH)[offset : offset + 1]
            patch(world.fs, PATH, offset, bytes([byte ^ 0xA5]))
            committer, report = reopened(world)
            committer.close()
            assert report.torn_bytes == max(used, offset + 1) - last.start, offset
            assert topics_in(world) == expected(2), offset

    @pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
    def test_noise_behind_the_last_frame_is_cut_off(self, length: int) -> None:
        world = written(synced=2)
        end = frames_of(world.fs, PATH)[2].stop
        patch(world.fs, PATH, end, Random(length).randbytes(length - 1) + b"!")
        committer, report = reopened(world)
        committer.close()
        assert report.torn_bytes == length
        assert topics_in(world) == expected(2)


@pytest.mark.parametrize("torn", [2, 3, 4])
def test_the_first_torn_frame_ends_the_log_though_later_ones_are_whole(torn: int) -> None:
    world = written(synced=1, unsynced=3)
    frame = frames_of(world.fs, PATH)[torn]
    patch(world.fs, PATH, frame.start + 70, b"\xff\xff")
    assert topics_in(world) == expected(torn - 1)


def test_what_was_cut_off_never_comes_back() -> None:
    world = written(synced=1, unsynced=2)
    frames = frames_of(world.fs, PATH)
    patch(world.fs, PATH, frames[2].start, b"XXXX")
    committer, report = reopened(world)
    committer.close()
    # The frame behind the torn one was whole; nothing but zeros may be left of it.
    assert not any(world.fs.read(PATH)[frames[3].start :])
    assert report.torn_bytes == len(sound_tail(frames[2].start))


def sound_tail(position: int) -> bytes:
    return written(synced=1, unsynced=2).fs.read(PATH).rstrip(b"\0")[position:]


def _zeroed(world: World, frame: range) -> None:
    patch(world.fs, PATH, frame.start, bytes(len(frame)))


def _garbled(world: World, frame: range) -> None:
    patch(world.fs, PATH, frame.start + 66, b"\xff\xff\xff")


@pytest.mark.parametrize("damage", [_zeroed, _garbled])
@pytest.mark.parametrize("number", [1, 2])
def test_a_frame_that_a_later_one_knows_as_synced_is_damaged_not_torn(
    damage: Callable[[World, range], None], number: int
) -> None:
    world = written(synced=4)
    frames = frames_of(world.fs, PATH)
    # A power cut may take back the synced position; what the frames say of it is still there.
    patch(world.fs, PATH, SYNCED_CELL, struct.pack("<Q", frames[number].start))
    damage(world, frames[number])
    before = world.fs.read(PATH)
    with pytest.raises(
        CorruptionError, match="a synced frame is damaged before valid frames"
    ) as caught:
        reopened(world)
    assert (caught.value.path, caught.value.offset) == (PATH, frames[number].start)
    assert world.fs.read(PATH) == before


@pytest.mark.parametrize("damage", [_zeroed, _garbled])
def test_the_last_synced_frame_is_damaged_when_the_header_knows_of_it(
    damage: Callable[[World, range], None],
) -> None:
    world = written(synced=3)
    frames = frames_of(world.fs, PATH)
    damage(world, frames[3])
    with pytest.raises(CorruptionError, match="a synced frame is damaged") as caught:
        reopened(world)
    assert (caught.value.path, caught.value.offset) == (PATH, frames[3].start)


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_leaves_a_prefix_that_holds_what_was_synced(seed: int) -> None:
    world = World()
    committer = begun(world, thresholds=(-1,))
    for number in range(4):
        committer.commit([call_on(f"t/{number}", f"t/{number}/b", sync=number == 1)])
    assert isinstance(world.fs, MemoryFileSystem)
    found = topics_in(World(fs=world.fs.crash_clone(Random(seed))))
    assert found in [expected(frames) for frames in (2, 3, 4)]


class TestVerify:
    def torn(self) -> World:
        """Return a database that a killed process left, its last frame torn."""
        world = World()
        with world.database() as database:
            database.append([Row("t/1", b"kept")]).wait()
            database.append([Row("t/2", b"torn")], durability="written").wait()
            killed = clone(world)
        last = frames_of(killed.fs, IN_DATABASE)[2]
        patch(killed.fs, IN_DATABASE, last.stop - 8, b"\xff" * 8)
        return killed

    def test_a_torn_tail_is_a_note_with_its_size_and_no_damage(self) -> None:
        world = self.torn()
        report = verify(world)
        (note,) = notes_in(report)
        last = note.offset
        size = len(world.fs.read(IN_DATABASE).rstrip(b"\0")) - last
        assert note.problem == f"torn tail of {size} bytes; the next writer removes it"
        assert damage_in(report) == []

    def test_readers_see_what_stands_before_a_torn_tail(self) -> None:
        assert [row.topic for row in read_all(self.torn())] == ["t/1"]

    def test_repair_leaves_a_torn_tail_to_the_next_start(self) -> None:
        world = self.torn()
        before = world.fs.read(IN_DATABASE)
        assert not verify(world, repair=True).damaged
        assert world.fs.read(IN_DATABASE) == before
        with world.database() as database:
            assert read_topics(database) == ["t/1"]
        assert verify(world).findings == ()
