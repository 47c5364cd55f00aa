from __future__ import annotations

from typing import Any

import pytest

import siltstone
from siltstone.errors import UsageError
from siltstone.store.database import Database
from siltstone.store.log.arguments import require_kind, require_number, require_span
from siltstone.store.log.iterator import StreamIterator, StreamRef
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.write.partition import Columns
from tests.support.builders import World

WRONG: list[Any] = [None, 1.5, object()]


def complaint(check: Any, *args: Any) -> str:
    with pytest.raises(UsageError) as caught:
        check(*args)
    return str(caught.value)


def test_what_is_not_of_its_kind_is_told_with_what_it_should_be() -> None:
    require_kind("name", "text", str, "text")
    assert complaint(require_kind, "name", None, str, "text") == (
        "name must be text: type=NoneType"
    )


def test_a_bool_is_no_number() -> None:
    require_number("rows_max", 1)
    wrong = True
    assert complaint(require_number, "rows_max", wrong) == (
        "rows_max must be a whole number: type=bool"
    )


def test_only_the_end_of_a_span_may_be_open() -> None:
    require_span(0, None)
    assert complaint(require_span, None, None) == "since_us must be a whole number: type=NoneType"
    assert complaint(require_span, 0, "x") == "until_us must be a whole number: type=str"


@pytest.fixture(scope="module")
def database() -> Any:
    with World().database() as database:
        database.append([Row("a/b", b"x")]).wait()
        yield database


def calls(database: Database, wrong: Any) -> dict[str, Any]:
    """Return public calls with one argument that is of no use to any of them."""
    (stream,) = database.streams()
    iterator = database.iterator(stream)
    return {
        "append": lambda: database.append(wrong),
        "topics": lambda: database.append(Columns(wrong, [b"x"])),
        "values": lambda: database.append(Columns([b"x"], wrong)),
        "publisher": lambda: database.append(Columns([b"a"], [b"x"], wrong)),
        "flags": lambda: database.append(Columns([b"a"], [b"x"], b"", wrong)),
        "flags of a row": lambda: database.append(Columns([b"a"], [b"x"], b"", [wrong])),
        "has_stored": lambda: database.has_stored(wrong, b"a", b""),
        "streams": lambda: database.streams(wrong),
        "streams since": lambda: database.streams("#", wrong),
        "iterator": lambda: database.iterator(wrong),
        "iterator filter": lambda: database.iterator(stream, wrong),
        "iterator since": lambda: database.iterator(stream, "#", wrong),
        "next": lambda: database.next(wrong),
        "next rows_max": lambda: database.next(iterator, wrong),
        "read": lambda: database.read(wrong),
        "read since": lambda: database.read(since_us=wrong),
        "read columns": lambda: database.read(columns=wrong),
        "count": lambda: database.count(wrong),
        "count since": lambda: database.count(since_us=wrong),
        "holes": lambda: database.holes(since_us=wrong),
        "drop_slab": lambda: database.drop_slab(wrong),
        "feed": lambda: database.feed(wrong),
        "feed since": lambda: database.feed(since_us=wrong),
        "feed credit": lambda: database.feed(credit=wrong),
        "stream bytes": lambda: StreamRef.from_bytes(wrong),
        "iterator bytes": lambda: StreamIterator.from_bytes(wrong),
        "position bytes": lambda: siltstone.Position.from_bytes(wrong),
        "open": lambda: siltstone.open(wrong),
    }


def optional_calls(database: Database, wrong: Any) -> dict[str, Any]:
    """Return calls with a wrong argument that may be left out."""
    (stream,) = database.streams()
    iterator = database.iterator(stream)
    return {
        "producer": lambda: database.append([Row("a", b"")], producer=wrong),
        "next until": lambda: database.next(iterator, until_us=wrong),
        "read until": lambda: database.read(until_us=wrong),
        "read rows_max": lambda: database.read(rows_max=wrong),
        "count until": lambda: database.count(until_us=wrong),
        "feed position": lambda: database.feed(position=wrong),
    }


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
def test_no_public_call_answers_a_wrong_argument_with_a_bare_type_error(
    database: Database, wrong: Any
) -> None:
    for call in calls(database, wrong).values():
        with pytest.raises(UsageError):
            call()
    if wrong is not None:
        for call in optional_calls(database, wrong).values():
            with pytest.raises(UsageError):
                call()


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
def test_no_call_of_a_store_answers_so_either(wrong: Any) -> None:
    with World().store() as store:
        for call in (store.create, store.database, store.ensure):
            with pytest.raises(UsageError):
                call(wrong)
        settings: Any = 1
        with pytest.raises(UsageError):
            store.create("name", settings)
        assert store.names() == []
