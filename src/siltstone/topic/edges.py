"""Edges of a structure as bytes, and the ids of what they lead to.

Little endian; a parent's edge stands before its children's:

    u32 count, then per edge: u64 parent id | u8 kind | u16 size of the word | word

    kind 0  literal: the word is one topic level, maybe empty
    kind 1  plus:    any word; size 0
    kind 2  end:     a topic may end here, and its stream begins; size 0

The id of a node is the first 8 bytes of BLAKE2b(parent id as 8 bytes | kind | word), those of the
two roots are 1 and 2; the id of a stream is that of its end edge.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

LITERAL: Final = 0
PLUS: Final = 1
END: Final = 2

ROOT_ID: Final = 1
SPECIAL_ROOT_ID: Final = 2

COUNT: Final = struct.Struct("<I")
EDGE: Final = struct.Struct("<QBH")


def edge_id(parent_id: int, kind: int, word: bytes) -> int:
    """Return the id of what this edge leads to, but for the rare case that the id is taken."""
    path = parent_id.to_bytes(8, "little") + bytes((kind,)) + word
    return int.from_bytes(hashlib.blake2b(path).digest()[:8], "little")


def path_edges(levels: list[bytes], special: bool) -> bytes:
    """Return the edges that lead to the stream of these levels, b"+" where they vary, encoded."""
    node_id = SPECIAL_ROOT_ID if special else ROOT_ID
    encoded = bytearray(COUNT.pack(len(levels) + 1))
    for level in levels:
        kind = PLUS if level == b"+" else LITERAL
        word = b"" if kind == PLUS else level
        encoded += EDGE.pack(node_id, kind, len(word)) + word
        node_id = edge_id(node_id, kind, word)
    return bytes(encoded + EDGE.pack(node_id, END, 0))
