"""Bytes that are not what was written: reported, never served, never skipped, and repaired."""

from __future__ import annotations

from pathlib import PurePath
from random import Random

import pytest

from siltstone.errors import CorruptionError
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.fs.publish import remove_tree
from siltstone.store.log.check.findings import Finding
from siltstone.store.log.read.pieces import Row
from siltstone.store.segment.frame import HEADER_BYTES
from siltstone.store.segment.index import SUMMARY_BYTES
from siltstone.store.segment.segment import SEGMENT_HEADER_BYTES
from siltstone.store.segment.sift import index_path
from siltstone.store.slab.manifest import MANIFEST
from siltstone.store.writer.producers import producer_key
from siltstone.store.writer.ticket import Outcome
from tests.support.builders import World, begun, call_on, read_rows, reopened, slab_place
from tests.support.damage import (
    CURRENT,
    DATABASE,
    FRAME_ROWS,
    FRAMES,
    QUARANTINE,
    SEALED,
    clone,
    damage_in,
    flip,
    flipped,
    frames_of,
    notes_in,
    patch,
    read_all,
    small_world,
    unrepaired,
    verify,
    without_serials,
)
from tests.support.reading import check_everything, check_filter

SEGMENTS = pytest.mark.parametrize("path", [SEALED, CURRENT], ids=["sealed", "current"])


def base_of(path: PurePath) -> int:
    return int(path.stem)


def generation_of(path: PurePath) -> int:
    return int(path.parent.name)


def serials_of(path: PurePath, frame: int) -> range:
    """Return the serials of a frame; number 0 is the state."""
    first = base_of(path) + (frame - 1) * FRAME_ROWS
    return range(first, first + FRAME_ROWS) if frame else range(first, first)


def quarantined(world: World) -> dict[str, bytes]:
    """Return what is in quarantine, where nothing may be without its reason."""
    names = [entry.name for entry in world.fs.list(QUARANTINE)]
    kept = [name for name in names if not name.endswith(".reason.txt")]
    assert {f"{name}.reason.txt" for name in kept} <= set(names)
    return {name: world.fs.read(QUARANTINE / name) for name in kept}


def reopened_rows(world: World) -> list[Row]:
    """Open the database for writing, store a row to see that it works, and return the others."""
    with world.database() as database:
        before = read_rows(database, "#") + read_rows(database, "$SYS/#")
        (serial,) = database.append([Row("after/repair", b"")]).wait().serials()
        assert serial >= 2 * FRAMES * FRAME_ROWS
        assert [row.serial for row in read_rows(database, "after/repair")] == [serial]
    return before


@SEGMENTS
@pytest.mark.parametrize(("compression", "step"), [("none", 1), ("zstd", 7), ("lz4", 7)])
def test_a_flipped_bit_in_any_byte_of_a_frame_is_reported_and_never_served(
    path: PurePath, compression: str, step: int
) -> None:
    world = small_world(compression=compression)
    frame = frames_of(world.fs, path)[2]
    for offset in frame[::step]:
        with flipped(world.fs, path, offset):
            assert damage_in(verify(world)) == [(path, frame.start)], offset
            with pytest.raises(CorruptionError) as caught:
                read_all(world)
            assert (caught.value.path, caught.value.offset) == (path, frame.start), offset
    assert verify(world).findings == ()


@SEGMENTS
def test_a_flipped_bit_in_any_frame_takes_that_frame_alone(path: PurePath) -> None:
    sound = small_world()
    rows = read_all(sound)
    for number, frame in enumerate(frames_of(sound.fs, path)):
        world = clone(sound)
        flip(world.fs, path, frame.start + 5 * number)
        damaged = world.fs.read(path)[frame.start : frame.stop]
        report = verify(world, repair=True)
        assert (damage_in(report), unrepaired(report)) == ([(path, frame.start)], [])
        name = f"messages-0-{generation_of(path)}-{path.stem}-{frame.start}.frame"
        assert quarantined(world) == {name: damaged}
        left = without_serials(rows, generation_of(path), serials_of(path, number))
        assert (read_all(world), reopened_rows(world)) == (left, left)
        assert not verify(world).damaged


@pytest.mark.parametrize("offset", [0, 4, 8, 12, 13, 14, 16, 24, 28, 32, 40, 48, 56, 64, 70, 120])
def test_each_field_of_a_frame_may_be_wrong_and_the_serials_lost_are_told(offset: int) -> None:
    world = small_world()
    rows = read_all(world)
    frame = frames_of(world.fs, CURRENT)[3]
    flip(world.fs, CURRENT, frame.start + offset)
    lost = serials_of(CURRENT, 3)
    (finding,) = (found for found in verify(world, repair=True).findings if found.repaired)
    assert finding.problem.endswith(f"; 3 rows are lost: serials {lost[0]} to {lost[-1]}")
    assert read_all(world) == without_serials(rows, 2, lost)
    assert notes_in(verify(world)) == [
        Finding(
            path=CURRENT,
            offset=frame.start,
            problem=f"hole: 3 rows are lost: serials {lost[0]} to {lost[-1]}",
            severity="note",
        )
    ]


@pytest.mark.parametrize("path", [SEALED, CURRENT], ids=["with an index", "without one"])
def test_frames_of_which_nothing_is_left_are_found_by_what_follows_them(path: PurePath) -> None:
    world = small_world()
    rows = read_all(world)
    frames = frames_of(world.fs, path)
    start, stop = frames[1].start, frames[2].stop
    patch(world.fs, path, start, Random(1).randbytes(stop - start))
    assert unrepaired(verify(world, repair=True)) == []
    lost = range(serials_of(path, 1).start, serials_of(path, 2).stop)
    left = without_serials(rows, generation_of(path), lost)
    assert (read_all(world), reopened_rows(world)) == (left, left)
    assert not verify(world).damaged


@pytest.mark.parametrize("filler", [b"\0", b"\xff"])
def test_the_last_synced_frame_is_lost_and_its_serials_are_not_used_again(filler: bytes) -> None:
    world = small_world()
    rows = read_all(world)
    last = frames_of(world.fs, CURRENT)[FRAMES]
    patch(world.fs, CURRENT, last.start, filler * len(last))
    with pytest.raises(CorruptionError, match="a synced frame is damaged"), world.database():
        pass
    assert unrepaired(verify(world, repair=True)) == []
    left = without_serials(rows, 2, serials_of(CURRENT, FRAMES))
    assert (read_all(world), reopened_rows(world)) == (left, left)
    assert not verify(world).damaged


def test_a_bad_synced_frame_in_the_segment_being_written_keeps_the_database_closed() -> None:
    world = small_world()
    before = world.fs.read(CURRENT)
    frame = frames_of(world.fs, CURRENT)[2]
    for offset in range(frame.start, frame.stop, 7):
        with flipped(world.fs, CURRENT, offset):
            with pytest.raises(CorruptionError) as caught, world.database():
                pass
            assert (caught.value.path, caught.value.offset) == (CURRENT, frame.start)
    assert world.fs.read(CURRENT) == before


def test_streams_that_only_the_lost_frame_taught_are_found_again_by_their_topics() -> None:
    world = World()
    topics = ["a/1/x", "a/2/x", "b/1/y", "$SYS/1/z"]
    with world.database(thresholds=(2, 1)) as database:
        for number in range(3):
            # The second frame learns upon the first; the third needs both.
            names = topics if number else topics[:2]
            database.append([Row(topic, b"%d" % number) for topic in names]).wait()
    rows = read_all(world)
    path = CURRENT.parent.parent / "1" / SEALED.name
    frame = frames_of(world.fs, path)[1]
    patch(world.fs, path, frame.start, bytes(len(frame)))
    assert unrepaired(verify(world, repair=True)) == []
    assert read_all(world) == without_serials(rows, 1, range(2))
    assert not verify(world).damaged


@SEGMENTS
@pytest.mark.parametrize("number", range(1, FRAMES + 1))
def test_every_way_of_reading_passes_over_a_hole(path: PurePath, number: int) -> None:
    world = small_world()
    rows = read_all(world)
    frame = frames_of(world.fs, path)[number]
    flip(world.fs, path, frame.start)
    verify(world, repair=True)
    lost = serials_of(path, number)
    left = without_serials(rows, generation_of(path), lost)
    times = [row.timestamp_us for row in rows if row.serial in lost]
    with world.reader() as database:
        assert sorted(check_everything(database)) == sorted(left)
        for since_us in times:
            after = [row for row in left if row.timestamp_us >= since_us]
            for topic_filter in ("#", "a/+/x", "$SYS/x"):
                check_filter(database, after, topic_filter, since_us=since_us)


class TestIndex:
    def test_a_flipped_bit_in_any_byte_is_reported_and_the_segment_read_instead(self) -> None:
        world = small_world()
        rows = read_all(world)
        path = index_path(SEALED)
        for offset in (*range(SUMMARY_BYTES), *range(SUMMARY_BYTES, len(world.fs.read(path)), 3)):
            with flipped(world.fs, path, offset):
                assert damage_in(verify(world)) == [(path, 0)], offset
                assert read_all(world) == rows, offset

    @pytest.mark.parametrize("offset", [0, 8, 12, 32, 40, 64, 72, 150])
    def test_a_damaged_index_is_made_anew_as_it_was(self, offset: int) -> None:
        world = small_world()
        path = index_path(SEALED)
        sound = world.fs.read(path)
        flip(world.fs, path, offset)
        report = verify(world, repair=True)
        assert [(found.path, found.repaired) for found in report.findings] == [
            (path, "rebuilt from the segment")
        ]
        assert world.fs.read(path) == sound
        assert verify(world).findings == ()

    @pytest.mark.parametrize("data", [None, b"", b"KIDX"])
    def test_a_missing_empty_or_short_index_is_made_anew(self, data: bytes | None) -> None:
        world = small_world()
        rows = read_all(world)
        path = index_path(SEALED)
        sound = world.fs.read(path)
        world.fs.remove(path)
        if data is not None:
            with world.fs.create(path) as file:
                file.write(data)
        assert read_all(world) == rows
        assert damage_in(verify(world)) == [(path, 0)]
        assert unrepaired(verify(world, repair=True)) == []
        assert world.fs.read(path) == sound

    def test_producers_are_known_by_the_frames_when_the_index_is_damaged(self) -> None:
        world = World()
        committer = begun(world)
        committer.commit([call_on("t", producer=producer_key("p"), sequence=5)])
        committer.seal(*committer.state())
        flip(world.fs, slab_place() / f"{0:020d}.idx", SUMMARY_BYTES + 1)
        again, _ = reopened(world)
        (outcome,) = again.commit([call_on("t", producer=producer_key("p"), sequence=5)])
        again.close()
        assert isinstance(outcome, Outcome)
        assert outcome.duplicate

    def test_damage_in_both_is_not_passed_over(self) -> None:
        world = small_world()
        rows = read_all(world)
        frame = frames_of(world.fs, SEALED)[FRAMES]
        flip(world.fs, SEALED, frame.start + 40)
        world.fs.remove(index_path(SEALED))
        with pytest.raises(CorruptionError):
            read_all(world)
        assert unrepaired(verify(world, repair=True)) == []
        assert read_all(world) == without_serials(rows, 1, serials_of(SEALED, FRAMES))
        assert not verify(world).damaged


class TestSegmentHeader:
    @SEGMENTS
    def test_a_flipped_bit_in_any_byte_that_is_fixed_is_reported_and_nothing_served(
        self, path: PurePath
    ) -> None:
        world = small_world()
        for offset in (*range(64), *range(64, 2048, 97), *range(2044, 2048)):
            with flipped(world.fs, path, offset):
                assert damage_in(verify(world)) == [(path, 0)], offset
                with pytest.raises(CorruptionError):
                    read_all(world)

    @SEGMENTS
    def test_a_damaged_header_is_made_anew_and_no_row_is_lost(self, path: PurePath) -> None:
        world = small_world()
        rows, sound = read_all(world), world.fs.read(path)
        damaged = Random(2).randbytes(2048)
        patch(world.fs, path, 0, damaged)
        report = verify(world, repair=True)
        assert (damage_in(report), unrepaired(report)) == ([(path, 0)], [])
        name = f"messages-0-{generation_of(path)}-{path.stem}-0.frame"
        assert quarantined(world) == {name: damaged + sound[2048:SEGMENT_HEADER_BYTES]}
        assert world.fs.read(path) == sound
        assert (read_all(world), reopened_rows(world)) == (rows, rows)

    @pytest.mark.parametrize("cell", [2048, 2112, 2176])
    @pytest.mark.parametrize("value", [2**63, 4099])
    def test_positions_that_cannot_be_true_are_set_right(self, cell: int, value: int) -> None:
        world = small_world()
        rows = read_all(world)
        patch(world.fs, CURRENT, cell, value.to_bytes(8, "little"))
        report = verify(world)
        # The serials reach far, so that a small one is no less true than another.
        assert damage_in(report) == ([] if (cell, value) == (2176, 4099) else [(CURRENT, 0)])
        assert unrepaired(verify(world, repair=True)) == []
        assert not verify(world).damaged
        assert reopened_rows(world) == rows


class TestWholeSegment:
    @SEGMENTS
    def test_a_file_without_a_whole_frame_is_kept_and_a_hole_takes_its_place(
        self, path: PurePath
    ) -> None:
        world = small_world()
        rows = read_all(world)
        noise = Random(3).randbytes(len(world.fs.read(path)))
        patch(world.fs, path, 0, noise)
        report = verify(world, repair=True)
        assert (damage_in(report), unrepaired(report)) == ([(path, 0)], [])
        assert quarantined(world) == {f"messages-0-{generation_of(path)}-{path.stem}.seg": noise}
        left = [row for row in rows if row.generation != generation_of(path)]
        assert (read_all(world), reopened_rows(world)) == (left, left)
        assert not verify(world).damaged

    @SEGMENTS
    @pytest.mark.parametrize("size", [0, 3, 4096])
    def test_a_file_cut_short_before_its_first_frame_is_corruption_and_becomes_a_hole(
        self, path: PurePath, size: int
    ) -> None:
        world = small_world()
        rows = read_all(world)
        with world.fs.open(path, writable=True) as file:
            file.truncate(size)
        with pytest.raises(CorruptionError):
            read_all(world)
        assert unrepaired(verify(world, repair=True)) == []
        left = [row for row in rows if row.generation != generation_of(path)]
        assert (read_all(world), reopened_rows(world)) == (left, left)

    @SEGMENTS
    def test_a_file_cut_short_behind_some_frames_keeps_these(self, path: PurePath) -> None:
        world = small_world()
        rows = read_all(world)
        with world.fs.open(path, writable=True) as file:
            file.truncate(frames_of(clone(world).fs, path)[3].start + 10)
        with pytest.raises(CorruptionError):
            read_all(world)
        assert unrepaired(verify(world, repair=True)) == []
        lost = range(serials_of(path, 3).start, serials_of(path, FRAMES).stop)
        left = without_serials(rows, generation_of(path), lost)
        assert (read_all(world), reopened_rows(world)) == (left, left)

    def test_a_segment_of_another_slab_is_not_served(self) -> None:
        world = small_world()
        rows = read_all(world)
        stranger = world.fs.read(SEALED)
        patch(world.fs, CURRENT, 0, stranger)
        report = verify(world)
        assert damage_in(report) == [(CURRENT, 0)]
        assert unrepaired(verify(world, repair=True)) == []
        assert read_all(world) == [row for row in rows if row.generation == 1]

    @pytest.mark.parametrize("number", range(4))
    @pytest.mark.parametrize("rows_each", [1, 2])
    @pytest.mark.parametrize("with_index", [True, False])
    def test_a_missing_segment_is_reported_and_becomes_a_hole(
        self, number: int, rows_each: int, with_index: bool
    ) -> None:
        world, rows, bases = rolled_world(rows_each)
        base, stop = bases[number], [*bases, len(rows)][number + 1]
        path = SEALED.with_name(f"{base:020d}.seg")
        world.fs.remove(path)
        if not with_index:
            world.fs.remove(index_path(path))
        with pytest.raises(CorruptionError, match="missing"):
            read_all(world)
        assert verify(world).damaged
        report = verify(world, repair=True)
        assert unrepaired(report) == []
        left = without_serials(rows, 1, range(base, stop))
        assert read_all(world) == left
        assert not verify(world).damaged

    @pytest.mark.parametrize("whole_directory", [False, True])
    @SEGMENTS
    def test_a_slab_that_has_lost_all_its_files_goes_on_behind_a_hole(
        self, path: PurePath, whole_directory: bool
    ) -> None:
        world = small_world()
        rows = read_all(world)
        remove_tree(world.fs, path.parent)
        if not whole_directory:
            world.fs.make_directory(path.parent)
        assert verify(world).damaged
        assert unrepaired(verify(world, repair=True)) == []
        left = [row for row in rows if row.generation != generation_of(path)]
        assert (read_all(world), reopened_rows(world)) == (left, left)
        assert not verify(world).damaged


def rolled_world(rows_each: int = 2) -> tuple[World, list[Row], list[int]]:
    """Return a sealed slab of four segments, its rows, and the serials with which they begin."""
    world = World()
    with world.database() as database:
        for number in range(4 * rows_each):
            database.append([Row(f"t/{number}", bytes(50_000 // rows_each))]).wait()
        database.seal()
    names = [entry.name for entry in world.fs.list(SEALED.parent)]
    bases = [int(name[:20]) for name in names if name.endswith(".seg")]
    assert len(bases) == 4
    return world, read_all(world), bases


class TestManifest:
    def test_a_flipped_bit_in_any_byte_is_reported_and_keeps_the_database_closed(self) -> None:
        world = small_world()
        path = DATABASE / MANIFEST
        for offset in range(len(world.fs.read(path))):
            with flipped(world.fs, path, offset):
                assert damage_in(verify(world)) == [(path, 0)], offset
                with pytest.raises(CorruptionError), world.reader():
                    pass

    def test_repair_makes_it_anew_and_then_mends_what_it_names(self) -> None:
        world = small_world()
        rows = read_all(world)
        frame = frames_of(world.fs, SEALED)[2]
        flip(world.fs, DATABASE / MANIFEST, 100)
        flip(world.fs, SEALED, frame.start + 40)
        first, second, *_ = [found.repaired for found in verify(world, repair=True).findings]
        assert first.startswith("rebuilt from the segments with default settings")
        assert second.startswith("a hole; kept as ")
        left = read_all(world)
        assert left == [row for row in rows if row in left]
        assert damage_in(verify(world)) == []


def damaged_everywhere() -> tuple[World, list[Row]]:
    """Return a world with one damage of each kind, and the rows that can still be read."""
    world = small_world()
    rows = read_all(world)
    sealed, current = (frames_of(world.fs, path) for path in (SEALED, CURRENT))
    flip(world.fs, SEALED, 17)
    patch(world.fs, SEALED, sealed[2].start, bytes(len(sealed[2])))
    flip(world.fs, index_path(SEALED), 80)
    flip(world.fs, CURRENT, current[0].start + HEADER_BYTES)
    flip(world.fs, CURRENT, current[3].start)
    left = without_serials(rows, 1, serials_of(SEALED, 2))
    return world, without_serials(left, 2, serials_of(CURRENT, 3))


def test_a_power_cut_at_any_operation_of_a_repair_leaves_what_the_next_one_finishes() -> None:
    source, left = damaged_everywhere()
    given_up: set[bytes] | None = None
    for operations in range(500):
        world = clone(source)
        fs = world.fs
        assert isinstance(fs, MemoryFileSystem)
        fs.operations_left = operations
        try:
            verify(world, repair=True)
        except PowerCut:
            after = World(fs=fs.crash_clone(Random(operations)), clock=world.clock)
        else:
            break
        assert unrepaired(verify(after, repair=True)) == []
        assert read_all(after) == left
        assert not verify(after).damaged
        kept = set(quarantined(after).values())
        given_up = kept if given_up is None else given_up
        assert given_up <= kept
    else:
        pytest.fail("a repair needs far too many operations")
    assert read_all(world) == left


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_to_the_files_no_row_is_wrong_and_a_repair_leaves_a_whole_database(
    seed: int,
) -> None:
    rng = Random(seed)
    world, rows, bases = rolled_world()
    files = [
        SEALED.with_name(f"{base:020d}{suffix}") for base in bases for suffix in (".seg", ".idx")
    ]
    for path in rng.sample(files, k=rng.randint(1, 3)):
        data = world.fs.read(path)
        size = min(rng.choice((1, 8, 64, 512, 4096, 20_000)), len(data))
        offset = rng.randrange(len(data.rstrip(b"\0")))
        noise = bytes(size) if rng.getrandbits(1) else rng.randbytes(size)
        patch(world.fs, path, offset, noise[: len(data) - offset])
    try:
        assert read_all(world) == rows
    except CorruptionError:
        assert verify(world).damaged
    assert unrepaired(verify(world, repair=True)) == []
    left = read_all(world)
    assert [row for row in rows if row in left] == left
    assert not verify(world).damaged


@pytest.mark.parametrize("bit", [26, 40, 62, 63])
def test_a_flipped_bit_of_the_reserved_serial_does_not_move_serials_out_of_reach(bit: int) -> None:
    world = clone(small_world())
    rows = read_all(world)
    end = 2 * FRAMES * FRAME_ROWS
    patch(world.fs, CURRENT, 2176, (1 << bit).to_bytes(8, "little"))
    with world.database() as database:
        # A reservation reaches so far at most; below that a reader may have seen serials.
        assert database.append([Row("t", b"v")]).wait().first_serial() == end + (1 << 25)
    assert [row for row in read_all(world) if row.topic != "t"] == rows
    assert verify(world).findings == ()
