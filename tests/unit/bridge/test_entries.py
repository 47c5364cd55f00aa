from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.bridge.entries import (
    came_us,
    decode_entry,
    encode_entries,
    encode_message,
    metadata_of,
    publications,
)
from siltstone.client.outgoing import Publication
from siltstone.errors import CorruptionError
from siltstone.mqtt.encode import encode_message_properties
from siltstone.mqtt.properties import Properties
from siltstone.spool import Entry
from tests.support.links import batch_of, rows

PATH = PurePath("/q/0")


def expiring(seconds: int) -> bytes:
    return encode_message_properties(Properties(message_expiry_interval=seconds))


def test_a_batch_is_one_entry_and_back() -> None:
    batch = batch_of(("a", b"1", 0), ("b", b"", 1), ("c", bytes(300), 6), properties=expiring(9))
    [(data, metadata)] = encode_entries(batch, 123)
    back = decode_entry(data, PATH)
    assert metadata == "123_3"
    assert rows(back) == rows(batch)
    assert (back.properties, back.expiries) == (batch.properties, [9] * 3)


def test_dup_means_nothing_to_the_next_peer() -> None:
    [(data, _)] = encode_entries(batch_of(("a", b"1", 9)), 0)
    assert decode_entry(data, PATH).flags == [1]


def test_many_messages_and_large_ones_are_several_entries_in_order() -> None:
    many = batch_of(*(("t", b"%d" % n, 1) for n in range(5000)))
    counts = [metadata for _, metadata in encode_entries(many, 7)]
    assert counts == ["7_4096", "7_904"]
    large = batch_of(*(("t", bytes(700_000), 1) for _ in range(2)), ("t", bytes(3_000_000), 1))
    assert [metadata for _, metadata in encode_entries(large, 7)] == ["7_1"] * 3
    back = [row for data, _ in encode_entries(many, 7) for row in rows(decode_entry(data, PATH))]
    assert back == rows(many)


@pytest.mark.parametrize("data", [b"", b"\xd0\x00", b"0\x05\x00", b"\xff" * 9])
def test_what_is_no_run_of_messages_is_damaged(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="does not contain messages of a bridge: path=/q/0"):
        decode_entry(data, PATH)


def test_when_messages_came_is_in_the_name() -> None:
    assert came_us(Entry(0, metadata_of(17, 3))) == 17
    assert [came_us(Entry(0, metadata)) for metadata in (None, "", "x_1")] == [0, 0, 0]


def test_runs_of_equal_messages_are_published_together_in_order() -> None:
    batch = batch_of(("a", b"1", 1), ("a", b"2", 1), ("b", b"3", 5), ("a", b"4", 1))
    assert list(publications(batch, waited_seconds=0, qos_max=2, retain=True)) == [
        (Publication(topic=b"a", qos=1), [b"1", b"2"]),
        (Publication(topic=b"b", qos=1, retain=True), [b"3"]),
        (Publication(topic=b"a", qos=1), [b"4"]),
    ]


def test_a_peer_gets_no_more_than_it_takes() -> None:
    batch = batch_of(("a", b"1", 6))
    assert list(publications(batch, waited_seconds=0, qos_max=1, retain=False)) == [
        (Publication(topic=b"a", qos=1), [b"1"])
    ]


def test_time_in_the_spool_counts_against_a_message() -> None:
    [(data, _)] = encode_entries(batch_of(("a", b"1", 1), properties=expiring(10)), 0)
    batch = decode_entry(data, PATH)
    for waited, left in ((0, 10), (0.004, 10), (1, 9), (4.2, 6), (4.8, 6), (9.9, 1)):
        [(publication, _)] = publications(batch, waited_seconds=waited, qos_max=2, retain=True)
        assert publication.properties == expiring(left)
    assert list(publications(batch, waited_seconds=10, qos_max=2, retain=True)) == []


def test_a_single_message_is_an_entry_too() -> None:
    publication = Publication(topic=b"a", qos=2, retain=True, properties=expiring(3))
    back = decode_entry(encode_message(publication, b"x"), PATH)
    assert (rows(back), back.properties) == ([(b"a", b"x", 6)], [expiring(3)])
