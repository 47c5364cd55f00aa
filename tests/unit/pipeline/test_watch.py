"""What a listener makes of the progress that Spark reports."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

from siltstone.pipeline.watch import StreamProgress, progress_of

STORE: dict[str, Any] = {
    "version": 2,
    "shards": {"0": 9},
    "source": {"store": "/data", "database": "messages", "filter": ["a/+", "b"]},
    "lag": {"rows": 7, "seconds": 1.5},
}


def progress(*latest: object) -> StreamingQueryProgress:
    """Return the progress of a query whose sources report these latest offsets."""
    return StreamingQueryProgress.fromJson(
        {
            "id": "7f6a2a7e-3f0b-4d8e-9a63-1f5a3f1a9f00",
            "runId": "7f6a2a7e-3f0b-4d8e-9a63-1f5a3f1a9f01",
            "name": None,
            "timestamp": "2026-01-01T00:00:00.000Z",
            "batchId": 4,
            "batchDuration": 10,
            "numInputRows": 20,
            "inputRowsPerSecond": 1.0,
            "processedRowsPerSecond": 2.5,
            "durationMs": {},
            "eventTime": {},
            "stateOperators": [],
            "observedMetrics": {},
            "sink": {"description": "x", "numOutputRows": 1},
            "sources": [
                {
                    "description": "PythonMicroBatchStream@1",
                    "startOffset": "{}",
                    "endOffset": "{}",
                    "latestOffset": offset if isinstance(offset, str) else json.dumps(offset),
                    "numInputRows": 20,
                    "inputRowsPerSecond": 1.0,
                    "processedRowsPerSecond": 2.5,
                    "metrics": {},
                }
                for offset in latest
            ],
        }
    )


def test_a_batch_is_told_with_its_lag_and_its_store() -> None:
    assert progress_of(progress(STORE)) == StreamProgress(
        batch=4,
        rows=20,
        rows_per_second=2.5,
        rows_behind=7,
        seconds_behind=1.5,
        source="siltstone /data database=messages filter=a/+,b",
    )


def test_the_lags_of_two_stores_are_summed_and_the_oldest_row_counts() -> None:
    other = STORE | {
        "source": {"store": "grpc+tcp://host:8815", "filter": ["#"]},
        "lag": {"rows": 1, "seconds": None},
    }
    told = progress_of(progress(STORE, {"0": {"1": 5}}, other))
    assert told is not None
    assert (told.rows_behind, told.seconds_behind) == (8, 1.5)
    assert told.source == (
        "siltstone /data database=messages filter=a/+,b; siltstone grpc+tcp://host:8815 filter=#"
    )


@pytest.mark.parametrize("latest", [(), ("null",), ("not json",), ({"0": {"1": 5}},)])
def test_a_query_without_a_store_has_no_progress_of_ours(latest: tuple[object, ...]) -> None:
    assert progress_of(progress(*latest)) is None
