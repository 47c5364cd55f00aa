from __future__ import annotations

from collections.abc import Iterator

import pytest

from siltstone.errors import UsageError
from siltstone.topiclog.sending import pieces_of

MIB = 1024 * 1024


def sizes(
    values: list[bytes], *, rows_max: int = 1000, bytes_max: int = 1 << 30
) -> list[list[int]]:
    pieces = pieces_of(values, rows_max=rows_max, bytes_max=bytes_max)
    return [[len(value) for value in piece] for piece in pieces]


def test_pieces_are_about_a_mebibyte_and_have_a_message_at_least() -> None:
    half = MIB // 2
    assert sizes([bytes(half)] * 5) == [[half, half], [half, half], [half]]
    assert sizes([bytes(3 * MIB), b"x"]) == [[3 * MIB], [1]]


def test_pieces_have_a_greatest_number_of_messages() -> None:
    assert sizes([b"x"] * 5, rows_max=2) == [[1, 1], [1, 1], [1]]


@pytest.mark.parametrize("values", [[], [b""], [b"", b""]])
def test_nothing_to_send_is_one_piece_of_nothing(values: list[bytes]) -> None:
    assert sizes(values) == [[]]


def test_empty_messages_are_left_out_and_order_is_kept() -> None:
    values = [b"%d" % number if number % 3 else b"" for number in range(40_000)]
    pieces = list(pieces_of(values, rows_max=65_536, bytes_max=1 << 30))
    assert [value for piece in pieces for value in piece] == [value for value in values if value]


def test_a_message_too_large_is_told_when_its_turn_comes() -> None:
    pieces = pieces_of([b"x" * 5, b"y" * 11], rows_max=1, bytes_max=10)
    assert next(pieces) == [b"xxxxx"]
    with pytest.raises(UsageError, match="size_bytes=11 max=10"):
        next(pieces)


def test_pieces_keep_to_what_a_server_takes() -> None:
    assert sizes([b"x"] * 25, bytes_max=10) == [[1] * 10, [1] * 10, [1] * 5]


def test_large_messages_are_taken_as_they_are_needed() -> None:
    taken: list[int] = []

    def values() -> Iterator[bytes]:
        for number in range(100):
            taken.append(number)
            yield bytes(MIB)

    pieces = pieces_of(values(), rows_max=65_536, bytes_max=1 << 30)
    for _ in range(40):
        next(pieces)
    assert len(taken) == 48
