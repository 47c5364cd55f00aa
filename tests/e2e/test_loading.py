"""What a process of its own has loaded, once it did its part."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

READS = """
import sys
import siltstone

with siltstone.open(sys.argv[1]) as store:
    database = store.create("db")
    database.append([siltstone.Row("a/b", b"1"), siltstone.Row("a/c", b"2", "p", 1, True)]).wait()
    for wanted in ("#", "a/b"):
        for stream in database.streams(wanted):
            batch = database.next(database.iterator(stream, wanted), 10).batch
            assert batch.rows()
            assert batch.arrow().num_rows == batch.table().num_rows == len(batch)
"""


def loaded_by(statements: str, *args: str) -> set[str]:
    """Run statements in a fresh interpreter; return the modules that it has loaded then."""
    script = f"{statements}\nimport sys\nprint(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", script, *args], check=True, capture_output=True, text=True
    )
    return set(run.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "from siltstone import *",
        "from siltstone import Row, spool, errors; spool.Spool, errors.UsageError",
        "import siltstone; siltstone.open",
    ],
)
def test_names_and_modules_are_there_at_the_first_word(statement: str) -> None:
    assert "siltstone.public" in loaded_by(statement)


def test_the_version_is_told_without_any_command() -> None:
    command = "from siltstone.cli.main import execute; assert execute(['--version']) == 0"
    modules = loaded_by(command)
    assert "siltstone.cli.main" in modules
    assert not modules & {
        "pyarrow",
        "siltstone.cli.mqtt.pub",
        "siltstone.cli.store.db",
        "siltstone.store.database",
    }


@pytest.mark.parametrize(
    "statement",
    [
        "import siltstone.cli.main, siltstone.cli.mqtt.pub",
        "import siltstone.cli.main, siltstone.cli.mqtt.sub",
        "import siltstone; hasattr(siltstone, '__warningregistry__')",
    ],
)
def test_the_store_is_not_loaded_for_those_who_do_not_use_it(statement: str) -> None:
    modules = loaded_by(statement)
    assert "siltstone" in modules
    assert not modules & {"pyarrow", "numpy", "siltstone.store.database", "siltstone.public"}


def test_the_broker_loads_bridges_flight_and_topic_logs_only_if_the_settings_use_them() -> None:
    modules = loaded_by("import siltstone.cli.main, siltstone.cli.mqtt.serve")
    assert "siltstone.broker.server" in modules
    assert not modules & {
        "pyarrow.flight",
        "siltstone.flight.server",
        "siltstone.bridge.bridge",
        "siltstone.client.client",
        "siltstone.topiclog.server",
    }


@pytest.mark.skipif(find_spec("pandas") is None, reason="pandas is not there to be loaded")
def test_reads_of_streams_do_not_load_pandas(tmp_path: Path) -> None:
    modules = loaded_by(READS, str(tmp_path))
    assert "pyarrow" in modules
    assert "pandas" not in modules
