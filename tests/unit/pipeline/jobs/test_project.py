from __future__ import annotations

import ast
from pathlib import PurePath

import pytest

from siltstone.errors import ExistsError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.fs.publish import create_directories
from siltstone.pipeline.jobs.project import project_files, write_project

FILES = project_files(
    name="mine", data="/d'a", database="messages", topic_filter='a/"#', state="/p/mine/state"
)


def test_every_file_of_python_is_python_whatever_is_put_into_it() -> None:
    for name, text in FILES.items():
        if name.endswith(".py"):
            ast.parse(text, name)
    assert 'DATA = "/d\'a"' in FILES["stream_job.py"]


def test_tables_are_known_between_runs_by_a_catalog_on_the_disk() -> None:
    settings = dict(
        line.split(" ", 1)
        for line in FILES["conf/spark-defaults.conf"].splitlines()
        if not line.startswith("#")
    )
    assert settings["spark.sql.catalogImplementation"] == "hive"
    assert settings["spark.hadoop.javax.jdo.option.ConnectionURL"] == (
        "jdbc:derby:;databaseName=/p/mine/state/catalog;create=true"
    )


def test_a_file_that_exists_is_left_as_it_is() -> None:
    fs, place = MemoryFileSystem(), PurePath("/p/mine")
    create_directories(fs, place)
    with fs.create(place / "stream_job.py") as file:
        file.write(b"mine")
    with pytest.raises(ExistsError, match=r"/p/mine/stream_job.py exists already"):
        write_project(fs, place, data=PurePath("/d"), database="m", topic_filter="#")
    assert [entry.name for entry in fs.list(place)] == ["stream_job.py"]
    fs.remove(place / "stream_job.py")
    written = write_project(fs, place, data=PurePath("/d"), database="m", topic_filter="#")
    assert [str(path.relative_to(place)) for path in written] == list(FILES)
    assert all(fs.read(path) for path in written)
