"""The table of producers: last numbers, closed producers, bytes."""

from __future__ import annotations

import pytest

from siltstone.store.writer.replication.codec import UnreadableRecordError
from siltstone.store.writer.replication.messages import Call, Change, MessageKind
from siltstone.store.writer.replication.producers import Producers

P, Q, R = b"p" * 16, b"q" * 16, b"r" * 16


def table() -> Producers:
    made = Producers()
    calls = (
        Call(producer=P, number=3, previous=0),
        Call(producer=Q, number=1, previous=0),
        Call(producer=P, number=7, previous=3),
    )
    made.count(Change(kind=MessageKind.ROWS, calls=calls, payload=b""))
    made.count(Change(kind=MessageKind.FENCE, calls=(), payload=Q))
    made.count(Change(kind=MessageKind.FENCE, calls=(), payload=R))
    return made


def facts(made: Producers) -> list[tuple[int, bool]]:
    return [(made.last(one), made.is_closed(one)) for one in (P, Q, R, b"s" * 16)]


def test_the_table_has_the_last_number_and_the_closed_producers() -> None:
    assert facts(table()) == [(7, False), (1, True), (0, True), (0, False)]


def test_a_table_decodes_to_itself() -> None:
    again = Producers.decode(table().encode())
    assert facts(again) == facts(table())
    assert again.encode() == table().encode()


def test_a_cut_table_is_refused() -> None:
    with pytest.raises(UnreadableRecordError, match="table of producers is cut: size_bytes=74"):
        Producers.decode(table().encode()[:-1])
