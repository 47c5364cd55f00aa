"""What feeds each table, and the rule that would mend it; the commands that show and change it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import siltstone
from siltstone.cli.main import execute
from siltstone.errors import LockedError
from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline.jobs.rewriting import retier
from siltstone.pipeline.jobs.upkeep import BATCH, UPKEEP
from siltstone.pipeline.lake.tables import versions
from siltstone.pipeline.lake.tables.explain import FEW_ROWS, MANY_FIELDS, TableFeed, explain
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from tests.support.builders import settings_of
from tests.support.lake import DATABASE, here, lake_of, read_table, tier_all

FS = PosixFileSystem()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with siltstone.open(path) as store:
        yield store.create(DATABASE, settings_of())


def append(database: Database, *topics: str, **fields: Any) -> None:
    payload = json.dumps(fields).encode()
    database.append([Row(topic, payload) for topic in topics]).wait()


def feeds(path: Path) -> dict[str, TableFeed]:
    return {feed.table: feed for feed in explain(FS, lake_of(path))}


def add_rule(path: Path, advice: str) -> None:
    """Add the rule of an advice to the rules, as a user would."""
    rule = advice.partition("add [[rule]] ")[2].removesuffix(" to rules.toml")
    text, _, table = rule.partition(" table = ")
    file = lake_of(path) / "rules.toml"
    file.write_text(f'[[rule]]\n{text}\ntable = {table}\ndecode = "json"\n{file.read_text()}')


def test_each_table_shows_its_rules_and_topics(database: Database, path: Path) -> None:
    append(database, "plant/1/heat", "plant/2/heat", "plant/2/heat", v=1)
    append(database, "note", text="x")
    tier_all(path)
    assert feeds(path)["plant_heat"] == TableFeed(
        table="plant_heat",
        rows=3,
        fields=1,
        filters=("plant/+/heat",),
        topics=2,
        examples=("plant/2/heat", "plant/1/heat"),
        is_whole=True,
    )


def test_a_table_with_few_rows_is_mended_by_the_rule_that_is_told(
    database: Database, path: Path
) -> None:
    append(database, *["shop/order/new"] * FEW_ROWS, price=1, count=2)
    append(database, "shop/user/new", name="x", mail="y")
    tier_all(path)
    found = feeds(path)
    assert found["shop_order_new"].advice == ()
    (advice,) = found["shop_user_new"].advice
    assert advice == (
        "few rows: to join it with shop_order_new, add [[rule]] filter = 'shop/+/new' "
        "table = 'shop_order_new' to rules.toml"
    )
    add_rule(path, advice)
    retier(here(FS), str(path), ["shop_user_new", "shop_order_new"])
    assert {name: feed.advice for name, feed in feeds(path).items()} == {"shop_order_new": ()}
    assert read_table(path, "shop_order_new").num_rows == FEW_ROWS + 1


def test_a_table_with_many_fields_is_mended_by_the_rule_that_is_told(
    database: Database, path: Path
) -> None:
    for kind in range(2):
        names = {f"f{kind}_{number}": number for number in range(MANY_FIELDS // 2)}
        append(database, *[f"kind/{kind}/state"] * (3 - kind), **names)
    tier_all(path)
    (advice,) = feeds(path)["kind_state"].advice
    assert advice.startswith("many fields: to separate some of its topics, add [[rule]] filter = ")
    add_rule(path, advice)
    retier(here(FS), str(path), ["kind_state"])
    found = feeds(path)
    assert {name: feed.rows for name, feed in found.items()} == {
        "kind_state": 2,
        "kind_state_n0": 3,
    }


def test_a_table_that_no_rule_feeds_is_told(database: Database, path: Path) -> None:
    append(database, "plant/1/heat", v=1)
    tier_all(path)
    file = lake_of(path) / "rules.toml"
    file.write_text(file.read_text().replace('"plant_heat"', '"heat"'))
    assert feeds(path)["plant_heat"].advice == (
        "no rule feeds it: 'siltstone pipeline retier --table plant_heat' moves its rows",
    )


def run(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert execute(args) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_the_commands_show_and_change_the_schema(
    database: Database, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append(database, "plant/1/heat", v=1)
    tier_all(path)
    append(database, "plant/1/heat", w="x")
    tier_all(path)
    data = ("--data", str(path))
    assert json.loads(run(capsys, "schema", "list", *data, "--json")) == [
        {"version": 1, "time": item["time"], "changes": item["changes"]}
        if number == 0
        else {"version": 2, "time": item["time"], "changes": ["+ plant_heat.w string from w"]}
        for number, item in enumerate(json.loads(run(capsys, "schema", "list", *data, "--json")))
    ]
    assert "plant_heat.w string from w" in run(capsys, "schema", "list", *data)
    shown = run(capsys, "schema", "show", *data, "--table", "plant_heat", "--json")
    assert json.loads(shown) == {"plant_heat": {"v": "double from v", "w": "string from w"}}
    old = json.loads(run(capsys, "schema", "show", *data, "--version", "1", "--json"))
    assert old == {"plant_heat": {"v": "double from v"}}
    assert run(capsys, "schema", "set", "plant_heat", "v", "string", *data) == (
        "version 3: column v becomes string with 'siltstone pipeline retier --table plant_heat'\n"
    )
    assert run(capsys, "schema", "diff", "2", *data) == (
        "~ plant_heat.v double from v -> double, wanted string from v\n"
    )
    assert "wanted string" in run(capsys, "schema", "show", *data)
    assert run(capsys, "schema", "diff", "2", "2", *data) == "no difference\n"
    told = run(capsys, "pipeline", "tables", *data, "--explain")
    assert "plant/+/heat" in told


def test_a_type_is_chosen_while_no_job_changes_the_rules(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(database, "plant/1/heat", v=1)
    tier_all(path)
    want_type = versions.want_type
    refused: list[str] = []

    def watched(*given: Any, **options: Any) -> int:
        for name in (UPKEEP, BATCH):
            with pytest.raises(LockedError):
                FS.lock(lake_of(path) / name)
            refused.append(name)
        return want_type(*given, **options)

    monkeypatch.setattr(versions, "want_type", watched)
    assert execute(["schema", "set", "plant_heat", "v", "string", "--data", str(path)]) == 0
    assert refused == [UPKEEP, BATCH]


def test_a_table_by_hand_needs_a_filter_and_a_name(database: Database, path: Path) -> None:
    lake_of(path).mkdir(parents=True)
    (lake_of(path) / "rules.toml").write_text(
        '[[lake.table]]\nfilter = "plant/+/line/+/#"\nname = "line"\n'
        '[[lake.table]]\nfilter = "later/+"\nname = "later"\n'
    )
    append(database, "plant/1/line/a/heat", "plant/2/line/b/light/left", "plant/2/door", v=1)
    tier_all(path)
    assert {name: feed.filters for name, feed in feeds(path).items()} == {
        "line": ("plant/+/line/+/#",),
        "plant_door": ("plant/+/door",),
    }
    rows = read_table(path, "line").to_pylist()
    assert sorted((row["plant"], row["line"], row["v"]) for row in rows) == [
        ("1", "a", 1.0),
        ("2", "b", 1.0),
    ]
    append(database, "later/1", w="x")
    append(database, "plant/1/line/a/heat", late=True)
    tier_all(path)
    assert read_table(path, "later").column("w").to_pylist() == ["x"]
    assert sorted(str(late) for late in read_table(path, "line").column("late").to_pylist()) == [
        "None",
        "None",
        "True",
    ]
