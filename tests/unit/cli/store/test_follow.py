from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from siltstone.cli.store.follow import FeedFollower, follow
from siltstone.errors import ClosedError
from siltstone.store.database import Database
from siltstone.store.feed.reading import StoreSource
from siltstone.store.log.read.pieces import Row
from tests.support.command_line import CommandLine

COLUMNS = ("shard", "timestamp", "topic", "value")


@pytest.fixture
def writer(siltstone: CommandLine) -> Iterator[Database]:
    siltstone.create("metrics", "--shards", "2", "--threshold", "3,2")
    with siltstone.store() as store:
        yield store.database("metrics")


@pytest.fixture
def reader(siltstone: CommandLine, writer: Database) -> Iterator[Database]:
    with siltstone.store(read_only=True) as store:
        yield store.database(writer.name)


def write(writer: Database, *rows: tuple[str, str], publisher: str = "p") -> None:
    """Append rows; those of one publisher are in one shard."""
    writer.append([Row(topic, value.encode(), publisher) for topic, value in rows]).wait()


def drain(follower: FeedFollower) -> list[tuple[str, str]]:
    """Poll until nothing is held back; return topics and values in the order they came."""
    found: list[tuple[str, str]] = []
    while True:
        table = follower.poll()
        topics, values = table["topic"].to_pylist(), table["value"].to_pylist()
        found += zip(topics, (value.decode() for value in values), strict=True)
        if not follower.behind:
            return found


def test_a_row_comes_once_and_only_after_it_was_written(writer: Database, reader: Database) -> None:
    follower = FeedFollower(reader, "#", since_us=0, columns=COLUMNS)
    assert drain(follower) == []
    write(writer, ("a", "1"))
    assert drain(follower) == [("a", "1")]
    assert drain(follower) == []
    write(writer, ("a", "2"), ("b/c", "3"))
    write(writer, ("a", "4"), publisher="another")
    assert sorted(drain(follower)) == [("a", "2"), ("a", "4"), ("b/c", "3")]
    assert drain(follower) == []


def test_rows_of_old_and_new_generations_come_in_order(writer: Database, reader: Database) -> None:
    follower = FeedFollower(reader, "t/#", since_us=0, columns=COLUMNS)
    expected: list[tuple[str, str]] = []
    found: list[tuple[str, str]] = []
    for number in range(30):
        rows = [(f"t/{i}/x", f"{number}.{i}") for i in range(number % 7)]
        write(writer, ("other", "-"), *rows)
        expected += rows
        if number % 5 == 4:
            writer.seal()
        if number % 3 == 2:
            found += drain(follower)
    found += drain(follower)
    assert found == expected


@pytest.mark.parametrize("rows_max", [1, 2, 7, 1000])
def test_history_comes_in_order_of_time_however_little_is_read_at_once(
    writer: Database, reader: Database, rows_max: int
) -> None:
    rows = [(f"t/{i * i % 11}", str(i)) for i in range(60)]
    for start in range(0, 60, 13):
        write(writer, *rows[start : start + 13], publisher=f"p{start}")
        writer.seal()
    follower = FeedFollower(reader, "#", since_us=0, columns=COLUMNS, rows_max=rows_max)
    tables: list[pa.Table] = []
    while not tables or follower.behind:
        tables.append(follower.poll())
    found = pa.concat_tables(tables).to_pylist()
    assert sorted((row["topic"], row["value"].decode()) for row in found) == sorted(rows)
    assert {row["shard"] for row in found} == {0, 1}
    for shard in (0, 1):
        times = [row["timestamp"] for row in found if row["shard"] == shard]
        assert times == sorted(set(times))


def test_a_row_written_between_two_reads_of_a_poll_is_not_overtaken(
    writer: Database, reader: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(writer, ("a", "0"), ("b", "0"))
    follower = FeedFollower(reader, "#", since_us=0, columns=COLUMNS)
    drain(follower)
    read_on = StoreSource.read
    late = [("a", "1"), ("b", "1"), ("c", "2"), ("a", "2"), ("b", "2")]

    def read_after_writing(self: StoreSource, *args: object) -> object:
        while late:
            write(writer, late.pop(0))
            reader.refresh()
        return read_on(self, *args)  # type: ignore[arg-type]

    write(writer, ("b", "x"), ("a", "x"))
    monkeypatch.setattr(StoreSource, "read", read_after_writing)
    assert drain(follower) == [
        ("b", "x"),
        ("a", "x"),
        ("a", "1"),
        ("b", "1"),
        ("c", "2"),
        ("a", "2"),
        ("b", "2"),
    ]


def test_only_what_the_filter_and_the_time_ask_for_comes(
    siltstone: CommandLine, writer: Database, reader: Database
) -> None:
    write(writer, ("t/1", "old"))
    siltstone.clock.advance(10)
    since_us = siltstone.clock.now_us()
    write(writer, ("t/1", "new"), ("u", "other"))
    follower = FeedFollower(reader, "t/+", since_us=since_us, columns=COLUMNS)
    assert drain(follower) == [("t/1", "new")]
    # The words of this level vary by now, so that a stream has rows of which none is asked for.
    write(writer, *[(f"t/{i}", str(i)) for i in range(20)])
    exact = FeedFollower(reader, "t/19", since_us=0, columns=COLUMNS)
    assert drain(exact) == [("t/19", "19")]
    write(writer, ("t/18", "18"))
    assert drain(exact) == []


def test_the_columns_are_those_asked_for(writer: Database, reader: Database) -> None:
    write(writer, ("a", "1"))
    follower = FeedFollower(reader, "#", since_us=0, columns=("value", "topic"))
    assert follower.poll().to_pylist() == [{"value": b"1", "topic": "a"}]


def test_a_dropped_slab_is_passed_over(writer: Database, reader: Database) -> None:
    rows = [("t", str(i)) for i in range(10)]
    for row in rows:
        write(writer, row)
    writer.seal()
    follower = FeedFollower(reader, "#", since_us=0, columns=COLUMNS, rows_max=3)
    first = follower.poll()["value"].to_pylist()
    for slab in writer.slabs():
        if slab.state == "sealed":
            writer.drop_slab(slab.slab)
    write(writer, ("t", "after"))
    assert (first, drain(follower)) == ([b"0", b"1", b"2"], [("t", "after")])


def test_following_waits_only_when_nothing_is_left(writer: Database, reader: Database) -> None:
    waits: list[int] = []
    lives = iter(([("a", "1"), ("a", "2")], [("a", "3")]))

    def wait() -> None:
        waits.append(len(seen))
        batch = next(lives, None)
        if batch is None:
            raise KeyboardInterrupt
        write(writer, *batch)

    seen: list[bytes] = []
    follower = FeedFollower(reader, "#", since_us=0, columns=("value",), rows_max=1)
    batches = follow(follower, wait)
    with pytest.raises(KeyboardInterrupt):
        seen.extend(value for batch in batches for value in batch.column("value").to_pylist())
    assert (seen, waits) == ([b"1", b"2", b"3"], [0, 2, 3])


def test_a_slab_that_is_dropped_in_the_middle_of_a_poll_is_passed_over(
    writer: Database, reader: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(writer, ("t", "lost"))
    writer.seal()
    write(writer, ("t", "kept"))
    read_on = StoreSource.read

    def read_after_dropping(self: StoreSource, *args: object) -> object:
        for slab in writer.slabs():
            if slab.state == "sealed":
                writer.drop_slab(slab.slab)
        reader.refresh()
        return read_on(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(StoreSource, "read", read_after_dropping)
    assert drain(FeedFollower(reader, "#", since_us=0, columns=COLUMNS)) == [("t", "kept")]


def test_a_poll_reads_no_more_than_it_may(writer: Database, reader: Database) -> None:
    for number in range(20):
        write(writer, *[("t", f"{number}.{i}") for i in range(10)])
    follower = FeedFollower(reader, "#", since_us=0, columns=COLUMNS, rows_max=25)
    sizes: list[int] = []
    while not sizes or follower.behind:
        sizes.append(follower.poll().num_rows)
    assert sizes == [30, 30, 30, 30, 30, 30, 20]


def test_what_cannot_be_read_is_told(writer: Database, reader: Database) -> None:
    write(writer, ("t", "1"))
    follower = FeedFollower(reader, "#", since_us=0, columns=COLUMNS)
    reader.close()
    with pytest.raises(ClosedError, match="the database is closed"):
        follower.poll()
