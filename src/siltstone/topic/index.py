"""A map from topics to values that can be searched by filter: the reverse of a subscription tree.

A dictionary holds the values and a trie of levels holds the topics. Reading or replacing a value
never walks the trie, and a match walks only the branches that its filter selects.

A branch with one topic is this topic instead of nodes: among a million topics, the nodes of the
levels behind `dev/<number>` would take more memory than all the rest.

Invariants: each node of the trie is the end of a topic, or has a child, or is the root. When the
last topic of a branch is removed, the branch is removed with it. No function here is recursive,
because a topic may have 65,536 levels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeAlias, TypeVar

from siltstone.topic.grammar import TopicFilter

T = TypeVar("T")
# A node, or the only topic of the branch.
_Branch: TypeAlias = "_Node | bytes"


class _Node:
    """A node of the trie: the words that follow, and the topic that ends here."""

    __slots__ = ("is_sorted", "snapshot", "topic", "words")

    def __init__(self) -> None:
        self.topic: bytes | None = None
        # None for a leaf: most nodes are leaves, and an empty dictionary would be their largest
        # part.
        self.words: dict[bytes, _Branch] | None = None
        self.is_sorted = True
        self.snapshot: tuple[_Branch, ...] | None = None

    def add(self, word: bytes, topic: bytes) -> None:
        """Add a topic behind a word that is new here."""
        if self.words is None:
            self.words = {}
        self.words[word] = topic
        self.snapshot = None
        self.is_sorted = len(self.words) == 1

    def divide(self, word: bytes, topic: bytes, depth: int) -> _Node:
        """Return a new node for the branch of a word that had one topic.

        `depth` is the number of levels up to the word.
        """
        child = _Node()
        levels = topic.split(b"/")
        if len(levels) == depth:
            child.topic = topic
        else:
            child.add(levels[depth], topic)
        assert self.words is not None, "the word is known"
        self.words[word] = child
        self.snapshot = None
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

    def ordered(self) -> dict[bytes, _Branch]:
        """Return the children, sorted by word."""
        if self.words is None:
            return _NOTHING
        if not self.is_sorted:
            # Keep the sorted order, so that the next call only has to sort after new words.
            self.words = dict(sorted(self.words.items()))
            self.is_sorted = True
        return self.words

    def children(self, *, without_dollar: bool) -> Iterator[_Branch]:
        """Return the current children; iterators that start before a change share one tuple."""
        if self.words is None:
            return iter(())
        if without_dollar:
            return iter([self.words[word] for word in self.words if not word.startswith(b"$")])
        if self.snapshot is None:
            self.snapshot = tuple(self.words.values())
        return iter(self.snapshot)


_NOTHING: Final[dict[bytes, _Branch]] = {}


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
            for depth, word in enumerate(topic.split(b"/"), 1):
                child = None if node.words is None else node.words.get(word)
                if child is None:
                    node.add(word, topic)
                    break
                node = node.divide(word, child, depth) if isinstance(child, bytes) else child
            else:
                node.topic = topic
        self._values[topic] = value

    def pop(self, topic: bytes) -> T | None:
        """Remove a topic; return its value."""
        if topic not in self._values:
            return None
        path: list[tuple[_Node, bytes]] = []
        branch: _Branch = self._root
        for word in topic.split(b"/"):
            if isinstance(branch, bytes):
                break
            path.append((branch, word))
            assert branch.words is not None, "each topic with a value is in the trie"
            branch = branch.words[word]
        if not isinstance(branch, bytes):
            branch.topic = None
        while path and (isinstance(branch, bytes) or branch.is_needless()):
            branch, word = path.pop()
            branch.remove(word)
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
            branch = waiting.pop()
            if isinstance(branch, bytes):
                found.append(values[branch])
                continue
            if branch.topic is not None:
                found.append(values[branch.topic])
            if goes_on and branch.words is not None:
                waiting.extend(reversed(branch.ordered().values()))
        return found

    def walk(self, topic_filter: TopicFilter) -> Iterator[T | None]:
        """Yield the values of the topics that a filter matches, one step at a time, in any order.

        A step that finds nothing yields None, so that the caller can stop anywhere and continue
        later. Topics that are set or removed meanwhile may be found or not.
        """
        levels = topic_filter.levels
        waiting: list[tuple[Iterator[_Branch], int]] = [(iter((self._root,)), 0)]
        while waiting:
            branches, depth = waiting[-1]
            branch = next(branches, None)
            if branch is None:
                waiting.pop()
                continue
            if isinstance(branch, bytes):
                is_found = _matches(branch.split(b"/")[depth:], levels[depth:])
                yield self._values.get(branch) if is_found else None
                continue
            level = levels[depth] if depth < len(levels) else b""
            if depth == len(levels) or level == b"#":
                yield None if branch.topic is None else self._values.get(branch.topic)
            else:
                yield None
            if depth == len(levels) or branch.words is None:
                continue
            if level not in (b"+", b"#"):
                child = branch.words.get(level)
                waiting.append((iter(() if child is None else (child,)), depth + 1))
            else:
                # [MQTT-4.7.2-1]: a leading wildcard matches no topic that starts with $.
                children = branch.children(without_dollar=branch is self._root)
                waiting.append((children, depth if level == b"#" else depth + 1))

    def _reached(self, levels: tuple[bytes, ...]) -> list[_Branch]:
        """Return the branches that a filter selects, in reverse order.

        A topic among them matches the filter. A node matches it without its final #.
        """
        branches: list[_Branch] = [self._root]
        # [MQTT-4.7.2-1]: a leading wildcard matches no topic that starts with $.
        if levels[0] in (b"+", b"#"):
            first = self._root.ordered()
            branches = [first[word] for word in reversed(first) if not word.startswith(b"$")]
        for depth, level in enumerate(levels):
            if level == b"#" or (depth == 0 and level == b"+"):
                continue
            reached: list[_Branch] = []
            for branch in branches:
                if isinstance(branch, bytes):
                    reached.append(branch)
                elif level == b"+":
                    reached.extend(reversed(branch.ordered().values()))
                elif branch.words is not None and level in branch.words:
                    reached.append(branch.words[level])
            branches = reached
        return [
            branch
            for branch in branches
            if not isinstance(branch, bytes) or _matches(branch.split(b"/"), levels)
        ]


def _matches(words: list[bytes], levels: tuple[bytes, ...]) -> bool:
    """Return whether the words of a topic match the levels of a filter."""
    for place, level in enumerate(levels):
        if level == b"#":
            return True
        if place == len(words) or level not in (b"+", words[place]):
            return False
    return len(words) == len(levels)
