"""One Spark for all tests here, and a store for each of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import siltstone
from siltstone.pipeline.spark.session import start_session
from siltstone.store.database import Database
from tests.support.builders import settings_of

# Compiling less and collecting simply: what runs is short.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# The first test waits for Spark to start.
TIMEOUT_SECONDS = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" not in Path(item.path).parts:
            continue
        # One worker has them all, for each would start a Spark of its own.
        item.add_marker(pytest.mark.xdist_group("spark"))
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let the processes of Spark share what Python makes of the modules that each of them imports,
    also where the environment has none of it kept: it is more than a second for each.
    """
    with pytest.MonkeyPatch.context() as environment:
        if sys.dont_write_bytecode:
            environment.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
            environment.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("compiled")))
        yield


@pytest.fixture(scope="session")
def spark(compiled_once: None) -> Iterator[SparkSession]:
    session = start_session(
        name="tests", master="local[2]", memory="512m", java_options=JAVA_OPTIONS
    )
    yield session
    session.stop()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """Yield a database that this process has open for writing while Spark reads it."""
    with siltstone.open(tmp_path / "store") as store:
        yield store.create("messages", settings_of(shards=2, shard_by="topic"))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store")
