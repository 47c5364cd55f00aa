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


def test_beyond_the_memory_contents_stay_in_a_file_and_short_ones_do_not() -> None:
    fs = MemoryFileSystem()
    made: list[PurePath] = []

    def create() -> File:
        made.append(PurePath("/spill"))
        return fs.create(made[-1])

    contents = BoundedContents(700, create)
    for size in (500, 300, 256, 257, 1000):
        contents.append(b"a")
        contents.append(b"b" * (size - 1))
        contents.finish()
    found = [contents.get(number) for number in range(6)]
    assert found == [b"", *(b"a" + b"b" * (size - 1) for size in (500, 300, 256, 257, 1000))]
    places = [each.start if isinstance(each, InFile) else None for each in found]
    assert places == [None, None, 0, None, 300, 557]
    assert (contents.size_bytes, made) == (1557, [PurePath("/spill")])
    assert [each.file.read_at(each.start, 3) for each in found if isinstance(each, InFile)] == [
        b"abb"
    ] * 3
