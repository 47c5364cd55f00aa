from __future__ import annotations

import pyarrow as pa

from siltstone.pipeline.source.schema import arrow_schema, spark_schema
from siltstone.scan.columns.schema import COLUMNS, SCHEMA, table_schema


def test_a_batch_of_every_column_is_what_spark_declares() -> None:
    assert arrow_schema(spark_schema(COLUMNS)).equals(SCHEMA, check_metadata=True)


def test_columns_come_in_the_order_that_is_asked_for() -> None:
    assert table_schema(["serial", "topic"]).names == ["serial", "topic"]


def test_a_decoded_payload_may_be_null() -> None:
    assert table_schema(["payload"], pa.string()) == pa.schema([pa.field("payload", pa.string())])
