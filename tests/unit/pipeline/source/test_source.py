from __future__ import annotations

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StringType

import pyspark_siltstone
from siltstone.errors import UsageError
from siltstone.pipeline.source.reader import SiltstoneReader
from siltstone.pipeline.source.schema import spark_schema
from siltstone.pipeline.source.source import SiltstoneSource
from siltstone.pipeline.source.stream_reader import SiltstoneStreamReader
from siltstone.scan.columns.schema import COLUMNS


def source(**options: str) -> SiltstoneSource:
    return SiltstoneSource(CaseInsensitiveDict({"path": "/data"} | options))


def test_spark_finds_the_source_by_its_name() -> None:
    assert (pyspark_siltstone.DefaultSource, SiltstoneSource.name()) == (
        SiltstoneSource,
        "siltstone",
    )


def test_a_wrong_option_is_refused_before_anything_is_read_or_written() -> None:
    with pytest.raises(UsageError, match="unknown option nonsense; supported: "):
        source(nonsense="1").schema()
    with pytest.raises(UsageError, match="unknown option nonsense of a write"):
        source(nonsense="1").writer(spark_schema(["topic", "payload"]), overwrite=False)
    with pytest.raises(UsageError, match="unknown option filter of a write"):
        source(filter="#").streamWriter(spark_schema(["topic", "payload"]), overwrite=False)


def test_the_schema_has_the_columns_that_are_asked_for() -> None:
    assert source().schema() == spark_schema(COLUMNS)
    assert source(columns="serial,topic").schema() == spark_schema(["serial", "topic"])


def test_the_schema_has_the_payload_as_it_is_decoded() -> None:
    assert source(columns="payload", decode="utf8").schema() == (
        spark_schema(["payload"], StringType())
    )
    schemas = [
        source(columns="payload,serial", decode="json", payloadSchema=text).schema()
        for text in ("a INT, b STRING", "STRUCT<a: INT, b: STRING>")
    ]
    assert schemas == [
        "payload STRUCT<a INT, b STRING>, serial bigint NOT NULL",
        "payload STRUCT<a: INT, b: STRING>, serial bigint NOT NULL",
    ]


def test_without_the_payload_there_is_nothing_to_decode() -> None:
    assert source(columns="serial", decode="json").schema() == spark_schema(["serial"])


def test_there_is_a_reader_for_each_kind_of_query() -> None:
    schema = spark_schema(COLUMNS)
    assert isinstance(source().reader(schema), SiltstoneReader)
    assert isinstance(source().streamReader(schema), SiltstoneStreamReader)
