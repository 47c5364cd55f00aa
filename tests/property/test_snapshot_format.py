"""Any state comes back as it was saved, and nothing else comes back as a state."""

from __future__ import annotations

import gzip

from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.errors import CorruptionError, UsageError
from siltstone.snapshot.format.records import QueuedMessage, Record, RetainedMessage, WaitingWill
from siltstone.snapshot.loader import verify_snapshot
from tests.support.snapshots import bytes_of, opened, records_in, states


@given(states)
def test_any_state_comes_back_as_it_was_saved(state: list[Record]) -> None:
    assert records_in(opened(bytes_of(state))) == state


@given(states)
def test_each_different_content_is_there_once(state: list[Record]) -> None:
    messages = [
        record
        for record in state
        if isinstance(record, RetainedMessage | QueuedMessage | WaitingWill)
    ]
    contents = {record.payload for record in messages} | {record.properties for record in messages}
    summary = verify_snapshot(opened(bytes_of(state)))
    contents.discard(b"")
    assert (summary.contents, summary.content_bytes) == (len(contents), sum(map(len, contents)))


@given(states, st.data())
@settings(max_examples=50)
def test_a_snapshot_that_was_cut_or_overwritten_is_told(
    state: list[Record], data: st.DataObject
) -> None:
    whole = bytes_of(state)
    start = data.draw(st.integers(0, len(whole) - 1))
    damage = data.draw(st.sampled_from(["cut", "zeros", "garbage"]))
    length = data.draw(st.integers(1, 64))
    if damage == "cut":
        damaged = whole[:start]
    else:
        filling = bytes(length) if damage == "zeros" else data.draw(st.binary(max_size=length))
        damaged = whole[:start] + filling + whole[start + len(filling) :]
    try:
        assert records_in(opened(damaged)) == state
    except CorruptionError:
        assert damaged != whole


@given(st.binary(max_size=300), st.booleans())
def test_no_bytes_make_the_loader_do_anything_but_refuse(data: bytes, is_gzip: bool) -> None:
    plain = b"SILTSNAP\x01\0\0\0" + data
    try:
        verify_snapshot(opened(gzip.compress(plain) if is_gzip else data))
    except (CorruptionError, UsageError):
        return
    raise AssertionError("this is no snapshot")
