from __future__ import annotations

from pathlib import PurePath
from random import Random

import pytest

from siltstone.fs.nodes import DirectoryNode, FileNode, LinkNode, Node, files_below, surviving_tree


def node_of(contents: bytes) -> FileNode:
    """Return a file of these contents in pages of 4 bytes, nothing synced."""
    node = FileNode(4)
    node.take(node.missing_pages(0, len(contents)))
    node.resize(len(contents))
    node.contents[:] = contents
    return node


def survivors(node: FileNode) -> set[bytes]:
    return {bytes(node.after_power_cut(Random(seed)).contents) for seed in range(500)}


def test_nothing_unsynced_survives_the_strictest_power_cut() -> None:
    node = node_of(b"abcdefgh")
    node.sync()
    node.contents[0:2] = b"XX"
    node.resize(12)
    survivor = node.after_power_cut(None)
    assert (bytes(survivor.contents), survivor.pages) == (b"abcdefgh", {0, 1})


def test_each_unsynced_page_survives_or_not() -> None:
    node = node_of(b"aaaabbbbcccc")
    node.sync()
    node.contents[:8] = b"AAAABBBB"
    assert survivors(node) == {b"aaaabbbbcccc", b"AAAAbbbbcccc", b"aaaaBBBBcccc", b"AAAABBBBcccc"}


def test_a_file_never_synced_keeps_any_size_and_zeros_for_lost_pages() -> None:
    expected = {b""}
    for size in range(1, 6):
        for first in (b"aaaa", b"\0\0\0\0"):
            for second in (b"b", b"\0"):
                expected.add((first + second)[:size])
    assert survivors(node_of(b"aaaab")) == expected


def test_the_size_after_a_power_cut_is_one_the_file_had() -> None:
    node = node_of(b"abcdefgh")
    node.sync()
    node.resize(2)
    node.resize(4)
    assert {len(contents) for contents in survivors(node)} == {8, 2, 3, 4}


def test_lost_pages_give_their_space_back() -> None:
    node = FileNode(4)
    node.resize(12)
    node.take({0})
    node.sync()
    node.take({1, 2})
    found = {frozenset(node.after_power_cut(Random(seed)).pages) for seed in range(300)}
    assert found == {frozenset(pages) for pages in ({0}, {0, 1}, {0, 2}, {0, 1, 2})}
    assert node.after_power_cut(None).pages == {0}


def test_what_survived_survives_the_next_power_cut() -> None:
    node = node_of(b"aaaabbbb")
    for seed in range(50):
        survivor = node.after_power_cut(Random(seed))
        assert survivors(survivor) == {bytes(survivor.contents)}


def test_missing_pages_are_those_that_a_range_touches() -> None:
    node = node_of(b"aaaa")
    assert node.missing_pages(3, 0) == set()
    assert node.missing_pages(3, 1) == set()
    assert node.missing_pages(3, 2) == {1}
    assert node.missing_pages(8, 5) == {2, 3}


def test_shrinking_gives_pages_back_and_growing_takes_none() -> None:
    node = node_of(b"aaaabbbbcccc")
    node.resize(5)
    assert node.pages == {0, 1}
    node.resize(4)
    node.resize(100)
    assert (node.pages, bytes(node.contents)) == ({0}, b"aaaa" + bytes(96))


@pytest.mark.parametrize("size", [3, 5])
def test_a_mapped_file_never_changes_its_size(size: int) -> None:
    node = node_of(b"aaaa")
    view = memoryview(node.contents)
    with pytest.raises(AssertionError, match="a mapped file changed its size"):
        node.resize(size)
    node.resize(4)
    assert bytes(view) == b"aaaa"


def test_a_store_into_a_hole_is_found_out() -> None:
    node = FileNode(4)
    node.resize(16)
    node.take({1})
    node.contents[4:8] = b"good"
    node.check_holes()
    node.contents[9] = 1
    for find_out in (node.sync, node.check_holes, lambda: node.take({2})):
        with pytest.raises(AssertionError, match="needs allocated space: offset=9"):
            find_out()
    with pytest.raises(
        AssertionError, match="internal error: a write through a map needs allocated space: offset"
    ):
        node.after_power_cut(None)


def found_names(directory: DirectoryNode, *, in_order: bool) -> set[frozenset[str]]:
    return {
        frozenset(directory.after_power_cut(Random(seed), in_order=in_order)) for seed in range(300)
    }


def directory_with_changes() -> DirectoryNode:
    directory = DirectoryNode()
    directory.change({"a": FileNode(4)})
    directory.sync()
    directory.change({"b": FileNode(4)})
    directory.change({"a": None, "c": directory.entries["a"]})
    directory.change({"b": None})
    return directory


def test_without_chance_only_synced_names_survive() -> None:
    directory = directory_with_changes()
    assert set(directory.entries) == {"c"}
    assert set(directory.after_power_cut(None, in_order=True)) == {"a"}


def test_in_order_the_first_operations_of_a_directory_survive() -> None:
    assert found_names(directory_with_changes(), in_order=True) == {
        frozenset(names) for names in ({"a"}, {"a", "b"}, {"b", "c"}, {"c"})
    }


def test_out_of_order_any_operations_survive_each_whole() -> None:
    assert found_names(directory_with_changes(), in_order=False) == {
        frozenset(names) for names in ({"a"}, {"a", "b"}, {"b", "c"}, {"c"})
    }
    directory = DirectoryNode()
    for name in "ab":
        directory.change({name: FileNode(4)})
    assert found_names(directory, in_order=False) == {
        frozenset(names) for names in ("", "a", "b", "ab")
    }


def test_two_names_of_a_file_survive_as_names_of_one_file() -> None:
    root, below, file = DirectoryNode(), DirectoryNode(), node_of(b"abc")
    changes: list[tuple[DirectoryNode, str, Node]] = [
        (root, "d", below),
        (root, "a", file),
        (below, "b", file),
    ]
    for directory, name, node in changes:
        directory.change({name: node})
        directory.sync()
    file.sync()
    tree = surviving_tree(root, None, in_order=True)
    (found,) = files_below(tree)
    assert bytes(found.contents) == b"abc"
    assert found is not file
    assert tree.entries["a"] is found


def test_a_symbolic_link_survives_with_its_name() -> None:
    root = DirectoryNode()
    root.change({"synced": LinkNode(PurePath("a"))})
    root.sync()
    root.change({"unsynced": LinkNode(PurePath("b"))})
    found = surviving_tree(root, None, in_order=True).entries
    assert {name: getattr(node, "target", None) for name, node in found.items()} == {
        "synced": PurePath("a")
    }
    assert files_below(root) == set()
