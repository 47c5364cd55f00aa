from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from siltstone.errors import NotFoundError, UsageError
from siltstone.flight.access import AnyUser
from siltstone.flight.operations import ACTIONS, FlightOperations
from siltstone.scan.ingest.columns import Given, rows_of
from siltstone.store.directory import Store
from tests.support.builders import NAME, World, read_rows, rows_on, settings_of
from tests.support.flight import desk_of
from tests.support.visitors import Limited

ANYBODY = AnyUser()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def store(world: World) -> Iterator[Store]:
    with world.store() as opened:
        opened.create(NAME, settings_of())
        opened.create("_own", settings_of())
        yield opened


@pytest.fixture
def desk(world: World, store: Store) -> FlightOperations:
    return desk_of(store, world.fs)


def batch(*payloads: bytes | None) -> pa.RecordBatch:
    topics = ["t"] * len(payloads)
    return pa.RecordBatch.from_pydict({"topic": topics, "payload": pa.array(payloads, "binary")})


def put(
    desk: FlightOperations, how: dict[str, Any], *batches: pa.RecordBatch
) -> list[dict[str, Any]]:
    return list(desk.put({"append": how}, batches, ANYBODY))


def test_databases_and_streams_are_listed(store: Store, desk: FlightOperations) -> None:
    store.database(NAME).append(rows_on("a/1", "a/1", "no/1")).wait()
    paths = [[part.decode() for part in info.descriptor.path] for info in desk.flights("", ANYBODY)]
    assert paths == [[NAME]]
    streams = {
        info.descriptor.path[1].decode(): info.total_records for info in desk.flights(NAME, ANYBODY)
    }
    assert streams == {"a/1": 2, "no/1": 1}
    limited = [info.descriptor.path[1] for info in desk.flights(NAME, Limited())]
    assert limited == [b"a/1"]
    with pytest.raises(NotFoundError, match="database 'x' does not exist"):
        list(desk.flights("x", ANYBODY))


def test_the_databases_of_the_broker_are_nobody_elses(desk: FlightOperations) -> None:
    for ask in (
        lambda: list(desk.flights("_own", ANYBODY)),
        lambda: desk.act("extents", {"options": {"database": "_own"}}, ANYBODY),
        lambda: put(desk, {"database": "_own"}, batch(b"x")),
    ):
        with pytest.raises(NotFoundError, match="database '_own' does not exist"):
            ask()


def test_batches_are_appended_and_answered_in_order(store: Store, desk: FlightOperations) -> None:
    batches = [batch(b"%d" % number) for number in range(20)]
    assert put(desk, {}, *batches) == [{"rows": 1, "duplicate": False}] * 20
    values = [row.value for row in read_rows(store.database(NAME))]
    assert values == [b"%d" % number for number in range(20)]


def test_a_put_of_a_producer_is_stored_once(store: Store, desk: FlightOperations) -> None:
    how = {"database": NAME, "producer": "p", "sequence": 4, "durability": "written"}
    assert put(desk, how, batch(b"1"), batch(b"2")) == [{"rows": 1, "duplicate": False}] * 2
    assert put(desk, how, batch(b"1"), batch(b"2")) == [{"rows": 1, "duplicate": True}] * 2
    assert [row.value for row in read_rows(store.database(NAME))] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({}, "the request must be append or stage"),
        ({"append": {"durability": "maybe"}}, "durability must be one of"),
        ({"append": {"producer": "p"}}, "set both producer and sequence, or neither"),
        ({"append": {"producer": "p", "sequence": -1}}, "sequence must be a number of 0 or more"),
        ({"append": {"database": "x"}}, "database 'x' does not exist"),
        ({"stage": {}}, "the request to stage rows must have write and batch"),
        (
            {"stage": {"write": "w", "batch": 0}},
            "internal error: staged rows must have the columns of the store",
        ),
    ],
    ids=str,
)
def test_a_wrong_put_is_refused_with_a_sentence(
    desk: FlightOperations, request_: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        list(desk.put(request_, [batch(b"1")], ANYBODY))


def test_rows_are_staged_then_committed_or_discarded(store: Store, desk: FlightOperations) -> None:
    which = {"write": "w", "batch": 0}
    rows = list(rows_of(batch(b"1", b"2"), Given()))
    names = [
        answer["name"] for _ in range(2) for answer in desk.put({"stage": which}, rows, ANYBODY)
    ]
    assert desk.act("discard", which | {"names": names[1:]}, ANYBODY) == {}
    commit = which | {"names": names[:1]}
    assert desk.act("commit", commit, ANYBODY) == {"rows": 2, "repeated": False}
    assert desk.act("commit", commit, ANYBODY) == {"rows": 0, "repeated": True}
    assert [row.value for row in read_rows(store.database(NAME))] == [b"1", b"2"]


def test_rows_that_may_not_be_written_are_not_staged(desk: FlightOperations) -> None:
    rows = list(rows_of(batch(b"1"), Given()))
    request = {"stage": {"write": "w", "batch": 0}}
    with pytest.raises(UsageError, match="this user may not write to the topic: topic='t'"):
        list(desk.put(request, rows, Limited(writes=b"mine/")))


def test_a_stream_is_told_what_there_is_and_how_far_to_go(
    store: Store, desk: FlightOperations
) -> None:
    store.database(NAME).append(rows_on("a", "b", "c")).wait()
    told = desk.act("extents", {"options": {}}, ANYBODY)
    assert (len(told["identity"]), told["identified"]) == (32, True)
    ((shard, generation, start, stop, _, until_us),) = told["extents"]
    assert told["tiered"] == {}
    assert (shard, generation, start, stop, until_us) == (0, 1, 0, 3, None)
    request = {"options": {}, "start": {"0": 0}, "end": {"0": 3}, "rows": 2}
    assert desk.act("admit", request, ANYBODY) == {"ends": {"0": 2}, "rows": 2}
    for times, start_serial in (("1970-01-01", 0), ('{"0": "9000-01-01"}', 3)):
        sought = desk.act("seek", {"options": {}, "times": times}, ANYBODY)
        assert sought == {"starts": {"0": start_serial}}


@pytest.mark.parametrize(
    ("name", "request_", "message"),
    [
        ("sing", {}, f"unknown action 'sing' .supported: {', '.join(ACTIONS)}"),
        ("admit", {"start": {"0": 0}, "end": {}}, "start and end must have the same shards"),
        ("admit", {"start": 1, "end": {}}, "a position must be a JSON object"),
        ("commit", {"write": "w", "batch": 0, "names": 1}, "names must be a list"),
        ("extents", {}, "the options of a read must be a JSON object"),
    ],
)
def test_a_wrong_action_is_refused_with_a_sentence(
    desk: FlightOperations, name: str, request_: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        desk.act(name, request_, ANYBODY)
