"""Where the contents of a snapshot are while it is loaded.

In memory, where what is loaded will hold them anyway: each is one object, however often it is
referred to. In a file, where it goes to the disk: then a number and a length is all that is kept.
In memory up to a bound and then in a file, where there may be more than memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final, Protocol

from siltstone.fs.api import File

# What is not longer takes no less memory as a place in a file.
_SHORT_BYTES: Final = 256


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


class InFile(bytes):
    """A content that stays in a file: whoever holds it may let go of the bytes, and read them from
    there again.
    """

    file: File
    start: int


class BoundedContents:
    """Contents as objects while there is memory for them; longer ones that come later in a file."""

    def __init__(self, memory_bytes_max: int, create: Callable[[], File]) -> None:
        """`create` makes the file, which is asked for when it is first needed."""
        self._left_bytes = memory_bytes_max
        self._create = create
        self._file: File | None = None
        self._size = 0
        # The content, or where it is and how long.
        self._contents: list[bytes | tuple[int, int]] = [b""]
        self._parts: list[bytes] = []

    @property
    def size_bytes(self) -> int:
        """What is in the file."""
        return self._size

    def append(self, part: bytes) -> None:
        self._parts.append(part)

    def finish(self) -> None:
        content = b"".join(self._parts)
        self._parts.clear()
        if len(content) <= max(_SHORT_BYTES, self._left_bytes):
            self._left_bytes -= len(content)
            self._contents.append(content)
            return
        if self._file is None:
            self._file = self._create()
        self._file.write_at(self._size, content)
        self._contents.append((self._size, len(content)))
        self._size += len(content)

    def get(self, number: int) -> bytes:
        found = self._contents[number]
        if isinstance(found, bytes):
            return found
        assert self._file is not None, "something is in it"
        content = InFile(self._file.read_at(*found))
        content.file = self._file
        content.start = found[0]
        return content


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
