from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from siltstone.errors import UsageError
from siltstone.pipeline.spark.worker import one_line_errors, spare_collections


@pytest.fixture
def unfrozen() -> Iterator[None]:
    # Another test of this process may have frozen something.
    gc.unfreeze()
    yield
    gc.unfreeze()


def main_of(name: str) -> ModuleType:
    module = ModuleType("__main__")
    module.__spec__ = ModuleSpec(name, None)
    return module


@pytest.mark.usefixtures("unfrozen")
def test_a_worker_of_spark_no_longer_collects_what_it_has_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "__main__", main_of("pyspark.daemon"))
    spare_collections()
    assert all(item is not sys.modules for item in gc.get_objects())
    frozen = gc.get_freeze_count()
    later = [main_of("later")]
    spare_collections()
    assert any(item is later for item in gc.get_objects())
    assert gc.get_freeze_count() <= frozen


@pytest.mark.usefixtures("unfrozen")
@pytest.mark.parametrize("main", [main_of("pytest"), ModuleType("__main__")])
def test_another_process_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, main: ModuleType
) -> None:
    monkeypatch.setitem(sys.modules, "__main__", main)
    spare_collections()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(
    ("main", "error", "hidden"),
    [
        ("pyspark.daemon", UsageError("wrong"), "1"),
        ("pyspark.sql.streaming.python_streaming_source_runner", UsageError("wrong"), "1"),
        ("pyspark.daemon", ValueError("a mistake of ours"), None),
        ("pytest", UsageError("wrong"), None),
    ],
)
def test_an_error_of_ours_has_no_traceback_in_a_worker(
    monkeypatch: pytest.MonkeyPatch, main: str, error: Exception, hidden: str | None
) -> None:
    monkeypatch.setitem(sys.modules, "__main__", main_of(main))
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK")
    with pytest.raises(type(error)), one_line_errors():
        raise error
    assert os.environ.get("SPARK_HIDE_TRACEBACK") == hidden
