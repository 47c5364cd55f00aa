"""The notebook of the examples runs from the first cell to the last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from siltstone import pipeline

NOTEBOOK = Path(__file__).parent.parent.parent / "examples" / "lake.ipynb"


def test_the_notebook_runs(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(pipeline, "start_session", lambda **_: spark)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    names: dict[str, Any] = {}
    try:
        for cell in cells:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)  # noqa: S102 - our own example
        shown = [tuple(row) for row in names["hottest"].collect()]
    finally:
        spark.sql("DROP DATABASE IF EXISTS plant CASCADE")
    assert shown == [
        (str(plant), str(line), max(n for n in range(60) if (n % 2, n % 3) == (plant, line)))
        for plant in range(2)
        for line in range(3)
    ]
    assert "plant_line" in capsys.readouterr().out
