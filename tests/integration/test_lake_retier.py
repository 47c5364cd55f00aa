"""Tables that are derived again: by hand beside a running job, and when a column evolves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import siltstone
from siltstone.errors import NotFoundError, RetryError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.fs.memory import PowerCut
from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline.jobs import rewriting, tier
from siltstone.pipeline.jobs.rewriting import retier
from siltstone.pipeline.jobs.upkeep import compact_lake
from siltstone.pipeline.lake.tables.rewrite import REWRITE, read_rewrites
from siltstone.pipeline.source.lake_reader import LakeFiles
from siltstone.scan.options import ReadOptions
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from tests.support.builders import settings_of
from tests.support.lake import (
    DATABASE,
    here,
    lake_of,
    read_table,
    tables_of,
    tier_all,
    tiered_rows,
    tiering,
)
from tests.support.pipeline import stored_rows

FS = PosixFileSystem()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with siltstone.open(path) as store:
        yield store.create(DATABASE, settings_of(shards=2, shard_by="topic"))


def append(database: Database, *values: Any, topic: str = "dev/{}/v") -> None:
    rows = [
        Row(topic.format(place), json.dumps({"v": value, "n": place}).encode())
        for place, value in enumerate(values)
    ]
    database.append(rows).wait()


def content(path: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table by place."""
    rows = read_table(path, name).to_pylist()
    return sorted(rows, key=lambda row: (row["shard"], row["serial"]))


def clean_run(path: Path, database: Database, rules: str) -> dict[str, list[dict[str, Any]]]:
    """Return the tables of a lake that is made anew with these rules."""
    lake = lake_of(path)
    kept = lake.with_name("kept")
    lake.rename(kept)
    lake.mkdir()
    (lake / "rules.toml").write_text(rules)
    tier_all(path)
    made = {name: content(path, name) for name in tables_of(path) if name.startswith("de")}
    lake.rename(lake.with_name("clean"))
    kept.rename(lake)
    return made


def set_type(path: Path, before: str, after: str) -> str:
    file = lake_of(path) / "rules.toml"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    return file.read_text()


def test_a_table_that_is_derived_again_equals_one_of_a_clean_run(
    database: Database, path: Path
) -> None:
    append(database, 1, 2.5, "high", None)
    database.append([Row("dev/1/v", b"none"), Row("note", b"text")]).wait()
    append(database, True, {"x": 1}, 7)
    tier_all(path)
    assert [row["v"] for row in content(path, "dev_v") if row["v"]] != []
    set_type(path, 'type = "double"', 'type = "double", wanted = "string"')
    retier(here(FS), str(path), ["dev_v"])
    rules = (lake_of(path) / "rules.toml").read_text()
    assert 'column = "v", type = "string" }' in rules
    assert {row["v"] for row in content(path, "dev_v")} == {
        *("1", "2.5", "high", None, "true", '{"x":1}', "7"),
    }
    clean = clean_run(path, database, rules)
    assert {name: content(path, name) for name in clean} == clean
    assert tiered_rows(path) == stored_rows(database, ["#"])


def test_dead_letters_are_decoded_again_with_their_table(database: Database, path: Path) -> None:
    lake_of(path).mkdir(parents=True)
    rule = '[[rule]]\nfilter = "dev/+/v"\ntable = "dev_v"\ndecode = "json"\ndrift = "dead_letter"\n'
    (lake_of(path) / "rules.toml").write_text(rule)
    append(database, 1, "high", 2)
    database.append([Row("dev/0/v", b"none")]).wait()
    tier_all(path)
    assert len(content(path, "dead_letter")) == 2
    rules = set_type(path, '"dead_letter"', '"rescue"')
    retier(here(FS), str(path), ["dev_v"])
    assert [row["payload"] for row in content(path, "dead_letter")] == [b"none"]
    clean = clean_run(path, database, rules)
    assert {name: content(path, name) for name in clean} == clean


def test_rows_that_a_running_job_adds_meanwhile_are_in_the_new_table(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(database, 1, 2)
    draft = rewriting.Rewriter.draft
    with tiering(path) as job:
        job.step()
        set_type(path, 'type = "double"', 'type = "double", wanted = "string"')

        def meanwhile(*given: Any) -> Any:
            made = draft(*given)
            append(database, 3, 4)
            append(database, 5, topic="new/{}/x")
            database.append([Row("dev/9/v", b'{"v": 1, "late": true}')]).wait()
            assert job.step() is not None
            return made

        monkeypatch.setattr(rewriting.Rewriter, "draft", meanwhile)
        retier(here(FS), str(path), ["dev_v"])
        append(database, 6)
        assert job.step() is not None
        job.tidy()
    rules = (lake_of(path) / "rules.toml").read_text()
    clean = clean_run(path, database, rules)
    assert content(path, "dev_v") == clean["dev_v"]
    assert tiered_rows(path) == stored_rows(database, ["#"])


def test_a_catalog_with_the_type_of_before_is_told_to_attach_again(
    database: Database, path: Path
) -> None:
    append(database, 1, "high")
    tier_all(path)
    before = pa.schema([("v", pa.float64()), ("date", pa.string()), ("store", pa.string())])
    set_type(path, 'type = "double"', 'type = "double", wanted = "string"')
    retier(here(FS), str(path), ["dev_v"])
    place = lake_of(path) / "dev_v"
    (file,) = DeltaTable(str(place)).file_uris()
    options = ReadOptions(filters=(), rows_per_batch=100)
    with pytest.raises(UsageError, match=r"column v is string now .* call attach again"):
        list(LakeFiles(paths=(file,)).batches(FS, options, before))
    now = before.set(0, pa.field("v", pa.string()))
    (batch,) = LakeFiles(paths=(file,)).batches(FS, options, now)
    assert sorted(batch.column("v").to_pylist()) == ["1", "high"]


def test_a_directory_above_the_store_gives_no_column_its_value(tmp_path: Path) -> None:
    file = tmp_path / "v=7" / "date=2026-01-31" / "x.parquet"
    file.parent.mkdir(parents=True)
    pq.write_table(pa.table({"n": [1]}), file)
    schema = pa.schema([("n", pa.int64()), ("v", pa.string()), ("date", pa.string())])
    options = ReadOptions(filters=(), rows_per_batch=100)
    (batch,) = LakeFiles(paths=(str(file),)).batches(FS, options, schema)
    assert batch.to_pylist() == [{"n": 1, "v": None, "date": "2026-01-31"}]


def test_a_job_keeps_no_house_while_a_killed_rewrite_is_open(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(database, 1)
    with tiering(path) as job:
        job.step()

        def killed(*_given: Any, **_options: Any) -> None:
            raise PowerCut

        with monkeypatch.context() as patched:
            patched.setattr(rewriting, "swap_files", killed)
            with pytest.raises(PowerCut):
                retier(here(FS), str(path), ["dev_v"])
        assert job.tidy() == []
        assert read_rewrites(FS, lake_of(path)).open is not None
        assert job.step() is None
    assert read_rewrites(FS, lake_of(path)).open is None
    assert tiered_rows(path) == stored_rows(database, ["#"])


@pytest.mark.parametrize("kind", ["string", "double"])
def test_a_job_that_waited_for_a_killed_retier_completes_it_before_it_adds_rows(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    append(database, 1, "high")
    with tiering(path) as job:
        job.step()
        set_type(path, 'type = "double"', f'type = "double", wanted = "{kind}"')
        append(database, 2)
        locked = tier.locked_batches  # type: ignore[attr-defined]

        def killed(*_given: Any, **_options: Any) -> None:
            raise PowerCut

        def waiting(fs: FileSystem, lake: PurePath) -> Any:
            # The job waits for the lock of the batches; its holder is killed.
            with monkeypatch.context() as patched:
                patched.setattr(rewriting, "swap_files", killed)
                with pytest.raises(PowerCut):
                    retier(here(FS), str(path), ["dev_v"])
            monkeypatch.setattr(tier, "locked_batches", locked)
            return locked(fs, lake)

        monkeypatch.setattr(tier, "locked_batches", waiting)
        assert job.step() is not None
        append(database, 3)
        assert job.step() is not None
    assert len(content(path, "dev_v")) == 4
    assert tiered_rows(path) == stored_rows(database, ["#"])
    assert read_rewrites(FS, lake_of(path)).open is None


def test_a_job_plans_again_if_tables_were_derived_again_while_it_waited(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(database, 1, topic="home/kitchen/heat")
    append(database, 1, topic="home/kitchen/light")
    with tiering(path) as job:
        job.step()
        append(database, 2, topic="home/bath/heat")
        append(database, 2, topic="home/bath/light")
        locked = tier.locked_files  # type: ignore[attr-defined]

        def waiting(*given: Any, **options: Any) -> Any:
            monkeypatch.setattr(tier, "locked_files", locked)
            set_type(path, 'column = "v", type = "double"', 'column = "v", type = "string"')
            retier(here(FS), str(path), ["home_kitchen_heat", "home_kitchen_light"])
            return locked(*given, **options)

        monkeypatch.setattr(tier, "locked_files", waiting)
        assert job.step() is not None
    assert {row["v"] for row in content(path, "home_heat")} == {"1", "2"}
    assert tiered_rows(path) == stored_rows(database, ["#"])


def test_tables_of_an_earlier_version_keep_their_names_after_a_retier(
    database: Database, path: Path
) -> None:
    append(database, 1, topic="site/line1/state")
    tier_all(path)
    (lake_of(path) / REWRITE).unlink()
    assert retier(here(FS), str(path), ["site_line1_state"]) == {"site_line1_state": 1}
    append(database, 2, topic="site/line2/state")
    append(database, 3, topic="site/line3/state")
    tier_all(path)
    assert len(content(path, "site_line1_state")) == 1
    assert len(content(path, "site_state")) == 2
    rules = (lake_of(path) / "rules.toml").read_text().split("\n[[rule]]\n")
    kept = [rule for rule in rules if 'table = "site_line1_state"' not in rule]
    assert len(kept) == len(rules) - 1
    (lake_of(path) / "rules.toml").write_text("\n[[rule]]\n".join(kept))
    assert retier(here(FS), str(path), ["site_line1_state"]) == {"site_state": 1}
    assert len(content(path, "site_state")) == 3
    assert tiered_rows(path) == stored_rows(database, ["#"])


@pytest.mark.parametrize("changes", range(3))
def test_a_killed_retier_is_completed_by_the_next_job(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    append(database, 1, "high")
    database.append([Row("dev/0/v", b"none")]).wait()
    tier_all(path)
    set_type(path, 'type = "double"', 'type = "double", wanted = "string"')
    left = [changes]
    swap = rewriting.swap_files  # type: ignore[attr-defined]

    def swap_some(*given: Any, **options: Any) -> None:
        if not left[0]:
            raise PowerCut
        left[0] -= 1
        swap(*given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(rewriting, "swap_files", swap_some)
        if changes < 2:
            with pytest.raises(PowerCut):
                retier(here(FS), str(path), ["dev_v"])
            with pytest.raises(RetryError, match=r"a rewrite of tables in .* was interrupted"):
                compact_lake(str(path))
        else:
            retier(here(FS), str(path), ["dev_v"])
    append(database, 2)
    tier_all(path)
    assert [row["v"] for row in content(path, "dev_v")].count("high") == 1
    assert tiered_rows(path) == stored_rows(database, ["#"])
    assert read_rewrites(FS, lake_of(path)).open is None


def test_rows_of_a_table_go_where_a_new_rule_sends_them(database: Database, path: Path) -> None:
    append(database, 1, 2, 3)
    tier_all(path)
    rule = '\n[[rule]]\nfilter = "dev/1/v"\ntable = "mine"\ndecode = "json"\n'
    file = lake_of(path) / "rules.toml"
    file.write_text(file.read_text() + rule)
    assert retier(here(FS), str(path), ["dev_v"]) == {"dev_v": 2, "mine": 1}
    assert [row["topic"] for row in content(path, "mine")] == ["dev/1/v"]


def test_tables_that_cannot_be_derived_again_are_refused(database: Database, path: Path) -> None:
    append(database, 1)
    tier_all(path)
    with pytest.raises(NotFoundError, match=r"unknown table 'x' in .* \(found: dev_v\)"):
        retier(here(FS), str(path), ["x"])
    set_type(path, 'partition = "day"', 'partition = "hour"')
    with pytest.raises(UsageError, match="table dev_v is partitioned by date, which cannot change"):
        retier(here(FS), str(path), ["dev_v"])
    assert len(content(path, "dev_v")) == 1


@pytest.mark.parametrize(
    ("kind", "values", "after"),
    [
        ("double", [1, 2.5, "high"], ["1", "2.5", "high"]),
        ("bigint", [1, 2.5], [1.0, 2.5]),
        ("bigint", [1, 2**53 + 1, 2.5], ["1", str(2**53 + 1), "2.5"]),
        ("boolean", [True, 1], ["true", "1"]),
        ("double", [0.5, 2**63 + 1], ["0.5", str(2**63 + 1)]),
    ],
)
def test_a_column_evolves_and_no_value_is_lost(
    database: Database, path: Path, kind: str, values: list[Any], after: list[Any]
) -> None:
    lake_of(path).mkdir(parents=True)
    (lake_of(path) / "rules.toml").write_text(
        '[[rule]]\nfilter = "dev/+/v"\ntable = "dev_v"\ndecode = "json"\ndrift = "evolve"\n'
        f'fields = [{{ path = ["v"], column = "v", type = "{kind}" }}]\n'
    )
    for value in values:
        append(database, value)
        tier_all(path)
    append(database, *values)
    tier_all(path)
    rows = content(path, "dev_v")
    found = [row["v"] for row in rows]
    assert sorted(found, key=str) == sorted(after * 2, key=str)
    assert {row["_rescued"] for row in rows} == {None}
    assert tiered_rows(path) == stored_rows(database, ["#"])


def test_a_column_evolves_in_the_first_batch(database: Database, path: Path) -> None:
    lake_of(path).mkdir(parents=True)
    (lake_of(path) / "rules.toml").write_text(
        '[[rule]]\nfilter = "dev/+/v"\ntable = "dev_v"\ndecode = "json"\ndrift = "evolve"\n'
    )
    append(database, 1, "high", 2)
    tier_all(path)
    assert sorted(row["v"] for row in content(path, "dev_v")) == ["1", "2", "high"]
