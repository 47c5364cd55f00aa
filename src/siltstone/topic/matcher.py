"""Filters to what was filed under them: a trie over levels, asked with a topic.

The cost of a question is that of the levels it visits: filters that do not match cost nothing, and
those under one filter are found together. Memory goes with the last value of a branch.
"""

from __future__ import annotations

from typing import Final

_DOLLAR: Final = 0x24


class _Node:
    """What is filed under one filter, and the levels below it."""

    def __init__(self) -> None:
        self.children: dict[bytes, _Node] = {}
        # Filed under the filter that ends here, and under this filter followed by /#.
        self.here: dict[object, object] = {}
        self.below: dict[object, object] = {}

    def is_empty(self) -> bool:
        return not self.children and not self.here and not self.below


class Matcher:
    """Values by filter and key; a key has one value under each filter."""

    def __init__(self) -> None:
        self._root = _Node()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, levels: tuple[bytes, ...], key: object, value: object) -> None:
        """File a value under the levels of a filter, in place of the key's former one."""
        node = self._root
        deep = levels[-1] == b"#"
        for level in levels[:-1] if deep else levels:
            child = node.children.get(level)
            if child is None:
                child = _Node()
                node.children[level] = child
            node = child
        values = node.below if deep else node.here
        if key not in values:
            self._count += 1
        values[key] = value

    def remove(self, levels: tuple[bytes, ...], key: object) -> bool:
        """Take a key's value away; tell whether there was one."""
        path: list[_Node] = [self._root]
        deep = levels[-1] == b"#"
        words = levels[:-1] if deep else levels
        for level in words:
            child = path[-1].children.get(level)
            if child is None:
                return False
            path.append(child)
        values = path[-1].below if deep else path[-1].here
        if key not in values:
            return False
        del values[key]
        self._count -= 1
        for depth in range(len(words), 0, -1):
            if not path[depth].is_empty():
                break
            del path[depth - 1].children[words[depth - 1]]
        return True

    def match(self, topic: bytes) -> list[object]:
        """Return every value whose filter matches a valid topic."""
        found: list[object] = []
        nodes: list[_Node] = [self._root]
        # [MQTT-4.7.2-1]: a filter that starts with a wildcard matches no topic that starts with $.
        wild = topic[0] != _DOLLAR
        for word in topic.split(b"/"):
            following: list[_Node] = []
            for node in nodes:
                if wild and node.below:
                    found.extend(node.below.values())
                child = node.children.get(word)
                if child is not None:
                    following.append(child)
                if wild:
                    # No word of a topic equals +.
                    child = node.children.get(b"+")
                    if child is not None:
                        following.append(child)
            nodes = following
            wild = True
            if not nodes:
                return found
        for node in nodes:
            found.extend(node.here.values())
            # `a/#` matches `a` too: # stands for its parent and all below it.
            found.extend(node.below.values())
        return found
