from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.fs.api import File
from siltstone.fs.memory import MemoryFileSystem
from siltstone.snapshot.format.contents import (
    BoundedContents,
    Contents,
    ContentsInFile,
    ContentsInMemory,
    InFile,
    NoContents,
)


def in_file() -> Contents:
    return ContentsInFile(MemoryFileSystem().create(PurePath("/c")))


@pytest.mark.parametrize("make", [ContentsInMemory, in_file])
def test_contents_are_found_by_number(make: type[ContentsInMemory]) -> None:
    contents = make()
    for parts in ([b"one"], [b"t", b"w", b"o"]):
        for part in parts:
            contents.append(part)
        contents.finish()
    assert [contents.get(number) for number in (2, 0, 1)] == [b"two", b"", b"one"]


def test_in_memory_a_content_is_one_object() -> None:
    contents = ContentsInMemory()
    contents.append(b"payload")
    contents.finish()
    assert contents.get(1) is contents.get(1)


def test_no_contents_are_counted_and_gone() -> None:
    contents = NoContents()
    contents.append(b"abc")
    contents.finish()
    assert (contents.get(1), contents.size_bytes) == (b"", 3)


def bounded(memory_max: int) -> tuple[BoundedContents, list[File]]:
    """Return contents, and the file that they create when they need it."""
    made: list[File] = []

    def create() -> File:
        made.append(MemoryFileSystem().create(PurePath("/spill")))
        return made[-1]

    return BoundedContents(memory_max, create), made


def fill(contents: BoundedContents, sizes: list[int]) -> list[bytes]:
    for size in sizes:
        contents.append(b"a")
        contents.append(b"b" * (size - 1))
        contents.finish()
    return [b"", *(b"a" + b"b" * (size - 1) for size in sizes)]


def test_beyond_the_memory_contents_are_in_a_file_and_long_ones_stay_there() -> None:
    contents, made = bounded(700)
    sizes = [500, 300, 256, 257, 70]
    expected = fill(contents, sizes)
    found = [contents.get(number) for number in range(6)]
    assert found == expected
    # 70 bytes had room again, and 256 are not worth a place.
    places = [each.start if isinstance(each, InFile) else None for each in found]
    assert places == [None, None, 0, None, 556, None]
    assert contents.size_bytes == 300 + 256 + 257
    contents.flush()
    assert made[0].read_at(0, 2_000) == b"".join(expected[2:5])
    assert [contents.get(number) for number in range(6)] == expected


def test_contents_are_found_before_and_after_they_are_written() -> None:
    contents, made = bounded(0)
    sizes = [700_000, 700_000, 300]
    expected = fill(contents, sizes)
    # The first two are on disk, and the last one is not.
    assert made[0].size() == 1_400_000
    assert [contents.get(number) for number in range(4)] == expected


def test_loaded_state_shares_the_memory_and_the_file() -> None:
    contents, made = bounded(1000)
    assert contents.take(600)
    expected = fill(contents, [350])
    assert isinstance(contents.get(1), InFile)
    assert contents.put(b"run") == (made[0], 350)
    expected += fill(contents, [400])[1:]
    assert [contents.get(number) for number in range(3)] == expected
    assert contents.take(400)
    assert not contents.take(1)
    contents.flush()
    assert made[0].read_at(350, 3) == b"run"


@pytest.mark.parametrize(("reads", "left"), [(0, 200), (1, 50)])
def test_a_content_counts_once_in_memory_and_a_short_one_in_the_file_each_time(
    reads: int, left: int
) -> None:
    contents, _ = bounded(1000)
    # 60 bytes beside the first one; then the second one has no room.
    fill(contents, [740, 150])
    for number in (0, 1, 1, *[2] * reads):
        contents.get(number)
    assert contents.take(left)
    assert not contents.take(1)
