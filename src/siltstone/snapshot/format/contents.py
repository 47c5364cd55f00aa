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
# The memory of a content beside its bytes.
_OVERHEAD: Final = 60
_WRITE_BYTES: Final = 1024 * 1024


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
    """Contents as objects up to a memory limit; after that, in a file.

    A content in memory counts once, for all references to it. A short one in the file counts each
    time it is read, because each reader has its own. The state that is loaded takes its memory from
    the same limit, and can keep data in the file.
    """

    def __init__(self, memory_bytes_max: int, create: Callable[[], File]) -> None:
        """Call `create` when the file is first needed."""
        self._left_bytes = memory_bytes_max
        self._create = create
        self._file: File | None = None
        # The bytes that are written, and those after them that are not.
        self._written_bytes = 0
        self._unwritten = bytearray()
        # The contents in memory, None for others; the offset and length of each one in the file.
        self._contents: list[bytes | None] = [b""]
        self._starts = array("Q", [0])
        self._lengths = array("I", [0])
        self._parts: list[bytes] = []

    @property
    def size_bytes(self) -> int:
        """The number of bytes in the file."""
        return self._written_bytes + len(self._unwritten)

    def take(self, size_bytes: int) -> bool:
        """Take memory for loaded state; return False if the limit is reached.

        The memory counts as used in both cases.
        """
        self._left_bytes -= size_bytes
        return self._left_bytes >= 0

    def put(self, data: bytes) -> tuple[File, int]:
        """Store data in the file; return the file and the offset."""
        if self._file is None:
            self._file = self._create()
        start = self.size_bytes
        self._unwritten += data
        if len(self._unwritten) >= _WRITE_BYTES:
            self.flush()
        return self._file, start

    def flush(self) -> None:
        """Write all data to the file, so that others can read it there."""
        if self._unwritten and self._file is not None:
            self._file.write_at(self._written_bytes, bytes(self._unwritten))
            self._written_bytes += len(self._unwritten)
            self._unwritten.clear()

    def append(self, part: bytes) -> None:
        self._parts.append(part)

    def finish(self) -> None:
        content = b"".join(self._parts)
        self._parts.clear()
        start = 0
        size = len(content) + _OVERHEAD
        if size <= self._left_bytes:
            self._left_bytes -= size
            self._contents.append(content)
        else:
            self._contents.append(None)
            _, start = self.put(content)
        self._starts.append(start)
        self._lengths.append(len(content))

    def get(self, number: int) -> bytes:
        found = self._contents[number]
        if found is not None:
            return found
        assert self._file is not None, "something is in it"
        start, length = self._starts[number], self._lengths[number]
        at = start - self._written_bytes
        if at >= 0:
            data = bytes(self._unwritten[at : at + length])
        else:
            data = self._file.read_at(start, length)
        if len(data) <= _SHORT_BYTES:
            self._left_bytes -= len(data)
            return data
        content = InFile(data)
        content.file = self._file
        content.start = start
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
