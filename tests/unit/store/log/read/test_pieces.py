from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from siltstone.errors import UsageError
from siltstone.store.log.read.pieces import COLUMNS, SCHEMA, Batch, Row, make_rows, schema_of
from siltstone.store.log.write.partition import Columns
from tests.support.builders import NOW_US, as_given, new_database, read_rows, rows_on
from tests.support.rows import rows_of

ROWS = [
    Row("s/a", b"\x00\xff", "alice", qos=1, retain=True, properties=b"p"),
    Row("s/b", b"", "bob", qos=2),
    Row("s/a", b"long" * 100, retain=True, properties=b"\x00"),
]


def batch_of(rows: list[Row], *, topic_filter: str = "#", rows_max: int = 100_000) -> Batch:
    """Append rows of one stream in one call and read them back with `next`."""
    with new_database(thresholds=(-1, 0)) as database:
        database.append(rows).wait()
        (stream,) = database.streams()
        return database.next(database.iterator(stream, topic_filter), rows_max).batch


def test_the_schema_is_the_documented_one_and_nothing_is_null() -> None:
    assert [(field.name, str(field.type), field.nullable) for field in SCHEMA] == [
        ("topic", "string", False),
        ("timestamp", "timestamp[us, tz=UTC]", False),
        ("publisher", "string", False),
        ("qos", "uint8", False),
        ("retain", "bool", False),
        ("properties", "binary", False),
        ("value", "binary", False),
        ("shard", "uint32", False),
        ("generation", "uint32", False),
        ("stream", "uint64", False),
        ("serial", "uint64", False),
    ]
    assert tuple(SCHEMA.names) == COLUMNS


def test_a_row_comes_back_with_all_it_was_given_and_what_the_store_adds() -> None:
    rows = batch_of(ROWS).rows()
    stream = rows[0].stream
    assert rows == [
        row._replace(
            timestamp_us=NOW_US + number, shard=0, generation=1, stream=stream, serial=number
        )
        for number, row in enumerate(ROWS)
    ]


def test_arrow_has_every_column_in_its_type() -> None:
    batch = batch_of(ROWS)
    stream = batch.rows()[0].stream
    assert batch.arrow() == pa.RecordBatch.from_pydict(
        {
            "topic": ["s/a", "s/b", "s/a"],
            "timestamp": [NOW_US, NOW_US + 1, NOW_US + 2],
            "publisher": ["alice", "bob", ""],
            "qos": [1, 2, 0],
            "retain": [True, False, True],
            "properties": [b"p", b"", b"\x00"],
            "value": [b"\x00\xff", b"", b"long" * 100],
            "shard": [0, 0, 0],
            "generation": [1, 1, 1],
            "stream": [stream] * 3,
            "serial": [0, 1, 2],
        },
        schema=SCHEMA,
    )


@pytest.mark.parametrize(("compression", "chunks"), [("zstd", [1, 1, 1]), ("none", [3])])
def test_the_table_holds_what_arrow_holds_with_a_chunk_a_frame_or_for_small_ones(
    compression: str, chunks: list[int]
) -> None:
    with new_database(compression=compression) as database:
        for _ in range(3):
            database.append(ROWS[:1]).wait()
        (stream,) = database.streams()
        batch = database.next(database.iterator(stream)).batch
    table = batch.table()
    assert table == pa.Table.from_batches([batch.arrow()])
    assert [len(chunk) for chunk in table["value"].chunks] == chunks


@pytest.mark.parametrize("columns", [("value",), ("serial", "topic"), COLUMNS[::-1]])
def test_arrow_and_table_have_the_columns_that_were_asked_for_in_that_order(
    columns: tuple[str, ...],
) -> None:
    batch = batch_of(ROWS)
    whole = batch.arrow().select(list(columns))
    assert batch.arrow(columns) == whole
    assert batch.table(columns) == pa.Table.from_batches([whole])


@pytest.mark.parametrize("topic_filter", ["#", "+/a", "+/b"])
@pytest.mark.parametrize("rows_max", [1, 2, 100])
def test_arrow_and_rows_agree_wherever_in_a_frame_the_rows_stand(
    topic_filter: str, rows_max: int
) -> None:
    rows = [row._replace(topic=f"{level}/{row.topic[-1]}") for level in "xyz" for row in ROWS]
    with new_database(thresholds=(-1, 0)) as database:
        database.append(rows).wait()
        found: list[Row] = []
        for stream in database.streams():
            read = database.next(database.iterator(stream, topic_filter), rows_max)
            while len(read.batch):
                assert rows_of(read.batch.arrow()) == read.batch.rows()
                found += read.batch.rows()
                read = database.next(read.iterator, rows_max)
        assert sorted(found) == sorted(read_rows(database, topic_filter))
    assert sorted(as_given(found)) == sorted(
        row for row in rows if topic_filter[-1] in ("#", row.topic[-1])
    )


def test_no_rows_are_an_empty_batch_with_the_whole_schema() -> None:
    batch = Batch([], 0)
    assert (len(batch), batch.rows()) == (0, [])
    assert batch.arrow() == pa.RecordBatch.from_pylist([], schema=SCHEMA)
    assert batch.table() == SCHEMA.empty_table()


def test_a_filter_picks_from_every_column_alike() -> None:
    whole = batch_of(ROWS).rows()
    batch = batch_of(ROWS, topic_filter="s/a")
    assert len(batch) == 2
    assert batch.rows() == [whole[0], whole[2]]


def test_a_filter_that_picks_nothing_gives_no_rows() -> None:
    batch = batch_of(ROWS, topic_filter="s/c")
    assert (len(batch), batch.rows(), batch.arrow().num_rows) == (0, [], 0)
    assert batch.table() == SCHEMA.empty_table()


def test_a_batch_can_be_cut_in_the_middle_of_a_frame() -> None:
    whole = batch_of(ROWS).rows()
    batch = batch_of(ROWS, rows_max=2)
    assert len(batch) == 2
    assert batch.rows() == whole[:2]


def test_rows_of_one_frame_may_be_more_than_any_shared_column_holds() -> None:
    count = 70_000
    columns = Columns([b"t"] * count, [b"v"] * count)
    with new_database(segment_bytes=4 * 1024 * 1024) as database:
        database.append(columns).wait()
        (stream,) = database.streams()
        batch = database.next(database.iterator(stream), count).batch
    plain = Row("t", b"v", generation=1, stream=stream.stream_id)
    assert batch.rows() == [
        plain._replace(timestamp_us=NOW_US + number, serial=number) for number in range(count)
    ]


@pytest.mark.parametrize("count", [1, 2, 127, 128, 129, 300])
def test_every_row_keeps_its_publisher_however_many_there_are(count: int) -> None:
    rows = [Row("t", b"", f"publisher {number % count}") for number in range(2 * count)]
    assert as_given(batch_of(rows).rows()) == rows


@pytest.mark.parametrize("flags", [0, 1, 2, 4, 5, 6])
def test_flags_that_all_rows_share_are_qos_and_retain_of_each(flags: int) -> None:
    columns = Columns([b"t", b"t"], [b"", b""], flags=flags)
    with new_database() as database:
        database.append(columns).wait()
        rows = as_given(read_rows(database))
    assert rows == [Row("t", b"", "", flags & 3, bool(flags & 4))] * 2


def test_flags_may_be_shared_in_one_call_and_differ_in_the_next_of_the_same_frame() -> None:
    with new_database(flush_interval=3600, idle_flush_interval=3600) as database:
        database.append(Columns([b"t"], [b"0"], flags=5))
        database.append(Columns([b"t", b"t"], [b"1", b"2"], flags=[2, 0]))
        database.append(Columns([b"t"], [b"3"]))
        database.sync()
        rows = as_given(read_rows(database))
    assert rows == [
        Row("t", b"0", qos=1, retain=True),
        Row("t", b"1", qos=2),
        Row("t", b"2"),
        Row("t", b"3"),
    ]


# With these thresholds the streams have as many varying levels as the first number says.
TOPICS_BY_VARYING = [
    (0, (-1,), ["a", "a/b", "/", "//", "/a", "a/", "a//b", "$SYS/x", "$", "ä/日本/🌍", " "]),
    (1, (0, -1), ["a", "a/b", "b/b", "/b", "/", "$SYS/x", "$/x", "日本/b"]),
    (1, (-1, 0, -1), ["a/1", "a/2", "a/", "a//", "a/1/", "a/1/b", "a//b", "$SYS/1/b", "/ä/b"]),
    (1, (-1, -1, 0), ["a/b/1", "a/b/", "//", "//1", "$SYS//x"]),
    (2, (0, -1, 0, -1), ["1/b/2", "1/b/", "/b/", "//", "//2", "$1/b/2", "1/b/2/c", "//2/c"]),
    (2, (0, 0, -1), ["1/2", "/", "/2", "1/", "1/2/c", "//c", "$1/2", "ä/ö/c"]),
    (3, (0, 0, 0, -1), ["1/2/3", "//", "//3", "1//", "1/2/3/d", "///", "$1//3"]),
    (3, (-1, 0, -1, 0, -1, 0), ["a/1/b/2/c/3", "a//b//c/", "/////", "$a/1/b//c/🌍"]),
]


@pytest.mark.parametrize(("varying", "thresholds", "topics"), TOPICS_BY_VARYING)
def test_topics_come_back_as_they_were_whichever_levels_vary(
    varying: int, thresholds: tuple[int, ...], topics: list[str]
) -> None:
    rows = rows_on(*topics, *reversed(topics))
    with new_database(thresholds=thresholds) as database:
        database.append(rows).wait()
        found = [
            row
            for topic_filter in ("#", "$SYS/#", "$/#", "$1/#", "$a/#")
            for row in as_given(read_rows(database, topic_filter))
        ]
        deepest = max(info.pattern.split("/").count("+") for info in database.structure())
    assert sorted(found) == sorted(rows)
    assert deepest == varying


def test_rows_of_a_record_batch_keep_microseconds() -> None:
    with new_database() as database:
        database.append(rows_on("t")).wait()
        (batch,) = database.read()
    assert [row.timestamp_us for row in rows_of(batch)] == [NOW_US]


def test_schema_of_names_the_columns_that_do_not_exist_and_those_that_do() -> None:
    with pytest.raises(UsageError) as caught:
        schema_of(["topic", "payload", "time"])
    assert str(caught.value) == f"unknown column payload, time (supported: {', '.join(COLUMNS)})"


def test_schema_of_names_the_columns_that_are_asked_for_twice() -> None:
    with pytest.raises(UsageError) as caught:
        schema_of(["value", "topic", "serial", "value", "topic"])
    assert str(caught.value) == "columns must not be repeated: topic, value"
    with (
        new_database() as database,
        pytest.raises(UsageError, match="columns must not be repeated"),
    ):
        database.read(columns=["topic", "topic"])


def test_schema_of_picks_in_the_order_that_was_asked_for() -> None:
    assert schema_of(["value", "topic"]) == pa.schema(
        [SCHEMA.field("value"), SCHEMA.field("topic")]
    )


def test_what_all_rows_have_alike_takes_little_where_they_are_few() -> None:
    same = ("publisher", "qos", "retain", "shard", "generation", "stream")
    assert batch_of([Row("s/a", b"1")]).table(same).get_total_buffer_size() < 1000


@contextmanager
def collector(*, enabled: bool) -> Iterator[list[str]]:
    """Have Python's collector as a program may have it; yield what it does."""
    phases: list[str] = []

    def note(phase: str, _: object) -> None:
        phases.append(phase)

    was_enabled = gc.isenabled()
    gc.callbacks.append(note)
    (gc.enable if enabled else gc.disable)()
    try:
        yield phases
    finally:
        gc.callbacks.remove(note)
        (gc.enable if was_enabled else gc.disable)()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_while_rows_are_made_and_is_then_as_it_was(enabled: bool) -> None:
    given = [tuple(Row("s/a", b""))] * 10_000
    with collector(enabled=enabled) as phases:
        before = len(phases)
        rows = make_rows(given)
        assert phases[before:] == []
        assert gc.isenabled() is enabled
    assert rows == given


def test_the_collector_goes_on_when_rows_cannot_be_made() -> None:
    def broken() -> Iterator[Row]:
        yield Row("s/a", b"")
        raise UsageError("broken")

    with collector(enabled=True):
        with pytest.raises(UsageError, match="broken"):
            make_rows(broken())
        assert gc.isenabled()


def test_who_finds_the_collector_off_leaves_it_to_who_switched_it_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_enabled = gc.isenabled

    def found_off() -> bool:
        # The other thread has made its rows a moment after this one looked.
        gc.enable()
        return False

    with collector(enabled=True):
        monkeypatch.setattr(gc, "isenabled", found_off)
        assert make_rows([tuple(Row("s/a", b""))]) == [Row("s/a", b"")]
        assert is_enabled()
        monkeypatch.undo()
