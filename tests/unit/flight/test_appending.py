from __future__ import annotations

import pyarrow as pa
import pytest

from siltstone.errors import UsageError
from siltstone.flight.access import AnyUser
from siltstone.flight.appending import StagedCommits, append_rows
from siltstone.scan.ingest.columns import Given, rows_of
from siltstone.scan.ingest.staging import Staging, StagingResult, WriteBatch
from siltstone.store.log.write.partition import Columns, shard_of
from tests.support.builders import NAME, PATH, World, read_rows
from tests.support.visitors import Limited


def part(*topics: str) -> pa.RecordBatch:
    payloads = [b"%d" % number for number in range(len(topics))]
    batch = pa.RecordBatch.from_pydict({"topic": list(topics), "payload": payloads})
    (rows,) = rows_of(batch, Given())
    return rows


class Heard:
    """Hears of rows."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, list[bytes]]] = []

    def __call__(self, database: str, rows: Columns) -> None:
        self.rows.append((database, rows.topics))


def test_rows_are_stored_and_announced() -> None:
    heard = Heard()
    with World().database() as database:
        append_rows(database, part("a", "b"), visitor=AnyUser(), announce=heard).wait()
        assert [row.topic for row in read_rows(database)] == ["a", "b"]
    assert heard.rows == [(NAME, [b"a", b"b"])]


def test_rows_that_were_there_are_not_announced_again() -> None:
    heard = Heard()
    first, second = "a", "d"
    assert {shard_of(topic.encode(), 2) for topic in (first, second)} == {0, 1}
    with World().database(shards=2, shard_by="topic") as database:
        for topics in ([first], [first, second], [first, second]):
            append_rows(
                database,
                part(*topics),
                visitor=AnyUser(),
                announce=heard,
                producer=("p", 0),
            ).wait()
        assert sorted(row.topic for row in read_rows(database)) == [first, second]
    # Of the second call one shard had its part already.
    assert heard.rows == [(NAME, [b"a"]), (NAME, [b"d"])]


def test_a_topic_that_may_not_be_written_refuses_the_call() -> None:
    heard = Heard()
    visitor = Limited(writes=b"mine/")
    with World().database() as database:
        with pytest.raises(UsageError, match="this user may not write to the topic: topic='other'"):
            append_rows(database, part("mine/a", "other"), visitor=visitor, announce=heard)
        append_rows(database, part("mine/a"), visitor=visitor, announce=heard).wait()
        assert [row.topic for row in read_rows(database)] == ["mine/a"]


def test_staged_rows_are_committed_once() -> None:
    heard = Heard()
    world = World()
    batch = WriteBatch(write="w", number=0)
    with world.database() as database:
        commits = StagedCommits(Staging(world.fs, PATH), heard)
        name = commits.staging.stage(batch, [part("a", "b")])
        assert name is not None
        done = [
            commits.commit(database, batch, [name], visitor=AnyUser(), forget=False)
            for _ in range(2)
        ]
        assert [row.topic for row in read_rows(database)] == ["a", "b"]
    assert done == [StagingResult(rows=2, repeated=False), StagingResult(rows=0, repeated=True)]
    assert heard.rows == [(NAME, [b"a", b"b"])]
