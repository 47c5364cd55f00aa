"""A map from topics to values that can be searched by filter: the reverse of a subscription tree.

A dictionary holds the values and a trie of levels holds the topics. Reading or replacing a value
never walks the trie, and a match walks only the branches that its filter selects.

Invariants: each node of the trie is the end of a topic, or has a child, or is the root. When the
last topic of a branch is removed, the branch is removed with it. No function here is recursive,
because a topic may have 65,536 levels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from siltstone.topic.grammar import TopicFilter

T = TypeVar("T")


class _Node:
    """A node of the trie: the words that follow, and the topic that ends here."""

    __slots__ = ("is_sorted", "snapshot", "topic", "words")

    def __init__(self) -> None:
        self.topic: bytes | None = None
        # None for a leaf: most nodes are leaves, and an empty dictionary would be their largest
        # part.
        self.words: dict[bytes, _Node] | None = None
        self.is_sorted = True
        self.snapshot: tuple[_Node, ...] | None = None

    def add(self, word: bytes) -> _Node:
        """Add a node for a word that is new here; return it."""
        if self.words is None:
            self.words = {}
        child = self.words[word] = _Node()
        self.snapshot = None
        self.is_sorted = len(self.words) == 1
        return child

    def is_needless(self) -> bool:
        return self.topic is None and self.words is None

    def remove(self, word: bytes) -> None:
        """Remove the node of a word."""
        assert self.words is not None, "a node knows the words that follow it"
        del self.words[word]
        self.snapshot = None
        if not self.words:
            self.words = None

    def ordered(self) -> dict[bytes, _Node]:
        """Return the children, sorted by word."""
        if self.words is None:
            return _NOTHING
        if not self.is_sorted:
            # Keep the sorted order, so that the next call only has to sort after new words.
            self.words = dict(sorted(self.words.items()))
            self.is_sorted = True
        return self.words

    def children(self, *, without_dollar: bool) -> Iterator[_Node]:
        """Return the current children; iterators that start before a change share one tuple."""
        if self.words is None:
            return iter(())
        if without_dollar:
            return iter([self.words[word] for word in self.words if not word.startswith(b"$")])
        if self.snapshot is None:
            self.snapshot = tuple(self.words.values())
        return iter(self.snapshot)


_NOTHING: Final[dict[bytes, _Node]] = {}


class TopicIndex(Generic[T]):
    """A value for each of many topics. Topics are not checked. Not safe for concurrent threads."""

    def __init__(self) -> None:
        self._values: dict[bytes, T] = {}
        self._root = _Node()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, topic: bytes) -> bool:
        return topic in self._values

    def __iter__(self) -> Iterator[bytes]:
        """Yield the topics, in the order in which they were first set."""
        return iter(self._values)

    def values(self) -> list[T]:
        """Return the current values."""
        return list(self._values.values())

    def get(self, topic: bytes) -> T | None:
        return self._values.get(topic)

    def set(self, topic: bytes, value: T) -> None:
        """Set the value of a topic, or replace it."""
        if topic not in self._values:
            node = self._root
            for word in topic.split(b"/"):
                child = None if node.words is None else node.words.get(word)
                node = node.add(word) if child is None else child
            node.topic = topic
        self._values[topic] = value

    def pop(self, topic: bytes) -> T | None:
        """Remove a topic; return its value."""
        if topic not in self._values:
            return None
        words = topic.split(b"/")
        path = [self._root]
        for word in words:
            following = path[-1].words
            assert following is not None, "each topic with a value is in the trie"
            path.append(following[word])
        node = path.pop()
        node.topic = None
        while path and node.is_needless():
            node = path.pop()
            node.remove(words.pop())
        return self._values.pop(topic)

    def match(self, topic_filter: TopicFilter) -> list[T]:
        """Return the values of the topics that a filter matches, sorted by their levels."""
        levels = topic_filter.levels
        values = self._values
        if b"+" not in levels and levels[-1] != b"#":
            topic = b"/".join(levels)
            return [values[topic]] if topic in values else []
        found: list[T] = []
        # `a/#` matches `a` too: # stands for its parent and all levels below it.
        goes_on = levels[-1] == b"#"
        waiting = self._reached(levels)
        while waiting:
            node = waiting.pop()
            if node.topic is not None:
                found.append(values[node.topic])
            if goes_on and node.words is not None:
                waiting.extend(reversed(node.ordered().values()))
        return found

    def walk(self, topic_filter: TopicFilter) -> Iterator[T | None]:
        """Yield the values of the topics that a filter matches, one step at a time, in any order.

        A step that finds nothing yields None, so that the caller can stop anywhere and continue
        later. Topics that are set or removed meanwhile may be found or not.
        """
        levels = topic_filter.levels
        waiting: list[tuple[Iterator[_Node], int]] = [(iter((self._root,)), 0)]
        while waiting:
            nodes, depth = waiting[-1]
            node = next(nodes, None)
            if node is None:
                waiting.pop()
                continue
            level = levels[depth] if depth < len(levels) else b""
            if depth == len(levels) or level == b"#":
                yield None if node.topic is None else self._values.get(node.topic)
            else:
                yield None
            if depth == len(levels) or node.words is None:
                continue
            if level not in (b"+", b"#"):
                child = node.words.get(level)
                waiting.append((iter(() if child is None else (child,)), depth + 1))
            else:
                # [MQTT-4.7.2-1]: a leading wildcard matches no topic that starts with $.
                children = node.children(without_dollar=node is self._root)
                waiting.append((children, depth if level == b"#" else depth + 1))

    def _reached(self, levels: tuple[bytes, ...]) -> list[_Node]:
        """Return the nodes that a filter selects, without its final #, in reverse order."""
        if levels[0] not in (b"+", b"#"):
            nodes = [self._root]
        else:
            # [MQTT-4.7.2-1]: a leading wildcard matches no topic that starts with $.
            first = self._root.ordered()
            nodes = [first[word] for word in reversed(first) if not word.startswith(b"$")]
            levels = levels[1:]
        for level in levels:
            if level == b"+":
                nodes = [child for node in nodes for child in reversed(node.ordered().values())]
            elif level != b"#":
                nodes = [
                    node.words[level]
                    for node in nodes
                    if node.words is not None and level in node.words
                ]
        return nodes
