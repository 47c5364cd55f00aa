from __future__ import annotations

import hashlib
import struct

import pytest

from siltstone.topic.edges import path_edges
from siltstone.topic.structure import NEVER, Structure


class TestEdgeId:
    def test_an_id_is_the_hash_of_its_path(self) -> None:
        def hashed(parent: int, kind: int, word: bytes) -> int:
            path = struct.pack("<QB", parent, kind) + word
            return int.from_bytes(hashlib.blake2b(path).digest()[:8], "little")

        structure = Structure([NEVER, 0])
        stream = structure.learn(b"a/b").stream
        special = structure.learn(b"$a").stream
        assert stream.id == hashed(hashed(hashed(1, 0, b"a"), 1, b""), 2, b"")
        assert special.id == hashed(hashed(2, 0, b"$a"), 2, b"")


class TestPathEdges:
    @pytest.mark.parametrize("pattern", [b"a", b"a/b/c", b"a/+/c", b"+", b"/", b"+//+"])
    def test_applied_they_lead_to_the_stream_of_the_path(self, pattern: bytes) -> None:
        structure = Structure([NEVER])
        (stream,) = structure.apply(path_edges(pattern.split(b"/"), special=False))
        wanted = Structure([NEVER]).insert_pattern(pattern)
        assert (stream.id, stream.pattern) == (wanted.id, pattern)

    @pytest.mark.parametrize("pattern", [b"$SYS/x", b"+/x"])
    def test_special_paths_are_under_the_special_root(self, pattern: bytes) -> None:
        structure = Structure([NEVER])
        (stream,) = structure.apply(path_edges(pattern.split(b"/"), special=True))
        wanted = Structure([NEVER]).insert_pattern(pattern, special=True)
        assert (stream.id, stream.special) == (wanted.id, True)

    def test_a_word_is_added_even_where_the_level_varies(self) -> None:
        structure = Structure([NEVER])
        structure.insert_pattern(b"a/+")
        structure.take_pending()
        structure.apply(path_edges([b"a", b"b"], special=False))
        assert structure.learn(b"a/b").stream.pattern == b"a/b"
