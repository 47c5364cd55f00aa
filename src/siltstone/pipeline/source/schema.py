"""The columns of the source, as Spark types and as the Arrow schema of its batches.

    topic       STRING              timestamp   TIMESTAMP, in µs
    levels      ARRAY<STRING>       the words of the topic
    publisher   STRING              qos         TINYINT         retain   BOOLEAN
    properties  MAP<STRING,STRING>  MQTT's own names begin with `mqtt.`
    payload     BINARY              STRING or STRUCT when it is decoded, NULL where it cannot be
    shard       INT                 generation  INT
    stream      BIGINT              the 64 bits of its id; hex(stream) is its usual form
    serial      BIGINT

Spark accepts a batch only if its Arrow schema equals the declared schema, including nullability.
The Arrow schema is therefore derived from the declared one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from siltstone.errors import UsageError
from siltstone.scan.columns.schema import COLUMNS, PAYLOAD

_TYPES: Final[dict[str, DataType]] = {
    "topic": StringType(),
    "levels": ArrayType(StringType(), containsNull=False),
    "timestamp": TimestampType(),
    "publisher": StringType(),
    "qos": ByteType(),
    "retain": BooleanType(),
    "properties": MapType(StringType(), StringType(), valueContainsNull=False),
    PAYLOAD: BinaryType(),
    "shard": IntegerType(),
    "generation": IntegerType(),
    "stream": LongType(),
    "serial": LongType(),
}
# The types that can be read from JSON, besides arrays, structs and maps of them.
_DECODED: Final = (
    *(BooleanType, ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType),
    *(DecimalType, StringType, BinaryType, TimestampType, TimestampNTZType),
)


def spark_schema(columns: Sequence[str], payload: DataType | None = None) -> StructType:
    """Return the schema of these columns; payload is the type of a decoded payload."""
    return StructType(
        [
            StructField(name, payload, nullable=True)
            if name == PAYLOAD and payload is not None
            else StructField(name, _TYPES[name], nullable=False)
            for name in columns
        ]
    )


def schema_ddl(columns: Sequence[str], payload: str) -> str:
    """Return the schema as DDL, for a payload type that is given as DDL."""
    return ", ".join(
        f"{name} {payload}" if name == PAYLOAD else f"{name} {_TYPES[name].simpleString()} NOT NULL"
        for name in columns
    )


def type_ddl(kind: DataType) -> str:
    """Return a type as DDL; any field name is quoted correctly."""
    match kind:
        case StructType():
            fields = ", ".join(
                f"`{field.name.replace('`', '``')}`: {type_ddl(field.dataType)}"
                for field in kind.fields
            )
            return f"STRUCT<{fields}>"
        case ArrayType():
            return f"ARRAY<{type_ddl(kind.elementType)}>"
        case _:
            return kind.simpleString()


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the batches for a declared schema.

    A schema that a user declares may omit and reorder columns, and decode the payload.

    Raises: UsageError.
    """
    for field in schema.fields:
        if field.name not in _TYPES:
            raise UsageError(f"unknown column {field.name} (supported: {', '.join(COLUMNS)})")
        if not _fits(field.name, field.dataType):
            raise UsageError(
                f"column {field.name} has type {_TYPES[field.name].simpleString()} and cannot be "
                f"read as {field.dataType.simpleString()}"
            )
        if field.name == PAYLOAD:
            _check_decoded(PAYLOAD, field.dataType)
    return to_arrow_schema(schema, timezone="UTC")


def _fits(name: str, kind: DataType) -> bool:
    if name == PAYLOAD and isinstance(kind, StringType | StructType):
        return True
    return type(kind) is type(_TYPES[name]) and kind.simpleString() == _TYPES[name].simpleString()


def _check_decoded(name: str, kind: DataType) -> None:
    """Check that payloads can be decoded to a type. Raises: UsageError."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            _check_decoded(f"{name}.{field.name}", field.dataType)
    elif isinstance(kind, ArrayType):
        _check_decoded(name, kind.elementType)
    elif isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        _check_decoded(name, kind.valueType)
    elif not isinstance(kind, _DECODED):
        raise UsageError(
            f"{name} cannot be read from JSON as {kind.simpleString()}: read it as STRING and "
            "cast it, or decode the payload with decode=utf8 and from_json"
        )
