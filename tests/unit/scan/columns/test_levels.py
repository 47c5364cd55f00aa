from __future__ import annotations

import pyarrow as pa
import pytest

from siltstone.scan.columns.levels import level_lists
from siltstone.scan.columns.schema import LEVELS, SCHEMA

KIND = SCHEMA.field(LEVELS).type


def checked(topics: list[str], numbers: list[int], kind: pa.DataType) -> list[list[str]]:
    """Return the words of rows, as an array that Arrow finds sound."""
    found = level_lists(pa.array(topics, pa.string()), pa.array(numbers, kind), KIND)
    found.validate(full=True)
    assert found.type == KIND
    words: list[list[str]] = found.to_pylist()
    return words


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32()])
@pytest.mark.parametrize(
    "topics",
    [
        ["a"],
        ["a/b", "longer/words", "ä/日本"],
        ["a/b/c", "/", "a", "//x//"],
        ["/", "/"],
        ["//", "a//", "//b"],
        [""],
    ],
    ids=repr,
)
def test_each_row_has_the_words_of_its_topic(topics: list[str], kind: pa.DataType) -> None:
    numbers = [row * 7 % len(topics) for row in range(50)]
    assert checked(topics, numbers, kind) == [topics[number].split("/") for number in numbers]


def test_no_rows_have_no_words() -> None:
    assert checked(["a/b", "c/d"], [], pa.int8()) == []
    assert checked([], [], pa.int8()) == []


def test_numbers_may_be_a_part_of_a_larger_array() -> None:
    numbers = pa.array([0, 1, 1, 0, 1], pa.int16()).slice(2, 2)
    topics = pa.array(["x/y", "a/b", "c/d"]).slice(1)
    assert level_lists(topics, numbers, KIND).to_pylist() == [["c", "d"], ["a", "b"]]


def test_more_rows_than_any_batch_has_are_no_matter() -> None:
    rows = (1 << 16) + 1
    assert checked(["a/b"], [0] * rows, pa.int8()) == [["a", "b"]] * rows
