from __future__ import annotations

import pytest

from siltstone.errors import UsageError
from siltstone.pipeline.source.schema import arrow_schema, spark_schema
from siltstone.scan.columns import batches as module
from siltstone.scan.columns.batches import assemble, batches
from siltstone.scan.columns.schema import COLUMNS
from siltstone.store.log.read.gather import GatheredRows, are_few
from siltstone.store.log.read.pieces import Row
from tests.support.pieces import pieces_of
from tests.support.pipeline import as_spark, plain

SCHEMA = arrow_schema(spark_schema(COLUMNS))
ROWS = [
    Row("s/a", b"1", "p", 1, retain=True, properties=b"\x03\x00\x01t"),
    Row("s/b", b"", "q", 2),
    Row("t", b"\xff", "p"),
    Row("s/a", b"4"),
]


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("thresholds", [(-1,), (-1, 0)], ids=str)
@pytest.mark.parametrize("times", [1, 40], ids=["few", "many"])
def test_a_batch_has_every_column_of_every_row(
    compression: str, thresholds: tuple[int, ...], times: int
) -> None:
    frames = (ROWS * times, ROWS[:2] * times)
    pieces, stored = pieces_of(*frames, compression=compression, thresholds=thresholds)
    assert are_few(pieces) == (times == 1)
    batch = assemble(pieces, SCHEMA)
    batch.validate(full=True)
    assert (batch.schema, plain(batch)) == (SCHEMA, [as_spark(row) for row in stored])


def test_rows_that_share_everything_are_read_alike() -> None:
    pieces, stored = pieces_of([Row("a", b"x")], [Row("a", b"y")] * 3)
    assert plain(assemble(pieces, SCHEMA)) == [as_spark(row) for row in stored]


def test_a_batch_has_the_columns_that_are_wanted_in_their_order() -> None:
    pieces, stored = pieces_of(ROWS)
    schema = arrow_schema(spark_schema(["serial", "levels"]))
    assert plain(assemble(pieces, schema)) == [
        {"serial": row.serial, "levels": row.topic.split("/")} for row in stored
    ]


def test_few_rows_of_a_frame_with_many_topics_have_their_levels() -> None:
    rows = [Row(f"s/{number}/x", b"") for number in range(50)]
    pieces, _ = pieces_of(rows, filters=("s/7/x", "s/49/x"), thresholds=(-1, 0))
    batch = assemble(pieces, arrow_schema(spark_schema(["levels", "topic"])))
    assert batch.to_pylist() == [
        {"levels": ["s", "7", "x"], "topic": "s/7/x"},
        {"levels": ["s", "49", "x"], "topic": "s/49/x"},
    ]


@pytest.mark.parametrize(
    ("rows_max", "sizes"),
    [(1, [1] * 9), (2, [2, 1, 2, 1, 2, 1]), (3, [3, 3, 3]), (5, [3, 3, 3]), (6, [6, 3]), (99, [9])],
)
def test_small_frames_are_joined_and_large_ones_cut(rows_max: int, sizes: list[int]) -> None:
    frames = [[Row("a", b"%d" % number) for number in range(3)]] * 3
    pieces, stored = pieces_of(*frames)
    found = list(batches(pieces, SCHEMA, rows_max))
    assert [batch.num_rows for batch in found] == sizes
    assert [row for batch in found for row in plain(batch)] == [as_spark(row) for row in stored]


def test_picked_rows_are_cut_too() -> None:
    rows = [Row(f"s/{number % 2}", b"%d" % number) for number in range(10)]
    pieces, stored = pieces_of(rows, filters=("s/1",), thresholds=(-1, 0))
    found = list(batches(pieces, SCHEMA, 2))
    assert [batch.num_rows for batch in found] == [2, 2, 1]
    assert [row for batch in found for row in plain(batch)] == [
        as_spark(row) for row in stored if row.topic == "s/1"
    ]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_batch_is_no_larger_than_memory_allows(
    monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES_MAX", 4000)
    frames = [[Row("a", bytes(1000)) for _ in range(6)]] * 2
    pieces, _ = pieces_of(*frames, compression=compression)
    sizes = [batch.num_rows for batch in batches(pieces, SCHEMA, 1000)]
    assert (sum(sizes), max(sizes)) == (12, 3)


def test_nothing_is_no_batch() -> None:
    assert list(batches([], SCHEMA, 10)) == []


def test_gathered_rows_that_are_too_large_for_a_batch_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def overflow(*_: object) -> None:
        raise OverflowError("signed integer is greater than maximum")

    pieces, _ = pieces_of(ROWS, ROWS)
    monkeypatch.setattr(GatheredRows, "column", overflow)
    with pytest.raises(UsageError, match="column topic is too large for one batch, lower rows"):
        assemble(pieces, SCHEMA)
