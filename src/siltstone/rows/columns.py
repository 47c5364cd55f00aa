"""The columns of a row: one line each. Schemas are derived from this table.

A column has up to three names: in the batches of the store (`name`), as a field of a Row (`field`),
and in tables for Spark (`table_name`). `sections` are the sections of a frame that store it, see
`store/segment/frame.py`; a column without sections follows from the place of the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Column:
    """One column; Spark has no unsigned types, so its types differ."""

    name: str
    field: str
    table_name: str
    sections: tuple[int, ...]
    arrow: pa.DataType
    spark_arrow: pa.DataType


_TEXT: Final = pa.string()
_BYTES: Final = pa.binary()
_TIME: Final = pa.timestamp("us", tz="UTC")
_PAIRS: Final = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))

COLUMNS: Final = (
    Column("topic", "topic", "topic", (5, 6, 15), _TEXT, _TEXT),
    Column("timestamp", "timestamp_us", "timestamp", (4,), _TIME, _TIME),
    Column("publisher", "publisher", "publisher", (9, 10, 11), _TEXT, _TEXT),
    Column("qos", "qos", "qos", (12,), pa.uint8(), pa.int8()),
    Column("retain", "retain", "retain", (12,), pa.bool_(), pa.bool_()),
    Column("properties", "properties", "properties", (13, 14), _BYTES, _PAIRS),
    Column("value", "value", "payload", (7, 8, 16), _BYTES, _BYTES),
    Column("shard", "shard", "shard", (), pa.uint32(), pa.int32()),
    Column("generation", "generation", "generation", (), pa.uint32(), pa.int32()),
    Column("stream", "stream", "stream", (1,), pa.uint64(), pa.int64()),
    Column("serial", "serial", "serial", (17,), pa.uint64(), pa.int64()),
)


def store_schema() -> pa.Schema:
    """Return the schema of the batches of the store."""
    return pa.schema([pa.field(each.name, each.arrow, nullable=False) for each in COLUMNS])


def table_fields() -> dict[str, pa.Field]:
    """Return the fields of a table for Spark, by name."""
    return {
        each.table_name: pa.field(each.table_name, each.spark_arrow, nullable=False)
        for each in COLUMNS
    }
