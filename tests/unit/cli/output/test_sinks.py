from __future__ import annotations

import io
import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from siltstone.cli.output.output import console_on
from siltstone.cli.output.sinks import (
    TABLE_COLUMNS,
    ArrowSink,
    CsvSink,
    JsonLinesSink,
    JsonSink,
    ParquetSink,
    Sink,
    TableSink,
    json_document,
    shortened,
)
from siltstone.cli.store.records import RowToAppend, read_csv
from siltstone.rows.batch import RETAIN
from siltstone.store.log.read.pieces import COLUMNS, SCHEMA, schema_of

START_US = 1_700_000_000_000_000


def batch(*values: bytes, topic: str = "a/b", first: int = 0) -> pa.RecordBatch:
    rows = [
        {
            "topic": topic,
            "timestamp": START_US + first + number,
            "publisher": "p",
            "qos": 1,
            "retain": True,
            "properties": b"\x01",
            "value": value,
            "shard": 0,
            "generation": 1,
            "stream": 255,
            "serial": first + number,
        }
        for number, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def test_a_row_is_a_json_object_with_every_column_in_order() -> None:
    file = io.StringIO()
    sink = JsonLinesSink(file, COLUMNS)
    sink.write(batch("ü".encode()))
    sink.write(batch(b"\xff", first=1))
    sink.close()
    first, second = file.getvalue().splitlines()
    assert first == (
        '{"topic": "a/b", "timestamp": "2023-11-14T22:13:20.000000Z", "publisher": "p", "qos": 1, '
        '"retain": true, "properties_base64": "AQ==", "value": "ü", "shard": 0, "generation": 1, '
        '"stream": "00000000000000ff", "serial": 0}'
    )
    assert json.loads(second) == {
        "topic": "a/b",
        "timestamp": "2023-11-14T22:13:20.000001Z",
        "publisher": "p",
        "qos": 1,
        "retain": True,
        "properties_base64": "AQ==",
        "value_base64": "/w==",
        "shard": 0,
        "generation": 1,
        "stream": "00000000000000ff",
        "serial": 1,
    }


def test_a_json_object_has_the_columns_that_were_asked_for() -> None:
    assert json_document(("value", "topic"), (b"x", "a")) == {"value": "x", "topic": "a"}


@pytest.mark.parametrize("values", [(), (b"x",), ("ü\n".encode(), b"\xff", b"")])
def test_a_json_file_is_one_array_of_the_objects_that_json_lines_have(
    values: tuple[bytes, ...],
) -> None:
    array, lines = io.StringIO(), io.StringIO()
    for sink in (JsonSink(array, COLUMNS), JsonLinesSink(lines, COLUMNS)):
        for number, value in enumerate(values):
            sink.write(batch(value, first=number))
        sink.close()
    assert json.loads(array.getvalue()) == [
        json.loads(line) for line in lines.getvalue().split("\n") if line
    ]


def test_what_is_read_as_csv_can_be_appended_again() -> None:
    values = (b"plain", 'ü, "quoted"\r\nand\rmore'.encode(), b"\xff\x00", b"")
    file = io.StringIO(newline="")
    sink = CsvSink(file, COLUMNS)
    sink.write(batch(*values))
    sink.close()
    assert file.getvalue().startswith(
        "topic,timestamp,publisher,qos,retain,properties_base64,value,value_base64,shard,"
        "generation,stream,serial\r\n"
        "a/b,2023-11-14T22:13:20.000000Z,p,1,true,AQ==,plain,,0,1,00000000000000ff,0\r\n"
    )
    rows = list(read_csv(io.BytesIO(file.getvalue().encode())))
    assert rows == [RowToAppend(b"a/b", value, b"p", 1 | RETAIN, b"\x01") for value in values]


def test_a_table_has_one_header_and_columns_that_only_grow() -> None:
    file = io.StringIO()
    sink = TableSink(console_on(file), ("topic", "qos", "value"))
    sink.write(batch(b"x", b"\xff"))
    sink.write(batch(b"long\nand more", topic="a/longer/topic"))
    sink.write(batch(b"y", topic="a"))
    sink.close()
    assert file.getvalue() == (
        "topic  qos  value\n"
        "a/b      1  x\n"
        "a/b      1  base64:/w==\n"
        "a/longer/topic    1  long\\nand more\n"
        "a                 1  y\n"
    )


def test_a_table_without_rows_is_its_header() -> None:
    file = io.StringIO()
    TableSink(console_on(file), ("topic", "retain")).close()
    assert file.getvalue() == "topic  retain\n"


def test_a_table_is_laid_out_in_parts() -> None:
    file = io.StringIO()
    sink = TableSink(console_on(file), ("serial", "retain", "timestamp"))
    sink.write(batch(*[b""] * 450))
    sink.close()
    lines = file.getvalue().splitlines()
    assert lines[:2] == [
        "serial  retain  timestamp",
        "     0  true    2023-11-14T22:13:20.000000Z",
    ]
    assert [int(line.split()[0]) for line in lines[1:]] == list(range(450))


def test_what_a_topic_holds_gives_no_orders_to_the_terminal() -> None:
    file = io.StringIO()
    sink = TableSink(console_on(file), ("topic", "value"))
    sink.write(batch(b"\x1b[2J", topic="[bold]\x1b"))
    assert file.getvalue().splitlines()[1] == "[bold]\\x1b  \\x1b[2J"


def test_a_long_topic_loses_its_middle_on_a_terminal_and_nowhere_else() -> None:
    topic = "plant/" + "very-" * 40 + "long/temperature"
    shown, piped = io.StringIO(), io.StringIO()
    for file, console in (
        (shown, Console(file=shown, width=90, force_terminal=True, color_system=None)),
        (piped, console_on(piped)),
    ):
        sink = TableSink(console, ("topic", "value"))
        sink.write(batch(b"21.5", topic=topic))
        sink.write(batch(b"x", topic="a/b"))
        sink.close()
        assert "21.5" in file.getvalue()
    assert shown.getvalue().splitlines()[1].split() == ["plant/very-ver…ong/temperature", "21.5"]
    assert piped.getvalue().splitlines()[1] == f"{topic}  21.5"


@pytest.mark.parametrize(
    ("text", "width", "cut"),
    [("abcdef", 6, "abcdef"), ("abcdefg", 6, "ab…efg"), ("日本語日本語", 7, "日…語")],
)
def test_text_is_cut_in_the_middle_to_a_width(text: str, width: int, cut: str) -> None:
    assert shortened(text, width) == cut


def test_arrow_is_an_ipc_stream_of_the_same_batches() -> None:
    file = io.BytesIO()
    sink = ArrowSink(file, COLUMNS)
    written = [batch(b"x", b"y"), batch(b"z", first=2)]
    for each in written:
        sink.write(each)
    sink.close()
    with pa.ipc.open_stream(file.getvalue()) as reader:
        assert (reader.schema, list(reader)) == (SCHEMA, written)


def test_parquet_gathers_small_batches_into_one_row_group() -> None:
    file = io.BytesIO()
    sink = ParquetSink(file, COLUMNS)
    for number in range(10):
        sink.write(batch(b"%d" % number, first=number))
    sink.close()
    read = pq.ParquetFile(io.BytesIO(file.getvalue()))
    assert (read.metadata.num_row_groups, read.metadata.num_rows) == (1, 10)
    assert read.read().equals(pa.Table.from_batches([batch(b"%d" % n, first=n) for n in range(10)]))


def test_parquet_without_rows_has_the_schema() -> None:
    file = io.BytesIO()
    ParquetSink(file, TABLE_COLUMNS).close()
    assert pq.read_table(io.BytesIO(file.getvalue())).equals(schema_of(TABLE_COLUMNS).empty_table())


def test_a_parquet_file_that_was_not_finished_is_empty() -> None:
    file = io.BytesIO()
    sink = ParquetSink(file, COLUMNS)
    sink.write(batch(b"x"))
    sink.flush()
    sink.abandon()
    assert file.getvalue() == b""


@pytest.mark.parametrize(
    "make",
    [
        lambda file: JsonLinesSink(file, COLUMNS),
        lambda file: TableSink(console_on(file), COLUMNS),
        lambda file: ArrowSink(file.buffer, COLUMNS),
    ],
)
def test_what_was_streamed_stays_when_it_is_not_finished(
    make: Callable[[io.TextIOWrapper], Sink],
) -> None:
    buffer = io.BytesIO()
    file = io.TextIOWrapper(buffer, "utf-8")
    sink = make(file)
    sink.write(batch(b"x"))
    sink.flush()
    written = buffer.getvalue()
    sink.abandon()
    assert b"a/b" in written
    assert buffer.getvalue() == written
