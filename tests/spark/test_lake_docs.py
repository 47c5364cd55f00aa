"""The examples of docs/explanation/lake.md run as they stand, but for the paths."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import siltstone
from siltstone.pipeline.lake.rules import read_rules
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from tests.support.lake import lake_of, tier_all

TEXT = (Path(__file__).parent.parent.parent / "docs" / "explanation" / "lake.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_examples_run_one_after_the_other(
    spark: SparkSession,
    database: Database,
    path: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    database.configure(thresholds=(100, 0, 10, 0))
    payload = b'{"value": 21.5, "at": {"x": 1}}'
    rows = [Row(f"plant/{number % 4}/oven/{number}", payload) for number in range(40)]
    database.append(rows[:30]).wait()
    tier_all(path)
    database.append(rows[30:]).wait()
    names: dict[str, Any] = {"spark": spark}
    for block in blocks("python"):
        code = block.replace("/var/lib/siltstone-example", str(tmp_path)).replace(
            "/var/lib/siltstone", path
        )
        exec(code, names)  # noqa: S102 - our own examples
    assert capsys.readouterr().out.splitlines()[0] == "40"
    with siltstone.open(tmp_path / "means", read_only=True) as store:
        assert store.database("messages").count("site/+/mean") == 2
    # The rule that is shown is the one that was learned.
    (shown,) = read_rules(blocks("toml")[0], "docs").rules
    (learned,) = read_rules((lake_of(path) / "rules.toml").read_text("utf-8"), "lake").rules
    assert shown == learned
