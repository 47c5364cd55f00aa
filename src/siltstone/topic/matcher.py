"""A map from filters to values that can be searched by topic: a trie over levels. Compiled.

A search costs as much as the levels that it visits. Filters that do not match cost nothing, and all
values of one filter are found together. When the last value of a branch is removed, its memory is
freed.

Levels without a branch between them are one node, so a filter of 128 levels also costs one node:

    a/b/c, a/b/d/e     node (a, b) has the nodes (c) and (d, e) below it

Invariants: a node other than the root has a value, or at least two nodes below it; the nodes below
a node differ in their first level.
"""

from __future__ import annotations

from typing import Final

_DOLLAR: Final = 0x24


class _Node:
    """The values of one filter, the levels that lead here from above, and the nodes below."""

    def __init__(self, path: tuple[bytes, ...]) -> None:
        self.path = path
        # None for a leaf: most nodes are leaves with one value, and empty dictionaries would take
        # most of their memory.
        self.children: dict[bytes, _Node] | None = None
        # The values of the filter that ends here, and of this filter followed by /#.
        self.here: dict[object, object] | None = None
        self.below: dict[object, object] | None = None

    def child(self, level: bytes) -> _Node | None:
        """Return the node below that starts with a level."""
        children = self.children
        return None if children is None else children.get(level)

    def add(self, child: _Node) -> None:
        """Put a node below this one; it replaces the one that starts with the same level."""
        children = self.children
        if children is None:
            children = {}
            self.children = children
        children[child.path[0]] = child

    def drop(self, child: _Node) -> None:
        """Remove a node below this one."""
        children = self.children
        assert children is not None, "a node knows the nodes below it"
        del children[child.path[0]]
        if not children:
            self.children = None

    def fits(self, words: list[bytes], depth: int) -> bool:
        """Tell whether the levels after the first one match the words from a depth on."""
        path = self.path
        size = len(path)
        if depth + size > len(words):
            return False
        for index in range(1, size):
            level = path[index]
            # No level of a topic equals +.
            if level != words[depth + index] and level != b"+":
                return False
        return True


class Matcher:
    """Values by filter and key; a key has one value under each filter."""

    def __init__(self) -> None:
        self._root = _Node(())
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, levels: tuple[bytes, ...], key: object, value: object) -> None:
        """Set the value of a key for a filter, or replace it."""
        deep = levels[-1] == b"#"
        node = self._reach(levels[:-1] if deep else levels)
        values = node.below if deep else node.here
        if values is None:
            values = {}
            if deep:
                node.below = values
            else:
                node.here = values
        if key not in values:
            self._count += 1
        values[key] = value

    def remove(self, levels: tuple[bytes, ...], key: object) -> bool:
        """Remove the value of a key; return whether there was one."""
        deep = levels[-1] == b"#"
        nodes = self._way(levels[:-1] if deep else levels)
        if not nodes:
            return False
        node = nodes[-1]
        values = node.below if deep else node.here
        if values is None or key not in values:
            return False
        del values[key]
        self._count -= 1
        if not values:
            if deep:
                node.below = None
            else:
                node.here = None
            _tidy(nodes)
        return True

    def match(self, topic: bytes) -> list[object]:
        """Return every value whose filter matches a valid topic."""
        found: list[object] = []
        words = topic.split(b"/")
        # [MQTT-4.7.2-1]: a filter that starts with a wildcard matches no topic that starts with $.
        wild = topic[0] != _DOLLAR
        nodes: list[_Node] = [self._root]
        # The number of words that lead to each of the nodes.
        depths: list[int] = [0]
        at = 0
        while at < len(nodes):
            node = nodes[at]
            depth = depths[at]
            at += 1
            below = node.below
            if depth == len(words):
                here = node.here
                if here is not None:
                    found.extend(here.values())
                # `a/#` matches `a` too: # stands for its parent and all levels below it.
                if below is not None:
                    found.extend(below.values())
                continue
            if below is not None and (wild or depth > 0):
                found.extend(below.values())
            if node.children is None:
                continue
            child = node.child(words[depth])
            if child is not None and child.fits(words, depth):
                nodes.append(child)
                depths.append(depth + len(child.path))
            if wild or depth > 0:
                child = node.child(b"+")
                if child is not None and child.fits(words, depth):
                    nodes.append(child)
                    depths.append(depth + len(child.path))
        return found

    def _reach(self, words: tuple[bytes, ...]) -> _Node:
        """Return the node of a filter; create the nodes on the path to it."""
        node = self._root
        start = 0
        while start < len(words):
            child = node.child(words[start])
            if child is None:
                child = _Node(words[start:])
                node.add(child)
                return child
            stop = start + len(child.path)
            if words[start:stop] != child.path:
                child = _split(node, child, _common(words, start, child.path))
                stop = start + len(child.path)
            node = child
            start = stop
        return node

    def _way(self, words: tuple[bytes, ...]) -> list[_Node]:
        """Return the nodes from the root to that of a filter; empty if it has no node."""
        nodes: list[_Node] = [self._root]
        start = 0
        while start < len(words):
            child = nodes[-1].child(words[start])
            if child is None:
                return []
            stop = start + len(child.path)
            if words[start:stop] != child.path:
                return []
            nodes.append(child)
            start = stop
        return nodes


def _common(words: tuple[bytes, ...], start: int, path: tuple[bytes, ...]) -> int:
    """Return how many levels of a path equal the words from `start` on."""
    count = 0
    while count < len(path) and start + count < len(words):
        if words[start + count] != path[count]:
            break
        count += 1
    return count


def _split(above: _Node, node: _Node, count: int) -> _Node:
    """Split a node: insert a node for the first levels of its path above it, and return that."""
    upper = _Node(node.path[:count])
    node.path = node.path[count:]
    upper.add(node)
    above.add(upper)
    return upper


def _tidy(nodes: list[_Node]) -> None:
    """Remove nodes that are not needed after a value was removed; `nodes` is the path to it."""
    while len(nodes) > 1:
        node = nodes.pop()
        above = nodes[-1]
        if node.here is not None or node.below is not None:
            return
        children = node.children
        if children is None:
            above.drop(node)
        else:
            if len(children) == 1:
                for child in children.values():
                    child.path = node.path + child.path
                    above.add(child)
            return
