from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

import pytest

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.segment.body import encode_state
from siltstone.store.segment.chain import (
    Chain,
    ChainWriter,
    SegmentHandle,
    SlabIdentity,
    lost_segments,
    refuse_lost,
    state_header,
)
from siltstone.store.segment.frame import EDGES, PRODUCERS, STATE
from siltstone.store.segment.index import SegmentSummary
from siltstone.store.segment.recovery import recover_segment
from siltstone.store.segment.segment import SegmentHeader, open_segment, segment_path
from siltstone.store.segment.sift import index_path
from siltstone.store.segment.writer import SegmentWriter
from tests.support.frames import (
    NOW_US,
    SEED,
    SEGMENT_BYTES,
    SLAB,
    header_fields,
    rows_frame,
    segment_header,
    slab_fs,
    store,
    values_in,
)

IDENTITY = SlabIdentity(database="plant", shard=3, generation=7, seed=SEED)
PATH = segment_path(SLAB, 0)
INDEX = index_path(PATH)


def new_chain(fs: MemoryFileSystem, *, sealed_bytes: int = 0) -> ChainWriter:
    return ChainWriter(fs, Chain(fs, SLAB), IDENTITY, sealed_bytes=sealed_bytes)


def start(
    chain: ChainWriter,
    serial: int = 0,
    *,
    structure: bytes = b"",
    producers: bytes = b"",
    room_bytes: int = 0,
) -> SegmentWriter:
    chain.start(
        serial=serial,
        timestamp_us=NOW_US - 1,
        structure=structure,
        producers=producers,
        created_us=NOW_US,
        segment_bytes=SEGMENT_BYTES,
        room_bytes=room_bytes,
    )
    assert chain.active is not None
    return chain.active


def one_sealed(fs: MemoryFileSystem) -> ChainWriter:
    """Write a sealed segment of two rows; its index says what only the index can know."""
    chain = new_chain(fs)
    writer = start(chain, structure=b"state")
    store(writer, rows_frame({1: [b"a"]}, edges=b"first", producers=b"p" * 24))
    store(writer, rows_frame({2: [b"b"]}, serial=1, producers=b"q" * 24))
    chain.seal(structure=b"whole structure", producers=b"r" * 24)
    return chain


def patch(fs: MemoryFileSystem, path: PurePath, offset: int, data: bytes) -> None:
    with fs.open(path, writable=True) as file:
        file.write_at(offset, data)


def damage_last_byte(fs: MemoryFileSystem, path: PurePath) -> None:
    data = fs.read(path)
    patch(fs, path, len(data) - 1, bytes([data[-1] ^ 1]))


def handle(fs: MemoryFileSystem, *, sealed: bool = True) -> SegmentHandle:
    """Return a handle as another process makes it."""
    found = SegmentHandle(fs, PATH)
    assert found.mark_sealed() is sealed
    return found


class TestLost:
    def test_an_index_tells_of_a_segment_that_is_gone(self) -> None:
        fs = slab_fs()
        summary = one_sealed(fs).chain.handles[0].summary
        fs.remove(PATH)
        assert lost_segments(fs, SLAB, fs.list(SLAB)) == {0: summary}
        with pytest.raises(CorruptionError, match="the segment is missing") as caught:
            refuse_lost(fs, SLAB, fs.list(SLAB))
        assert caught.value.path == PATH

    def test_segments_with_and_without_an_index_are_not_lost(self) -> None:
        fs = slab_fs()
        start(one_sealed(fs), 2)
        refuse_lost(fs, SLAB, fs.list(SLAB))
        assert lost_segments(fs, SLAB, fs.list(SLAB)) == {}

    def test_what_is_no_sound_index_tells_nothing(self) -> None:
        fs = slab_fs()
        for name in ("notes.idx", f"{7:020d}.idx"):
            fs.create(SLAB / name).close()
        fs.make_directory(SLAB / f"{8:020d}.idx")
        refuse_lost(fs, SLAB, fs.list(SLAB))
        assert lost_segments(fs, SLAB, fs.list(SLAB)) == {}


class TestWriter:
    def test_a_chain_begins_with_no_segment(self) -> None:
        chain = new_chain(slab_fs())
        assert (chain.chain.handles, chain.active, chain.size_bytes()) == ((), None, 0)

    def test_a_segment_begins_with_the_state_so_far(self) -> None:
        fs = slab_fs()
        writer = start(new_chain(fs), 42, structure=b"edges", producers=b"p" * 24)
        segment = open_segment(fs, segment_path(SLAB, 42))
        assert segment.header == replace(segment_header(base_serial=42), packs=True)
        segment.follow()
        frame = segment.frame(0)
        sections = [bytes(frame.section(name) or b"") for name in (EDGES, PRODUCERS)]
        assert sections == [b"edges", b"p" * 24]
        assert (frame.header.kind, frame.header.first_serial, frame.header.last_timestamp_us) == (
            STATE,
            42,
            NOW_US - 1,
        )
        assert writer.segment.index.summary() == segment.index.summary()

    def test_a_state_has_a_place_among_the_serials_and_in_time_but_no_rows(self) -> None:
        body, sections = encode_state(b"edges", b"")
        header = state_header(body, sections, serial=9, timestamp_us=77)
        assert header_fields(header) == {
            "crc": 0,
            "length": 0,
            "kind": STATE,
            "compression": 0,
            "section_count": 1,
            "first_serial": 9,
            "row_count": 0,
            "stream_count": 0,
            "first_timestamp_us": 77,
            "last_timestamp_us": 77,
            "synced_position": 0,
            "body_bytes": len(body),
        }

    def test_a_started_segment_is_the_last_handle(self) -> None:
        fs = slab_fs()
        chain = one_sealed(fs)
        writer = start(chain, 2)
        store(writer, rows_frame({1: [b"c"]}, serial=2))
        handles = chain.chain.handles
        assert [item.path.name for item in handles] == [f"{0:020d}.seg", f"{2:020d}.seg"]
        assert [item.sealed for item in handles] == [True, False]
        assert [item.next_serial for item in handles] == [2, 3]

    @pytest.mark.parametrize(
        ("structure_bytes", "room_bytes", "file_bytes"),
        [
            (8, 0, 64 * 1024),
            (8, 64 * 1024 - 4096 - 64 - 16, 64 * 1024),
            (8, 64 * 1024 - 4096 - 64 - 16 + 1, 68 * 1024),
            (100_000, 0, 26 * 4096),
        ],
    )
    def test_a_state_and_frame_too_large_for_a_segment_get_a_larger_file(
        self, structure_bytes: int, room_bytes: int, file_bytes: int
    ) -> None:
        chain = new_chain(slab_fs())
        writer = start(chain, structure=bytes(structure_bytes), room_bytes=room_bytes)
        assert writer.segment.header.file_bytes == file_bytes

    def test_the_size_of_a_chain_is_what_its_files_take(self) -> None:
        fs = slab_fs()
        chain = new_chain(fs)
        start(chain)
        sizes = [chain.size_bytes()]
        chain.seal(structure=b"", producers=b"")
        sizes.append(chain.size_bytes())
        start(chain, 1)
        sizes.append(chain.size_bytes())
        (index,) = [entry for entry in fs.list(INDEX.parent) if entry.name == INDEX.name]
        index_bytes = index.allocated_bytes
        assert sizes == [65_536, 65_536 + index_bytes, 131_072 + index_bytes]

    def test_sealing_writes_the_index_durably(self) -> None:
        fs = slab_fs()
        one_sealed(fs)
        found = handle(fs.crash_clone())
        assert values_in(found.segment()) == [b"a", b"b"]
        assert (found.edges(), found.producers()) == ([b"whole structure"], b"r" * 24)

    def test_a_sealed_segment_is_no_longer_written(self) -> None:
        chain = one_sealed(slab_fs())
        assert chain.active is None
        assert chain.chain.handles[0].summary == chain.chain.handles[0].segment().index.summary()

    def test_a_recovered_segment_is_written_on(self) -> None:
        fs = slab_fs()
        first = new_chain(fs)
        store(start(first), rows_frame({1: [b"a"]}))
        again = new_chain(fs)
        again.chain.handles = (SegmentHandle(fs, PATH),)
        writer = recover_segment(fs, PATH, allocated=SEGMENT_BYTES).writer
        again.adopt(writer)
        store(writer, rows_frame({1: [b"b"]}, serial=1))
        (found,) = again.chain.handles
        assert again.active is writer
        assert found.segment() is writer.segment
        assert values_in(found.segment()) == [b"a", b"b"]


class TestHandle:
    def test_a_segment_without_an_index_is_not_sealed(self) -> None:
        fs = slab_fs()
        start(new_chain(fs))
        found = handle(fs, sealed=False)
        assert (found.sealed, found.base_serial) == (False, 0)

    def test_a_segment_with_an_index_is_known_without_being_opened(self) -> None:
        fs = slab_fs()
        one_sealed(fs)
        fs.remove(PATH)
        found = handle(fs)
        assert (found.sealed, found.next_serial) == (True, 2)

    def test_what_is_known_to_be_sealed_stays_so(self) -> None:
        fs = slab_fs()
        one_sealed(fs)
        found = handle(fs)
        fs.remove(INDEX)
        assert found.mark_sealed()

    def test_an_index_whose_totals_are_damaged_does_not_count(self) -> None:
        fs = slab_fs()
        one_sealed(fs)
        patch(fs, INDEX, 32, b"\xff")
        found = handle(fs, sealed=False)
        assert (found.summary, found.next_serial) == (None, 2)

    def test_opening_a_sealed_segment_does_not_read_its_frames(self) -> None:
        fs = slab_fs()
        one_sealed(fs)
        patch(fs, PATH, 4096, bytes(64))
        segment = handle(fs).segment()
        assert segment.index.summary() == SegmentSummary(
            first_serial=0,
            next_serial=2,
            end_position=segment.visible_position,
            frame_count=3,
        )

    def test_a_segment_is_opened_once(self) -> None:
        fs = slab_fs()
        one_sealed(fs)
        found = handle(fs)
        assert found.segment() is found.segment()

    def test_edges_of_an_unsealed_segment_are_those_of_its_frames(self) -> None:
        fs = slab_fs()
        writer = start(new_chain(fs), structure=b"state")
        store(writer, rows_frame({1: [b"a"]}, edges=b"first"))
        found = handle(fs, sealed=False)
        before = list(found.edges())
        store(writer, rows_frame({1: [b"b"]}, serial=1, edges=b"second"))
        assert (before, found.follow(), found.edges()) == (
            [b"state", b"first"],
            [b"second"],
            [b"state", b"first", b"second"],
        )

    def test_a_segment_whose_index_is_damaged_is_scanned_instead(self) -> None:
        fs = slab_fs()
        one_sealed(fs)
        damage_last_byte(fs, INDEX)
        found = handle(fs)
        assert values_in(found.segment()) == [b"a", b"b"]
        assert found.edges() == [b"state", b"first"]
        assert found.producers() == b"p" * 24 + b"q" * 24

    def test_a_scan_that_finds_less_than_the_index_knew_is_corruption(self) -> None:
        fs = slab_fs()
        chain = new_chain(fs)
        writer = start(chain)
        lost = store(writer, rows_frame({1: [b"a"]}))
        chain.seal(structure=b"", producers=b"")
        damage_last_byte(fs, INDEX)
        patch(fs, PATH, lost, bytes(64))
        # Nothing else says that a frame stood there.
        patch(fs, PATH, 2048, lost.to_bytes(8, "little"))
        patch(fs, PATH, 2112, lost.to_bytes(8, "little"))
        found = handle(fs)
        assert values_in(found.segment()) == []
        with pytest.raises(CorruptionError, match="a frame is missing") as caught:
            found.check_whole()
        assert (caught.value.path, caught.value.offset) == (PATH, lost)
        with pytest.raises(CorruptionError, match="a frame is missing"):
            found.producers()

    @pytest.mark.parametrize("ended", [False, True])
    def test_of_a_segment_that_has_ended_every_frame_must_stand(self, ended: bool) -> None:
        fs = slab_fs()
        writer = start(new_chain(fs))
        found = handle(fs, sealed=False)
        found.segment()
        lost = store(writer, rows_frame({1: [b"a"]}, edges=b"e"), sync=False)
        patch(fs, PATH, lost, b"X")
        assert found.follow(ended=ended) == []
        if ended:
            with pytest.raises(CorruptionError, match="a frame does not begin at this offset"):
                found.check_whole()
        else:
            found.check_whole()

    def test_how_far_a_damaged_segment_reaches_nobody_asks(self) -> None:
        fs = slab_fs()
        writer = start(new_chain(fs))
        patch(fs, PATH, store(writer, rows_frame({1: [b"a"]})), b"X")
        handle(fs, sealed=False).check_reaches(1000)

    def test_rows_reach_to_the_next_segment(self) -> None:
        fs = slab_fs()
        store(start(new_chain(fs)), rows_frame({1: [b"a"]}))
        handle(fs, sealed=False).check_reaches(1)

    @pytest.mark.parametrize("next_base", [0, 1])
    def test_behind_a_segment_without_rows_one_serial_may_be_left_out(self, next_base: int) -> None:
        fs = slab_fs()
        start(new_chain(fs))
        handle(fs, sealed=False).check_reaches(next_base)

    def test_a_segment_under_the_name_of_another_is_corruption(self) -> None:
        fs = slab_fs()
        start(new_chain(fs))
        fs.rename(PATH, segment_path(PATH.parent, 3))
        found = SegmentHandle(fs, segment_path(PATH.parent, 3))
        with pytest.raises(CorruptionError, match="name of another one: it begins with serial 0"):
            found.segment()

    @pytest.mark.parametrize(
        ("next_base", "reason"),
        [
            (0, "its serials reach to 1, but 0 begins the next"),
            (2, "a segment is missing: expected serial 1, found 2"),
            (3, "a segment is missing: expected serial 1, found 3"),
        ],
    )
    def test_a_gap_or_overlap_to_the_next_segment_is_corruption(
        self, next_base: int, reason: str
    ) -> None:
        fs = slab_fs()
        store(start(new_chain(fs)), rows_frame({1: [b"a"]}))
        with pytest.raises(CorruptionError, match=reason) as caught:
            handle(fs, sealed=False).check_reaches(next_base)
        assert caught.value.path == PATH

    def test_a_sealed_segment_reaches_as_far_as_its_index_says(self) -> None:
        fs = slab_fs()
        one_sealed(fs)
        fs.remove(PATH)
        found = handle(fs)
        found.check_reaches(2)
        with pytest.raises(CorruptionError, match="expected serial 2, found 4"):
            found.check_reaches(4)

    def test_reserved_serials_reach_to_the_next_segment_too(self) -> None:
        fs = slab_fs()
        writer = start(new_chain(fs))
        writer.reserve(50)
        handle(fs, sealed=False).check_reaches(50)


class TestRefresh:
    def test_a_reader_sees_frames_rolls_and_seals_as_they_come(self) -> None:
        fs = slab_fs()
        chain, reader = new_chain(fs), Chain(fs, SLAB)
        writer = start(chain, structure=b"s0")
        learned = [reader.refresh()]
        store(writer, rows_frame({1: [b"a"]}, edges=b"e1"))
        learned.append(reader.refresh())
        store(writer, rows_frame({1: [b"b"]}, serial=1, edges=b"e2"))
        chain.seal(structure=b"s1", producers=b"")
        writer = start(chain, 2, structure=b"s1")
        store(writer, rows_frame({1: [b"c"]}, serial=2, edges=b"e3"))
        learned.append(reader.refresh())
        learned.append(reader.refresh())
        assert learned == [[b"s0"], [b"e1"], [b"e2", b"s1", b"e3"], []]
        assert [values_in(item.segment()) for item in reader.handles] == [[b"a", b"b"], [b"c"]]
        assert [item.sealed for item in reader.handles] == [True, False]

    def test_a_known_segment_keeps_its_handle(self) -> None:
        fs = slab_fs()
        start(new_chain(fs))
        reader = Chain(fs, SLAB)
        reader.refresh()
        before = reader.handles
        reader.refresh()
        assert [a is b for a, b in zip(before, reader.handles, strict=True)] == [True]

    def test_a_slab_of_sealed_segments_teaches_what_the_last_index_knows(self) -> None:
        fs = slab_fs()
        chain = one_sealed(fs)
        start(chain, 2, structure=b"whole structure")
        chain.seal(structure=b"final structure", producers=b"")
        assert Chain(fs, SLAB).refresh(ended=True) == [b"final structure"]

    def test_an_empty_directory_teaches_nothing(self) -> None:
        reader = Chain(slab_fs(), SLAB)
        assert (reader.refresh(ended=True), reader.handles) == ([], ())

    def test_what_is_not_ours_is_left_alone(self) -> None:
        fs = slab_fs()
        fs.create(SLAB / "notes.txt").close()
        start(new_chain(fs))
        reader = Chain(fs, SLAB)
        reader.refresh()
        assert [item.path for item in reader.handles] == [PATH]

    def test_a_slab_that_was_dropped_is_not_found(self) -> None:
        with pytest.raises(NotFoundError):
            Chain(slab_fs(), PurePath("/gone")).refresh()

    def test_a_segment_that_lost_its_index_and_its_last_rows_is_corruption(self) -> None:
        fs = slab_fs()
        chain = one_sealed(fs)
        start(chain, 9)
        fs.remove(INDEX)
        with pytest.raises(CorruptionError, match="expected serial 2, found 9"):
            Chain(fs, SLAB).refresh()

    def test_a_segment_that_lost_only_its_index_is_read(self) -> None:
        fs = slab_fs()
        chain = one_sealed(fs)
        start(chain, 2)
        fs.remove(INDEX)
        reader = Chain(fs, SLAB)
        reader.refresh()
        assert values_in(reader.handles[0].segment()) == [b"a", b"b"]

    def test_a_slab_that_ended_without_its_last_index_must_be_whole(self) -> None:
        fs = slab_fs()
        writer = start(new_chain(fs))
        lost = store(writer, rows_frame({1: [b"a"]}), sync=False)
        patch(fs, PATH, lost, b"X")
        Chain(fs, SLAB).refresh()
        chain = Chain(fs, SLAB)
        chain.refresh(ended=True)
        with pytest.raises(CorruptionError, match="a frame does not begin at this offset"):
            chain.handles[0].check_whole()

    def test_a_slab_that_ended_without_its_last_index_is_read(self) -> None:
        fs = slab_fs()
        writer = start(new_chain(fs), structure=b"s0")
        store(writer, rows_frame({1: [b"a"]}, edges=b"e1"))
        assert Chain(fs, SLAB).refresh(ended=True) == [b"s0", b"e1"]

    @pytest.mark.parametrize(
        ("serial", "number"), [(0, 0), (1, 0), (2, 1), (6, 1), (7, 2), (1000, 2)]
    )
    def test_a_serial_leads_to_the_segment_that_may_hold_it(self, serial: int, number: int) -> None:
        chain = Chain(slab_fs(), SLAB)
        chain.handles = tuple(
            SegmentHandle(slab_fs(), segment_path(SLAB, base)) for base in (0, 2, 7)
        )
        assert chain.handle_at_serial(serial) == number

    def test_in_a_chain_of_no_segments_a_serial_leads_to_the_first(self) -> None:
        assert Chain(slab_fs(), SLAB).handle_at_serial(5) == 0


def test_every_segment_says_which_slab_it_belongs_to() -> None:
    fs = slab_fs()
    start(new_chain(fs), 42)
    data = memoryview(fs.read(segment_path(SLAB, 42)))
    assert SegmentHeader.decode(data, PATH) == SegmentHeader(
        database="plant",
        shard=3,
        generation=7,
        base_serial=42,
        file_bytes=SEGMENT_BYTES,
        created_us=NOW_US,
        seed=SEED,
        packs=True,
    )
