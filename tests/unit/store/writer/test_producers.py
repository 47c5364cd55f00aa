from __future__ import annotations

import struct
from hashlib import blake2b

import pytest

from siltstone.errors import OverloadedError, RetryError
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.write.partition import shard_of
from siltstone.store.writer.producers import ProducerTable, producer_key
from siltstone.store.writer.ticket import Ticket
from tests.support.builders import HELD, new_database, read_topics, rows_on

ANN = producer_key("ann")
BO = producer_key("bo")
CY = producer_key("cy")
# One publisher for each of two shards, by the number of the shard.
ON_SHARD = {shard_of(name.encode(), 2): name for name in ("a", "b", "c", "d")}


def entry(producer: bytes, sequence: int) -> bytes:
    return struct.pack("<16sQ", producer, sequence)


def table(*entries: bytes, producers_max: int = 10) -> ProducerTable:
    result = ProducerTable(producers_max=producers_max)
    for item in entries:
        result.apply(item)
    return result


def test_a_producer_stands_for_its_name_in_sixteen_bytes() -> None:
    assert producer_key("ünit") == blake2b("ünit".encode(), digest_size=16).digest()


def test_an_unknown_producer_has_stored_nothing() -> None:
    assert not table(entry(ANN, 5)).holds(BO, 0)


@pytest.mark.parametrize(("sequence", "held"), [(0, True), (4, True), (5, True), (6, False)])
def test_every_sequence_up_to_the_last_was_stored_before(sequence: int, held: bool) -> None:
    assert table(entry(ANN, 5)).holds(ANN, sequence) is held


def test_the_last_of_several_entries_in_one_frame_counts() -> None:
    known = table(entry(ANN, 1) + entry(BO, 9) + entry(ANN, 2))
    assert known.encode() == entry(BO, 9) + entry(ANN, 2)


def test_the_table_is_encoded_with_the_least_recently_used_first() -> None:
    known = table(entry(ANN, 1), entry(BO, 2), entry(ANN, 3))
    assert known.encode() == entry(BO, 2) + entry(ANN, 3)


def test_an_encoded_table_makes_an_equal_one() -> None:
    known = table(entry(ANN, 2**64 - 1), entry(BO, 0))
    again = table(known.encode())
    assert again.encode() == known.encode() == entry(ANN, 2**64 - 1) + entry(BO, 0)


def test_beyond_the_limit_the_least_recently_used_are_forgotten() -> None:
    known = table(entry(ANN, 1), entry(BO, 1), entry(ANN, 2), entry(CY, 1), producers_max=2)
    assert known.encode() == entry(ANN, 2) + entry(CY, 1)


def test_an_empty_table_encodes_to_nothing() -> None:
    assert table(b"").encode() == b""


def test_a_map_is_taken_over_like_bytes() -> None:
    known = ProducerTable()
    known.apply(memoryview(entry(ANN, 7)))
    assert known.encode() == entry(ANN, 7)


def test_no_shard_takes_a_later_call_before_one_that_another_had_no_room_for() -> None:
    big, small = b"x" * 700, b"y"
    with new_database(shards=2, pending_bytes_max=1000, **HELD) as database:

        def append(number: int, value: bytes) -> Ticket:
            rows = [Row(f"{number}", value, name) for name in ON_SHARD.values()]
            return database.append(rows, producer=("p", number), timeout=0)

        database.append([Row("before", big, ON_SHARD[0])])
        with pytest.raises(OverloadedError):
            append(1, big)
        later = append(2, small)
        database.sync()
        assert isinstance(later.error, RetryError)
        for number in (1, 2):
            ticket = append(number, small)
            database.sync()
            assert (ticket.error, ticket.duplicate) == (None, False)
        topics = sorted(read_topics(database))
    assert topics == ["1", "1", "2", "2", "before"]


@pytest.mark.parametrize("first", [0, 1, 7])
def test_what_the_quota_refused_is_sent_again_before_anything_later(first: int) -> None:
    with new_database() as database:
        database.append(rows_on("before")).wait()

        def is_stored(sequence: int) -> bool:
            ticket = database.append(rows_on(f"{sequence}"), producer=("p", sequence))
            try:
                return not ticket.wait().duplicate
            except RetryError:
                return False

        database.configure(quota_bytes=1)
        refused = [is_stored(first), is_stored(first + 1)]
        database.configure(quota_bytes=None)
        sent = [is_stored(number) for number in (first + 1, first, first + 1, first)]
        assert (refused, sent) == ([False, False], [False, True, True, False])
        assert read_topics(database) == ["before", f"{first}", f"{first + 1}"]


def test_each_call_that_was_refused_is_sent_again_before_a_later_one() -> None:
    with new_database(**HELD) as database:
        database.append(rows_on("before"))
        database.sync()

        def is_stored(number: int) -> bool:
            ticket = database.append(rows_on(f"{number}"), producer=("p", number))
            database.sync()
            return ticket.error is None and not ticket.duplicate

        database.configure(quota_bytes=1)
        refused = [is_stored(number) for number in (1, 2)]
        database.configure(quota_bytes=None)
        sent = [is_stored(number) for number in (1, 3, 2, 3)]
        assert (refused, sent) == ([False, False], [True, False, True, True])
        assert read_topics(database) == ["before", "1", "2", "3"]
