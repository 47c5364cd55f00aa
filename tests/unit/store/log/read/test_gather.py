from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from siltstone.store.log.read.gather import ROWS_FEW, GatheredRows, are_few
from siltstone.store.log.read.pieces import COLUMNS, SCHEMA, Row
from tests.support.pieces import pieces_of

ROWS = [
    Row("s/a", b"1", "p", 1, retain=True, properties=b"\x03\x00\x01t"),
    Row("s/bä", b"", "q", 2),
    Row("t", b"\xff" * 300, "p"),
    Row("s/a", b"4"),
]
SAME = [Row("s/a", b"x", "p", 1), Row("s/a", b"y", "p", 1)]
EMPTY = [Row("t", b""), Row("s/c", b"")]


def value_of(row: Row, name: str) -> object:
    return row.timestamp_us if name == "timestamp" else getattr(row, name)


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("thresholds", [(-1,), (-1, 0)], ids=str)
@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_has_what_the_store_has_of_every_row(
    name: str, thresholds: tuple[int, ...], compression: str
) -> None:
    pieces, stored = pieces_of(ROWS, SAME, EMPTY, thresholds=thresholds, compression=compression)
    column = GatheredRows(pieces).column(name)
    column.validate(full=True)
    assert column.type == SCHEMA.field(name).type
    values = column.cast(pa.int64()) if name == "timestamp" else column
    assert values.to_pylist() == [value_of(row, name) for row in stored]


@pytest.mark.parametrize("name", COLUMNS)
def test_rows_that_were_picked_are_gathered_alone(name: str) -> None:
    pieces, stored = pieces_of(ROWS, SAME, EMPTY, filters=("s/a", "t"), thresholds=(-1, 0))
    column = GatheredRows(pieces).column(name)
    values = column.cast(pa.int64()) if name == "timestamp" else column
    wanted = [row for row in stored if row.topic in {"s/a", "t"}]
    assert values.to_pylist() == [value_of(row, name) for row in wanted]


@pytest.mark.parametrize("picked", [None, [0, 2]])
def test_rows_may_begin_and_end_inside_of_a_frame(picked: list[int] | None) -> None:
    rows = [Row(f"s/{number}", b"%d" % number) for number in range(6)]
    (piece,), stored = pieces_of(rows, thresholds=(-1, 0))
    numbers = None if picked is None else pa.array(picked, pa.uint64())
    gathered = GatheredRows([replace(piece, start=2, stop=5, picked=numbers)])
    wanted = [stored[2 + number] for number in picked or range(3)]
    assert gathered.num_rows == len(wanted)
    for name in ("topic", "value", "serial"):
        assert gathered.column(name).to_pylist() == [getattr(row, name) for row in wanted]


def test_many_topics_and_publishers_of_a_frame_are_told_apart() -> None:
    rows = [Row(f"s/{number}", b"", f"p{number}") for number in range(300)]
    pieces, stored = pieces_of(rows, thresholds=(-1, 0))
    gathered = GatheredRows(pieces)
    assert gathered.column("topic").to_pylist() == [row.topic for row in stored]
    assert gathered.column("publisher").to_pylist() == [row.publisher for row in stored]


def test_properties_are_there_where_one_frame_has_them() -> None:
    with_some, _ = pieces_of(EMPTY, ROWS)
    with_none, _ = pieces_of(EMPTY, SAME)
    assert (GatheredRows(with_some).has_properties(), GatheredRows(with_none).has_properties()) == (
        True,
        False,
    )


@pytest.mark.parametrize(
    ("sizes", "few"),
    [((1,), False), ((ROWS_FEW, ROWS_FEW), True), ((ROWS_FEW + 1, ROWS_FEW), False)],
)
def test_rows_are_few_where_frames_have_few_of_them(sizes: tuple[int, ...], few: bool) -> None:
    pieces, _ = pieces_of(*[[Row("a", b"")] * size for size in sizes])
    assert are_few(pieces) is few
