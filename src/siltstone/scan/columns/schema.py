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

from siltstone.rows.columns import table_fields

PAYLOAD: Final = "payload"
LEVELS: Final = "levels"
_LEVELS_FIELD: Final = pa.field(
    LEVELS, pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False
)


def _schema() -> pa.Schema:
    """Return the columns of the store, with the levels behind the topic."""
    topic, *others = table_fields().values()
    return pa.schema([topic, _LEVELS_FIELD, *others])


SCHEMA: Final = _schema()
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
