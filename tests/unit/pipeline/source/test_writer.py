from __future__ import annotations

import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from siltstone.errors import UsageError
from siltstone.flight.target import DirectoryTarget, NodeTarget
from siltstone.pipeline.source.writer import (
    SiltstoneStreamWriter,
    SiltstoneWriter,
    Staged,
    check_schema,
    names_of,
    target_of,
    writes_of,
)
from siltstone.scan.ingest.options import WriteOptions
from siltstone.scan.node import Node
from tests.support.pipeline import through_pickle

OPTIONS = WriteOptions(path="/data")
SCHEMA = StructType([StructField("topic", StringType()), StructField("payload", BinaryType())])


def test_rows_go_to_the_directory_or_the_node_that_is_named() -> None:
    assert isinstance(target_of(OPTIONS), DirectoryTarget)
    node = Node(url="grpc+tcp://127.0.0.1:1")
    assert isinstance(target_of(WriteOptions(node=node)), NodeTarget)


def test_what_cannot_be_written_is_refused_before_any_task_runs() -> None:
    check_schema(SCHEMA, OPTIONS, overwrite=False)
    with pytest.raises(UsageError, match="rows of a store cannot be replaced: use mode append"):
        check_schema(SCHEMA, OPTIONS, overwrite=True)
    with pytest.raises(UsageError, match="column payload is missing"):
        check_schema(StructType(SCHEMA.fields[:1]), OPTIONS, overwrite=False)


def test_a_stream_is_named_by_its_checkpoint_alone() -> None:
    with pytest.raises(UsageError, match="writeId is for batch queries"):
        SiltstoneStreamWriter(WriteOptions(path="/data", write_id="w"))


def test_tasks_that_failed_or_had_no_rows_have_staged_nothing() -> None:
    messages = [Staged("w", "1"), None, Staged("w", None), Staged("w", "2")]
    assert names_of(messages) == ["1", "2"]
    assert writes_of(messages) == {"w"}
    assert writes_of([None]) == set()


def test_a_writer_goes_to_its_tasks_with_the_name_of_its_write() -> None:
    writer = SiltstoneWriter(OPTIONS)
    assert through_pickle(writer)._batch == writer._batch  # noqa: SLF001 - it has no other face
    assert SiltstoneWriter(OPTIONS)._batch != writer._batch  # noqa: SLF001 - as above
