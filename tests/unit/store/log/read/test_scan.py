from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from siltstone.store.log.read.pieces import Batch
from siltstone.store.log.read.scan import (
    Span,
    Status,
    StreamRead,
    count_rows,
    read_slab,
    read_stream,
)
from siltstone.store.log.slab import Slab
from siltstone.store.log.write.committer import Committer
from siltstone.store.segment.index import SegmentIndex
from siltstone.store.segment.segment import Segment
from siltstone.topic.grammar import TopicFilter
from tests.support.builders import (
    NOW_US,
    SEGMENT_BYTES,
    World,
    begun,
    call_on,
    naive_match,
    new_database,
    read_topics,
    rows_on,
)

# One stream `s/+`, two frames; the serial of a row is also how many µs after NOW_US it came.
FRAMES = (("s/a", "s/b"), ("s/a", "s/b"))


def committed(*frames: tuple[str, ...], **changes: Any) -> Committer:
    """Begin a slab in which the first level never varies and all others do, a call a frame."""
    committer = begun(World(), **({"thresholds": (-1, 0)} | changes))
    for topics in frames:
        committer.commit([call_on(*topics)])
    return committer


def read(
    slab: Slab,
    topic_filter: str,
    serial: int = 0,
    *,
    since: int = 0,
    until: int | None = None,
    rows_max: int = 1000,
    ended: bool = False,
) -> StreamRead:
    """Read the only stream of a slab; times are given relative to NOW_US."""
    (stream_id,) = slab.stream_rows()
    match = slab.match_stream(stream_id, TopicFilter.parse(topic_filter))
    assert match is not None
    span = Span(
        since_us=NOW_US + since if since else 0, until_us=None if until is None else NOW_US + until
    )
    return read_stream(slab, match, serial, span, rows_max, ended=ended)


def facts(found: StreamRead) -> tuple[list[int], int, Status]:
    serials = [row.serial for row in Batch(found.parts, found.num_rows).rows()]
    assert len(serials) == found.num_rows
    return serials, found.next_serial, found.status


class Case(NamedTuple):
    """A read of FRAMES, and what it must find."""

    topic_filter: str
    serial: int
    until: int | None
    rows_max: int
    found: list[int]
    next_serial: int
    status: Status | None = None  # None stands for CAUGHT_UP or END, by whether the slab has ended


CASES = [
    # rows left, no limit of time
    Case("s/+", 0, None, 10, [0, 1, 2, 3], 4),
    Case("s/+", 0, None, 5, [0, 1, 2, 3], 4),
    Case("s/+", 0, None, 4, [0, 1, 2, 3], 4, Status.MORE),
    Case("s/+", 0, None, 3, [0, 1, 2], 3, Status.MORE),
    Case("s/+", 0, None, 2, [0, 1], 2, Status.MORE),
    Case("s/+", 1, None, 1, [1], 2, Status.MORE),
    Case("s/+", 3, None, 10, [3], 4),
    # no rows left
    Case("s/+", 4, None, 10, [], 4),
    Case("s/+", 4, 4, 10, [], 4),
    # a limit in front of, between, inside and behind the frames
    Case("s/+", 0, 0, 10, [], 0, Status.LIMIT),
    Case("s/+", 0, 1, 10, [0], 1, Status.LIMIT),
    Case("s/+", 0, 2, 10, [0, 1], 2, Status.LIMIT),
    Case("s/+", 0, 3, 10, [0, 1, 2], 3, Status.LIMIT),
    Case("s/+", 0, 4, 10, [0, 1, 2, 3], 4),
    Case("s/+", 2, 2, 10, [], 2, Status.LIMIT),
    Case("s/+", 2, 1, 10, [], 2, Status.LIMIT),
    # both limits: the number of rows is told first, for the limit of time will be met again
    Case("s/+", 0, 2, 2, [0, 1], 2, Status.MORE),
    Case("s/+", 0, 2, 1, [0], 1, Status.MORE),
    Case("s/+", 0, 2, 3, [0, 1], 2, Status.LIMIT),
    Case("s/+", 0, 4, 4, [0, 1, 2, 3], 4, Status.MORE),
    # a literal where the stream varies: rows that do not match are passed over for good
    Case("s/a", 0, None, 10, [0, 2], 4),
    Case("s/b", 0, None, 10, [1, 3], 4),
    Case("s/a", 0, None, 1, [0], 2, Status.MORE),
    Case("s/b", 0, None, 1, [1], 2, Status.MORE),
    Case("s/a", 0, None, 2, [0, 2], 4, Status.MORE),
    Case("s/a", 3, None, 10, [], 4),
    Case("s/a", 1, None, 10, [2], 4),
    Case("s/a", 0, 1, 10, [0], 1, Status.LIMIT),
    Case("s/a", 0, 2, 10, [0], 2, Status.LIMIT),
    Case("s/b", 0, 3, 10, [1], 3, Status.LIMIT),
    Case("s/a", 0, 4, 10, [0, 2], 4),
    Case("s/a", 0, 2, 1, [0], 2, Status.MORE),
    # a literal that no row has
    Case("s/z", 0, None, 10, [], 4),
    Case("s/z", 0, 2, 10, [], 2, Status.LIMIT),
    Case("s/z", 0, 4, 10, [], 4),
    Case("s/z", 4, None, 10, [], 4),
]


@pytest.mark.parametrize("ended", [False, True], ids=["current", "sealed"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_read_says_what_it_found_where_to_go_on_and_why_it_ended(
    case: Case, *, ended: bool
) -> None:
    found = read(
        committed(*FRAMES).slab,
        case.topic_filter,
        case.serial,
        until=case.until,
        rows_max=case.rows_max,
        ended=ended,
    )
    whole = Status.END if ended else Status.CAUGHT_UP
    assert facts(found) == (case.found, case.next_serial, case.status or whole)


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
@pytest.mark.parametrize("rows_max", [1, 2, 3, 5])
def test_reading_on_from_each_position_finds_every_row_once(
    compression: str, rows_max: int
) -> None:
    slab = committed(*FRAMES, *FRAMES, compression=compression).slab
    serials: list[int] = []
    serial, status = 0, Status.MORE
    while status is Status.MORE:
        found, serial, status = facts(read(slab, "s/a", serial, rows_max=rows_max))
        serials += found
    assert (serials, serial, status) == ([0, 2, 4, 6], 8, Status.CAUGHT_UP)


def test_a_start_in_time_is_inclusive_and_may_lie_inside_a_frame() -> None:
    slab = committed(*FRAMES).slab
    assert [facts(read(slab, "s/+", since=since))[0] for since in range(6)] == [
        [0, 1, 2, 3],
        [1, 2, 3],
        [2, 3],
        [3],
        [],
        [],
    ]


def test_a_start_behind_the_limit_finds_nothing_and_says_limit() -> None:
    slab = committed(*FRAMES).slab
    assert facts(read(slab, "s/+", since=3, until=2))[::2] == ([], Status.LIMIT)


def test_a_position_and_a_start_in_time_both_hold() -> None:
    slab = committed(*FRAMES).slab
    assert facts(read(slab, "s/+", 2, since=1))[0] == [2, 3]
    assert facts(read(slab, "s/+", 1, since=2))[0] == [2, 3]


def test_a_stream_is_read_through_all_segments() -> None:
    committer = committed()
    for number in range(12):
        call = call_on(f"s/{number % 3}")
        call.batch.values = [bytes([number]) * (SEGMENT_BYTES // 4)]
        committer.commit([call])
    slab = committer.slab
    assert len(slab.handles()) == 4
    assert facts(read(slab, "s/+")) == (list(range(12)), 12, Status.CAUGHT_UP)
    assert facts(read(slab, "s/1", 5, rows_max=2)) == ([7, 10], 11, Status.MORE)
    assert facts(read(slab, "s/0", 4, until=7, ended=True)) == ([6], 7, Status.LIMIT)


def test_rows_of_other_streams_are_passed_over() -> None:
    slab = committed(("a", "s/a", "a"), ("a",), ("s/b", "a"), ("a",)).slab
    by_pattern = {match.stream.pattern: match for match in slab.match(TopicFilter.parse("#"))}
    found = [
        facts(read_stream(slab, by_pattern[pattern], 0, Span(), 10, ended=True))
        for pattern in (b"a", b"s/+")
    ]
    # Rows of a frame stand by stream, so a serial does not tell the order of arrival.
    assert sorted(found[0][0] + found[1][0]) == list(range(7))
    assert [(len(serials), end, status) for serials, end, status in found] == [
        (5, 7, Status.END),
        (2, 7, Status.END),
    ]


@pytest.mark.parametrize(
    ("owner", "step", "serial", "before"),
    [(Segment, "frame", 0, ["s/a"]), (SegmentIndex, "frame_at_time", 2, [])],
    ids=["segments that hold the stream", "a segment that does not hold it yet"],
)
def test_frames_that_become_visible_during_a_read_are_found_by_it_or_by_the_next(
    monkeypatch: pytest.MonkeyPatch, owner: type, step: str, serial: int, before: list[str]
) -> None:
    committer = committed(("s/a",))
    # The last segment holds nothing of the stream when the read begins.
    for _ in range(2):
        filler = call_on("b")
        filler.batch.values = [bytes(SEGMENT_BYTES // 2)]
        committer.commit([filler])
    assert len(committer.slab.handles()) == 2
    plain = getattr(owner, step)
    waiting = [call_on("s/b"), call_on("s/c"), call_on("s/d")]

    def stepped(*arguments: Any) -> Any:
        result = plain(*arguments)
        if waiting:
            committer.commit([waiting.pop()])
        return result

    (match,) = committer.slab.match(TopicFilter.parse("s/+"))
    monkeypatch.setattr(owner, step, stepped)
    found: list[str] = []
    for _ in range(5):
        part = read_stream(committer.slab, match, serial, Span(), 10, ended=False)
        found += [row.topic for row in Batch(part.parts, part.num_rows).rows()]
        serial = part.next_serial
    assert (found, waiting) == ([*before, "s/d", "s/c", "s/b"], [])


# What means something in a regular expression, and words beyond ASCII; beside words that a filter
# would match if its literals were not taken as they are.
ODD_WORDS = [
    *(".", ".*", "*", "?", "a?", "(", ")", "(a)", "[", "]", "[a]", "{1}", "\\", "\\w", "^", "^a"),
    *("a$", "a|b", "-", "a-c", "&", "~", " ", "\t", "\n", "\r", "\x7f", "'", '"', "\\E", "\\Qa"),
    *("ä", "Ä", "日本", "🌍", "e\u0301", "é", "\ufeff", "%", "_", ","),
]
DECOYS = ["a", "b", "ab", "aa", "", "w", "E", "Qa", "1", "\\\\"]


@pytest.mark.parametrize("word", ODD_WORDS, ids=ascii)
@pytest.mark.parametrize(
    ("before", "after"), [("s", "1"), ("s", "+"), ("+", "1"), ("s", "#")], ids="/".join
)
def test_a_literal_of_a_filter_is_taken_as_it_is(word: str, before: str, after: str) -> None:
    topics = tuple(f"s/{other}/1" for other in [*ODD_WORDS, *DECOYS])
    slab = committed(topics).slab
    assert [info.pattern for info in _streams(slab)] == [b"s/+/+"]
    found = read(slab, f"{before}/{word}/{after}")
    assert [row.topic for row in Batch(found.parts, found.num_rows).rows()] == [f"s/{word}/1"]


def test_a_topic_may_have_as_many_levels_as_its_length_allows() -> None:
    deep, other = ("a/" + word + "/" * 60_000 for word in ("dev", "rev"))
    with new_database(thresholds=(0,)) as database:
        database.append(rows_on("b/dev/1", "b/other/1", deep, other)).wait()
        assert sorted(read_topics(database, "+/dev/#")) == [deep, "b/dev/1"]


def _streams(slab: Slab) -> list[Any]:
    return [slab.stream(stream_id) for stream_id in slab.stream_rows()]


LEVELLED = ("s/a/x", "s//x", "s/a/", "s//", "s/b/x", "s/a/y", "s/a", "s/", "s", "t/a/x", "$s/a/x")
FILTERS = [
    *("#", "s/#", "s/+", "s/+/+", "s/+/x", "s/a/+", "s/a/x", "s//x", "s/a/", "s//", "s//+"),
    *("s/+/", "s/", "s", "+", "+/+/x", "+//+", "t/#", "$s/#", "$s/+/x", "$s//x", "s/a/#", "s//#"),
    *("s/a/x/#", "s/a/x/+", "nothing", "s/nothing/x", "s/a/nothing"),
]


@pytest.mark.parametrize("thresholds", [(-1,), (0,), (-1, 0), (-1, 1), (-1, -1, 0)], ids=str)
@pytest.mark.parametrize("topic_filter", FILTERS)
def test_a_slab_is_read_and_counted_by_the_rules_of_mqtt(
    thresholds: tuple[int, ...], topic_filter: str
) -> None:
    slab = committed(LEVELLED, LEVELLED, thresholds=thresholds).slab
    matches = slab.match(TopicFilter.parse(topic_filter))
    expected = sorted(topic for topic in LEVELLED * 2 if naive_match(topic_filter, topic))
    found = [
        row.topic for pieces in read_slab(slab, matches, Span()) for row in Batch(pieces, 0).rows()
    ]
    assert sorted(found) == expected
    assert count_rows(slab, matches, Span()) == len(expected)


@pytest.mark.parametrize("topic_filter", ["#", "s/#", "s/a", "s/z", "a"])
def test_a_span_of_time_is_half_open_to_readers_and_to_counters(topic_filter: str) -> None:
    slab = committed(("s/a", "a", "s/b"), ("a",), ("s/a", "s/b", "a")).slab
    times = {
        row.timestamp_us: row.topic
        for pieces in read_slab(slab, slab.match(TopicFilter.parse("#")), Span())
        for row in Batch(pieces, 0).rows()
    }
    matches = slab.match(TopicFilter.parse(topic_filter))
    for since in range(NOW_US - 1, NOW_US + 9):
        for until in [None, *range(NOW_US - 1, NOW_US + 9)]:
            span = Span(since_us=since, until_us=until)
            expected = {
                time
                for time, topic in times.items()
                if since <= time and (until is None or time < until)
                if naive_match(topic_filter, topic)
            }
            found = {
                row.timestamp_us
                for pieces in read_slab(slab, matches, span)
                for row in Batch(pieces, 0).rows()
            }
            assert (found, count_rows(slab, matches, span)) == (expected, len(expected)), span


def test_a_slab_is_read_between_two_serials() -> None:
    slab = committed(*FRAMES, *FRAMES).slab
    matches = slab.match(TopicFilter.parse("#"))
    for start in range(9):
        for stop in range(9):
            found = [
                row.serial
                for pieces in read_slab(slab, matches, Span(), serials=range(start, stop))
                for row in Batch(pieces, 0).rows()
            ]
            assert found == list(range(start, stop)), (start, stop)


def test_frames_follow_each_other_in_time() -> None:
    slab = committed(("s/a", "a"), ("b", "s/b"), ("a", "c", "s/a"), compression="zstd").slab
    ends = [
        (min(times), max(times))
        for pieces in read_slab(slab, slab.match(TopicFilter.parse("#")), Span())
        for times in [[row.timestamp_us - NOW_US for row in Batch(pieces, 0).rows()]]
    ]
    assert ends == [(0, 1), (2, 3), (4, 6)]


def test_small_frames_are_read_together_in_their_order() -> None:
    slab = committed(("s/a", "a"), ("b", "s/b"), ("a", "c", "s/a")).slab
    (parts,) = read_slab(slab, slab.match(TopicFilter.parse("#")), Span())
    rows = Batch(parts, 0).rows()
    assert [row.serial for row in rows] == list(range(7))
    assert [
        sorted(row.timestamp_us - NOW_US for row in rows[i:j]) for i, j in ((0, 2), (2, 4), (4, 7))
    ] == [
        [0, 1],
        [2, 3],
        [4, 5, 6],
    ]


def test_sealed_segments_in_a_span_are_counted_without_opening_a_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    committer = committed(*FRAMES)
    committer.seal(*committer.state())
    slab = committer.slab
    matches = slab.match(TopicFilter.parse("s/#"))
    opened: list[int] = []
    monkeypatch.setattr(Segment, "frame", lambda _, number: opened.append(number))
    assert (count_rows(slab, matches, Span()), opened) == (4, [])
