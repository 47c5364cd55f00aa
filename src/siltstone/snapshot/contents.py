"""Where the contents of a snapshot are while it is loaded.

In memory, where what is loaded will hold them anyway: each is one object, however often it is
referred to. In a file, where it goes to the disk: then a number and a length is all that is kept.
"""

from __future__ import annotations

from array import array
from typing import Protocol

from siltstone.fs.api import File


class Contents(Protocol):
    """Contents by number, 1 for the first; 0 is the empty one, and is always there."""

    def append(self, part: bytes) -> None:
        """Take the next part of the content that is under way."""
        ...

    def finish(self) -> None:
        """Let the content that is under way have the next number."""
        ...

    def get(self, number: int) -> bytes:
        """Return a content that was finished."""
        ...


class ContentsInMemory:
    """Contents as objects."""

    def __init__(self) -> None:
        self._contents: list[bytes] = [b""]
        self._parts: list[bytes] = []

    def append(self, part: bytes) -> None:
        self._parts.append(part)

    def finish(self) -> None:
        self._contents.append(b"".join(self._parts))
        self._parts.clear()

    def get(self, number: int) -> bytes:
        return self._contents[number]


class ContentsInFile:
    """Contents in a file that is empty, and thrown away by whoever gave it."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._size = 0
        self._ends = array("Q", [0])

    def append(self, part: bytes) -> None:
        self._file.write_at(self._size, part)
        self._size += len(part)

    def finish(self) -> None:
        self._ends.append(self._size)

    def get(self, number: int) -> bytes:
        if number == 0:
            return b""
        start = self._ends[number - 1]
        return self._file.read_at(start, self._ends[number] - start)


class NoContents:
    """Counts the bytes, for who only wants to know whether all is there."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def append(self, part: bytes) -> None:
        self.size_bytes += len(part)

    def finish(self) -> None:
        """Nothing is kept."""

    def get(self, number: int) -> bytes:  # noqa: ARG002 - all are as good as empty
        return b""
