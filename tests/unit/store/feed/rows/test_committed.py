from __future__ import annotations

import pytest

from siltstone.rows.stored import StoredBatch
from siltstone.store.log.read.pieces import Row
from tests.support.builders import NOW_US, new_database


def commit(rows: list[Row], **settings: object) -> StoredBatch:
    """Append rows as one flush; return what listeners hear of it."""
    heard: list[StoredBatch] = []
    with new_database(**settings) as database:
        database.on_commit(heard.append)
        database.append(rows).wait()
    (batch,) = heard
    return batch


def test_a_committed_batch_has_its_rows_in_order_of_serials() -> None:
    rows = [
        Row("b", b"0", "p", 1, properties=b"x"),
        Row("a/1", b"1", "q", 2, retain=True),
        Row("b", b"2", "p"),
        Row("a/2", b"3", "p"),
    ]
    batch = commit(rows)
    assert (batch.names, batch.count, batch.loader is None) == (
        sorted(batch.names, key=batch.names.index),
        4,
        False,
    )
    batch.load()
    # Streams stand in order of their ids, and rows of a stream in order of arrival.
    order = [batch.values.index(b"%d" % number) for number in range(4)]
    assert sorted(order) == [0, 1, 2, 3]
    assert [batch.topics[i] for i in order] == [b"b", b"a/1", b"b", b"a/2"]
    assert [batch.publishers[i] for i in order] == [b"p", b"q", b"p", b"p"]
    assert [batch.flags[i] for i in order] == [1, 6, 0, 0]
    assert [batch.properties[i] for i in order] == [b"x", b"", b"", b""]
    assert [batch.timestamps[i] for i in order] == [NOW_US + i for i in range(4)]
    assert [batch.names[number] for number in batch.topic_numbers()] == batch.topics
    assert batch.serials == [0, 1, 2, 3]
    assert (batch.shard, batch.generation, batch.start_serial, batch.stop_serial) == (0, 1, 0, 4)
    assert sum(count for _, count in batch.streams()) == 4
    assert (batch.first_timestamp_us, batch.size_bytes > 4, batch.loader) == (NOW_US, True, None)


@pytest.mark.parametrize(
    ("row", "flags", "publisher"),
    [(Row("a", b""), 0, b""), (Row("a", b"", "p", 1, retain=True), 5, b"p")],
)
def test_what_all_rows_share_is_on_each_of_them(row: Row, flags: int, publisher: bytes) -> None:
    batch = commit([row, row])
    batch.load()
    assert (batch.flags, batch.publishers) == ([flags] * 2, [publisher] * 2)
    assert batch.properties == []


def test_the_lists_stay_when_the_next_rows_are_committed() -> None:
    heard: list[StoredBatch] = []
    with new_database() as database:
        database.on_commit(heard.append)
        database.append([Row("a", b"1")]).wait()
        database.append([Row("a", b"2")]).wait()
        database.seal()
        database.append([Row("a", b"3")]).wait()
    for batch in heard:
        batch.load()
    assert [(each.serials, each.values) for each in heard] == [
        ([0], [b"1"]),
        ([1], [b"2"]),
        ([2], [b"3"]),
    ]
    assert [each.generation for each in heard] == [1, 1, 2]


def test_who_no_longer_listens_hears_nothing() -> None:
    heard: list[StoredBatch] = []
    with new_database() as database:
        end = database.on_commit(heard.append)
        database.append([Row("a", b"1")]).wait()
        end()
        database.append([Row("a", b"2")]).wait()
    assert len(heard) == 1


def test_a_listener_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_batch: StoredBatch) -> None:
        raise ValueError("listener")

    heard: list[StoredBatch] = []
    with new_database() as database:
        database.on_commit(fail)
        database.on_commit(heard.append)
        database.append([Row("a", b"1")]).wait()
        assert database.count() == 1
    assert (len(heard), [record.levelname for record in caplog.records]) == (1, ["ERROR"])


def test_a_topic_that_a_frame_lists_twice_keeps_its_rows() -> None:
    # So few topics are remembered that one of them is listed again within a flush.
    rows = [Row(f"t/{number % 4}", b"%d" % number) for number in range(12)]
    batch = commit(rows, topic_cache=2)
    batch.load()
    found = sorted(zip(batch.values, batch.topics, strict=True), key=lambda row: int(row[0]))
    assert found == [(row.value, row.topic.encode()) for row in rows]
