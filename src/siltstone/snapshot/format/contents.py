"""Storage for the contents of a snapshot while it is loaded.

In memory, if the loaded state will hold them anyway: each content is one object, for all references
to it. In a file, if the state goes to the disk: then only an offset is kept for each content. In
memory up to a limit and then in a file, if they may exceed the memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final, Protocol

from siltstone.fs.api import File

# A content up to this size takes no less memory if it is replaced by a place in a file.
_SHORT_BYTES: Final = 256


class Contents(Protocol):
    """Contents by number, starting at 1; 0 is the empty content, which always exists."""

    def append(self, part: bytes) -> None:
        """Add the next part of the current content."""
        ...

    def finish(self) -> None:
        """End the current content and give it the next number."""
        ...

    def get(self, number: int) -> bytes:
        """Return a finished content."""
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
    """Contents in a file, which the caller creates empty and removes."""

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
    """A content that is also in a file: the holder may drop the bytes and read them again."""

    file: File
    start: int


class BoundedContents:
    """Contents as objects up to a memory limit; after that, longer ones go to a file."""

    def __init__(self, memory_bytes_max: int, create: Callable[[], File]) -> None:
        """`create` creates the file when it is first needed."""
        self._left_bytes = memory_bytes_max
        self._create = create
        self._file: File | None = None
        self._size = 0
        # The content, or its offset and length in the file.
        self._contents: list[bytes | tuple[int, int]] = [b""]
        self._parts: list[bytes] = []

    @property
    def size_bytes(self) -> int:
        """The number of bytes in the file."""
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
    """Counts the bytes and keeps nothing; for a check of a snapshot."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def append(self, part: bytes) -> None:
        self.size_bytes += len(part)

    def finish(self) -> None:
        """Keep nothing."""

    def get(self, number: int) -> bytes:  # noqa: ARG002 - all are as good as empty
        return b""
