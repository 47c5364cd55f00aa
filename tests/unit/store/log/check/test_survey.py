from __future__ import annotations

from dataclasses import replace

import pytest

from siltstone.store.log.check.findings import Finding, Survey
from siltstone.store.log.check.soundness import TopicRules
from siltstone.store.log.check.survey import NAME_TAKEN, load_index, survey_segment
from siltstone.store.segment.chain import seal_segment
from siltstone.store.segment.index import SegmentIndex, encode_index
from siltstone.store.segment.segment import SegmentHeader, segment_path
from siltstone.store.segment.sift import index_path
from siltstone.store.segment.writer import SegmentWriter
from siltstone.topic.structure import NEVER, Structure
from tests.support.damage import patch
from tests.support.frames import (
    NOW_US,
    SLAB,
    new_segment,
    segment_header,
    slab_fs,
    store,
)
from tests.support.learned import EXPECTED, learned_frame

PATH = segment_path(SLAB, 0)
INDEX = index_path(PATH)


class Sealed:
    """A segment with two frames, and the index of another shape where a test asks for it."""

    def __init__(self) -> None:
        self.fs = slab_fs()
        self.structure = Structure([NEVER])
        self.writer: SegmentWriter = new_segment(self.fs, edges=self.structure.export())
        for number in range(2):
            topics = [b"t", b"u/%d" % number]
            frame = learned_frame(
                self.structure, topics, serial=2 * number, timestamp_us=NOW_US + 2 * number
            )
            store(self.writer, frame)

    def seal(self, *, structure: bytes | None = None, producers: bytes = b"") -> None:
        seal_segment(
            self.fs,
            self.writer.segment,
            structure=self.structure.export() if structure is None else structure,
            producers=producers,
        )

    def survey(self, *, closed: bool = True) -> Survey:
        expected = replace(EXPECTED, closed=closed)
        return survey_segment(self.fs, PATH, expected, TopicRules())


def index_problem(problem: str) -> list[Finding]:
    return [Finding(path=INDEX, offset=0, problem=problem)]


class TestHeader:
    @pytest.mark.parametrize(
        ("header", "problem"),
        [
            (segment_header(shard=4), "its shard is 4, not 3"),
            (segment_header(generation=8), "its generation is 8, not 7"),
            (segment_header(base_serial=5), "its base serial is 5, not 0"),
            (replace(segment_header(), seed=1), "its seed is 1, not 1592651789"),
            (replace(segment_header(), database="x"), "its database is 'x', not 'plant'"),
        ],
    )
    def test_a_segment_of_another_slab_is_none_of_this(
        self, header: SegmentHeader, problem: str
    ) -> None:
        sealed = Sealed()
        patch(sealed.fs, PATH, 0, header.encode(end=4096)[:2048])
        survey = sealed.survey()
        assert (survey.segment, survey.end()) == (None, None)
        assert survey.findings == [
            Finding(path=PATH, offset=0, problem=f"the segment belongs to another slab: {problem}")
        ]

    def test_a_header_that_cannot_be_read_leaves_no_segment(self) -> None:
        sealed = Sealed()
        patch(sealed.fs, PATH, 20, b"\xff")
        survey = sealed.survey()
        assert survey.segment is None
        problem = "the header of the segment does not match its checksum"
        assert survey.findings == [Finding(path=PATH, offset=0, problem=problem)]


class TestIndex:
    def test_an_index_that_tells_what_a_scan_finds_is_sound(self) -> None:
        sealed = Sealed()
        sealed.seal()
        assert sealed.survey().findings == []

    def test_a_segment_that_others_follow_must_have_one(self) -> None:
        sealed = Sealed()
        assert sealed.survey(closed=True).findings == index_problem("the index is missing")
        assert sealed.survey(closed=False).findings == []

    @pytest.mark.parametrize("closed", [False, True])
    def test_a_damaged_one_is_told_wherever_it_is(self, closed: bool) -> None:
        sealed = Sealed()
        sealed.seal()
        patch(sealed.fs, INDEX, 100, b"\xff")
        assert sealed.survey(closed=closed).findings == index_problem(
            "the index does not match its checksum"
        )

    @pytest.mark.parametrize("name", ["structure", "producers"])
    def test_what_it_says_at_its_end_is_compared(self, name: str) -> None:
        sealed = Sealed()
        if name == "structure":
            sealed.seal(structure=b"")
        else:
            sealed.seal(producers=bytes(24))
        assert sealed.survey().findings == index_problem(
            f"the index does not match its segment: {name}"
        )

    @pytest.mark.parametrize(
        ("column", "problem"),
        [
            ("serials", "serials"),
            ("first_times", "first times"),
            ("last_times", "last times"),
            ("row_counts", "row counts"),
        ],
    )
    def test_every_column_is_compared(self, column: str, problem: str) -> None:
        sealed = Sealed()
        getattr(sealed.writer.segment.index, column)[2] += 1
        sealed.seal()
        assert sealed.survey().findings == index_problem(
            f"the index does not match its segment: {problem}"
        )

    def test_the_rows_of_streams_are_compared(self) -> None:
        sealed = Sealed()
        rows = sealed.writer.segment.index.stream_rows
        rows[next(iter(rows))] += 1
        sealed.seal()
        assert sealed.survey().findings == index_problem(
            "the index does not match its segment: rows by stream"
        )

    def test_the_frames_of_streams_are_compared(self) -> None:
        sealed = Sealed()
        stream = Structure([NEVER]).learn(b"t").stream.id
        index = sealed.writer.segment.index
        index.set_frames(stream, [1, 1], index.stream_rows[stream])
        sealed.seal()
        assert sealed.survey().findings == index_problem(
            "the index does not match its segment: frames by stream"
        )

    @pytest.mark.parametrize("next_serial", [3, 5])
    def test_a_next_serial_that_was_not_reserved_is_told(self, next_serial: int) -> None:
        sealed = Sealed()
        sealed.writer.segment.index.next_serial = next_serial
        sealed.seal()
        assert sealed.survey().findings == index_problem(
            "the index does not match its segment: next serial"
        )

    def test_a_next_serial_that_was_reserved_is_right(self) -> None:
        sealed = Sealed()
        sealed.writer.reserve(9)
        sealed.writer.segment.index.next_serial = 9
        sealed.seal()
        survey = sealed.survey()
        end = survey.end()
        assert end is not None
        assert (survey.findings, end.next_serial) == ([], 9)

    def test_one_that_ends_before_the_segment_is_not_believed(self) -> None:
        sealed = Sealed()
        sealed.seal()
        store(
            sealed.writer,
            learned_frame(sealed.structure, [b"t"], serial=4, timestamp_us=NOW_US + 9),
        )
        survey = sealed.survey()
        assert survey.findings == index_problem("index ends before the last frame of the segment")
        assert survey.rows == 5

    def test_one_of_another_segment_is_told(self) -> None:
        sealed = Sealed()
        other = SegmentIndex(first_serial=7, end_position=sealed.writer.end_position)
        with sealed.fs.create(INDEX) as file:
            file.write(encode_index(other, structure=b"", producers=b""))
        assert sealed.survey().findings == index_problem(
            "the index does not match its segment: first serial"
        )


class TestLoad:
    def test_no_index_is_no_problem_yet(self) -> None:
        assert load_index(Sealed().fs, PATH) == (None, "")

    def test_an_empty_file_is_a_problem(self) -> None:
        sealed = Sealed()
        sealed.fs.create(INDEX).close()
        assert load_index(sealed.fs, PATH) == (None, "the index is empty")

    def test_a_directory_of_its_name_is_a_problem(self) -> None:
        sealed = Sealed()
        sealed.fs.make_directory(INDEX)
        assert load_index(sealed.fs, PATH) == (None, NAME_TAKEN)
