from __future__ import annotations

import pytest

from siltstone.store.log.check.findings import Damage
from siltstone.store.log.check.restore import LEVELS_TRIED_MAX, Fill, Patch, Restorer, find_levels
from siltstone.store.segment.body import encode_state
from siltstone.store.segment.frame import EDGES, HEADER_BYTES, HOLE, PRODUCERS, STATE
from siltstone.store.segment.segment import SEGMENT_HEADER_BYTES, Segment
from siltstone.topic.edges import path_edges
from siltstone.topic.structure import NEVER, Structure
from tests.support.frames import (
    NOW_US,
    Frame,
    frame_bytes,
    header_fields,
    new_segment,
    slab_fs,
    store,
    view_of,
)
from tests.support.learned import learned_frame

EMPTY = Structure([NEVER]).export()


def damage(start: int, stop: int, *, serial: int = 0, rows: int = 0) -> Damage:
    return Damage(
        start=start,
        stop=stop,
        first_serial=serial,
        rows=rows,
        timestamp_us=NOW_US,
        reason="zeroed",
    )


class TestFindLevels:
    @pytest.mark.parametrize(
        ("pattern", "topics"),
        [
            (b"a", [b"a"]),
            (b"a/b/c", [b"a/b/c"]),
            (b"a/+/c", [b"a/b/c"]),
            (b"a/+/c", [b"a/b/c", b"a/x/c"]),
            (b"+/+/+", [b"a/b/c"]),
            (b"+", [b"a"]),
            (b"$SYS/+", [b"$SYS/x"]),
            (b"a//+", [b"a//x", b"a//"]),
        ],
    )
    def test_the_path_with_the_id_of_the_stream_is_found(
        self, pattern: bytes, topics: list[bytes]
    ) -> None:
        stream = Structure([NEVER]).insert_pattern(pattern)
        assert find_levels(stream.id, topics) == pattern.split(b"/")

    def test_a_varying_level_of_special_topics_is_found(self) -> None:
        stream = Structure([NEVER]).insert_pattern(b"+/x", special=True)
        assert find_levels(stream.id, [b"$SYS/x"]) == [b"+", b"x"]

    @pytest.mark.parametrize("topics", [[b"a/b"], [b"a", b"a/b"], [b"x"]])
    def test_no_path_has_the_id_of_another_stream(self, topics: list[bytes]) -> None:
        stream = Structure([NEVER]).insert_pattern(b"a")
        assert find_levels(stream.id, topics) is None

    def test_too_many_paths_are_not_tried(self) -> None:
        topic = b"/".join([b"x"] * (LEVELS_TRIED_MAX + 1))
        stream = Structure([NEVER]).insert_pattern(topic)
        assert find_levels(stream.id, [topic]) is None

    def test_levels_that_are_seen_to_vary_need_no_trying(self) -> None:
        words = [b"x"] * LEVELS_TRIED_MAX
        topics = [b"/".join([*words, last]) for last in (b"1", b"2")]
        stream = Structure([NEVER]).insert_pattern(b"/".join([*words, b"+"]))
        assert find_levels(stream.id, topics) == [*words, b"+"]


class TestFill:
    def written(self, patches: list[Patch], start: int) -> list[tuple[int, int, int, int, bytes]]:
        """Return position, kind, serial, rows and edges of patches, which adjoin and are whole."""
        found = []
        position = start
        for patch in patches:
            data = frame_bytes(Frame(patch.header, patch.body, []))
            frame = view_of(data)
            assert (patch.position, frame.header.length) == (position, len(data))
            position += len(data)
            fields = header_fields(frame.header)
            found.append(
                (
                    patch.position,
                    fields["kind"],
                    fields["first_serial"],
                    fields["row_count"],
                    bytes(frame.section(EDGES) or b""),
                )
            )
        return found

    def test_a_hole_takes_the_place_of_a_frame_and_keeps_its_serials(self) -> None:
        fill = Fill(damage(8192, 8392, serial=7, rows=3), b"", b"")
        (patch,) = fill.patches()
        assert self.written([patch], 8192) == [(8192, HOLE, 7, 3, b"")]
        assert HEADER_BYTES + len(patch.body) == 200
        assert (patch.header.first_timestamp_us, patch.header.last_timestamp_us) == (NOW_US, NOW_US)

    def test_a_hole_teaches_only_what_was_not_known_before(self) -> None:
        known = Structure([NEVER])
        known.apply(path_edges([b"a", b"x"], special=False))
        fill = Fill(damage(8192, 8392, serial=7, rows=3), b"", b"")
        fill.know(known.export())
        assert fill.take(path_edges([b"a", b"y"], special=False))
        before = len(known.export())
        known.apply(path_edges([b"a", b"y"], special=False))
        wanted = b"\2\0\0\0" + known.export()[before:]
        assert self.written(fill.patches(), 8192) == [(8192, HOLE, 7, 3, wanted)]

    def test_edges_for_which_there_is_no_room_are_refused(self) -> None:
        path = path_edges([b"a"], special=False)
        body, _ = encode_state(path, b"")
        tight = Fill(damage(8192, 8192 + HEADER_BYTES + len(body)), b"", b"")
        tighter = Fill(damage(8192, 8192 + HEADER_BYTES + len(body) - 8), b"", b"")
        assert (tight.take(path), tighter.take(path)) == (True, False)
        assert self.written(tighter.patches(), 8192) == [(8192, HOLE, 0, 0, b"")]

    def test_the_first_frame_becomes_a_state_again(self) -> None:
        start = SEGMENT_HEADER_BYTES
        structure = Structure([NEVER])
        structure.learn(b"a/b")
        edges = structure.export()
        fill = Fill(damage(start, start + 400), b"", b"")
        assert fill.begin_state(edges, b"p" * 24) == edges
        (patch,) = fill.patches()
        assert self.written([patch], start) == [(start, STATE, 0, 0, edges)]
        frame = view_of(frame_bytes(Frame(patch.header, patch.body, [])))
        assert bytes(frame.section(PRODUCERS) or b"") == b"p" * 24

    def test_a_state_without_room_or_unknown_begins_empty(self) -> None:
        start = SEGMENT_HEADER_BYTES
        structure = Structure([NEVER])
        structure.learn(b"a" * 500)
        for edges in (structure.export(), b""):
            fill = Fill(damage(start, start + 400), b"", b"")
            assert fill.begin_state(edges, b"") == EMPTY
            assert self.written(fill.patches(), start) == [(start, STATE, 0, 0, EMPTY)]

    def test_rows_lost_with_the_state_are_in_a_hole_behind_it(self) -> None:
        start = SEGMENT_HEADER_BYTES
        fill = Fill(damage(start, start + 400, serial=5, rows=2), b"", b"")
        fill.begin_state(EMPTY, b"")
        assert self.written(fill.patches(), start) == [
            (start, STATE, 5, 0, EMPTY),
            (start + 80, HOLE, 5, 2, b""),
        ]

    def test_more_than_a_frame_can_span_becomes_several_holes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("siltstone.store.log.check.restore.HOLE_BYTES_MAX", 1024)
        fill = Fill(damage(8192, 8192 + 1600, serial=5, rows=9), b"", b"")
        assert self.written(fill.patches(), 8192) == [
            (8192, HOLE, 5, 9, b""),
            (8192 + 512, HOLE, 14, 0, b""),
            (8192 + 1024, HOLE, 14, 0, b""),
        ]


class TestRestorer:
    def segment(self, *topics: bytes) -> tuple[Segment, list[range]]:
        """Return a segment with a frame for each topic, and where they stand."""
        writer = new_segment(slab_fs(), edges=EMPTY)
        structure = Structure([1])
        places = []
        for serial, topic in enumerate(topics):
            start = store(writer, learned_frame(structure, [topic], serial=serial))
            places.append(range(start, writer.end_position))
        return writer.segment, places

    def without(self, segment: Segment, places: list[range], *numbers: int) -> list[Damage]:
        """Take frames out of the index, as a walk leaves it; return what is damaged."""
        damages = [damage(places[n].start, places[n].stop, serial=n, rows=1) for n in numbers]
        starts = {item.start for item in damages}
        kept = [n for n, start in enumerate(segment.index.positions) if start not in starts]
        fresh = Segment(segment.path, segment.view)
        for n in kept:
            position = segment.index.positions[n]
            header = segment.header_at(position, segment.header.file_bytes)
            assert header is not None
            fresh.add(position, header)
        segment.index = fresh.index
        return damages

    def taught(self, restorer: Restorer) -> list[list[bytes]]:
        """Return the patterns that each fill teaches, upon what those before it did."""
        structure = Structure([NEVER])
        found = []
        for fill in restorer.fills:
            structure.apply(fill.edges or EMPTY)
            found.append([stream.pattern for stream in structure.streams()])
        return found

    def test_what_a_later_frame_needs_is_taught_by_the_hole_before_it(self) -> None:
        segment, places = self.segment(b"a/b", b"a/b", b"a/c")
        restorer = Restorer(segment, self.without(segment, places, 0), (EMPTY, b""))
        restorer.run()
        assert (self.taught(restorer), restorer.lost) == ([[b"a/b"]], [])

    def test_what_no_later_frame_needs_is_not_taught(self) -> None:
        segment, places = self.segment(b"a/b", b"a/c", b"x/y")
        restorer = Restorer(segment, self.without(segment, places, 2), (EMPTY, b""))
        restorer.run()
        assert (self.taught(restorer), restorer.lost) == ([[]], [])

    def test_a_frame_that_learned_upon_the_lost_one_is_read_again(self) -> None:
        segment, places = self.segment(b"a/b/1", b"a/b/2")
        restorer = Restorer(segment, self.without(segment, places, 0), (EMPTY, b""))
        restorer.run()
        assert (self.taught(restorer), restorer.lost) == ([[b"a/b/+"]], [])

    def test_a_frame_that_no_hole_can_teach_is_lost_too(self) -> None:
        deep = b"/".join([b"x"] * (LEVELS_TRIED_MAX + 2))
        segment, places = self.segment(deep, deep, b"a")
        restorer = Restorer(segment, self.without(segment, places, 0), (EMPTY, b""))
        restorer.run()
        assert [
            (item.start, item.stop, item.first_serial, item.rows) for item in restorer.lost
        ] == [(places[1].start, places[1].stop, 1, 1)]
        again = Restorer(
            segment,
            [*self.without(segment, places, 0), *restorer.lost],
            (EMPTY, b""),
        )
        again.run()
        assert again.lost == []

    def test_a_lost_state_is_what_the_segment_before_ended_with(self) -> None:
        state = Structure([NEVER])
        state.learn(b"q")
        writer = new_segment(slab_fs(), edges=state.export())
        segment = writer.segment
        place = range(SEGMENT_HEADER_BYTES, writer.end_position)
        self.without(segment, [place], 0)
        restorer = Restorer(segment, [damage(place.start, place.stop)], (state.export(), b""))
        restorer.run()
        assert self.taught(restorer) == [[b"q"]]
