from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import replace

import pytest

from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.log.check.findings import End, Expected, Survey
from siltstone.store.log.check.soundness import TopicRules
from siltstone.store.log.check.survey import survey_segment
from siltstone.store.segment.body import encode_state
from siltstone.store.segment.chain import seal_segment, state_header
from siltstone.store.segment.frame import HOLE, PLAIN, FrameHeader
from siltstone.store.segment.segment import SEGMENT_HEADER_BYTES, segment_path
from siltstone.store.segment.writer import SegmentWriter
from siltstone.topic.structure import NEVER, Structure
from tests.support.damage import patch
from tests.support.frames import (
    NOW_US,
    SLAB,
    Frame,
    new_segment,
    rows_frame,
    slab_fs,
    store,
)
from tests.support.learned import EXPECTED, RECORD, learned_frame

PATH = segment_path(SLAB, 0)
EMPTY = Structure([NEVER]).export()
VISIBLE, SYNCED, RESERVED = 2048, 2112, 2176


class Bench:
    """A segment under a walk: frames of two rows each on topics t/1, t/2, …"""

    def __init__(self, frames: int = 0, *, sync: Iterable[int] = range(100)) -> None:
        self.fs: MemoryFileSystem = slab_fs()
        self.structure = Structure([NEVER])
        self.writer: SegmentWriter = new_segment(self.fs, edges=EMPTY)
        self.places: list[range] = []
        for number in range(frames):
            self.add(sync=number in sync)

    def add(self, *, sync: bool = True) -> None:
        number = len(self.places)
        topics = [b"t/%d" % number, b"u"]
        frame = learned_frame(
            self.structure, topics, serial=2 * number, timestamp_us=NOW_US + 2 * number
        )
        self.put(frame, sync=sync)

    def put(self, frame: Frame, *, sync: bool = True) -> None:
        start = store(self.writer, frame, sync=sync)
        self.places.append(range(start, self.writer.end_position))

    def seal(self) -> None:
        seal_segment(self.fs, self.writer.segment, structure=self.structure.export(), producers=b"")

    def zero(self, *numbers: int) -> None:
        for number in numbers:
            place = self.places[number]
            patch(self.fs, PATH, place.start, bytes(len(place)))

    def cell(self, offset: int, value: int) -> None:
        patch(self.fs, PATH, offset, struct.pack("<Q", value))

    def walk(self, expected: Expected = EXPECTED) -> Survey:
        return survey_segment(self.fs, PATH, expected, TopicRules())


def problems(survey: Survey) -> list[tuple[int, str, str]]:
    return [(found.offset, found.severity, found.problem) for found in survey.findings]


def ranges(survey: Survey) -> list[tuple[int, int, int, int, bool]]:
    return [
        (item.start, item.stop, item.first_serial, item.rows, item.at_most)
        for item in survey.damages
    ]


class TestSound:
    def test_nothing_is_found_in_a_sound_segment_and_all_is_known_of_it(self) -> None:
        bench = Bench(3)
        survey = bench.walk()
        assert (survey.findings, survey.rows) == ([], 6)
        assert survey.segment is not None
        assert survey.segment.index.summary() == bench.writer.segment.index.summary()
        assert survey.end() == End(
            next_serial=6,
            last_timestamp_us=NOW_US + 5,
            structure=bench.structure.export(),
            producers=b"",
            has_holes=False,
        )

    def test_producers_are_those_of_all_frames(self) -> None:
        bench = Bench()
        producer = b"a" * 16 + struct.pack("<Q", 4)
        bench.put(learned_frame(bench.structure, [b"t"], producers=producer))
        bench.put(learned_frame(bench.structure, [b"t"], serial=1, timestamp_us=NOW_US + 1))
        end = bench.walk().end()
        assert end is not None
        assert end.producers == producer


class TestDamage:
    @pytest.mark.parametrize("sealed", [False, True])
    def test_a_bad_frame_is_passed_and_the_next_is_entered(self, sealed: bool) -> None:
        bench = Bench(3)
        if sealed:
            bench.seal()
        bench.zero(1)
        survey = bench.walk()
        place = bench.places[1]
        assert ranges(survey) == [(place.start, place.stop, 2, 2, False)]
        assert problems(survey) == [
            (
                place.start,
                "damage",
                "a frame is missing; 2 rows are lost: serials 2 to 3",
            )
        ]
        assert survey.rows == 4
        assert survey.damages[0].timestamp_us == NOW_US + 1

    def test_an_index_tells_two_bad_frames_apart(self) -> None:
        bench = Bench(4)
        bench.seal()
        bench.zero(1, 2)
        first, second = bench.places[1:3]
        assert ranges(bench.walk()) == [
            (first.start, first.stop, 2, 2, False),
            (second.start, second.stop, 4, 2, False),
        ]

    def test_without_an_index_they_are_one(self) -> None:
        bench = Bench(4)
        bench.zero(1, 2)
        assert ranges(bench.walk()) == [(bench.places[1].start, bench.places[2].stop, 2, 4, False)]

    def test_what_later_frames_lack_is_not_held_against_them(self) -> None:
        bench = Bench(3)
        bench.zero(0)
        assert len(bench.walk().findings) == 1

    def test_the_last_bad_frame_is_as_long_as_what_was_synced(self) -> None:
        bench = Bench(3)
        place = bench.places[2]
        patch(bench.fs, PATH, place.start + 4, b"\xff")
        assert ranges(bench.walk()) == [(place.start, place.stop, 4, 2, False)]

    def test_of_the_last_frame_without_a_header_only_a_bound_is_known(self) -> None:
        bench = Bench(3)
        bench.zero(2)
        place = bench.places[2]
        assert ranges(bench.walk()) == [(place.start, place.stop, 4, len(place), True)]

    def test_the_next_segment_tells_how_many_rows_the_last_frame_had(self) -> None:
        bench = Bench(3)
        bench.zero(2)
        expected = replace(EXPECTED, closed=True, next_base=6)
        place = bench.places[2]
        assert ranges(bench.walk(expected)) == [(place.start, place.stop, 4, 2, False)]

    def test_noise_where_rows_should_be_is_damage_in_a_segment_that_others_follow(self) -> None:
        bench = Bench(2)
        end = bench.writer.end_position
        patch(bench.fs, PATH, end, b"!" * 70)
        expected = replace(EXPECTED, closed=True, next_base=9)
        assert ranges(bench.walk(expected)) == [(end, end + 72, 4, 5, False)]

    def test_a_frame_of_an_older_serial_is_bad(self) -> None:
        bench = Bench(2)
        bench.put(rows_frame({1: [b"a"]}, serial=1))
        place = bench.places[2]
        assert ranges(bench.walk()) == [(place.start, place.stop, 4, 1, False)]

    @pytest.mark.parametrize(
        "frame",
        [
            rows_frame({1: [b"a"]}, timestamp_us=NOW_US),
            rows_frame({1: [b"a"]}, timestamp_us=NOW_US, edges=b"nonsense"),
        ],
        ids=["unknown stream", "edges that are none"],
    )
    def test_a_whole_frame_that_makes_no_sense_is_bad(self, frame: Frame) -> None:
        bench = Bench()
        bench.put(frame)
        bench.add()
        place = bench.places[0]
        assert ranges(bench.walk())[0] == (place.start, place.stop, 0, 1, False)


class TestTail:
    def test_an_unsynced_bad_frame_is_torn_and_so_is_what_follows(self) -> None:
        bench = Bench(4, sync=[0])
        patch(bench.fs, PATH, bench.places[2].start + 70, b"\xff")
        survey = bench.walk()
        start = bench.places[2].start
        used = len(bench.fs.read(PATH).rstrip(b"\0"))
        problem = f"torn tail of {used - start} bytes; the next writer removes it"
        assert problems(survey) == [(start, "note", problem)]
        assert (survey.rows, survey.damages) == (4, [])

    def test_a_later_frame_that_knows_it_as_synced_makes_it_damage(self) -> None:
        bench = Bench(4)
        bench.cell(SYNCED, bench.places[1].start)
        bench.zero(1)
        place = bench.places[1]
        assert ranges(bench.walk()) == [(place.start, place.stop, 2, 2, False)]

    @pytest.mark.parametrize("closed", [False, True])
    def test_bytes_behind_the_end_are_damage_once_nothing_more_is_written(
        self, closed: bool
    ) -> None:
        bench = Bench(2)
        bench.seal()
        end = bench.writer.end_position
        patch(bench.fs, PATH, end, b"abc")
        survey = bench.walk(replace(EXPECTED, closed=closed))
        assert problems(survey) == [(end, "damage", "3 bytes follow the last frame")]
        assert survey.behind == range(end, end + 3)

    def test_what_stands_behind_a_hole_that_a_power_cut_left_is_seen(self) -> None:
        bench = Bench(1)
        end = bench.writer.end_position
        patch(bench.fs, PATH, 60_000, b"x")
        problem = f"torn tail of {60_001 - end} bytes; the next writer removes it"
        assert problems(bench.walk()) == [(end, "note", problem)]


class TestCells:
    @pytest.mark.parametrize(
        ("cell", "value", "name"),
        [
            (SYNCED, 0, "synced position"),
            (SYNCED, 4097, "synced position"),
            (SYNCED, 1 << 40, "synced position"),
            (VISIBLE, 0, "visible position"),
            (VISIBLE, 4104, "visible position"),
            (RESERVED, 1 << 40, "reserved serial"),
        ],
    )
    def test_what_cannot_be_true_is_told(self, cell: int, value: int, name: str) -> None:
        bench = Bench(2)
        bench.cell(cell, value)
        survey = bench.walk()
        assert problems(survey) == [(0, "damage", f"the {name} in the header is invalid")]
        assert survey.bad_cells

    def test_frames_that_readers_do_not_see_yet_are_noted(self) -> None:
        bench = Bench(2)
        bench.cell(VISIBLE, bench.places[1].start)
        survey = bench.walk()
        problem = "readers do not see the last frames until a writer opens the database"
        assert problems(survey) == [(bench.places[1].start, "note", problem)]
        assert survey.rows == 4


class TestPlace:
    def test_a_gap_in_the_serials_is_told(self) -> None:
        bench = Bench(1)
        bench.put(learned_frame(bench.structure, [b"u"], serial=4, timestamp_us=NOW_US + 2))
        assert problems(bench.walk()) == [
            (bench.places[1].start, "damage", "expected serial 2, found 4")
        ]

    def test_a_frame_that_is_not_later_is_told(self) -> None:
        bench = Bench(1)
        bench.put(learned_frame(bench.structure, [b"u"], serial=2, timestamp_us=NOW_US + 1))
        assert problems(bench.walk()) == [
            (
                bench.places[1].start,
                "damage",
                "the frame is not later than the frame before it",
            )
        ]

    def test_a_frame_outside_the_time_of_its_slab_is_told(self) -> None:
        bench = Bench(2)
        record = replace(RECORD, until_us=NOW_US + 3)
        assert problems(bench.walk(replace(EXPECTED, record=record))) == [
            (
                bench.places[1].start,
                "damage",
                "the frame is outside the time span of its slab",
            )
        ]

    def test_a_segment_must_begin_with_a_state(self) -> None:
        bench = Bench(1)
        body, sections = encode_state(EMPTY, b"")
        header = FrameHeader(
            kind=HOLE,
            compression=PLAIN,
            section_count=sections,
            first_serial=0,
            row_count=0,
            stream_count=0,
            first_timestamp_us=NOW_US - 1,
            last_timestamp_us=NOW_US - 1,
            body_bytes=len(body),
        )
        writer = bench.writer
        with bench.fs.open(PATH, writable=True) as file:
            raw = SegmentWriter(file, writer.segment, allocated=65536)
            raw._end = SEGMENT_HEADER_BYTES  # noqa: SLF001 - nothing else overwrites a frame
            raw.write(header, body, [])
        assert problems(bench.walk())[0] == (
            4096,
            "damage",
            "the first frame must be a state frame",
        )

    def test_a_state_may_leave_serials_out(self) -> None:
        bench = Bench(1)
        body, sections = encode_state(bench.structure.export(), b"")
        header = state_header(body, sections, serial=50, timestamp_us=NOW_US + 1)
        bench.put(Frame(header, body, []))
        bench.put(learned_frame(bench.structure, [b"u"], serial=50, timestamp_us=NOW_US + 2))
        assert bench.walk().findings == []

    def test_a_state_that_is_not_that_of_the_frames_before_it_is_told(self) -> None:
        bench = Bench(1)
        body, sections = encode_state(EMPTY, b"")
        header = state_header(body, sections, serial=2, timestamp_us=NOW_US + 1)
        bench.put(Frame(header, body, []))
        problem = "the state does not match the frames before it"
        assert problems(bench.walk()) == [(bench.places[1].start, "damage", problem)]

    @pytest.mark.parametrize("has_holes", [False, True])
    def test_the_first_state_is_that_of_the_segment_before(self, has_holes: bool) -> None:
        bench = Bench(1)
        other = Structure([NEVER])
        other.learn(b"other")
        before = End(
            next_serial=0,
            last_timestamp_us=NOW_US - 1,
            structure=other.export(),
            producers=b"",
            has_holes=has_holes,
        )
        problem = "the state does not match the frames before it"
        assert problems(bench.walk(replace(EXPECTED, before=before))) == (
            [] if has_holes else [(4096, "damage", problem)]
        )

    def test_a_hole_is_noted_and_its_rows_are_not_counted(self) -> None:
        bench = Bench(1)
        time_us = NOW_US + 1
        hole = FrameHeader(
            kind=HOLE,
            compression=PLAIN,
            section_count=0,
            first_serial=2,
            row_count=5,
            stream_count=0,
            first_timestamp_us=time_us,
            last_timestamp_us=time_us,
            body_bytes=0,
        )
        bench.put(Frame(hole, b"", []))
        bench.put(learned_frame(bench.structure, [b"u"], serial=7, timestamp_us=NOW_US + 9))
        survey = bench.walk()
        assert problems(survey) == [
            (bench.places[1].start, "note", "hole: 5 rows are lost: serials 2 to 6")
        ]
        assert (survey.rows, survey.has_holes) == (3, True)
