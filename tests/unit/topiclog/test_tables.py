from __future__ import annotations

from itertools import accumulate

import pytest

from siltstone.errors import ProtocolError
from siltstone.topiclog.tables import (
    ends_of,
    joined_offsets,
    offsets_of_ends,
    offsets_of_table,
    table_of_ends,
    table_of_offsets,
    values_at,
)
from tests.support.topiclog import offsets_of


def test_ends_are_u32_in_network_order() -> None:
    assert table_of_ends([b"a", b"x" * 256]) == b"\0\0\0\x01\0\0\x01\x01"


@pytest.mark.parametrize("count", [1, 3, 63, 64, 500])
def test_ends_become_offsets_and_back(count: int) -> None:
    values = [b"v" * (number % 7 + 1) for number in range(count)]
    offsets = offsets_of_ends(table_of_ends(values))
    assert offsets == offsets_of(values)
    table = table_of_offsets(memoryview(offsets).cast("i"))
    assert table[4:] == table_of_ends(values)
    assert list(offsets_of_table(memoryview(table))) == list(memoryview(offsets).cast("i"))


@pytest.mark.parametrize("count", [2, 100])
@pytest.mark.parametrize("at", [0, 1])
def test_an_empty_message_is_refused(count: int, at: int) -> None:
    values = [b"v"] * count
    values[at] = b""
    with pytest.raises(ProtocolError, match="a message of a SEND must have at least one byte"):
        offsets_of_ends(table_of_ends(values))


def test_a_table_of_a_reply_that_falls_is_refused() -> None:
    with pytest.raises(ProtocolError, match="the offsets of the messages in a reply must increase"):
        offsets_of_table(memoryview(b"\0\0\0\0\0\0\0\x05\0\0\0\x04"))


@pytest.mark.parametrize("counts", [(1,), (1, 2, 3), (70, 3, 200)])
def test_tables_of_pieces_are_joined(counts: tuple[int, ...]) -> None:
    pieces = [[b"v" * (n % 5 + 1) for n in range(count)] for count in counts]
    joined = joined_offsets(
        [offsets_of(piece) for piece in pieces], [sum(map(len, piece)) for piece in pieces]
    )
    assert joined == offsets_of([value for piece in pieces for value in piece])


def lengths(name: str, count: int) -> list[int]:
    """Return lengths that are alike, that differ, or that differ within and add up as if alike."""
    found = [3] * count
    if name == "mixed":
        found = [number % 5 + 1 for number in range(count)]
    elif name == "hidden":
        found[count // 2 : count // 2 + 2] = [2, 4]
    return found


@pytest.mark.parametrize("count", [1, 63, 64, 65, 128, 500])
@pytest.mark.parametrize("name", ["even", "mixed", "hidden"])
def test_messages_of_one_length_are_told_like_others(name: str, count: int) -> None:
    values = [b"%d" % (number % 10) * size for number, size in enumerate(lengths(name, count))]
    ends = list(accumulate(map(len, values)))
    assert list(ends_of(values)) == ends
    assert table_of_ends(values) == b"".join(end.to_bytes(4, "big") for end in ends)
    data = memoryview(b"".join(values))
    table = memoryview(bytes(4) + table_of_ends(values))
    assert values_at(offsets_of_table(table), data) == values
    assert values_at([0, *ends], data) == values


def test_empty_messages_of_one_length_end_where_they_begin() -> None:
    assert list(ends_of([b""] * 100)) == [0] * 100
