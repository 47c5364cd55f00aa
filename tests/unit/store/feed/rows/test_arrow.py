from __future__ import annotations

import pytest

from siltstone.errors import UsageError
from siltstone.rows.stored import StoredBatch
from siltstone.store.feed.rows.arrow import arrow_of, rows_of_batch
from siltstone.store.feed.settings import FeedSettings
from siltstone.store.log.read.pieces import COLUMNS, SCHEMA, Row
from tests.support.builders import new_database, read_rows
from tests.support.feed_builders import parsed
from tests.support.rows import rows_of

ROWS = [
    Row("a/1", b"0", "p", 1, properties=b"k"),
    Row("b", b"1", "q", 2, retain=True),
    Row("a/2", b"2", "é"),
    Row("a/1", b"", "p"),
    Row("b", b"4", "p"),
]


def both() -> tuple[list[Row], StoredBatch, StoredBatch]:
    """Return rows as stored, and two batches of them: as committed, and as read."""
    heard: list[StoredBatch] = []
    with new_database() as database:
        database.on_commit(heard.append)
        database.append(ROWS).wait()
        stored = sorted(read_rows(database), key=lambda row: row.serial)
        found = database.feed_source().read(0, 0, parsed("#"), FeedSettings()).batch
        assert found is not None
        return stored, heard[0], found


@pytest.mark.parametrize("rows", [None, [], [0], [1, 2, 3], [0, 2, 4], [4]])
def test_rows_are_the_same_from_memory_and_from_the_map_as_arrow_and_as_values(
    rows: list[int] | None,
) -> None:
    stored, committed, read = both()
    expected = stored if rows is None else [stored[row] for row in rows]
    for batch in (committed, read):
        arrow = arrow_of(batch, rows)
        assert arrow.schema == SCHEMA
        assert rows_of(arrow) == expected
        assert rows_of_batch(batch, rows) == expected


def test_columns_are_those_asked_for_also_after_others() -> None:
    _, *batches = both()
    for batch in batches:
        for columns in (("value", "serial"), COLUMNS, ("topic",), ("value", "serial")):
            assert tuple(arrow_of(batch, None, columns).schema.names) == columns
        assert arrow_of(batch, None) is not arrow_of(batch, None, ("topic",))


def test_whoever_wants_the_same_shares_it() -> None:
    _, committed, _ = both()
    assert arrow_of(committed, None) is arrow_of(committed, None)


def test_an_unknown_column_is_refused() -> None:
    _, committed, _ = both()
    with pytest.raises(UsageError, match="unknown column payload"):
        arrow_of(committed, None, ("payload",))


def test_rows_of_several_frames_are_one_batch() -> None:
    with new_database() as database:
        for row in ROWS:
            database.append([row]).wait()
        found = database.feed_source().read(0, 0, parsed("a/#"), FeedSettings()).batch
        assert found is not None
        expected = read_rows(database, "a/#")
        assert rows_of(arrow_of(found, None)) == expected
        assert rows_of_batch(found, None) == expected


def test_what_has_no_properties_has_empty_ones() -> None:
    heard: list[StoredBatch] = []
    with new_database() as database:
        database.on_commit(heard.append)
        database.append([Row("a", b"1"), Row("a", b"2")]).wait()
        stored = read_rows(database)
    assert rows_of(arrow_of(heard[0], None)) == stored
    assert rows_of_batch(heard[0], None) == stored
