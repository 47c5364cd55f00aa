from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from siltstone.cli.pipeline import spark
from siltstone.cli.pipeline.spark import pipeline
from siltstone.errors import UsageError


def test_who_has_no_spark_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pyspark is not installed; install it with"):
        pipeline("table")


def test_a_session_is_stopped_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Session:
        def stop(self) -> None:
            told.append("stopped")

    class Module:
        @staticmethod
        def start_session(*, master: str, memory: str) -> Session:
            told.append(f"{master} {memory}")
            return Session()

    monkeypatch.setattr(spark, "pipeline", lambda name: Module)
    with pytest.raises(KeyError), spark.session("local[1]", "2g"):
        raise KeyError
    assert told == ["local[1] 2g", "stopped"]


def test_every_module_that_a_command_asks_for_exists() -> None:
    # Asked for by name, so that no checker of types or imports looks at it.
    sources = Path(spark.__file__).parent.glob("*.py")
    names = {
        name
        for source in sources
        for name in re.findall(r'pipeline\("([\w.]+)"\)', source.read_text("utf-8"))
    }
    assert len(names) > 8
    assert [name for name in names if find_spec(f"siltstone.pipeline.{name}") is None] == []
