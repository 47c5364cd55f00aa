"""The table of producers: last numbers, closed producers, bytes."""

from __future__ import annotations

import pytest

from siltstone.store.writer.replication.codec import UnreadableRecordError
from siltstone.store.writer.replication.messages import MessageKind, ProducerCall, RecordChange
from siltstone.store.writer.replication.producers import Producers, make_producer

P, Q, R = b"p" * 16, b"q" * 16, b"r" * 16


def table() -> Producers:
    made = Producers()
    calls = (
        ProducerCall(producer=P, number=3, previous=0),
        ProducerCall(producer=Q, number=1, previous=0),
        ProducerCall(producer=P, number=7, previous=3),
    )
    made.count(RecordChange(kind=MessageKind.ROWS, calls=calls, payload=b""))
    made.count(RecordChange(kind=MessageKind.FENCE, calls=(), payload=Q))
    made.count(RecordChange(kind=MessageKind.FENCE, calls=(), payload=R))
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


def _retired(table: Producers, site: bytes, number: int) -> None:
    payload = make_producer(site, number)
    table.count(RecordChange(kind=MessageKind.RETIRE, calls=(), payload=payload))


def test_a_retire_closes_all_producers_of_a_site_up_to_a_number() -> None:
    table = Producers()
    names = [make_producer(b"site one", number) for number in (1, 2, 9)]
    other = make_producer(b"site two", 1)
    calls = tuple(ProducerCall(producer=name, number=5, previous=0) for name in (*names, other))
    table.count(RecordChange(kind=MessageKind.ROWS, calls=calls, payload=b""))
    assert table.newest(b"site one") == 9
    assert table.newest(b"nowhere!") == -1
    assert table.retirable(b"site one", 2)
    assert not table.retirable(b"site one", 0)
    _retired(table, b"site one", 2)
    assert [table.last(name) for name in (*names, other)] == [0, 0, 5, 5]
    assert [table.is_closed(name) for name in (*names, other)] == [True, True, False, False]
    assert table.is_closed(make_producer(b"site one", 0))
    assert not table.retirable(b"site one", 2)
    # An earlier RETIRE that counts later opens nothing again.
    _retired(table, b"site one", 1)
    assert table.is_closed(names[1])


def test_a_retire_is_in_the_table_that_is_saved() -> None:
    table = Producers()
    name = make_producer(b"site one", 7)
    call = ProducerCall(producer=name, number=5, previous=0)
    table.count(RecordChange(kind=MessageKind.ROWS, calls=(call,), payload=b""))
    _retired(table, b"site one", 7)
    again = Producers.decode(table.encode())
    assert again.encode() == table.encode()
    assert len(again.encode()) == 25
    assert again.is_closed(name)
    assert not again.is_closed(make_producer(b"site one", 8))
