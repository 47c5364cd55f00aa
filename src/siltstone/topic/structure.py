"""Learned topic structure: a map from topics to streams and back. Compiled.

It is a trie of topic levels. Topics that differ only at levels where many words were seen share one
stream, for example `metrics/+/cpu`. Their words at the `+` levels are the varying part.

Invariants:
- A topic never changes its stream: an edge with the exact word has priority over `+`, and after a
  node has `+`, no topic adds another word to it.
- An id depends on its path alone, so equal edges give equal ids in every process.
- `$` topics are under a root of their own, which a leading wildcard does not match [MQTT-4.7.2-1].
- An edge is pending from its insertion until `take_pending`; an applied edge is never pending.

A structure has one owner and is not safe for concurrent threads. `edges.py` describes the encoding
of its edges.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from siltstone.errors import InvalidTopicError, UsageError
from siltstone.topic.edges import (
    COUNT,
    EDGE,
    END,
    LITERAL,
    PLUS,
    ROOT_ID,
    SPECIAL_ROOT_ID,
    edge_id,
)
from siltstone.topic.grammar import TOPIC_SIZE_MAX, check_pattern, check_topic

NEVER: Final = -1

_DOLLAR: Final = 0x24
_SLASH: Final = 0x2F
_PLUS: Final = 0x2B
_HASH: Final = 0x23
_NOT_ASCII: Final = 0x80


class Stream:
    """The topics of one structure; `pattern` has + at the levels that vary.

    `number` counts the streams of a structure in the order of their creation. It is valid only in
    this structure and is not stored.
    """

    def __init__(
        self, stream_id: int, levels: list[bytes], special: bool, number: int = -1
    ) -> None:
        self.id = stream_id
        self.number = number
        self.pattern = b"/".join(levels)
        self.levels = levels
        self.varying_count = levels.count(b"+")
        self.special = special


class TrieNode:
    """A node of the trie, reached from `parent` by `token`: a word, or b"+" for any word."""

    def __init__(self, node_id: int, parent: TrieNode | None, token: bytes) -> None:
        self.id = node_id
        self.parent = parent
        self.token = token
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: dict[bytes, TrieNode] = {}
        # The child if there is exactly one; and whether there are more.
        self.only: TrieNode | None = None
        self.branches = False
        self.plus: TrieNode | None = None
        self.stream: Stream | None = None


class TopicPlace:
    """The stream of a topic, and its words at the varying levels, joined by slashes."""

    def __init__(self, stream: Stream, varying: bytes) -> None:
        self.stream = stream
        self.varying = varying


class Match:
    """A stream that may have topics that a filter matches.

    `constraints` has for each varying level the required word, or None for any word.
    """

    def __init__(self, stream: Stream, constraints: list[bytes | None]) -> None:
        self.stream = stream
        self.constraints = constraints
        # Whether the filter has a word, possibly empty, at a level that varies.
        self.is_bound = False
        for word in constraints:
            if word is not None:
                self.is_bound = True


class Structure:
    """The trie; `root` and `special_root` are read-only.

    A node learns at most thresholds[depth] words; the last threshold applies to all deeper levels.
    The next new word makes the level vary. With 0 a level varies from the start; NEVER means no
    limit.
    """

    def __init__(self, thresholds: list[int]) -> None:
        if not thresholds or min(thresholds) < NEVER:
            raise UsageError(
                "thresholds must be one or more numbers, 0 or above, or -1 for never: "
                f"thresholds={thresholds}"
            )
        self.thresholds = list(thresholds)
        self.root = TrieNode(ROOT_ID, None, b"")
        self.special_root = TrieNode(SPECIAL_ROOT_ID, None, b"")
        self._nodes: dict[int, TrieNode] = {ROOT_ID: self.root, SPECIAL_ROOT_ID: self.special_root}
        self._streams: dict[int, Stream] = {}
        self._in_order: list[Stream] = []
        # All edges in order of insertion. If two ids collide, the order decides which id changes,
        # so `export` keeps the order.
        self._edges = bytearray()
        self._edge_count = 0
        self._taken_size = 0
        self._taken_count = 0

    def learn(self, topic: bytes) -> TopicPlace:
        """Place a topic that passed check_topic; insert the edges that are missing."""
        placement = self.lookup(topic)
        if placement is None:
            return self._insert_topic(topic)
        return placement

    def find_plain(self, topic: bytes) -> Stream | None:
        """Return the stream of a topic of the common kind: ASCII, and learned before.

        None if it was not learned, or if the topic needs a full check, whether it is valid or not.
        """
        size: i64 = len(topic)
        if size == 0 or size > TOPIC_SIZE_MAX:
            return None
        node = self.special_root if topic[0] == _DOLLAR else self.root
        start: i64 = 0
        end: i64 = 0
        while end <= size:
            code: i64 = _SLASH if end == size else topic[end]
            if code == _SLASH:
                only = node.only
                child: TrieNode | None = None
                if only is not None:
                    # Most levels that do not vary have one word; a slice and a lookup would cost
                    # more.
                    if _stands_at(only.token, topic, start, end):
                        child = only
                elif node.branches:
                    child = node.children.get(topic[start:end])
                if child is None:
                    child = node.plus
                    if child is None:
                        return None
                node = child
                start = end + 1
            # A set of boxed integers would cost more than the whole loop.
            elif code >= _NOT_ASCII or code == 0 or code == _PLUS or code == _HASH:  # noqa: PLR1714, SIM109
                return None
            end += 1
        return node.stream

    def lookup(self, topic: bytes) -> TopicPlace | None:
        """Place a topic without learning; None if it was never learned."""
        node = self.special_root if topic.startswith(b"$") else self.root
        varying: list[bytes] = []
        for level in topic.split(b"/"):
            child = node.children.get(level)
            if child is None:
                child = node.plus
                if child is None:
                    return None
                varying.append(level)
            node = child
        stream = node.stream
        if stream is None:
            return None
        return TopicPlace(stream, b"/".join(varying))

    def insert_pattern(self, pattern: bytes, special: bool = False) -> Stream:
        """Add a structure before its topics arrive, and return the stream that will hold them.

        Thresholds do not apply. If a level varies already, a new word gets no edge, because its
        topics may have a stream already: the returned stream is then wider than the pattern.
        `special` says that a leading + stands for words that start with $; it is ignored for other
        patterns.

        Raises: InvalidTopicError.
        """
        check_pattern(pattern)
        levels = pattern.split(b"/")
        # A word determines its root; only + can be under both roots.
        under_special = special if levels[0] == b"+" else levels[0].startswith(b"$")
        node = self.special_root if under_special else self.root
        for level in levels:
            child = node.plus
            if level != b"+":
                child = node.children.get(level, child)
            node = self._add_child(node, level) if child is None else child
        return self._end(node)

    def take_pending(self) -> bytes:
        """Return the pending edges, encoded; after this they are not pending."""
        count = self._edge_count - self._taken_count
        encoded = COUNT.pack(count) + self._edges[self._taken_size :]
        self._taken_size = len(self._edges)
        self._taken_count = self._edge_count
        return encoded

    def has_pending(self) -> bool:
        """Tell whether take_pending would return any edge."""
        return self._edge_count > self._taken_count

    def export(self) -> bytes:
        """Return all edges, encoded; applied to a new structure, they make it equal to this one."""
        return COUNT.pack(self._edge_count) + self._edges

    def apply(self, encoded: bytes | memoryview) -> list[Stream]:
        """Insert encoded edges, some of which may exist, and return the new streams.

        Raises: ValueError for invalid bytes; the edges before the invalid one were inserted, so the
        structure must not be used any more. UsageError if the structure has pending edges.
        """
        if self.has_pending():
            raise UsageError(
                "internal error: take the pending edges of this structure before you apply others"
            )
        try:
            return self._apply_all(bytes(encoded))
        finally:
            # Applied edges come from another structure, so they are not pending here.
            self._taken_size = len(self._edges)
            self._taken_count = self._edge_count

    def _apply_all(self, data: bytes) -> list[Stream]:
        if len(data) < COUNT.size:
            raise ValueError(f"edges are cut short: size_bytes={len(data)}")
        count: int = COUNT.unpack_from(data)[0]
        offset = COUNT.size
        streams: list[Stream] = []
        for _ in range(count):
            start = offset + EDGE.size
            if start > len(data):
                raise ValueError(f"edges are cut short: size_bytes={len(data)}")
            parent_id, kind, size = EDGE.unpack_from(data, offset)
            offset = start + size
            if offset > len(data):
                raise ValueError(f"edges are cut short: size_bytes={len(data)}")
            stream = self._apply_edge(parent_id, kind, data[start:offset])
            if stream is not None:
                streams.append(stream)
        if offset != len(data):
            raise ValueError(f"bytes follow the last edge: offset={offset}")
        return streams

    def inherit(self, thresholds: list[int]) -> Structure:
        """Return the structure for the next generation: the paths that vary, none of them pending.

        Where a level varies, the words that had streams of their own are not kept: all topics of
        the level go to the varying streams there. The structures that were learned below these
        words are joined. So a topic may be placed in another stream than here.
        """
        inherited = Structure(thresholds)
        kept = self.varying_only()
        # Nodes that become one node. The order of the topics does not count, so that the structure
        # inherited from this one is equal.
        waiting = [([kept.root], inherited.root), ([kept.special_root], inherited.special_root)]
        for nodes, node in waiting:
            if any(each.stream is not None for each in nodes):
                inherited._end(node)
            words = _children_by_word(nodes)
            too_many = len(nodes) > 1 and inherited._too_many(node, len(words))
            if too_many or any(each.plus is not None for each in nodes):
                below = [each.plus for each in nodes if each.plus is not None]
                for found in words.values():
                    below += found
                waiting.append((below, inherited._add_child(node, b"+")))
                continue
            waiting += [(words[word], inherited._add_child(node, word)) for word in sorted(words)]
        inherited.take_pending()
        return inherited

    def varying_only(self) -> Structure:
        """Return a structure with the streams of this one that vary, none of them pending."""
        found = Structure(self.thresholds)
        for stream in self._in_order:
            if stream.varying_count == 0:
                continue
            node = found.special_root if stream.special else found.root
            for level in stream.levels:
                child = node.plus if level == b"+" else node.children.get(level)
                node = found._add_child(node, level) if child is None else child
            found._end(node)
        found.take_pending()
        return found

    def _too_many(self, node: TrieNode, words: int) -> bool:
        """Tell whether a node may not have this many words."""
        threshold = self.thresholds[min(node.depth, len(self.thresholds) - 1)]
        return threshold != NEVER and words > threshold

    def streams(self) -> list[Stream]:
        """Return all streams, oldest first."""
        return list(self._in_order)

    def numbered(self, number: int) -> Stream:
        """Return the stream with this number."""
        return self._in_order[number]

    def stream(self, stream_id: int) -> Stream | None:
        """Return the stream with this id, if there is one."""
        return self._streams.get(stream_id)

    def match(self, levels: list[bytes]) -> list[Match]:
        """Return each stream that may have a topic of the filter with these levels, once."""
        open_ended = levels[-1] == b"#"
        fixed_count = len(levels) - 1 if open_ended else len(levels)
        matches: list[Match] = []
        # A topic may have thousands of levels, so this uses a list instead of recursion.
        waiting = [self._root_of(levels[0])]
        while waiting:
            node = waiting.pop()
            depth = node.depth
            if depth >= fixed_count:
                if node.stream is not None:
                    matches.append(Match(node.stream, _constraints(node.stream, levels)))
                if not open_ended:
                    continue
            if depth >= fixed_count or levels[depth] == b"+":
                waiting.extend(node.children.values())
            else:
                exact = node.children.get(levels[depth])
                if exact is not None:
                    waiting.append(exact)
            if node.plus is not None:
                waiting.append(node.plus)
        return matches

    def _root_of(self, level: bytes) -> TrieNode:
        return self.special_root if level.startswith(b"$") else self.root

    def _insert_topic(self, topic: bytes) -> TopicPlace:
        levels = topic.split(b"/")
        varying: list[bytes] = []
        node = self._root_of(levels[0])
        for level in levels:
            child = node.children.get(level)
            if child is None and node.plus is None and not self._varies_next(node):
                assert level != b"+", "a topic has no wildcard"
                child = self._add_child(node, level)
            if child is None:
                child = node.plus
                if child is None:
                    child = self._add_child(node, b"+")
                varying.append(level)
            node = child
        return TopicPlace(self._end(node), b"/".join(varying))

    def _varies_next(self, node: TrieNode) -> bool:
        """Tell whether the next new word at this node makes its level vary."""
        threshold = self.thresholds[min(node.depth, len(self.thresholds) - 1)]
        return threshold != NEVER and len(node.children) >= threshold

    def _apply_edge(self, parent_id: int, kind: int, token: bytes) -> Stream | None:
        """Insert an edge if it is missing; return the stream that it creates, if any."""
        parent = self._nodes.get(parent_id)
        if parent is None:
            raise ValueError(f"edge starts at an unknown node: parent={parent_id}")
        if kind == LITERAL:
            if token not in parent.children:
                _check_literal(parent, token)
                self._add_child(parent, token)
        elif token:
            raise ValueError(f"only a literal edge has a word: {kind=} {token=}")
        elif kind == PLUS:
            if parent.plus is None:
                self._add_child(parent, b"+")
        elif kind != END or parent.parent is None:
            raise ValueError(
                f"edge has an unknown kind, or ends at a root: parent={parent_id} {kind=}"
            )
        elif parent.stream is None:
            return self._end(parent)
        return None

    def _add_child(self, parent: TrieNode, token: bytes) -> TrieNode:
        """Add a missing edge: the plus edge for b"+", otherwise a literal one."""
        kind = PLUS if token == b"+" else LITERAL
        word = b"" if kind == PLUS else token
        node_id = edge_id(parent.id, kind, word)
        suffix = b""
        while node_id in self._nodes:
            # Two paths with one 64-bit id: the later one gets another id. No UTF-8 word ends in
            # 0xFF.
            suffix += b"\xff"
            node_id = edge_id(parent.id, kind, word + suffix)
        node = TrieNode(node_id, parent, token)
        if kind == PLUS:
            parent.plus = node
        else:
            parent.children[token] = node
            parent.branches = len(parent.children) > 1
            parent.only = None if parent.branches else node
        self._nodes[node_id] = node
        self._log(parent.id, kind, word)
        return node

    def _end(self, node: TrieNode) -> Stream:
        """Return the stream of a node; create it if there is none."""
        if node.stream is not None:
            return node.stream
        stream_id = edge_id(node.id, END, b"")
        suffix = b""
        while stream_id in self._streams:
            suffix += b"\xff"
            stream_id = edge_id(node.id, END, suffix)
        levels, special = _path(node)
        stream = Stream(stream_id, levels, special, len(self._in_order))
        node.stream = stream
        self._streams[stream_id] = stream
        self._in_order.append(stream)
        self._log(node.id, END, b"")
        return stream

    def _log(self, parent_id: int, kind: int, word: bytes) -> None:
        self._edges += EDGE.pack(parent_id, kind, len(word))
        self._edges += word
        self._edge_count += 1


def _children_by_word(nodes: list[TrieNode]) -> dict[bytes, list[TrieNode]]:
    """Return the children of some nodes, those with one word together."""
    words: dict[bytes, list[TrieNode]] = {}
    for node in nodes:
        for word, child in node.children.items():
            words.setdefault(word, []).append(child)
    return words


def _stands_at(word: bytes, topic: bytes, start: i64, end: i64) -> bool:
    """Tell whether the topic has this word between `start` and `end`."""
    if len(word) != end - start:
        return False
    # A generator expression would create an object for each level.
    for i in range(end - start):  # noqa: SIM110
        if word[i] != topic[start + i]:
            return False
    return True


def _path(node: TrieNode) -> tuple[list[bytes], bool]:
    """Return the levels from the root to a node, and whether that is the special root."""
    levels: list[bytes] = []
    while node.parent is not None:
        levels.append(node.token)
        node = node.parent
    levels.reverse()
    return levels, node.id == SPECIAL_ROOT_ID


def _constraints(stream: Stream, levels: list[bytes]) -> list[bytes | None]:
    """Return the words that a filter which matches a stream requires at its varying levels."""
    constraints: list[bytes | None] = []
    for index, level in enumerate(stream.levels):
        if level != b"+":
            continue
        wanted = levels[index] if index < len(levels) else b"#"
        constraints.append(None if wanted in (b"+", b"#") else wanted)
    return constraints


def _is_plain(token: bytes) -> bool:
    """Tell whether a word is valid without a full check: ASCII, and of the usual length."""
    return (
        len(token) <= TOPIC_SIZE_MAX
        and token.isascii()
        and 0 not in token
        and _PLUS not in token
        and _HASH not in token
    )


def _check_literal(parent: TrieNode, token: bytes) -> None:
    if b"/" in token:
        raise ValueError(f"edge has more than one level: {token=}")
    if parent.parent is None and token.startswith(b"$") != (parent.id == SPECIAL_ROOT_ID):
        raise ValueError(f"edge starts at the wrong root: parent={parent.id} {token=}")
    if token and not _is_plain(token):
        try:
            check_topic(token)
        except InvalidTopicError as exc:
            raise ValueError(f"edge has an invalid topic level: {exc}") from exc
