from __future__ import annotations

import pyarrow as pa
import pytest

from siltstone.errors import UsageError
from siltstone.manage.rows import pack, unpack
from siltstone.store.log.write.partition import Columns

TOPICS = [b"a/%d" % number for number in range(2500)]
VALUES = [bytes([number % 256]) * (number % 7) for number in range(2500)]


@pytest.mark.parametrize(
    "columns",
    [
        Columns([], []),
        Columns(TOPICS, VALUES),
        Columns(TOPICS, VALUES, b"\xff publisher", 5),
        Columns(TOPICS, VALUES, TOPICS, [1] * 2500, VALUES),
    ],
)
def test_rows_arrive_as_they_were_sent(columns: Columns) -> None:
    assert unpack(pack(columns)) == columns


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (Columns([b"a"], [b"1", b"2"]), "wrong type"),
        (Columns([7], [b"1"]), "wrong type"),  # type: ignore[list-item]
        (Columns([b"a"], [b"1"], b"", [300]), "wrong type"),
    ],
)
def test_rows_that_are_wrong_are_not_sent(columns: Columns, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pack(columns)


def stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "not a stream of Arrow"),
        (b"rows", "not a stream of Arrow"),
        (stream(pa.record_batch({"topic": pa.array([b"a"])})), "must have topic and value"),
        (
            stream(pa.record_batch({"topic": pa.array(["a"]), "value": pa.array([b"1"])})),
            "column topic must have type binary",
        ),
        (
            stream(
                pa.record_batch({"topic": pa.array([b"a", None]), "value": pa.array([b"1"] * 2)})
            ),
            "column topic must have type binary and no nulls",
        ),
    ],
)
def test_bytes_that_are_no_rows_are_refused(payload: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        unpack(payload)
