from __future__ import annotations

from typing import Any

import pytest

from siltstone.clock import ManualClock
from siltstone.errors import UsageError
from siltstone.scan.columns.schema import COLUMNS
from siltstone.scan.node import NODE_OPTIONS, Node
from siltstone.scan.options import (
    OPTIONS,
    ReadOptions,
    StartTimes,
    parse_options,
    parse_start_times,
    request_options,
)
from siltstone.store.feed.position import END, LATEST, START, Position

WORD = "never shown"


def parse(**options: str) -> ReadOptions:
    return parse_options({"path": "/data"} | options)


def test_only_the_path_must_be_given() -> None:
    assert parse() == ReadOptions(
        path="/data",
        database="",
        filters=("#",),
        since_us=0,
        until_us=None,
        starting=START,
        ending=END,
        columns=COLUMNS,
        decode="raw",
        fails_on_loss=True,
    )


def test_names_of_options_may_be_in_any_case() -> None:
    assert parse_options({"PATH": "/data", "startTIME": "1", "FailOnDataLoss": "FALSE"}) == (
        ReadOptions(path="/data", since_us=1_000_000, fails_on_loss=False)
    )


FIELDS: list[tuple[str, str, str, Any]] = [
    ("database", " messages ", "database", "messages"),
    ("filter", "a/+", "filters", ("a/+",)),
    ("filter", "a/+, b/#\n$SYS/#,,a/+", "filters", ("a/+", "b/#", "$SYS/#")),
    ("filter", '["a,b/c", "d"]', "filters", ("a,b/c", "d")),
    ("startTime", "2026-01-31T12:00:00Z", "since_us", 1_769_860_800_000_000),
    ("startTime", "2026-01-31T12:00:00", "since_us", 1_769_860_800_000_000),
    ("startTime", "2026-01-31T13:00:00.5+01:00", "since_us", 1_769_860_800_500_000),
    ("startTime", "1769860800", "since_us", 1_769_860_800_000_000),
    ("startTime", "1769860800123", "since_us", 1_769_860_800_123_000),
    ("startTime", "1769860800123456", "since_us", 1_769_860_800_123_456),
    ("endTime", "2026-01-31", "until_us", 1_769_817_600_000_000),
    ("startingOffsets", "earliest", "starting", START),
    ("startingOffsets", '{"version":1,"shards":{"0":5}}', "starting", Position({0: 5})),
    ("endingOffsets", '{"version":1,"shards":{"0":5}}', "ending", Position({0: 5}, default=LATEST)),
    (
        "startingOffsetsByTimestamp",
        "2026-01-31",
        "starting_times",
        StartTimes(default_us=1_769_817_600_000_000),
    ),
    (
        "startingOffsetsByTimestamp",
        '{"0": "2026-01-31T12:00:00Z", "3": 1769860800123}',
        "starting_times",
        StartTimes(times_us={0: 1_769_860_800_000_000, 3: 1_769_860_800_123_000}),
    ),
    ("minPartitions", "12", "partitions_min", 12),
    ("columns", "topic, serial", "columns", ("topic", "serial")),
    ("decode", "UTF8", "decode", "utf8"),
    ("rowsPerBatch", "65536", "rows_per_batch", 65_536),
    ("maxRowsPerPartition", "10", "rows_per_partition", 10),
    ("maxBytesPerPartition", "64MiB", "bytes_per_partition", 64 << 20),
    ("maxBytesPerPartition", "5k", "bytes_per_partition", 5 << 10),
    ("failOnDataLoss", "false", "fails_on_loss", False),
    ("maxRowsPerTrigger", "7", "rows_per_trigger", 7),
    ("maxBytesPerTrigger", "1000", "bytes_per_trigger", 1000),
    ("minRowsPerTrigger", "9", "rows_to_wait_for", 9),
    ("maxTriggerDelay", "500ms", "wait_max", 0.5),
    ("maxTriggerDelay", "15m", "wait_max", 900.0),
]


@pytest.mark.parametrize(("name", "text", "field", "value"), FIELDS)
def test_an_option_is_read(name: str, text: str, field: str, value: object) -> None:
    assert getattr(parse(**{name: text}), field) == value


def test_every_option_is_tried_here() -> None:
    tried = {name for name, _, _, _ in FIELDS} | {"path", "payloadSchema", *NODE_OPTIONS}
    assert tried == set(OPTIONS)


def test_a_node_is_named_by_its_url_and_a_login() -> None:
    options = parse_options({"url": "grpc+tcp://host", "username": "u", "password": WORD})
    assert options.node == Node(url="grpc+tcp://host:8815", username="u", password=WORD)
    assert options.place == "grpc+tcp://host:8815"
    assert WORD not in repr(options)


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, text, _, _ in FIELDS])
def test_what_is_asked_of_a_node_means_the_same_there(name: str, text: str) -> None:
    options = parse(**{name: text})
    asked = parse(**request_options(options))
    kept = {"rows_per_trigger", "bytes_per_trigger", "rows_to_wait_for", "wait_max", "decode"}
    for field in ReadOptions.__slots__:
        if field not in kept:
            assert getattr(asked, field) == getattr(options, field)


BAD = [
    (
        {"path": ""},
        "path is missing: set path to the data directory of the store, or url to a node",
    ),
    ({"url": "grpc+tcp://host:1"}, "set either path .a data directory. or url"),
    ({"startingOffset": "latest"}, "unknown option startingoffset; did you mean startingOffsets?"),
    ({"zzzzzzz": "1"}, "unknown option zzzzzzz; supported: path, url, username"),
    ({"database": " "}, "database is empty"),
    ({"filter": " , "}, "filter must have at least one topic filter; # matches every topic"),
    ({"filter": "a/#/b"}, "filter must be an MQTT topic filter: # must be the last level, alone"),
    ({"filter": "$share/g/a"}, r"filter must not be a shared filter, remove \$share/…"),
    ({"filter": '["a", 1]'}, "filter must be a list of text"),
    ({"filter": '["a"'}, "must be a JSON list"),
    ({"filter": "[]"}, "filter must have at least one topic filter"),
    ({"startTime": "-1h"}, "startTime must be a time such as 2026-01-31T12:00:00Z"),
    ({"endTime": "1960-01-01"}, "endTime must not be before 1970"),
    ({"startTime": "20", "endTime": "10"}, "endTime must not be before startTime"),
    ({"startingOffsets": "first"}, "startingOffsets must be earliest, latest, or JSON"),
    ({"endingOffsets": "{}"}, "endingOffsets must have version and shards"),
    ({"columns": "topic,value"}, "unknown column value .supported: topic, levels"),
    ({"columns": ""}, "columns must have at least one column"),
    ({"columns": "topic,topic"}, "columns must not repeat a column"),
    ({"decode": "avro"}, "decode must be one of raw, utf8, json: decode='avro'"),
    ({"payloadSchema": "a INT"}, "payloadSchema needs decode=json"),
    ({"rowsPerBatch": "0"}, "rowsPerBatch must be a number from 1 to 65536"),
    ({"rowsPerBatch": "65537"}, "rowsPerBatch must be a number from 1 to 65536"),
    ({"maxRowsPerPartition": "-1"}, "maxRowsPerPartition must be a number of 1 or more"),
    ({"maxRowsPerTrigger": "1.5"}, "maxRowsPerTrigger must be a number of 1 or more"),
    ({"maxBytesPerTrigger": "5 parsecs"}, "maxBytesPerTrigger must be a size such as 64MiB"),
    ({"maxBytesPerPartition": "0"}, "maxBytesPerPartition must be a size"),
    ({"maxTriggerDelay": "10"}, "maxTriggerDelay must be a duration such as 500ms, 30s or 15m"),
    ({"minPartitions": "0"}, "minPartitions must be a number of 1 or more"),
    (
        {"startingOffsetsByTimestamp": "yesterday"},
        "must be a time such as 2026-01-31T12:00:00Z, a time before now such as -1h, or a number",
    ),
    ({"startingOffsetsByTimestamp": "-1"}, "must be a duration such as 500ms, 30s or 15m"),
    ({"startingOffsetsByTimestamp": "{"}, "must be a JSON object"),
    ({"startingOffsetsByTimestamp": '{"x": 1}'}, "must have the numbers of shards as keys"),
    (
        {"startingOffsetsByTimestamp": "-1h", "startingOffsets": "latest"},
        "set either startingOffsets or startingOffsetsByTimestamp, not both",
    ),
    ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(options) for options, _ in BAD])
def test_a_wrong_option_is_refused_with_a_sentence(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(**options)


def test_a_start_may_be_relative_to_now() -> None:
    clock = ManualClock()
    hour = StartTimes(default_us=clock.now_us() - 3_600_000_000)
    assert parse_start_times("-1h", "start", clock) == hour
    assert parse_start_times("- 60m", "start", clock) == hour
    assert parse_start_times('{"2": "-3600s"}', "start", clock) == (
        StartTimes(times_us={2: clock.now_us() - 3_600_000_000})
    )
    assert parse_start_times("-99999d", "start", clock) == StartTimes(default_us=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"0": ' * 100_000, "^start is nested too deeply, or has a number with "),
        (
            '{"0": ' + "9" * 5_000 + "}",
            "^start is nested too deeply, or has a number with ",
        ),
        (f'{{"{"9" * 5_000}": 1}}', r"^start must have the numbers of shards as keys: shard=.?9"),
    ],
)
def test_a_start_that_no_parser_can_take_is_refused_with_a_sentence(
    text: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_start_times(text, "start")
    assert len(str(caught.value)) < 300


def test_a_path_may_be_a_uri() -> None:
    paths = ("/a b/c", "file:/a b/c", "file:///a b/c")
    assert {parse(path=path).path for path in paths} == {"/a b/c"}


def test_a_table_that_spark_has_forgotten_is_told_apart() -> None:
    with pytest.raises(
        UsageError,
        match=r"path is missing: call load with the data directory .* use a temporary view",
    ):
        parse_options({})


def test_what_spark_says_of_a_table_is_no_option() -> None:
    catalog = {"owner": "me", "provider": "siltstone", "option.path": "/data", "comment": "x"}
    assert parse(**catalog) == parse()


def test_a_payload_schema_goes_with_json() -> None:
    assert parse(decode="json", payloadSchema="a INT").payload_schema == "a INT"


def test_a_batch_query_has_something_between_its_ends() -> None:
    with pytest.raises(
        UsageError,
        match="startingOffsets of a batch query must not be latest: no rows would follow",
    ):
        parse(startingOffsets="latest").batch_start()
    with pytest.raises(UsageError, match="endingOffsets must not be earliest: no rows come before"):
        parse(endingOffsets="earliest").batch_start()
    assert parse().batch_start() == START


def test_a_stream_has_no_end() -> None:
    with pytest.raises(UsageError, match="endingOffsets is for batch queries"):
        parse(endingOffsets='{"version":1,"shards":{"0":5}}').stream_start()
    assert parse(startingOffsets="latest").stream_start() == END


def test_a_batch_cannot_be_waited_for_that_is_larger_than_any() -> None:
    given = {"path": "/d", "minRowsPerTrigger": "10", "maxRowsPerTrigger": "9"}
    with pytest.raises(
        UsageError, match="minRowsPerTrigger must not be greater than maxRowsPerTrigger"
    ):
        parse_options(given)
    assert parse_options(given | {"maxRowsPerTrigger": "10"}).rows_to_wait_for == 10


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("filter", "[" * 100_000),
        ("filter", "[" + "9" * 5_000 + "]"),
        ("startTime", "9" * 5_000),
        ("startTime", "9" * 30),
        ("rowsPerBatch", "9" * 5_000),
        ("maxBytesPerPartition", "9" * 5_000),
    ],
)
def test_an_option_that_no_parser_can_take_is_refused_with_its_beginning(
    name: str, text: str
) -> None:
    with pytest.raises(UsageError, match=name) as caught:
        parse_options({"path": "/data", name: text})
    assert len(str(caught.value)) < 400
