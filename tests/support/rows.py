"""Record batches as Python rows, for tests that compare whole values."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from siltstone.store.log.read.pieces import Row

# The columns of a record batch, in the order of the fields of a row.
ROW_COLUMNS: Final = tuple(name.removesuffix("_us") for name in Row._fields)


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Turn a record batch with all columns into Python rows."""
    lists = [
        (
            batch.column(name).view(pa.int64()) if name == "timestamp" else batch.column(name)
        ).to_pylist()
        for name in ROW_COLUMNS
    ]
    return [Row(*fields) for fields in zip(*lists, strict=True)]
