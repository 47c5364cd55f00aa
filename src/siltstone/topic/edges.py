"""The encoding of the edges of a structure, and the ids of their targets.

Little endian; the edge of a parent comes before those of its children:

    u32 count, then per edge: u64 parent id | u8 kind | u16 size of the word | word

    kind 0  literal: the word is one topic level, maybe empty
    kind 1  plus:    any word; size 0
    kind 2  end:     a topic may end here, and its stream begins; size 0

The id of a node is the first 8 bytes of BLAKE2b(parent id as 8 bytes | kind | word). The ids of the
two roots are 1 and 2. The id of a stream is that of its end edge.
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
    """Return the id of the target of this edge, except in the rare case of a collision."""
    path = parent_id.to_bytes(8, "little") + bytes((kind,)) + word
    return int.from_bytes(hashlib.blake2b(path).digest()[:8], "little")


def path_edges(levels: list[bytes], special: bool) -> bytes:
    """Return the encoded edges to the stream with these levels; a level that varies is b"+"."""
    node_id = SPECIAL_ROOT_ID if special else ROOT_ID
    encoded = bytearray(COUNT.pack(len(levels) + 1))
    for level in levels:
        kind = PLUS if level == b"+" else LITERAL
        word = b"" if kind == PLUS else level
        encoded += EDGE.pack(node_id, kind, len(word)) + word
        node_id = edge_id(node_id, kind, word)
    return bytes(encoded + EDGE.pack(node_id, END, 0))
