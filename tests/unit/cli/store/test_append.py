from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any, cast

import pytest

from siltstone.cli.store.append import InputFormat, LoadProgress, guess_format, load
from siltstone.errors import UsageError
from siltstone.store.database import Database, Durability
from siltstone.store.log.write.partition import Columns
from siltstone.store.writer.ticket import Ticket
from tests.support.command_line import CommandLine

LINES = b"".join(b'{"topic":"t/%d","value":%d}\n' % (i % 3, i) for i in range(10))


@pytest.fixture
def metrics(siltstone: CommandLine) -> CommandLine:
    siltstone.create("metrics")
    return siltstone


def values(siltstone: CommandLine) -> list[str]:
    outcome = siltstone("read", "metrics", "--columns", "value", "--format", "table")
    return outcome.lines[1:]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("-", InputFormat.JSONL),
        ("rows.jsonl", InputFormat.JSONL),
        ("a/rows.NDJSON", InputFormat.JSONL),
        ("rows.json", InputFormat.JSONL),
        ("rows.csv", InputFormat.CSV),
    ],
)
def test_the_name_of_a_file_tells_its_format(name: str, expected: InputFormat) -> None:
    assert guess_format(name) is expected


def test_a_name_that_tells_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the suffix of 'rows\.txt' names no known format"):
        guess_format("rows.txt")


def test_json_lines_come_from_stdin(metrics: CommandLine) -> None:
    outcome = metrics("append", "metrics", "--json", stdin=LINES)
    document = outcome.document
    assert document.pop("seconds") >= 0
    assert document.pop("rows_per_second") >= 0
    assert (document, outcome.err) == ({"rows": 10, "duplicates": 0, "bad_lines": 0}, "")
    assert values(metrics) == [str(i) for i in range(10)]


def test_csv_comes_from_stdin(metrics: CommandLine) -> None:
    outcome = metrics("append", "metrics", "--format", "csv", stdin=b"topic,value\na,1\nb,2\n")
    assert outcome.status == 0
    assert outcome.out.startswith("2 rows in ")
    assert values(metrics) == ["1", "2"]


@pytest.mark.parametrize("durability", ["synced", "written", "none"])
def test_rows_keep_their_order_over_batches(metrics: CommandLine, durability: str) -> None:
    lines = b"".join(b'{"topic":"t","value":%d}\n' % i for i in range(100))
    args = ("append", "metrics", "--batch", "7", "--durability", durability)
    assert metrics(*args, stdin=lines).status == 0
    assert values(metrics) == [str(i) for i in range(100)]


def test_a_bad_line_stops_the_load_before_its_batch(metrics: CommandLine) -> None:
    stdin = LINES + b"?\n" + LINES
    outcome = metrics("append", "metrics", "--batch", "4", stdin=stdin)
    assert (outcome.status, outcome.out, outcome.err) == (
        2,
        "",
        (
            "siltstone: line 11: invalid JSON: Expecting value at column 1; "
            "correct the line, or pass --skip-bad; 8 rows before it were stored\n"
        ),
    )
    assert values(metrics) == [str(i) for i in range(8)]


def test_the_verb_agrees_with_the_number_of_rows_that_were_stored(metrics: CommandLine) -> None:
    stdin = LINES.splitlines(keepends=True)[0] + b"?\n"
    outcome = metrics("append", "metrics", "--batch", "1", stdin=stdin)
    assert outcome.err.endswith("; 1 row before it was stored\n")


def test_bad_lines_are_passed_over_when_asked_and_counted(metrics: CommandLine) -> None:
    stdin = b'{"topic":"#","value":1}\n' + LINES + b"?\n"
    outcome = metrics("append", "metrics", "--skip-bad", "--json", stdin=stdin)
    assert (outcome.status, outcome.document["rows"], outcome.document["bad_lines"]) == (0, 10, 2)
    assert outcome.err == (
        "siltstone: line 1: topic must not have the wildcards + and #: topic='#'\n"
        "siltstone: line 12: invalid JSON: Expecting value at column 1\n"
        "siltstone: skipped 2 invalid lines\n"
    )
    assert values(metrics) == [str(i) for i in range(10)]


def test_a_producer_s_load_that_was_cut_short_goes_on_where_it_stopped(
    metrics: CommandLine,
) -> None:
    args = ("append", "metrics", "--producer", "loader", "--batch", "3", "--json")
    assert metrics(*args, stdin=LINES + b"?\n").status == 2
    assert len(values(metrics)) == 9
    document = metrics(*args, stdin=LINES).document
    assert (document["rows"], document["duplicates"]) == (10, 9)
    again = metrics(*args[:-1], stdin=LINES)
    assert again.out.endswith("rows/s, 10 of them stored before\n")
    assert values(metrics) == [str(i) for i in range(10)]


def test_other_rows_of_a_producer_are_never_taken_for_those_it_has_sent(
    metrics: CommandLine,
) -> None:
    args = ("append", "metrics", "--producer", "loader", "--batch", "3", "--json")
    other = LINES.replace(b'"value":0}', b'"value":70}')
    assert metrics(*args, stdin=LINES).document["duplicates"] == 0
    # The first batch differs, the others are the same.
    assert metrics(*args, stdin=other).document["duplicates"] == 7


def test_a_publisher_that_is_too_long_is_a_bad_line(metrics: CommandLine) -> None:
    line = b'{"topic": "t", "value": "", "publisher": "' + b"p" * 65_536 + b'"}\n'
    outcome = metrics("append", "metrics", stdin=LINES + line)
    assert (outcome.status, "line 11" in outcome.err) == (2, True)


def test_a_publisher_that_is_too_long_is_passed_over_in_csv(metrics: CommandLine) -> None:
    stdin = b"topic,value,publisher\na,1,p\na,2," + b"p" * 65_536 + b"\na,3,p\n"
    outcome = metrics("append", "metrics", "--format", "csv", "--skip-bad", stdin=stdin)
    assert (outcome.status, outcome.err) == (
        0,
        (
            "siltstone: line 3: publisher must have at most 65535 bytes, got 65536\n"
            "siltstone: skipped 1 invalid line\n"
        ),
    )
    assert values(metrics) == ["1", "3"]


def test_nothing_is_created_for_a_database_that_is_missing(siltstone: CommandLine) -> None:
    assert siltstone("append", "metrics", stdin=LINES).status == 2
    siltstone.create("other")
    outcome = siltstone("append", "metrics", stdin=LINES)
    assert (outcome.status, outcome.err) == (
        2,
        "siltstone: database 'metrics' does not exist in /data (databases: other)\n",
    )


def test_a_quota_ends_the_load_with_what_was_stored(siltstone: CommandLine) -> None:
    siltstone.create("metrics", "--quota", "1B")
    outcome = siltstone("append", "metrics", stdin=LINES)
    assert (outcome.status, outcome.out) == (3, "")
    stopped, reason = outcome.err.splitlines()
    assert stopped == "siltstone: stopped; 0 rows were stored"
    assert reason.startswith("siltstone: database 'metrics' has reached its quota")


@pytest.mark.parametrize("durability", ["synced", "none"])
def test_what_was_acknowledged_is_known_when_the_input_breaks(
    metrics: CommandLine, durability: Durability
) -> None:
    def broken() -> Iterator[Columns]:
        for number in range(20):
            yield Columns([b"t"], [b"%d" % number])
        raise KeyboardInterrupt

    done = LoadProgress()
    seen: list[int] = []
    with metrics.store() as store, pytest.raises(KeyboardInterrupt):
        load(
            store.database("metrics"),
            broken(),
            done,
            durability=durability,
            producer=None,
            progress=seen.append,
        )
    assert done == LoadProgress(rows=20, duplicates=0)
    assert (seen == sorted(seen), seen[-1]) == (True, 20)
    assert values(metrics) == [str(i) for i in range(20)]


class InterruptedDatabase:
    """A database to which Ctrl-C comes when it has taken the rows, before it says so."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, *args: Any, **options: Any) -> Ticket:
        ticket = self._database.append(*args, **options)
        signal.raise_signal(signal.SIGINT)
        return ticket


def test_what_was_given_to_the_store_is_counted_whenever_the_load_is_interrupted(
    metrics: CommandLine,
) -> None:
    done = LoadProgress()
    with metrics.store() as store, pytest.raises(KeyboardInterrupt):
        load(
            cast("Database", InterruptedDatabase(store.database("metrics"))),
            [Columns([b"t"], [b"0"]), Columns([b"t"], [b"1"])],
            done,
            durability="synced",
            producer=None,
            progress=lambda _: None,
        )
    assert (done, values(metrics)) == (LoadProgress(rows=1, duplicates=0), ["0"])
