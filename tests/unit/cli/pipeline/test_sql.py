from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from siltstone.errors import UsageError
from siltstone.pipeline.answers import plain_errors, spark_sentence
from tests.support.command_line import CommandLine
from tests.support.fake_jobs import FakeJobs

ROWS = [
    ("a", 1, None, b"\xff", datetime(2026, 1, 31, tzinfo=UTC)),
    ("b", 2, True, b"text", [date(2026, 1, 31), {"k": Decimal("1.5")}]),
]


def put(monkeypatch: pytest.MonkeyPatch, **queries: Any) -> None:
    fakes = FakeJobs(monkeypatch, "siltstone.cli.pipeline.sql")
    fakes.put("sql", **queries)
    fakes.put("answers", plain_errors=plain_errors, spark_sentence=spark_sentence)


@pytest.fixture
def asked(siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
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

    def make_views(spark: str, *, database: str, since: str | None, **place: Any) -> None:
        assert place.pop("failOnDataLoss") is True
        asked.append((place, database, since))

    siltstone.create("m")
    put(monkeypatch, run=run, make_views=make_views)
    return asked


def test_rows_are_shown_as_a_table(siltstone: CommandLine, asked: list[Any]) -> None:
    done = siltstone("sql", "SELECT 1", "--database", "m", "--master", "local[1]")
    assert asked == [({"path": "/data"}, "m", None), ("SELECT 1", 1000)]
    assert [line.split() for line in done.lines if "─" not in line] == [
        ["name", "n", "flag", "payload", "any"],
        ["a", "1", "ff", "2026-01-31T00:00:00+00:00"],
        ["b", "2", "true", "text", '["2026-01-31",', '{"k":', '"1.5"}]'],
    ]


def test_a_node_is_asked_by_its_url(
    siltstone: CommandLine, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SILTSTONE_PASSWORD", "rock")
    login = ("--url", "grpc+tcp://h:1", "--username", "alice")
    assert siltstone("sql", "SELECT 1", *login, "--since", "2026-01-01").status == 0
    node = {"url": "grpc+tcp://h:1", "username": "alice", "password": "rock"}
    assert asked == [(node, "", "2026-01-01"), ("SELECT 1", 1000)]


def test_tables_are_not_found_by_url_for_a_reason(
    siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(spark: str, statement: str, *, rows_max: int) -> Any:
        raise UsageError("[TABLE_OR_VIEW_NOT_FOUND] no plant_oven")

    def make_views(spark: str, **given: Any) -> None:
        pass

    siltstone.create("m")
    put(monkeypatch, run=run, make_views=make_views)
    told = "siltstone: [TABLE_OR_VIEW_NOT_FOUND] no plant_oven"
    assert siltstone("sql", "SELECT 1").err == f"{told}\n"
    assert siltstone("sql", "SELECT 1", "--url", "grpc://h").err == (
        f"{told}; Delta tables cannot be read with --url, only from the data directory\n"
    )


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
    assert done.err == "siltstone: showed the first 1 rows; pass a larger --limit to see more\n"
