from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.command_line import CommandLine
from tests.support.fake_jobs import FakeJobs

ROWS = [
    ("a", 1, None, b"\xff", datetime(2026, 1, 31, tzinfo=UTC)),
    ("b", 2, True, b"text", [date(2026, 1, 31), {"k": Decimal("1.5")}]),
]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Answer every statement with the same rows; return what was asked."""
    asked: list[Any] = []

    def run(spark: str, statement: str, *, rows_max: int) -> Any:
        asked.append((statement, rows_max))
        return SimpleNamespace(
            columns=["name", "n", "flag", "payload", "any"],
            numbers=[False, True, False, False, False],
            rows=ROWS[:rows_max],
            more=len(ROWS) > rows_max,
        )

    def make_views(spark: str, path: str, *, database: str) -> None:
        asked.append((path, database))

    FakeJobs(monkeypatch, "sql").put("sql", run=run, make_views=make_views)
    return asked


def test_rows_are_shown_as_a_table(siltstone: CommandLine, asked: list[Any]) -> None:
    done = siltstone("sql", "SELECT 1", "--database", "m", "--master", "local[1]")
    assert asked == [("/data", "m"), ("SELECT 1", 1000)]
    assert [line.split() for line in done.lines if "─" not in line] == [
        ["name", "n", "flag", "payload", "any"],
        ["a", "1", "ff", "2026-01-31T00:00:00+00:00"],
        ["b", "2", "true", "text", '["2026-01-31",', '{"k":', '"1.5"}]'],
    ]


def test_rows_are_json_and_those_left_out_are_told_of(
    siltstone: CommandLine, asked: list[Any]
) -> None:
    done = siltstone("sql", "SELECT 1", "--json", "--limit", "1")
    assert done.document == [
        {
            "name": "a",
            "n": 1,
            "flag": None,
            "payload": "ff",
            "any": "2026-01-31T00:00:00+00:00",
        }
    ]
    assert done.err == "siltstone: there are more than 1 rows; --limit shows more\n"
