from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from siltstone.cli.output.sinks import (
    TABLE_COLUMNS,
    ArrowSink,
    CsvSink,
    JsonLinesSink,
    JsonSink,
    ParquetSink,
    TableSink,
)
from siltstone.cli.store.read import Format, choose_columns, choose_format, limited, make_sink
from siltstone.errors import UsageError
from siltstone.store.log.read.pieces import COLUMNS
from tests.support.command_line import CommandLine, Outcome

FILE = Path("x")


@pytest.fixture
def metrics(siltstone: CommandLine) -> CommandLine:
    """Six rows a minute apart, the third minute in a generation of its own."""
    siltstone.create("metrics")
    for minute in range(3):
        if minute == 2:
            siltstone("seal", "metrics")
        lines = [
            json.dumps({"topic": f"room/{room}/t", "value": f"{minute}{room}", "qos": minute})
            for room in "ab"
        ]
        assert siltstone("append", "metrics", stdin="\n".join(lines).encode()).status == 0
        siltstone.clock.advance(60)
    return siltstone


def values(outcome: Outcome) -> list[str]:
    assert (outcome.status, outcome.err) == (0, "")
    return [json.loads(line)["value"] for line in outcome.lines]


def test_rows_come_as_a_table_in_order_of_time(metrics: CommandLine) -> None:
    assert metrics("read", "metrics", "--limit", "3").out == (
        "timestamp                    topic     publisher  qos  value\n"
        "2023-11-14T22:13:20.000000Z  room/a/t               0  0a\n"
        "2023-11-14T22:13:20.000001Z  room/b/t               0  0b\n"
        "2023-11-14T22:14:20.000000Z  room/a/t               1  1a\n"
    )


@pytest.mark.parametrize(
    "args", [("--json",), ("--format", "jsonl"), ("--json", "--format", "jsonl")]
)
def test_rows_come_as_json_lines(metrics: CommandLine, args: tuple[str, ...]) -> None:
    assert values(metrics("read", "metrics", *args)) == ["0a", "0b", "1a", "1b", "2a", "2b"]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--filter", "room/b/#"), ["0b", "1b", "2b"]),
        (("--filter", "hall/#"), []),
        (("--since", "-150s"), ["1a", "1b", "2a", "2b"]),
        (("--since", "2023-11-14T22:14:20Z", "--until", "1700000120"), ["1a", "1b"]),
        (("--until", "1700000000000001"), ["0a"]),
        (("--since", "now"), []),
        (("--limit", "1"), ["0a"]),
        (("--filter", "+/a/t", "--since", "-2m", "--limit", "1"), ["1a"]),
    ],
)
def test_rows_are_chosen_by_topic_time_and_number(
    metrics: CommandLine, args: tuple[str, ...], expected: list[str]
) -> None:
    assert values(metrics("read", "metrics", "--json", *args)) == expected


def test_columns_are_those_that_were_named(metrics: CommandLine) -> None:
    outcome = metrics("read", "metrics", "--columns", "value, generation", "--limit", "1")
    assert outcome.lines == ["value  generation", "0a              1"]


def test_following_ends_at_its_limit_and_gives_what_reading_gives(metrics: CommandLine) -> None:
    followed = metrics("read", "metrics", "--json", "--follow", "--limit", "5")
    assert followed == metrics("read", "metrics", "--json", "--limit", "5")


def test_following_ends_with_130_when_interrupted(
    metrics: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("siltstone.cli.store.read.sleep", interrupt)
    outcome = metrics("read", "metrics", "--follow", "--columns", "value")
    assert (outcome.status, outcome.lines, outcome.err) == (
        130,
        ["value", "0a", "0b", "1a", "1b", "2a", "2b"],
        "",
    )


@pytest.mark.parametrize("since", ["2026-01-02", "2026-01-03"])
def test_an_end_that_is_not_behind_the_start_is_refused(siltstone: CommandLine, since: str) -> None:
    outcome = siltstone("read", "metrics", "--since", since, "--until", "2026-01-02")
    assert (outcome.status, outcome.out, outcome.err) == (
        2,
        "",
        f"siltstone: --until must be later than --since: since={since} until=2026-01-02\n",
    )


@pytest.mark.parametrize(
    "args",
    [("--until", "now"), ("--format", "parquet", "--output", "x"), ("--format", "json")],
)
def test_following_refuses_what_needs_an_end(siltstone: CommandLine, args: tuple[str, ...]) -> None:
    outcome = siltstone("read", "metrics", "--follow", *args)
    assert (outcome.status, outcome.err) == (
        2,
        "siltstone: --follow never ends; leave out --until, and --format parquet or json\n",
    )


@pytest.mark.parametrize(
    ("wanted", "output", "json", "chosen"),
    [
        (None, None, False, Format.TABLE),
        (None, None, True, Format.JSONL),
        (Format.JSONL, None, True, Format.JSONL),
        (Format.ARROW, None, False, Format.ARROW),
        (Format.NDJSON, None, True, Format.NDJSON),
        (Format.PARQUET, FILE, False, Format.PARQUET),
        (None, Path("rows.CSV"), False, Format.CSV),
        (None, Path("rows.json"), False, Format.JSON),
        (None, Path("rows.jsonl"), False, Format.NDJSON),
        (None, Path("rows.parquet"), False, Format.PARQUET),
        (None, Path("rows.txt"), False, Format.TABLE),
        (None, Path("rows.csv"), True, Format.JSONL),
        (Format.TABLE, Path("rows.csv"), False, Format.TABLE),
    ],
)
def test_the_format_follows_from_the_options(
    wanted: Format | None, output: Path | None, *, json: bool, chosen: Format
) -> None:
    assert choose_format(wanted, output, json=json) is chosen


def test_formats_that_contradict_or_need_a_file_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UsageError, match="--json means --format ndjson"):
        choose_format(Format.TABLE, None, json=True)
    with pytest.raises(UsageError, match="Parquet needs a file"):
        choose_format(Format.PARQUET, None, json=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with pytest.raises(UsageError, match="Arrow is a binary format"):
        choose_format(Format.ARROW, None, json=False)
    assert choose_format(Format.ARROW, FILE, json=False) is Format.ARROW


def test_columns_follow_from_the_format_unless_named() -> None:
    assert choose_columns(None, Format.TABLE) == TABLE_COLUMNS
    assert choose_columns(None, Format.JSONL) == COLUMNS
    assert choose_columns("value, topic", Format.TABLE) == ("value", "topic")
    assert choose_columns("topic,payload", Format.CSV) == ("topic", "value")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("value,payload", "--columns names a column twice"),
        ("value,value", "--columns names a column twice"),
        ("", "unknown column"),
        ("colour", "unknown column colour"),
    ],
)
def test_columns_that_are_not_there_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        choose_columns(text, Format.TABLE)


def test_nothing_is_read_beyond_the_limit() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for start in (0, 3):
            yield pa.record_batch({"n": list(range(start, start + 3))})
        raise AssertionError("read too far")

    found = [batch.column("n").to_pylist() for batch in limited(batches(), 5)]
    assert found == [[0, 1, 2], [3, 4]]
    assert [batch.num_rows for batch in limited(batches(), 6)] == [3, 3]
    with pytest.raises(AssertionError, match="read too far"):
        list(limited(batches(), None))


@pytest.mark.parametrize(
    ("chosen", "kind"),
    [
        (Format.TABLE, TableSink),
        (Format.JSONL, JsonLinesSink),
        (Format.NDJSON, JsonLinesSink),
        (Format.JSON, JsonSink),
        (Format.CSV, CsvSink),
        (Format.ARROW, ArrowSink),
        (Format.PARQUET, ParquetSink),
    ],
)
def test_every_format_has_its_sink(chosen: Format, kind: type) -> None:
    file = io.TextIOWrapper(io.BytesIO())
    sink = make_sink(chosen, file, ("topic",))
    assert type(sink) is kind
    sink.close()


def test_stats_say_what_was_read_and_skipped(metrics: CommandLine) -> None:
    found = metrics("read", "metrics", "--filter", "room/a/t", "--stats", "--json")
    assert len(found.lines) == 3
    # A segment begins with a frame without rows. Each stream has its own rows.
    assert found.err == (
        "siltstone: read 2 of 2 segments and 3 of 5 frames: scanned 6 of 6 rows, returned 3\n"
    )


def test_following_has_no_stats(metrics: CommandLine) -> None:
    found = metrics("read", "metrics", "--follow", "--stats")
    assert (found.status, found.out) == (2, "")
    assert "leave out --stats" in found.err
