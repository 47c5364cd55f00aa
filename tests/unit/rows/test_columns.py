from __future__ import annotations

import pyarrow as pa

from siltstone.rows.columns import COLUMNS
from siltstone.scan.columns import schema as table
from siltstone.store.log.read import pieces
from siltstone.store.segment import frame


def test_the_batches_of_the_store_have_the_columns_of_the_table() -> None:
    types = {
        "topic": pa.string(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "publisher": pa.string(),
        "qos": pa.uint8(),
        "retain": pa.bool_(),
        "properties": pa.binary(),
        "value": pa.binary(),
        "shard": pa.uint32(),
        "generation": pa.uint32(),
        "stream": pa.uint64(),
        "serial": pa.uint64(),
    }
    schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in types.items()])
    assert pieces.SCHEMA.equals(schema)


def test_tables_for_spark_have_the_same_columns_and_the_levels_of_the_topic() -> None:
    names = [column.table_name for column in COLUMNS]
    assert [name for name in table.COLUMNS if name != table.LEVELS] == names


def test_each_field_of_a_row_is_a_column() -> None:
    assert sorted(column.field for column in COLUMNS) == sorted(pieces.Row._fields)


def test_each_section_of_a_frame_belongs_to_a_column_except_edges_and_producers() -> None:
    stored = {section for column in COLUMNS for section in column.sections}
    others = {frame.EDGES, frame.PRODUCERS}
    assert stored | others == set(range(1, frame.SECTION_MAX + 1))
    assert not stored & others


def test_the_sections_of_a_column_are_those_of_the_frame() -> None:
    sections = {column.name: column.sections for column in COLUMNS}
    assert sections["topic"] == (frame.TOPIC_OFFSETS, frame.TOPICS, frame.TOPIC_INDEX)
    assert sections["timestamp"] == (frame.TIMESTAMPS,)
    assert sections["publisher"] == (
        frame.PUBLISHER_OFFSETS,
        frame.PUBLISHERS,
        frame.PUBLISHER_INDEX,
    )
    assert sections["qos"] == sections["retain"] == (frame.FLAGS,)
    assert sections["properties"] == (frame.PROPERTY_OFFSETS, frame.PROPERTIES)
    assert sections["value"] == (frame.VALUE_OFFSETS, frame.VALUES, frame.VALUES_AT)
    assert sections["stream"] == (frame.STREAMS,)
