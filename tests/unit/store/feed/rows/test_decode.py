from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from siltstone.rows.batch import QOS_BITS, RETAIN
from siltstone.rows.stored import StoredBatch
from siltstone.store.feed.reading import StoreSource
from siltstone.store.feed.settings import FeedSettings
from siltstone.store.log.read.pieces import Row
from tests.support.builders import naive_match, new_database, read_rows
from tests.support.feed_builders import parsed

Flush = Sequence[Row]

PLAIN = [[Row("a/1", b"x"), Row("a/2", b""), Row("a/1", b"yy")]]
FULL = [
    [Row("a/1", b"x", "p", 1, properties=b"k"), Row("b", b"z", "q", 2, retain=True)],
    [Row("a/3", b"", "p"), Row("$SYS/x", b"s", "p")],
]
SAME = [[Row("a/1", b"x", "p", 1), Row("a/2", b"y", "p", 1)], [Row("a/1", b"z", "é", 1)]]


def many(seed: int) -> list[Flush]:
    """Return flushes large enough for narrow columns of times and topics."""
    random = Random(seed)
    return [
        [
            Row(
                f"a/{random.randrange(300)}",
                bytes(random.randrange(5)),
                random.choice("pqr"),
                random.randrange(3),
                properties=random.choice((b"", b"k")),
            )
            for _ in range(400)
        ]
        for _ in range(3)
    ]


def decoded(source: StoreSource, *filters: str) -> StoredBatch | None:
    """Read everything that matches, as lists."""
    found = source.read(0, 0, parsed(*filters), FeedSettings())
    if found.batch is not None:
        found.batch.load()
    return found.batch


def rows_in(batch: StoredBatch) -> list[Row]:
    return [
        Row(
            batch.topics[i].decode(),
            batch.values[i],
            batch.publishers[i].decode(),
            batch.flags[i] & QOS_BITS,
            bool(batch.flags[i] & RETAIN),
            batch.properties[i] if batch.properties else b"",
            batch.timestamps[i],
            batch.shard,
            batch.generation,
            stream,
            batch.serials[i],
        )
        for i, stream in enumerate(
            stream_id for stream_id, count in batch.streams() for _ in range(count)
        )
    ]


@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("thresholds", [(100, 10), (0,)])
@pytest.mark.parametrize("flushes", [PLAIN, FULL, SAME, many(1), many(2)])
def test_lists_have_what_reading_gives_in_order_of_serials(
    flushes: Sequence[Flush], thresholds: tuple[int, ...], compression: str
) -> None:
    with new_database(thresholds=thresholds, compression=compression) as database:
        for flush in flushes:
            database.append(flush).wait()
        stored = read_rows(database) + read_rows(database, "$SYS/#")
        stored.sort(key=lambda row: row.serial)
        source = database.feed_source()
        for filters in (
            ["#", "$SYS/#"],
            ["a/1"],
            ["a/1", "a/2", "b"],
            ["+/1", "a/+"],
            ["a/7", "a/70", "a/170"],
            ["none"],
        ):
            expected = [
                row for row in stored if any(naive_match(text, row.topic) for text in filters)
            ]
            batch = decoded(source, *filters)
            assert ([] if batch is None else rows_in(batch)) == expected
            if batch is not None:
                assert sorted(set(batch.topics)) == sorted(batch.names)
                assert [batch.names[number] for number in batch.topic_numbers()] == batch.topics
                assert bool(batch.properties) >= any(row.properties for row in expected)
