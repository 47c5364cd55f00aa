from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from siltstone.store.log.compact.encode import UnfitError, encode_compacted
from siltstone.store.log.read.columns import SortedColumns


def columns(**changes: object) -> SortedColumns:
    """Return three rows of two streams."""
    made = SortedColumns(
        streams=np.array([9, 4, 9], np.uint64),
        serials=np.array([7, 8, 9], np.int64),
        times=np.array([100, 102, 101], np.int64),
        topics=pa.array(["b", "a", "b"], pa.string()),
        values=pa.array([b"1", b"2", b"3"], pa.binary()),
        publishers=pa.array(["p", "p", "p"], pa.string()),
        flags=np.array([1, 1, 1], np.uint8),
        properties=None,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_the_header_has_the_serials_times_and_streams_of_the_rows() -> None:
    header, body = encode_compacted(columns(), edges=b"", producers=b"")
    assert (header.first_serial, header.row_count, header.stream_count) == (7, 3, 2)
    assert (header.first_timestamp_us, header.last_timestamp_us) == (100, 102)
    assert len(body) % 8 == 0


def test_missing_serials_are_refused() -> None:
    with pytest.raises(UnfitError, match="serials are missing"):
        encode_compacted(columns(serials=np.array([7, 8, 10], np.int64)), edges=b"", producers=b"")


def test_a_topic_in_two_streams_is_refused() -> None:
    with pytest.raises(UnfitError, match="a topic is in two streams"):
        encode_compacted(columns(streams=np.array([9, 4, 5], np.uint64)), edges=b"", producers=b"")
