"""Payloads that change their form: their rows stay in their table, as independent readers see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

import siltstone
from siltstone.errors import UsageError
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from tests.support.builders import settings_of
from tests.support.lake import lake_of, read_table, tables_of, tier_all

TOPIC = "dev/a"
TABLE = "dev_a"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with siltstone.open(path) as store:
        yield store.create("messages", settings_of())


def append(database: Database, *payloads: str) -> None:
    database.append([Row(TOPIC, payload.encode()) for payload in payloads]).wait()


def set_drift(path: Path, drift: str) -> None:
    rules = lake_of(path) / "rules.toml"
    rules.write_text(rules.read_text("utf-8").replace('"rescue"', f'"{drift}"'), "utf-8")


def test_a_field_that_changes_its_type_loses_no_row_from_its_table(
    database: Database, path: Path
) -> None:
    append(database, *(json.dumps({"v": number}) for number in range(100)))
    tier_all(path)
    append(database, *(json.dumps({"v": str(n), "late": n}) for n in range(200)))
    tier_all(path)
    assert tables_of(path) == [TABLE]
    dataset = DeltaTable(str(lake_of(path) / TABLE)).to_pyarrow_dataset()  # noqa: F841 - by name
    asked = duckdb.sql(
        "SELECT count(*), count(v), count(_rescued), sum(late), "
        "sum(CAST(_rescued->>'v' AS INTEGER)) FROM dataset"
    )
    assert asked is not None
    total = sum(range(200))
    assert asked.fetchall() == [(300, 100, 200, total, total)]


def test_large_integers_stay_exact_and_numbers_fit_text(database: Database, path: Path) -> None:
    large, huge = (1 << 53) + 1, (1 << 64) + 1
    append(database, json.dumps({"id": large, "h": huge, "s": "a"}))
    tier_all(path)
    append(database, '{"id": 7, "h": 8, "s": 1.50}', '{"id": 1.5, "h": 1.5, "s": null}')
    tier_all(path)
    rows = read_table(path, TABLE).sort_by("serial")
    columns = ("id", "h", "s", "_rescued")
    assert rows.select(columns).to_pylist() == [
        dict(zip(columns, row, strict=True))
        for row in (
            (large, Decimal(huge), "a", None),
            (7, Decimal(8), "1.50", None),
            (None, None, None, '{"id":1.5,"h":1.5}'),
        )
    ]


def test_a_document_that_is_none_is_a_dead_letter_still(database: Database, path: Path) -> None:
    append(database, '{"v": 1}', '{"v": 1}', '{"v": 1}', '{"v": 1}', "offline")
    tier_all(path)
    assert tables_of(path) == ["dead_letter", TABLE]
    assert read_table(path, "dead_letter").column("payload").to_pylist() == [b"offline"]


def test_a_table_may_send_what_drifts_to_the_dead_letters(database: Database, path: Path) -> None:
    append(database, '{"v": 1}')
    tier_all(path)
    set_drift(path, "dead_letter")
    append(database, '{"v": "x"}', '{"v": 2}')
    tier_all(path)
    assert read_table(path, TABLE).num_rows == 2
    (dead,) = read_table(path, "dead_letter").to_pylist()
    assert (dead["table"], dead["reason"]) == (TABLE, 'v is not of type double: "x"')


def test_a_table_may_reject_what_drifts_and_nothing_of_the_batch_is_there(
    database: Database, path: Path
) -> None:
    append(database, '{"v": 1}')
    tier_all(path)
    set_drift(path, "reject")
    append(database, '{"v": 2}', '{"v": "x"}')
    sentence = (
        "table dev_a rejects a payload of 'dev/a': v is not of type double: \"x\"; correct the "
        "rule of 'dev/a' in rules.toml, or set its drift to rescue"
    )
    with pytest.raises(UsageError, match="rejects") as caught:
        tier_all(path)
    assert str(caught.value) == sentence
    assert read_table(path, TABLE).num_rows == 1
    rules = lake_of(path) / "rules.toml"
    rules.write_text(rules.read_text("utf-8").replace('"reject"', '"rescue"'), "utf-8")
    assert tier_all(path) == 2
    assert read_table(path, TABLE).num_rows == 3


NEIGHBOURS = [
    *('{"v": NaN}', '{"v": "offline"}', '{"v": 1e400}', '{"v": 7}', '{"v": true}', '{"v": [1]}'),
    *('{"v": 1, "v": 2}', f'{{"v": {"9" * 40}}}', "offline", "", '{"v": null}', '{"v": -0}'),
]


@pytest.mark.parametrize("drift", ["rescue", "dead_letter"])
def test_a_row_is_tiered_alike_in_a_batch_of_its_own_and_among_neighbours(
    tmp_path: Path, drift: str
) -> None:
    found: list[dict[str, list[dict[str, object]]]] = []
    for number, rows_per_batch in enumerate((1, 5, 1000)):
        path = tmp_path / str(number)
        with siltstone.open(path) as store:
            database = store.create("messages", settings_of())
            append(database, *['{"v": 1.5}'] * 9)
            tier_all(path)
            set_drift(path, drift)
            append(database, *NEIGHBOURS)
            assert tier_all(path, rows_per_batch=rows_per_batch) == len(NEIGHBOURS)
        found.append({name: rows_of_table(path, name) for name in tables_of(path)})
    assert found[0] == found[1] == found[2]
    assert sum(map(len, found[0].values())) == 9 + len(NEIGHBOURS)


def rows_of_table(path: Path, name: str) -> list[dict[str, object]]:
    """Return the rows of a table by serial, without their times; NaN is equal to NaN."""
    rows = read_table(path, name).to_pylist()
    return [
        {key: repr(value) for key, value in row.items() if key not in ("timestamp", "date")}
        for row in sorted(rows, key=lambda row: row["serial"])
    ]
