from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import ParseException

from siltstone.errors import SiltstoneError, UsageError
from siltstone.pipeline.answers import count_read, explain_read, plain_errors, spark_sentence
from siltstone.scan.options import StartTimes
from siltstone.store.feed.position import Position
from tests.support.builders import NOW_US, World, rows_on
from tests.support.pipeline import batch_rows, options_of


def world() -> World:
    made = World()
    with made.database(thresholds=(-1, 0)) as database:
        database.append(rows_on("s/a", "s/b", "t")).wait()
        database.seal()
        database.append(rows_on("s/a", "s/c")).wait()
    return made


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({}, 5),
        ({"filters": ("s/a",)}, 2),
        ({"filters": ("s/a", "s/+", "t")}, 5),
        ({"filters": ("s/a", "s/c")}, 3),
        ({"since_us": NOW_US + 1, "until_us": NOW_US + 4}, 3),
        ({"filters": ("s/+", "s/a"), "since_us": NOW_US + 3}, 2),
        ({"starting": Position({0: 2})}, 3),
        ({"ending": Position({0: 4})}, 4),
        ({"starting_times": StartTimes(default_us=NOW_US + 1)}, 4),
    ],
    ids=str,
)
def test_rows_are_counted_as_they_are_read(changes: dict[str, Any], rows: int) -> None:
    made = world()
    assert count_read(made.fs, options_of(**changes)) == rows == len(batch_rows(made, **changes))


def test_what_a_query_reads_is_told_without_reading_it() -> None:
    report = explain_read(world().fs, options_of(filters=("t",)))
    assert (report.slabs, report.slabs_read, report.frames, report.frames_read) == (2, 1, 4, 1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "[PYTHON_DATA_SOURCE_ERROR] Failed: siltstone.errors.UsageError: no path\n SQLSTATE: 1",
            "no path",
        ),
        # A statement that cannot be read begins with an empty line.
        (
            "\n[PARSE_SYNTAX_ERROR] at 'selec'. (line 1, pos 0)\n\n== SQL ==\nselec\n^^^\n",
            "[PARSE_SYNTAX_ERROR] at 'selec'. (line 1, pos 0)",
        ),
        (
            "[UNRESOLVED_COLUMN] `a;b` cannot be; line 1 pos 7;\n'Project ['nope]\n",
            "[UNRESOLVED_COLUMN] `a;b` cannot be; line 1 pos 7",
        ),
        (
            "An error occurred while calling o9.load.\n: org.Missing: [NOT_FOUND] no x.\n\tat X",
            "[NOT_FOUND] no x.",
        ),
        (
            "[WORKER] below:\nTraceback\n  File x\nsiltstone.errors.UsageError: no topic: row=1\n",
            "no topic: row=1",
        ),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/a.csv. SQLSTATE: 42K03",
            "[PATH_NOT_FOUND] Path does not exist: file:/a.csv.",
        ),
        ("", "Spark could not do it: ParseException"),
    ],
)
def test_an_error_of_spark_is_one_sentence(text: str, sentence: str) -> None:
    assert spark_sentence(ParseException(text)) == sentence
    with pytest.raises(UsageError) as caught, plain_errors():
        raise ParseException(text)
    assert str(caught.value) == sentence


def test_errors_of_others_pass_through() -> None:
    with pytest.raises(KeyError), plain_errors():
        raise KeyError
    with pytest.raises(SiltstoneError, match="no column") as caught, plain_errors(SiltstoneError):
        raise ParseException("no column")
    assert type(caught.value) is SiltstoneError
