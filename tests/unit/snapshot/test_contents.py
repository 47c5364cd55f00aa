from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.fs.memory import MemoryFileSystem
from siltstone.snapshot.contents import Contents, ContentsInFile, ContentsInMemory, NoContents


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
