from __future__ import annotations

from typing import Any

import pytest

from siltstone.errors import UsageError
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.write.frame_builder import Call
from siltstone.store.log.write.partition import (
    Columns,
    batch_of,
    check_batch,
    columns_of,
    may_hold,
    shard_of,
    split_batch,
)
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.topic.grammar import TOPIC_SIZE_MAX, TopicFilter
from tests.support.row_batches import row_batch

# The keys by the shard they belong to, out of four.
ON_SHARD = {0: b"k5", 1: b"k1", 2: b"k4", 3: b"k0"}


def parts_of(columns: Columns, **settings: Any) -> list[tuple[int, list[int] | None, list[bytes]]]:
    return [
        (call.shard, call.rows, call.batch.values)
        for call in split_batch(batch_of(columns), DatabaseSettings(**settings))
    ]


def only_part(columns: Columns, **settings: Any) -> Call:
    (call,) = split_batch(batch_of(columns), DatabaseSettings(**settings))
    return call


@pytest.mark.parametrize(
    ("key", "shards", "shard"),
    [
        (b"", 7, 0),
        (b"123456789", 16, 0xCBF43926 % 16),
        (b"123456789", 4096, 0xCBF43926 % 4096),
        (b"123456789", 1, 0),
        ("ä".encode(), 10, 0x70B5F183 % 10),
    ],
)
def test_the_shard_of_a_key_is_its_crc_32_for_ever(key: bytes, shards: int, shard: int) -> None:
    assert shard_of(key, shards) == shard


def test_the_keys_of_these_tests_are_on_the_shards_they_say() -> None:
    assert {shard: shard_of(key, 4) for shard, key in ON_SHARD.items()} == {0: 0, 1: 1, 2: 2, 3: 3}


def test_rows_become_columns() -> None:
    rows = [
        Row("a", b"1", "p", qos=1, retain=True, properties=b"x"),
        Row("ä/b", b"", "ö", 2),
        Row(*Row("c", b"3", timestamp_us=5, shard=6, generation=7, stream=8, serial=9)[:6]),
    ]
    assert columns_of(iter(rows)) == Columns(
        [b"a", "ä/b".encode(), b"c"],
        [b"1", b"", b"3"],
        [b"p", "ö".encode(), b""],
        [0b101, 0b010, 0],
        [b"x", b"", b""],
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("t", b""), "not a Row: row=1 type=tuple"),
        (None, "not a Row: row=1 type=NoneType"),
        (Row("t", b"", qos=3), "qos must be 0, 1 or 2: row=1 qos=3"),
        (Row("t", b"", qos=-1), "qos must be 0, 1 or 2: row=1 qos=-1"),
        (Row("t", b"", qos=1.0), "qos must be 0, 1 or 2: row=1 qos=1.0"),  # type: ignore[arg-type]
        (Row("t", b"", qos=True), "qos must be 0, 1 or 2: row=1 qos=True"),
        (Row("t", b"", retain="x"), ("retain must be a bool: row=1 retain='x'")),  # type: ignore[arg-type]
        (Row("t", b"", retain=None), ("retain must be a bool: row=1 retain=None")),  # type: ignore[arg-type]
        (Row("t", b"", retain=2.5), ("retain must be a bool: row=1 retain=2.5")),  # type: ignore[arg-type]
        (Row("t", b"", retain=1), ("retain must be a bool: row=1 retain=1")),  # type: ignore[arg-type]
        (Row(b"t", b""), "topic must be text: row=1 type=bytes"),  # type: ignore[arg-type]
        (Row("t", "text"), "value must be bytes: row=1 type=str"),  # type: ignore[arg-type]
        (Row("t", bytearray(1)), ("value must be bytes: row=1 type=bytearray")),  # type: ignore[arg-type]
        (Row("t", b"", b"p"), "publisher must be text: row=1 type=bytes"),  # type: ignore[arg-type]
        (Row("t", b"", properties=""), ("properties must be bytes: row=1 type=str")),  # type: ignore[arg-type]
        (Row("\ud800", b""), "topic is not valid Unicode: row=1"),
        (Row("t", b"", "\udfff"), "publisher is not valid Unicode: row=1"),
    ],
)
def test_a_row_that_is_none_is_refused_by_number(row: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        columns_of([Row("good", b""), row, Row("good", b"")])
    assert str(caught.value) == message


@pytest.mark.parametrize("field", ["timestamp_us", "shard", "generation", "stream", "serial"])
def test_what_the_store_sets_is_refused_and_not_ignored(field: str) -> None:
    given: dict[str, Any] = {field: 1}
    with pytest.raises(UsageError) as caught:
        columns_of([Row("good", b""), Row("t", b"", **given)])
    assert str(caught.value) == (
        "the store sets timestamp_us, shard, generation, stream and serial; to append a row that "
        "was read, pass Row(*row[:6]): row=1"
    )


@pytest.mark.parametrize("qos", ["1", None])
def test_a_qos_that_is_no_number_is_refused_by_number(qos: Any) -> None:
    with pytest.raises(UsageError, match="row=1"):
        columns_of([Row("t", b""), Row("t", b"", qos=qos)])


BAD_COLUMNS: list[tuple[dict[str, Any], str]] = [
    ({"topics": (b"a", b"b")}, "topics must be a list: type=tuple"),
    ({"values": (b"a", b"b")}, "values must be a list: type=tuple"),
    ({"topics": [b"a", "b"]}, "topics must be bytes: row=1 type=str"),
    ({"values": [b"a", None]}, "values must be bytes: row=1 type=NoneType"),
    ({"values": [1, b"b"]}, "values must be bytes: row=0 type=int"),
    ({"publisher": "p"}, "publisher must be bytes: type=str"),
    ({"publisher": [b"p", "q"]}, "publisher must be bytes: row=1 type=str"),
    ({"properties": [b"", 0]}, "properties must be bytes: row=1 type=int"),
    ({"values": [b"a"]}, "columns must have the same length: topics=2 values=1"),
    ({"topics": [b"a"]}, "columns must have the same length: topics=1 values=2"),
    ({"publisher": [b"p"]}, "columns must have the same length: topics=2 publisher=1"),
    ({"publisher": []}, "columns must have the same length: topics=2 publisher=0"),
    ({"flags": [0]}, "columns must have the same length: topics=2 flags=1"),
    ({"properties": []}, "columns must have the same length: topics=2 properties=0"),
    (
        {"topics": [b"a", bytes(TOPIC_SIZE_MAX + 1)]},
        f"topics is too large: row=1 size_bytes={TOPIC_SIZE_MAX + 1} max={TOPIC_SIZE_MAX}",
    ),
    ({"publisher": b"\xff"}, "publisher is not valid UTF-8"),
    (
        {"publisher": bytes(TOPIC_SIZE_MAX + 1)},
        f"publisher is too large: size_bytes={TOPIC_SIZE_MAX + 1} max={TOPIC_SIZE_MAX}",
    ),
]


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize(("changes", "message"), BAD_COLUMNS)
def test_columns_that_are_none_are_refused_with_the_row_that_is_to_blame(
    changes: dict[str, Any], message: str, shards: int
) -> None:
    columns = Columns(**({"topics": [b"a", b"b"], "values": [b"1", b"2"]} | changes))
    with pytest.raises(UsageError) as caught:
        split_batch(batch_of(columns), DatabaseSettings(shards=shards))
    assert str(caught.value) == message


def test_a_publisher_that_is_not_utf_8_is_refused_by_number() -> None:
    columns = Columns([b"a", b"b"], [b"1", b"2"], [b"p", b"\xff"])
    with pytest.raises(UsageError, match="publisher is not valid UTF-8: row=1"):
        batch_of(columns)


def test_a_batch_that_was_not_checked_is_checked_like_columns() -> None:
    batch = row_batch([b"a", b"b"], [b"1"], b"p")
    with pytest.raises(UsageError, match="same length: topics=2 values=1"):
        check_batch(batch)


def test_a_checked_batch_is_not_checked_again() -> None:
    batch = row_batch([b"a"], [b"1"], b"\xff")
    batch.checked = True
    check_batch(batch)


@pytest.mark.parametrize(("shards", "sizes"), [(1, [12 + 32]), (4, [5 + 16, 7 + 16])])
def test_the_size_is_that_of_all_columns_and_sixteen_bytes_a_row(
    shards: int, sizes: list[int]
) -> None:
    keys = [ON_SHARD[0], ON_SHARD[1]]
    assert measured(Columns([b"a", b"bc"], [b"1", b""], keys, 1, [b"x", b"123"]), shards) == sizes


@pytest.mark.parametrize("flags", [256, -1, [0, 256], [0, -1], [0, "1"], "1", None])
@pytest.mark.parametrize("shards", [1, 4])
def test_flags_that_are_no_byte_are_refused_before_they_reach_a_shard(
    flags: Any, shards: int
) -> None:
    columns = Columns([b"a", b"b"], [b"1", b"2"], [ON_SHARD[0], ON_SHARD[1]], flags)
    with pytest.raises(UsageError, match="flags"):
        measured(columns, shards)


@pytest.mark.parametrize("flags", [3, 7, 8, 12, 255, True])
@pytest.mark.parametrize("shards", [1, 4])
def test_flags_are_a_qos_and_retain_and_nothing_else(flags: int, shards: int) -> None:
    keys = [ON_SHARD[0], ON_SHARD[1]]
    message = "flags must be a QoS from 0 to 2, with or without retain:"
    with pytest.raises(UsageError) as caught:
        measured(Columns([b"a", b"b"], [b"1", b"2"], keys, flags), shards)
    assert str(caught.value) == f"{message} flags={flags}"
    if flags > 1:
        with pytest.raises(UsageError) as caught:
            measured(Columns([b"a", b"b"], [b"1", b"2"], keys, [6, flags]), shards)
        assert str(caught.value) == f"{message} row=1 flags={flags}"


@pytest.mark.parametrize("flags", [1.0, "1", None, [1], b"1"])
def test_flags_of_a_row_that_are_no_number_are_refused_by_number(flags: Any) -> None:
    with pytest.raises(UsageError) as caught:
        measured(Columns([b"a", b"b"], [b"1", b"2"], b"", [6, flags]), 1)
    assert (
        str(caught.value)
        == f"flags must be a QoS from 0 to 2, with or without retain: row=1 flags={flags!r}"
    )


def test_the_largest_publisher_that_may_be_in_a_list_may_stand_for_all_rows() -> None:
    name = b"p" * TOPIC_SIZE_MAX
    assert parts_of(Columns([b"a"], [b"1"], name)) == [(0, None, [b"1"])]


def measured(columns: Columns, shards: int) -> list[int]:
    """Do to columns what an append does to them before it queues them."""
    calls = split_batch(batch_of(columns), DatabaseSettings(shards=shards))
    return [call.size_bytes for call in calls]


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("shard_by", ["publisher", "topic"])
def test_no_rows_are_no_parts(shards: int, shard_by: str) -> None:
    assert parts_of(Columns([], []), shards=shards, shard_by=shard_by) == []
    assert parts_of(columns_of([]), shards=shards, shard_by=shard_by) == []


def test_one_shard_gets_the_call_as_it_is() -> None:
    columns = Columns([b"a", b"b"], [b"1", b"2"], [b"p", b"q"], [1, 2], [b"x", b""])
    part = only_part(columns)
    assert (part.shard, part.rows) == (0, None)
    assert part.batch.topics is columns.topics
    assert part.batch.values is columns.values
    assert part.batch.publishers is columns.publisher
    assert part.batch.flags is columns.flags
    assert part.batch.properties is columns.properties


def test_a_single_publisher_keeps_the_call_on_one_shard() -> None:
    columns = Columns([b"a", b"b"], [b"1", b"2"], ON_SHARD[3], 5)
    part = only_part(columns, shards=4)
    assert (part.shard, part.rows) == (3, None)
    assert (part.batch.publisher, part.batch.publishers) == (ON_SHARD[3], [])
    assert (part.batch.shared_flags, part.batch.flags, part.batch.properties) == (5, [], [])


def test_many_publishers_split_the_call_by_shard_in_order() -> None:
    publishers = [ON_SHARD[shard] for shard in (3, 1, 3, 0, 1)]
    columns = Columns([b"t"] * 5, [b"0", b"1", b"2", b"3", b"4"], publishers)
    assert parts_of(columns, shards=4) == [
        (0, [3], [b"3"]),
        (1, [1, 4], [b"1", b"4"]),
        (3, [0, 2], [b"0", b"2"]),
    ]


def test_topics_split_the_call_when_it_is_sharded_by_topic() -> None:
    topics = [ON_SHARD[shard] for shard in (2, 0, 2)]
    columns = Columns(topics, [b"0", b"1", b"2"], b"one publisher")
    assert parts_of(columns, shards=4, shard_by="topic") == [
        (0, [1], [b"1"]),
        (2, [0, 2], [b"0", b"2"]),
    ]


def test_every_column_is_split_alike() -> None:
    publishers = [ON_SHARD[1], ON_SHARD[2], ON_SHARD[1]]
    columns = Columns(
        [b"a", b"b", b"c"], [b"1", b"2", b"3"], publishers, [0, 1, 2], [b"x", b"", b"z"]
    )
    first, second = split_batch(batch_of(columns), DatabaseSettings(shards=4))
    assert (first.batch.topics, first.batch.values) == ([b"a", b"c"], [b"1", b"3"])
    assert (first.batch.publishers, first.batch.flags) == ([ON_SHARD[1]] * 2, [0, 2])
    assert first.batch.properties == [b"x", b"z"]
    assert (second.batch.topics, second.batch.values) == ([b"b"], [b"2"])
    assert (second.batch.publishers, second.batch.flags) == ([ON_SHARD[2]], [1])


def test_properties_that_are_all_empty_cost_nothing() -> None:
    columns = Columns([b"a", b"b"], [b"1", b"2"], properties=[b"", b""])
    assert only_part(columns).batch.properties == []


def test_every_publisher_stays_on_its_shard_whatever_else_is_in_the_call() -> None:
    publishers = [b"k%d" % number for number in range(50)]
    alone = {name: only_part(Columns([b"t"], [b""], [name]), shards=4).shard for name in publishers}
    together = {
        name: part.shard
        for part in split_batch(
            batch_of(Columns([b"t"] * 50, [b""] * 50, publishers)), DatabaseSettings(shards=4)
        )
        for name in part.batch.publishers
    }
    assert together == alone
    assert set(alone.values()) == {0, 1, 2, 3}


@pytest.mark.parametrize("key", ON_SHARD.values())
def test_a_topic_by_its_name_is_looked_for_where_its_rows_go(key: bytes) -> None:
    settings = DatabaseSettings(shards=4, shard_by="topic")
    wanted = [shard for shard in range(4) if may_hold(shard, TopicFilter.parse(key), settings)]
    assert wanted == [only_part(Columns([key], [b""]), shards=4, shard_by="topic").shard]


@pytest.mark.parametrize(
    ("topic_filter", "settings"),
    [
        ("k5/+", DatabaseSettings(shards=2, shard_by="topic")),
        ("k5/#", DatabaseSettings(shards=2, shard_by="topic")),
        ("k5", DatabaseSettings(shards=2, shard_by="publisher")),
    ],
)
def test_other_filters_are_looked_for_in_every_shard(
    topic_filter: str, settings: DatabaseSettings
) -> None:
    parsed = TopicFilter.parse(topic_filter)
    assert [may_hold(shard, parsed, settings) for shard in range(2)] == [True, True]


def test_the_only_shard_has_everything() -> None:
    settings = DatabaseSettings(shards=1, shard_by="topic")
    assert may_hold(0, TopicFilter.parse("k1"), settings)
