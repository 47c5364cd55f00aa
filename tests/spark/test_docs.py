"""The examples of docs/explanation/pipeline.md run as they stand, but for the paths."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row

TEXT = (Path(__file__).parent.parent.parent / "docs" / "explanation" / "pipeline.md").read_text(
    "utf-8"
)


def test_the_examples_run_one_after_the_other(
    spark: SparkSession,
    database: Database,
    path: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kinds = ("temp", "hum")
    database.append(
        [
            Row(f"plant/{number % 9}/{kinds[number % 2]}", b'{"value": %d}' % number)
            for number in range(90)
        ]
    ).wait()
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"spark": spark}
    for block in blocks:
        code = block.replace("/var/lib/siltstone-example", str(tmp_path)).replace(
            "/var/lib/siltstone", path
        )
        exec(code, names)  # noqa: S102 - our own examples
    assert len(blocks) == 7
    printed = capsys.readouterr().out.splitlines()
    place = next(
        number for number, line in enumerate(printed) if line.startswith("1 partitions read")
    )
    assert printed[place + 1] == "90"
    assert spark.read.parquet(str(tmp_path / "table")).count() == 90
    written = spark.read.format("siltstone").load(str(tmp_path / "other"))
    assert (written.where("retain").count(), written.where("levels[0] = 'alarm'").count()) == (3, 4)
