from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import pyarrow as pa
import pytest

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.store.log.read.pieces import Batch, Piece
from siltstone.store.log.read.scan import Span
from siltstone.store.log.read.selection import (
    BoundStream,
    RunReader,
    Wanted,
    choose_frames,
    extent_of,
    list_frames,
    stream_ids,
    want,
)
from siltstone.store.log.slab import Slab
from siltstone.store.log.write.committer import Committer
from siltstone.store.slab.manifest import SlabId
from siltstone.topic.grammar import TopicFilter
from tests.support.builders import NOW_US, PATH, SEGMENT_BYTES, World, begun, call_on, naive_match
from tests.support.pieces import run_of

EVERYTHING = range(1 << 62)
FRAME_SERIALS = [(0, 3), (3, 5), (5, 9)]
FRAMES = (("s/a", "a", "s/b"), ("a", "s/c"), ("s/a", "s/b", "b", "$d"))


def committed(*frames: tuple[str, ...], **changes: Any) -> tuple[World, Committer]:
    """Begin a slab in which the first level never varies and all others do, a call a frame."""
    world = World()
    committer = begun(world, **({"thresholds": (-1, 0)} | changes))
    for topics in frames:
        committer.commit([call_on(*topics)])
    return world, committer


def parsed(*filters: str) -> list[TopicFilter]:
    return [TopicFilter.parse(text) for text in filters]


def pieces(
    world: World,
    slab: Slab,
    *filters: str,
    span: Span | None = None,
    serials: range = EVERYTHING,
) -> list[Piece]:
    span = span or Span()
    wanted = want(slab, parsed(*filters))
    reader = RunReader(world.fs, PATH, wanted, span)
    return [
        cast("Piece", part)  # a run of one frame
        for place in list_frames(slab, wanted, span, serials)
        for part in reader.read(
            run_of(
                place,
                start_serial=max(place.first_serial, serials.start),
                stop_serial=min(place.stop_serial, serials.stop),
            )
        )
    ]


def topics(found: list[Piece]) -> list[str]:
    return [topic for piece in found for topic in piece.column("topic").to_pylist()]


def by_pattern(slab: Slab) -> dict[bytes, int]:
    return {match.stream.pattern: match.stream.id for match in slab.match(parsed("#")[0])}


def test_what_filters_want_of_a_stream_is_told_once() -> None:
    _, committer = committed(*FRAMES)
    ids = by_pattern(committer.slab)
    assert want(committer.slab, parsed("s/a", "a", "s/b", "s/a/x")) == Wanted(
        whole=frozenset({ids[b"a"]}),
        bound=(
            BoundStream(stream_id=ids[b"s/+"], levels=(b"s", b"+"), constraints=((b"a",), (b"b",))),
        ),
    )


def test_a_stream_that_is_wanted_whole_is_not_searched() -> None:
    _, committer = committed(*FRAMES)
    ids = by_pattern(committer.slab)
    assert want(committer.slab, parsed("s/a", "s/+")) == Wanted(
        whole=frozenset({ids[b"s/+"]}), bound=()
    )


@pytest.mark.parametrize(
    ("filters", "numbers"),
    [
        (("#",), [0, 1, 2]),
        (("b",), [2]),
        (("$d",), [2]),
        (("nothing",), []),
        (("a", "b"), [0, 1, 2]),
    ],
    ids=str,
)
def test_frames_are_chosen_by_the_streams_they_hold(
    filters: tuple[str, ...], numbers: list[int]
) -> None:
    _, committer = committed(*FRAMES)
    slab = committer.slab
    places = list(list_frames(slab, want(slab, parsed(*filters)), Span(), EVERYTHING))
    assert [FRAME_SERIALS.index((place.first_serial, place.stop_serial)) for place in places] == (
        numbers
    )


def test_frames_stand_one_behind_the_other() -> None:
    _, committer = committed(*FRAMES)
    slab = committer.slab
    places = list(list_frames(slab, want(slab, parsed("#")), Span(), EVERYTHING))
    assert [before.end for before, _ in pairwise(places)] == [
        after.position for _, after in pairwise(places)
    ]
    assert places[-1].end == slab.handles()[0].segment().index.end_position


@pytest.mark.parametrize("start", range(10))
@pytest.mark.parametrize("stop", range(10))
def test_frames_are_chosen_by_serials(start: int, stop: int) -> None:
    _, committer = committed(*FRAMES)
    slab = committer.slab
    places = list_frames(slab, want(slab, parsed("#")), Span(), range(start, stop))
    assert [(place.first_serial, place.stop_serial) for place in places] == [
        (first, end) for first, end in FRAME_SERIALS if max(first, start) < min(end, stop)
    ]


@pytest.mark.parametrize(
    ("since", "until", "numbers"),
    [(0, None, [0, 1, 2]), (3, None, [1, 2]), (2, 3, [0]), (5, 6, [2]), (9, None, []), (0, 0, [])],
)
def test_frames_are_chosen_by_time(since: int, until: int | None, numbers: list[int]) -> None:
    _, committer = committed(*FRAMES)
    slab = committer.slab
    span = Span(since_us=NOW_US + since, until_us=None if until is None else NOW_US + until)
    places = list_frames(slab, want(slab, parsed("#")), span, EVERYTHING)
    assert [FRAME_SERIALS.index((place.first_serial, place.stop_serial)) for place in places] == (
        numbers
    )


def test_frames_are_complete_when_every_stream_of_their_segment_is_wanted_whole() -> None:
    _, committer = committed(*FRAMES)
    slab = committer.slab

    def complete(*filters: str) -> set[bool]:
        wanted = want(slab, parsed(*filters))
        return {place.complete for place in list_frames(slab, wanted, Span(), EVERYTHING)}

    assert [complete("#", "$d"), complete("#"), complete("#", "$d", "s/a"), complete("s/a")] == [
        {True},
        {False},
        {True},
        {False},
    ]


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize(
    "filters",
    [
        *(("#",), ("#", "$d"), ("s/a",), ("s/a", "s/b"), ("s/a", "s/b", "s/c"), ("s/+", "s/a")),
        *(("a", "s/c"), ("$d",), ("s/#", "b"), ("s/nothing",), ("s/nothing", "s/none")),
    ],
    ids=str,
)
def test_a_run_has_each_row_that_any_filter_matches_once(
    filters: tuple[str, ...], compression: str
) -> None:
    world, committer = committed(*FRAMES, compression=compression)
    found = pieces(world, committer.slab, *filters)
    expected = [
        sorted(topic for topic in frame if any(naive_match(text, topic) for text in filters))
        for frame in FRAMES
    ]
    assert [sorted(topics([piece])) for piece in found] == [rows for rows in expected if rows]
    serials = [serial for piece in found for serial in piece.column("serial").to_pylist()]
    assert serials == sorted(set(serials))


@pytest.mark.parametrize("filters", [("#", "$d"), ("s/a", "a")], ids=["complete", "picked"])
def test_a_run_is_cut_to_its_serials(filters: tuple[str, ...]) -> None:
    world, committer = committed(*FRAMES)
    whole = [
        serial
        for piece in pieces(world, committer.slab, *filters)
        for serial in piece.column("serial").to_pylist()
    ]
    for start in range(10):
        for stop in range(10):
            found = pieces(world, committer.slab, *filters, serials=range(start, stop))
            serials = [s for piece in found for s in piece.column("serial").to_pylist()]
            assert serials == [serial for serial in whole if start <= serial < stop]


@pytest.mark.parametrize("filters", [("#", "$d"), ("s/a", "a")], ids=["complete", "picked"])
def test_a_run_is_cut_to_a_span(filters: tuple[str, ...]) -> None:
    world, committer = committed(*FRAMES)
    whole = [
        (time, topic)
        for piece in pieces(world, committer.slab, *filters)
        for time, topic in zip(
            piece.frame.timestamps(0, piece.frame.header.row_count)
            .take(piece.chosen(_rows(piece)))
            .to_pylist(),
            piece.column("topic").to_pylist(),
            strict=True,
        )
    ]
    for since in range(-1, 10):
        for until in [None, *range(-1, 10)]:
            span = Span(since_us=NOW_US + since, until_us=None if until is None else NOW_US + until)
            found = pieces(world, committer.slab, *filters, span=span)
            assert sorted(topics(found)) == sorted(
                topic
                for time, topic in whole
                if time >= span.since_us and (span.until_us is None or time < span.until_us)
            )


def _rows(piece: Piece) -> Any:
    return pa.arange(piece.start, piece.stop)


def test_rows_know_their_streams() -> None:
    world, committer = committed(*FRAMES)
    slab = committer.slab
    ids = {match.stream.id: match.stream.pattern for match in slab.match(parsed("#")[0])}
    ids |= {match.stream.id: match.stream.pattern for match in slab.match(parsed("$d")[0])}
    for filters in (("#", "$d"), ("s/a", "$d"), ("b",)):
        for piece in pieces(world, slab, *filters):
            patterns = [ids[number % (1 << 64)] for number in stream_ids(piece).to_pylist()]
            for pattern, topic in zip(patterns, topics([piece]), strict=True):
                assert pattern == (b"s/+" if topic.startswith("s/") else topic.encode())


def test_runs_reach_over_segments() -> None:
    world, committer = committed()
    for number in range(9):
        call = call_on(f"s/{number % 3}")
        call.batch.values = [bytes([number]) * (SEGMENT_BYTES // 4)]
        committer.commit([call])
    slab = committer.slab
    assert len(slab.handles()) == 3
    assert topics(pieces(world, slab, "s/1", "s/2")) == ["s/1", "s/2"] * 3
    assert topics(pieces(world, slab, "#", serials=range(4, 8))) == ["s/1", "s/2", "s/0", "s/1"]


def test_frames_beside_each_other_are_read_as_one_run() -> None:
    world, committer = committed(*FRAMES)
    slab = committer.slab
    wanted = want(slab, parsed("s/+"))
    places = list(list_frames(slab, wanted, Span(), EVERYTHING))
    run = run_of(places[0], end=places[-1].end, start_serial=1, stop_serial=8)
    found = list(RunReader(world.fs, PATH, wanted, Span()).read(run))
    rows = [row for piece in found for row in Batch([piece], piece.num_rows).rows()]
    everything = [
        row for piece in pieces(world, slab, "s/+") for row in Batch([piece], piece.num_rows).rows()
    ]
    assert rows == [row for row in everything if 1 <= row.serial < 8]


def test_a_slab_tells_what_it_covers_and_a_choice_how_much_there_is() -> None:
    _, committer = committed(*FRAMES)
    slab = committer.slab
    extent = extent_of(slab)
    assert (extent.slab, extent.serials, extent.since_us, extent.until_us) == (
        SlabId(0, 1),
        range(9),
        NOW_US,
        None,
    )
    choice = choose_frames(slab, parsed("s/+"), Span(), EVERYTHING)
    assert (choice.frame_count, choice.stream_count, len(list(choice.frames))) == (4, 4, 3)
    assert choice.size_bytes == slab.handles()[0].segment().index.end_position
    assert choice.whole_share == 5 / 9


def test_an_empty_slab_covers_nothing() -> None:
    _, committer = committed()
    assert extent_of(committer.slab).serials == range(0)
    assert list(choose_frames(committer.slab, parsed("#"), Span(), EVERYTHING).frames) == []


def test_a_damaged_frame_is_told_with_its_place() -> None:
    world, committer = committed(*FRAMES)
    slab = committer.slab
    wanted = want(slab, parsed("#"))
    place = list(list_frames(slab, wanted, Span(), EVERYTHING))[1]
    path = slab.handles()[0].path
    with world.fs.open(path, writable=True) as file:
        file.write_at(place.position + 40, b"\xff")
    with pytest.raises(CorruptionError, match=r"checksum.*offset=\d+") as caught:
        list(RunReader(world.fs, PATH, wanted, Span()).read(run_of(place)))
    assert (caught.value.path, caught.value.offset) == (path, place.position)


@pytest.mark.parametrize("changes", [{"first_serial": 1}, {"end": SEGMENT_BYTES}], ids=str)
def test_a_run_that_does_not_fit_the_segment_is_refused(changes: dict[str, int]) -> None:
    world, committer = committed(*FRAMES)
    slab = committer.slab
    wanted = want(slab, parsed("#"))
    place = next(list_frames(slab, wanted, Span(), EVERYTHING))
    with pytest.raises(CorruptionError, match="the segment changed after the read was planned"):
        list(RunReader(world.fs, PATH, wanted, Span()).read(run_of(place, **changes)))


def test_a_segment_that_is_gone_is_not_found() -> None:
    world, committer = committed(*FRAMES)
    wanted = want(committer.slab, parsed("#"))
    place = next(list_frames(committer.slab, wanted, Span(), EVERYTHING))
    with pytest.raises(NotFoundError):
        list(RunReader(world.fs, PATH, wanted, Span()).read(run_of(place, base_serial=7)))
