from __future__ import annotations

import pytest

from siltstone.store.kv.keys import (
    STATE_KEY,
    TIME_END,
    after_topic,
    encode_state,
    place_of,
    row_key,
    row_prefix,
    rows_of_stream,
    serial_in,
    stream_of,
    time_of,
    times_of_topic,
    timestamp_in,
    varying_of,
)

ID = 0x0102030405060708
PLACE = b"\x01\x02\x03\x04\x05\x06\x07\x08x/y\x00"


def test_a_key_is_stream_varying_part_and_time() -> None:
    assert row_prefix(ID, b"x/y") == PLACE
    assert row_key(PLACE, 0x1122, timed=True) == PLACE + b"\x00\x00\x00\x00\x00\x00\x11\x22"
    assert row_key(PLACE, 0, timed=False) == PLACE


@pytest.mark.parametrize("timed", [True, False])
def test_a_key_tells_what_it_was_made_of(timed: bool) -> None:
    time_us = TIME_END - 1 if timed else 0
    key = row_key(PLACE, time_us, timed)
    assert stream_of(key) == ID
    assert place_of(key, timed) == PLACE
    assert varying_of(key, timed) == b"x/y"
    assert time_of(key, timed) == time_us


def test_keys_of_a_topic_stand_together_in_order_of_time_before_those_of_longer_topics() -> None:
    ordered = [
        row_key(row_prefix(ID, varying), time_us, timed=True)
        for varying in (b"", b"a", b"a!", b"a/", b"a/b", b"a0", b"\xf4\x8f\xbf\xbf")
        for time_us in (0, 1, 255, 256, TIME_END - 1)
    ]
    assert sorted(ordered) == ordered
    assert min(ordered) > STATE_KEY


def test_no_row_of_the_lowest_stream_is_the_key_of_the_state() -> None:
    assert rows_of_stream(0, []).start > STATE_KEY


@pytest.mark.parametrize(
    ("since_us", "until_us", "times"),
    [
        (0, TIME_END, [0, 1, 5, TIME_END - 1]),
        (1, 5, [1]),
        (1, 6, [1, 5]),
        (5, 5, []),
        (6, 1, []),
        (0, TIME_END - 1, [0, 1, 5]),
        (TIME_END - 1, TIME_END, [TIME_END - 1]),
        (TIME_END, TIME_END, []),
        (0, TIME_END + 1, [0, 1, 5, TIME_END - 1]),
        (0, 0, []),
    ],
)
def test_a_range_of_times_is_half_open(since_us: int, until_us: int, times: list[int]) -> None:
    keys = times_of_topic(PLACE, since_us, until_us, timed=True)
    found = [
        time_us
        for time_us in (0, 1, 5, TIME_END - 1)
        if keys.start <= row_key(PLACE, time_us, timed=True) < keys.stop
    ]
    assert found == times
    other = row_key(row_prefix(ID, b"x/y/z"), 1, timed=True)
    assert not keys.start <= other < keys.stop


@pytest.mark.parametrize(
    ("since_us", "until_us", "held"),
    [(0, TIME_END, True), (0, 1, True), (1, 2, False), (0, 0, False)],
)
def test_the_row_of_a_plain_map_has_time_0(since_us: int, until_us: int, held: bool) -> None:
    keys = times_of_topic(PLACE, since_us, until_us, timed=False)
    assert (keys.start <= PLACE < keys.stop) == held


@pytest.mark.parametrize("timed", [True, False])
def test_behind_a_topic_the_next_one_begins(timed: bool) -> None:
    behind = after_topic(row_key(PLACE, 0, timed), timed)
    last = TIME_END - 1 if timed else 0
    assert row_key(PLACE, last, timed) < behind < row_key(row_prefix(ID, b"x/y!"), 0, timed)


def test_the_rows_of_a_stream_are_none_of_its_neighbours() -> None:
    keys = rows_of_stream(ID, [])
    assert keys.start <= row_prefix(ID, b"") < keys.stop
    assert keys.start <= row_prefix(ID, b"\xf4\x8f\xbf\xbf") < keys.stop
    assert not keys.start <= row_prefix(ID + 1, b"") < keys.stop
    assert not keys.start <= row_prefix(ID - 1, b"\xf4\x8f\xbf\xbf") < keys.stop


def test_the_last_stream_has_an_end_too() -> None:
    last = (1 << 64) - 1
    keys = rows_of_stream(last, [])
    assert keys.start <= row_prefix(last, b"") < keys.stop
    assert keys.start <= row_prefix(last, b"\xf4\x8f\xbf\xbf/x") < keys.stop


def test_rows_that_begin_with_words_go_on_behind_them() -> None:
    keys = rows_of_stream(ID, [b"a", b"b"])
    inside = [b"a/b/", b"a/b/c", b"a/b/\xf4\x8f\xbf\xbf"]
    outside = [b"a/b", b"a/b0", b"a/bc/d", b"a/a/c", b"a"]
    assert all(keys.start <= row_prefix(ID, varying) < keys.stop for varying in inside)
    assert not any(keys.start <= row_prefix(ID, varying) < keys.stop for varying in outside)


def test_the_state_of_a_family_is_a_serial_and_a_time() -> None:
    state = encode_state(0x0102, 0x0304)
    assert state == b"\x00\x00\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x00\x00\x03\x04"
    assert (serial_in(state), timestamp_in(state)) == (0x0102, 0x0304)
    assert (serial_in(b""), timestamp_in(b"")) == (0, 0)
