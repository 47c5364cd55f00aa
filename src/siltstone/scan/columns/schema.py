"""The columns of the store as an Arrow table.

    topic       string              timestamp   timestamp in µs, UTC
    levels      list of string      the words of the topic
    publisher   string              qos         int8            retain   bool
    properties  map of strings      MQTT's own names begin with `mqtt.`
    payload     binary              string or struct when it is decoded, null where it cannot be
    shard       int32               generation  int32
    stream      int64               the 64 bits of its id
    serial      int64

All integers are signed, because Spark has no unsigned types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

PAYLOAD: Final = "payload"
LEVELS: Final = "levels"
SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field(
            LEVELS, pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False
        ),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("publisher", pa.string(), nullable=False),
        pa.field("qos", pa.int8(), nullable=False),
        pa.field("retain", pa.bool_(), nullable=False),
        pa.field(
            "properties",
            pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False)),
            nullable=False,
        ),
        pa.field(PAYLOAD, pa.binary(), nullable=False),
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("generation", pa.int32(), nullable=False),
        pa.field("stream", pa.int64(), nullable=False),
        pa.field("serial", pa.int64(), nullable=False),
    ]
)
COLUMNS: Final = tuple(SCHEMA.names)


def table_schema(columns: Sequence[str], payload: pa.DataType | None = None) -> pa.Schema:
    """Return the schema of these columns; payload is the type of a decoded payload."""
    return pa.schema(
        [
            pa.field(name, payload, nullable=True)
            if name == PAYLOAD and payload is not None
            else SCHEMA.field(name)
            for name in columns
        ]
    )
