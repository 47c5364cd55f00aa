from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from siltstone.errors import InvalidTopicError, UsageError
from siltstone.scan.ingest.columns import (
    BYTES_MAX,
    ROWS_MAX,
    ROWS_SCHEMA,
    Given,
    check_columns,
    check_rows,
    rows_of,
    store_columns,
)
from siltstone.store.log.write.partition import Columns

MAP = pa.map_(pa.string(), pa.string())


def batch(count: int = 2, **columns: Any) -> pa.RecordBatch:
    usual = {"topic": ["a"] * count, "payload": [b"x"] * count}
    return pa.RecordBatch.from_pydict(usual | columns)


def stored(rows: pa.RecordBatch, given: Given | None = None) -> Columns:
    (part,) = rows_of(rows, given or Given())
    assert part.schema == ROWS_SCHEMA
    return store_columns(part)


def test_topic_and_payload_are_enough() -> None:
    assert stored(batch(topic=["a", "b"], payload=["x", "ä"])) == Columns(
        [b"a", b"b"], [b"x", "ä".encode()], b"", 0, None
    )


def test_what_a_row_says_itself_is_kept() -> None:
    rows = batch(
        publisher=["p", None],
        qos=pa.array([2, None], pa.int32()),
        retain=[True, None],
        properties=pa.array([[("k", "v")], None], MAP),
    )
    assert stored(rows) == Columns(
        [b"a", b"a"], [b"x", b"x"], [b"p", b""], [6, 0], [b"&\x00\x01k\x00\x01v", b""]
    )


def test_what_holds_for_all_rows_is_given_once() -> None:
    rows = pa.RecordBatch.from_pydict({"payload": [b"1", b"2"]})
    assert stored(rows, Given(topic="t", publisher="p")) == Columns(
        [b"t", b"t"], [b"1", b"2"], b"p", 0, None
    )


def test_the_time_of_a_row_is_kept_as_a_property() -> None:
    times = pa.array([1_500_000, None], pa.timestamp("us", tz="UTC"))
    properties = stored(batch(timestamp=times)).properties
    assert properties == [b"&\x00\x09timestamp\x00\x1b1970-01-01T00:00:01.500000Z", b""]


def test_dictionaries_and_large_types_are_taken() -> None:
    rows = batch(
        topic=pa.array(["a", "b"]).dictionary_encode(), payload=pa.array(["x", "y"], "large_string")
    )
    assert stored(rows) == Columns([b"a", b"b"], [b"x", b"y"], b"", 0, None)


def test_the_columns_that_the_store_sets_are_left_out() -> None:
    rows = batch(
        levels=[["a"], ["a"]], shard=[0, 0], generation=[1, 1], stream=[7, 7], serial=[1, 2]
    )
    assert stored(rows) == Columns([b"a", b"a"], [b"x", b"x"], b"", 0, None)


def test_many_rows_are_cut_into_appends() -> None:
    parts = list(rows_of(batch(ROWS_MAX + 1), Given()))
    assert [part.num_rows for part in parts] == [ROWS_MAX, 1]


def test_large_rows_are_cut_into_appends() -> None:
    parts = list(rows_of(batch(4, payload=[bytes(BYTES_MAX // 2)] * 4), Given()))
    assert len(parts) >= 2
    assert sum(part.num_rows for part in parts) == 4


def test_no_rows_are_no_append() -> None:
    assert list(rows_of(batch().slice(0, 0), Given())) == []


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"topic": ["a", None]}, "topic must not be null: row=1"),
        ({"payload": [b"", None]}, "payload must not be null: row=1"),
        ({"payload": [1, 2]}, "column payload must be binary or text; to_json"),
        ({"qos": [1, 3]}, "qos must be 0, 1 or 2: row=1 qos=3"),
        ({"qos": ["1", "1"]}, "column qos must be an integer"),
        ({"retain": [1, 0]}, "column retain must be true or false"),
        ({"publisher": [1, 2]}, "column publisher must be text"),
        ({"properties": ["a", "b"]}, "column properties must be a map of text to text"),
        ({"timestamp": ["a", "b"]}, "column timestamp must be a timestamp"),
        ({"colour": [1, 2]}, "unknown column colour .supported: topic, payload"),
        (
            {"properties": pa.array([[], [("mqtt.x", "")]], MAP)},
            "unknown property mqtt.x .supported: mqtt.payload_format.*: row=1",
        ),
    ],
    # Arrays show their addresses, which differ from one test process to the other.
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_rows_that_cannot_be_messages_are_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list(rows_of(batch(**columns), Given()))


def test_a_topic_must_be_one() -> None:
    with pytest.raises(InvalidTopicError, match="topic must not have the wildcards"):
        list(rows_of(batch(topic=["a", "a/+"]), Given()))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["payload"], "column topic is missing: add it, or set the option topic for all rows"),
        (["topic"], "column payload is missing"),
        (["topic", "payload", "topic"], "column topic is repeated"),
    ],
)
def test_a_schema_is_refused_before_any_row_is_seen(names: list[str], message: str) -> None:
    schema = pa.schema([pa.field(name, pa.string()) for name in names])
    with pytest.raises(UsageError, match=message):
        check_columns(schema, Given())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("topic", b"a/#", "topic must not have the wildcards"),
        ("flags", 3, "flags must be a QoS from 0 to 2, with or without retain: flags=3"),
        ("flags", 8, "flags must be a QoS from 0 to 2, with or without retain: flags=8"),
        ("properties", b"x", "properties are not valid MQTT properties"),
        ("publisher", b"\xff", "publisher is not valid UTF-8"),
    ],
)
def test_rows_that_others_made_are_checked(name: str, value: object, message: str) -> None:
    row = {"topic": b"a", "value": b"", "publisher": b"", "flags": 6, "properties": b"\x01\x01"}
    check_rows(pa.RecordBatch.from_pylist([row], schema=ROWS_SCHEMA))
    wrong = pa.RecordBatch.from_pylist([row, row | {name: value}], schema=ROWS_SCHEMA)
    with pytest.raises(UsageError, match=message):
        check_rows(wrong)


def test_rows_of_another_schema_are_not_taken() -> None:
    with pytest.raises(
        UsageError, match="internal error: staged rows must have the columns of the store"
    ):
        check_rows(batch())
