from __future__ import annotations

import pytest

from siltstone.session.durable.backlog import Backlog


def kept(backlog: Backlog, sizes: list[int]) -> list[int]:
    """Return the indexes of the messages that are kept."""
    return [index for index, size in enumerate(sizes) if backlog.admits(size)]


@pytest.mark.parametrize(
    ("messages_max", "bytes_max", "expected"),
    [
        (0, 0, [0, 1, 2, 3, 4]),
        (2, 0, [0, 1]),
        (0, 25, [0, 1]),
        (3, 100, [0, 1, 2]),
        (3, 15, [0]),
    ],
)
def test_the_newest_beyond_the_limits_are_dropped(
    messages_max: int, bytes_max: int, expected: list[int]
) -> None:
    assert kept(Backlog(messages_max, bytes_max), [10] * 5) == expected


def test_what_is_kept_has_no_gaps() -> None:
    assert kept(Backlog(0, 25), [10, 20, 10]) == [0]


@pytest.mark.parametrize(
    ("messages_max", "bytes_max", "expected"),
    [
        (0, 0, [0, 1, 2, 3, 4]),
        (2, 0, [3, 4]),
        (0, 25, [3, 4]),
        (3, 100, [2, 3, 4]),
        (3, 10, [4]),
        (9, 900, [0, 1, 2, 3, 4]),
    ],
)
def test_the_oldest_beyond_the_limits_are_dropped_where_the_totals_are_known(
    messages_max: int, bytes_max: int, expected: list[int]
) -> None:
    assert kept(Backlog(messages_max, bytes_max, (5, 50)), [10] * 5) == expected
