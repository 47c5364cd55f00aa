from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from siltstone.errors import CorruptionError, SlabDroppedError
from siltstone.fs.publish import remove_tree
from siltstone.store.log.slab import Slab
from siltstone.store.log.write.committer import Committer
from siltstone.store.slab.manifest import SlabId, SlabState
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.structure import Structure
from tests.support.builders import SEGMENT_BYTES, World, begun, call_on, slab_place


def reading_slab(world: World, committer: Committer) -> Slab:
    """Open the slab of a committer as another process does."""
    return Slab(world.fs, slab_place(), committer.slab.record, Structure([100, 10]))


def matched(slab: Slab, topic_filter: str) -> dict[bytes, list[bytes | None]]:
    return {
        match.stream.pattern: match.constraints
        for match in slab.match(TopicFilter.parse(topic_filter))
    }


def spread(world: World, *topics: str, **changes: Any) -> Committer:
    committer = begun(world, **({"thresholds": (-1, 0)} | changes))
    if topics:
        committer.commit([call_on(*topics)])
    return committer


def test_a_slab_is_named_by_its_record() -> None:
    assert begun(World(), shard=3).slab.id == SlabId(3, 1)


def test_a_filter_finds_the_streams_that_hold_rows_and_what_they_must_be() -> None:
    slab = spread(World(), "a/1", "a/2/x", "b/1", "c").slab
    assert matched(slab, "#") == {b"a/+": [None], b"a/+/+": [None, None], b"b/+": [None], b"c": []}
    assert matched(slab, "a/7") == {b"a/+": [b"7"]}
    assert matched(slab, "+/+/x") == {b"a/+/+": [None, b"x"]}
    assert matched(slab, "nothing") == {}


def test_streams_come_in_the_order_of_their_ids() -> None:
    slab = spread(World(), *"hgfedcba").slab
    ids = [match.stream.id for match in slab.match(TopicFilter.parse("#"))]
    assert ids == sorted(ids)
    assert len(ids) == 8


def test_a_stream_without_rows_is_known_and_not_matched() -> None:
    slab = begun(World()).slab
    slab.publish([_edges_of("inherited/+")])
    (stream,) = (match.stream for match in slab.match_all(TopicFilter.parse("#")))
    assert slab.stream(stream.id) is stream
    assert matched(slab, "#") == {}
    assert slab.match_stream(stream.id, TopicFilter.parse("#")) is None


def test_streams_without_rows_match_where_they_are_asked_for_and_new_ones_change_the_version() -> (
    None
):
    slab = begun(World()).slab
    before = slab.version
    slab.publish([_edges_of("inherited/+")])
    found = [match.stream.pattern for match in slab.match_all(TopicFilter.parse("#"))]
    assert found == [b"inherited/+"]
    after = slab.version
    slab.publish([_edges_of("inherited/+")])
    assert (after - before, slab.version) == (1, after)


def test_a_stream_that_had_no_rows_is_matched_when_it_has() -> None:
    committer = spread(World())
    filter_ = TopicFilter.parse("a/7")
    structure = Structure([-1, 0])
    stream_id = structure.learn(b"a/1").stream.id
    assert committer.slab.match_stream(stream_id, filter_) is None
    committer.commit([call_on("a/1")])
    match = committer.slab.match_stream(stream_id, filter_)
    assert match is not None
    assert (match.stream.pattern, match.constraints) == (b"a/+", [b"7"])


def test_a_filter_that_cannot_match_a_stream_has_no_match_with_it() -> None:
    slab = spread(World(), "a/1", "b").slab
    streams = {
        match.stream.pattern: match.stream.id for match in slab.match(TopicFilter.parse("#"))
    }
    for _ in range(2):
        assert slab.match_stream(streams[b"b"], TopicFilter.parse("a/#")) is None
        match = slab.match_stream(streams[b"a/+"], TopicFilter.parse("a/#"))
        assert match is not None
        assert match.constraints == [None]
    assert slab.match_stream(12345, TopicFilter.parse("#")) is None
    assert slab.stream(12345) is None


def test_more_filters_than_are_remembered_are_matched_all_the_same() -> None:
    slab = spread(World(), "a/1").slab
    (stream_id,) = slab.stream_rows()
    for number in range(10_050):
        match = slab.match_stream(stream_id, TopicFilter.parse(f"a/{number}"))
        assert match is not None
        assert match.constraints == [b"%d" % number]


def test_rows_are_counted_by_stream_over_all_segments() -> None:
    committer = spread(World())
    for number in range(5):
        call = call_on(f"a/{number}", "b")
        call.batch.values = [bytes(SEGMENT_BYTES // 3), b""]
        committer.commit([call])
    slab = committer.slab
    assert len(slab.handles()) == 3
    assert sorted(slab.stream_rows().values()) == [5, 5]
    assert (slab.row_count(), slab.next_serial()) == (10, 10)


def test_an_empty_slab_has_no_rows_and_begins_at_serial_0() -> None:
    slab = begun(World()).slab
    assert (slab.stream_rows(), slab.row_count(), slab.next_serial()) == ({}, 0, 0)


def test_another_process_finds_everything_when_it_first_looks() -> None:
    world = World()
    committer = spread(world, "a/1", "a/2", "b")
    slab = reading_slab(world, committer)
    assert slab.stream_rows() == committer.slab.stream_rows()
    assert slab.export() == committer.slab.export()
    assert matched(slab, "a/2") == {b"a/+": [b"2"]}
    assert (slab.row_count(), slab.next_serial()) == (3, 3)


def test_another_process_sees_new_rows_and_streams_when_it_looks_again() -> None:
    world = World()
    committer = spread(world, "a/1")
    slab = reading_slab(world, committer)
    slab.load()
    committer.commit([call_on("b", "a/2")])
    assert (slab.row_count(), matched(slab, "b")) == (1, {})
    slab.refresh()
    assert (slab.row_count(), matched(slab, "b")) == (3, {b"b": []})


@pytest.mark.parametrize("looks_between", [False, True])
def test_another_process_follows_into_new_segments(*, looks_between: bool) -> None:
    world = World()
    committer = spread(world, "a/1")
    slab = reading_slab(world, committer)
    slab.load()
    for number in range(6):
        call = call_on(f"{number}/x")
        call.batch.values = [bytes(SEGMENT_BYTES // 3)]
        committer.commit([call])
        if looks_between:
            slab.refresh()
    slab.refresh()
    assert [handle.base_serial for handle in slab.handles()] == [
        handle.base_serial for handle in committer.slab.handles()
    ]
    assert slab.stream_rows() == committer.slab.stream_rows()
    assert [len(matched(slab, f"{number}/x")) for number in range(6)] == [1] * 6


def test_a_slab_that_is_gone_was_dropped() -> None:
    world = World()
    slab = reading_slab(world, spread(world, "a/1"))
    remove_tree(world.fs, slab_place())
    with pytest.raises(SlabDroppedError, match="slab 0/1 was dropped"):
        slab.load()


def test_edges_that_make_no_sense_are_corruption() -> None:
    slab = begun(World()).slab
    slab.publish([b"\x01"])
    for _ in range(2):
        with pytest.raises(CorruptionError, match="learned structure is damaged") as caught:
            slab.match_all(TopicFilter.parse("#"))
        assert caught.value.path == slab_place()


def test_matches_follow_new_streams_and_streams_with_new_rows() -> None:
    committer = spread(World(), "a/1")
    assert matched(committer.slab, "#") == {b"a/+": [None]}
    assert matched(committer.slab, "#") == {b"a/+": [None]}
    committer.commit([call_on("b/1")])
    assert matched(committer.slab, "#") == {b"a/+": [None], b"b/+": [None]}
    assert matched(committer.slab, "a/#") == {b"a/+": [None]}


def test_only_a_current_slab_keeps_the_streams_of_the_last_filter() -> None:
    slab = spread(World(), "a/1").slab
    filter_ = TopicFilter.parse("#")
    assert slab.match(filter_) is slab.match(filter_)
    slab.record = replace(slab.record, state=SlabState.SEALED)
    assert slab._held is None  # noqa: SLF001
    found = slab.match(filter_)
    assert [match.stream.pattern for match in found] == [b"a/+"]
    assert slab.match(filter_) is not found


def test_edges_that_are_never_asked_for_do_not_pile_up() -> None:
    slab = begun(World()).slab
    blocks = [_edges_of(f"{number:04}" * 1000) for number in range(50)]
    tracemalloc.start()
    try:
        for _ in range(20):
            slab.publish([bytes(bytearray(block)) for block in blocks])
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 20 * sum(map(len, blocks)) // 2
    assert len(slab.match_all(TopicFilter.parse("#"))) == 50


def _edges_of(pattern: str) -> bytes:
    structure = Structure([-1])
    structure.insert_pattern(pattern.encode())
    return structure.export()
