from __future__ import annotations

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
