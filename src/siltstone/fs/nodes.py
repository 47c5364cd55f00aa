"""The state that a power cut can change: files by page and size, directories by operation.

A node has a current state, which every process sees, and a durable state, which the last sync left.
A power cut leaves a state between the two. Without a random generator only the durable state
survives. With one, each unsynced page survives or not, the size is one that the file has had since
the sync, and some of the unsynced operations of a directory survive.

Invariant: a page that was never allocated contains only zeros. On a full disk, a store through a
map into this page would be a SIGBUS, so here it is an AssertionError.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from random import Random


class FileNode:
    """The contents of a file and the pages that it occupies on the disk."""

    def __init__(self, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.contents = bytearray()
        self.pages: set[int] = set()
        self._durable_contents = b""
        self._durable_pages = frozenset[int]()
        self._smallest_size = 0

    def missing_pages(self, offset: int, length: int) -> set[int]:
        """Return the pages of a range that are not allocated yet."""
        if length == 0:
            return set()
        end_page = -(-(offset + length) // self.page_bytes)
        return set(range(offset // self.page_bytes, end_page)) - self.pages

    def take(self, pages: set[int]) -> None:
        """Allocate these pages."""
        if pages:
            self.check_holes()
            self.pages |= pages

    def resize(self, size: int) -> None:
        """Set the size; pages past the end are freed, new pages are holes."""
        growth = size - len(self.contents)
        try:
            if growth > 0:
                self.contents.extend(bytes(growth))
            elif growth < 0:
                del self.contents[size:]
        except BufferError as exc:
            raise AssertionError(
                f"internal error: a mapped file changed its size: {size=}"
            ) from exc
        self.pages = {page for page in self.pages if page * self.page_bytes < size}
        self._smallest_size = min(self._smallest_size, size)

    def sync(self) -> None:
        """Make contents, size and pages durable."""
        self.check_holes()
        self._durable_contents = bytes(self.contents)
        self._durable_pages = frozenset(self.pages)
        self._smallest_size = len(self.contents)

    def sync_range(self, offset: int, length: int) -> None:
        """Make the pages of a range durable, and the size."""
        self.check_holes()
        size = len(self.contents)
        durable = bytearray(self._durable_contents[:size].ljust(size, b"\0"))
        start = offset // self.page_bytes
        stop = -(-(offset + length) // self.page_bytes)
        part = slice(start * self.page_bytes, stop * self.page_bytes)
        durable[part] = self.contents[part]
        self._durable_contents = bytes(durable)
        self._durable_pages |= self.pages.intersection(range(start, stop))
        self._smallest_size = size

    def check_holes(self) -> None:
        """Raise AssertionError if data was stored in a page that is not allocated."""
        holes = bytearray(self.contents)
        for page in self.pages:
            start = page * self.page_bytes
            end = min(start + self.page_bytes, len(holes))
            holes[start:end] = bytes(end - start)
        stored = holes.lstrip(b"\0")
        if stored:
            offset = len(holes) - len(stored)
            raise AssertionError(
                f"internal error: a write through a map needs allocated space: {offset=}"
            )

    def after_power_cut(self, rng: Random | None) -> FileNode:
        """Return the file as it is after a power cut."""
        self.check_holes()
        node = FileNode(self.page_bytes)
        if rng is None:
            node.contents = bytearray(self._durable_contents)
            node.pages = set(self._durable_pages)
        else:
            self._survive_in_part(node, rng)
        node.sync()
        return node

    def _survive_in_part(self, node: FileNode, rng: Random) -> None:
        between = rng.randint(self._smallest_size, len(self.contents))
        size = rng.choice((len(self._durable_contents), len(self.contents), between))
        node.contents = bytearray(size)
        # With independent pages alone, a large file would almost never survive whole or not at all.
        chance = rng.choice((0.0, 0.5, 1.0))
        for start in range(0, size, self.page_bytes):
            end = min(start + self.page_bytes, size)
            survives = rng.random() < chance
            source = self.contents if survives else self._durable_contents
            node.contents[start:end] = source[start:end].ljust(end - start, b"\0")
            page = start // self.page_bytes
            if page in (self.pages if survives else self._durable_pages):
                node.pages.add(page)


class DirectoryNode:
    """The names in a directory."""

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self._durable_entries: dict[str, Node] = {}
        self._unsynced: list[Mapping[str, Node | None]] = []

    def change(self, names: Mapping[str, Node | None]) -> None:
        """Set or remove (None) these names as one operation, which survives whole or not at all."""
        _apply(self.entries, names)
        self._unsynced.append(names)

    def sync(self) -> None:
        """Make the names durable."""
        self._durable_entries = dict(self.entries)
        self._unsynced.clear()

    def after_power_cut(self, rng: Random | None, *, in_order: bool) -> dict[str, Node]:
        """Return the names that exist after a power cut."""
        entries = dict(self._durable_entries)
        if rng is not None:
            if in_order:
                surviving = self._unsynced[: rng.randint(0, len(self._unsynced))]
            else:
                surviving = [names for names in self._unsynced if rng.getrandbits(1)]
            for names in surviving:
                _apply(entries, names)
        return entries


class LinkNode:
    """A symbolic link. It never changes, so it survives with its name or not at all."""

    def __init__(self, target: PurePath) -> None:
        self.target = target


Node = FileNode | DirectoryNode | LinkNode


def _apply(entries: dict[str, Node], names: Mapping[str, Node | None]) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def files_below(directory: DirectoryNode) -> set[FileNode]:
    """Return the files that have a name in this tree, each once."""
    found: set[FileNode] = set()
    for node in directory.entries.values():
        if isinstance(node, FileNode):
            found.add(node)
        elif isinstance(node, DirectoryNode):
            found |= files_below(node)
    return found


def surviving_tree(root: DirectoryNode, rng: Random | None, *, in_order: bool) -> DirectoryNode:
    """Return a copy of the part of a tree that survives a power cut; hard links stay hard links."""
    files: dict[FileNode, FileNode] = {}

    def survive(directory: DirectoryNode) -> DirectoryNode:
        names: dict[str, Node] = {}
        for name, node in directory.after_power_cut(rng, in_order=in_order).items():
            if isinstance(node, DirectoryNode):
                names[name] = survive(node)
            elif isinstance(node, LinkNode):
                names[name] = node
            else:
                if node not in files:
                    files[node] = node.after_power_cut(rng)
                names[name] = files[node]
        copy = DirectoryNode()
        copy.change(names)
        copy.sync()
        return copy

    return survive(root)
