from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from siltstone.errors import UsageError
from siltstone.pipeline.source.schema import arrow_schema, schema_ddl, spark_schema, type_ddl
from siltstone.scan.columns.schema import COLUMNS

POINT = StructType([StructField("x", DoubleType()), StructField("odd `name`", StringType())])


def test_the_schema_has_every_column_and_no_nulls() -> None:
    assert [
        (field.name, field.dataType.simpleString(), field.nullable)
        for field in spark_schema(COLUMNS)
    ] == [
        ("topic", "string", False),
        ("levels", "array<string>", False),
        ("timestamp", "timestamp", False),
        ("publisher", "string", False),
        ("qos", "tinyint", False),
        ("retain", "boolean", False),
        ("properties", "map<string,string>", False),
        ("payload", "binary", False),
        ("shard", "int", False),
        ("generation", "int", False),
        ("stream", "bigint", False),
        ("serial", "bigint", False),
    ]


def test_a_decoded_payload_may_be_null() -> None:
    assert spark_schema(["serial", "payload"], POINT) == StructType(
        [StructField("serial", LongType(), nullable=False), StructField("payload", POINT)]
    )


def test_the_schema_as_text_leaves_the_type_of_the_payload_to_spark() -> None:
    assert schema_ddl(["topic", "payload", "levels"], "STRUCT<a: INT>") == (
        "topic string NOT NULL, payload STRUCT<a: INT>, levels array<string> NOT NULL"
    )


def test_a_type_as_text_quotes_names() -> None:
    assert type_ddl(ArrayType(POINT)) == "ARRAY<STRUCT<`x`: double, `odd ``name```: string>>"


def test_arrow_has_the_times_in_utc_and_the_nullability_of_the_declared_schema() -> None:
    schema = arrow_schema(spark_schema(["timestamp", "levels", "properties"]))
    assert schema == pa.schema(
        [
            pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field(
                "levels", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False
            ),
            pa.field(
                "properties",
                pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False)),
                nullable=False,
            ),
        ]
    )


@pytest.mark.parametrize("kind", [BinaryType(), StringType(), POINT], ids=str)
def test_a_declared_payload_may_be_decoded(kind: BinaryType | StringType | StructType) -> None:
    schema = StructType([StructField("payload", kind)])
    assert arrow_schema(schema).field("payload").nullable


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (StructField("value", BinaryType()), "unknown column value .supported: topic, levels"),
        (
            StructField("qos", IntegerType()),
            "column qos has type tinyint and cannot be read as int",
        ),
        (
            StructField("payload", LongType()),
            "column payload has type binary and cannot be read as bigint",
        ),
        (
            StructField("properties", MapType(StringType(), LongType())),
            "and cannot be read as map<string,bigint>",
        ),
    ],
    ids=str,
)
def test_a_declared_schema_must_be_one_that_can_be_read(field: StructField, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        arrow_schema(StructType([field]))


@pytest.mark.parametrize("kind", [DateType(), DayTimeIntervalType(), MapType(LongType(), POINT)])
def test_what_json_is_not_decoded_to_is_refused_wherever_it_stands(kind: DataType) -> None:
    inner = StructType([StructField("when", ArrayType(kind))])
    payload = StructType([StructField("x", DoubleType()), StructField("of", inner)])
    with pytest.raises(UsageError) as caught:
        arrow_schema(StructType([StructField("payload", payload)]))
    assert str(caught.value) == (
        f"payload.of.when cannot be read from JSON as {kind.simpleString()}: read it as STRING "
        f"and cast it, or decode the payload with decode=utf8 and from_json"
    )
