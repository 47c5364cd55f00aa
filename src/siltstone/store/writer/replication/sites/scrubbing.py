"""Compare the copies of a sealed segment, or of a key-value shard, and decide about our own.

The digest of a segment covers its rows in the order of their serials, not its bytes: sites compact
at different times. That of a key-value shard covers everything that it has at one index of its log.
A copy that cannot be read has no digest.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum


class CopyFinding(Enum):
    """The verdict on our copy of a segment."""

    SOUND = "sound"
    # Another site has the rows.
    REPAIR = "repair"
    # The copies differ, and no majority shows which one is right.
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome for one segment, and the sites from which it may be repaired."""

    finding: CopyFinding
    sources: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CopyState:
    """What a site has of a key-value shard at an index. `digest` is empty if it cannot be read."""

    index: int
    digest: bytes

    def encode(self) -> bytes:
        """Return the bytes of an answer to another site."""
        return json.dumps([self.index, self.digest.hex()]).encode()

    @classmethod
    def decode(cls, data: bytes) -> CopyState:
        """Return the state that another site has told. Raises: ValueError."""
        index, digest = json.loads(data)
        return cls(int(index), bytes.fromhex(digest))


def are_of_one_index(states: Iterable[CopyState]) -> bool:
    """Return whether states may be compared."""
    return len({state.index for state in states}) <= 1


def sources_of(own: bytes | None, others: Mapping[str, bytes], *, copies: int) -> frozenset[str]:
    """Return the sites from which a shard may be copied if ours is deleted: those with a copy equal
    to ours, or, if ours is damaged, with the right one. If there are none, ours must stay.
    """
    equal = frozenset(site for site, digest in others.items() if digest == own)
    return equal or compare(own, others, copies=copies).sources


def compare(own: bytes | None, others: Mapping[str, bytes], *, copies: int = 0) -> Comparison:
    """Return what to do with our copy. `others` has the digests of the copies that can be read, and
    `copies` is the number of all copies, also of sites that do not answer now.

    A copy that cannot be read is repaired from the sites that agree, if no more sites disagree. A
    copy that can be read is replaced only if a majority of all copies has other rows.
    """
    votes = Counter(others.values())
    if own is not None:
        votes[own] += 1
    if not votes:
        return Comparison(CopyFinding.UNDECIDED)
    (best, count), *rest = votes.most_common()
    if own == best and not rest:
        return Comparison(CopyFinding.SOUND)
    is_clear = 2 * count > sum(votes.values())
    if not is_clear:
        return Comparison(CopyFinding.UNDECIDED)
    if own == best:
        # The others repair themselves.
        return Comparison(CopyFinding.SOUND)
    if own is not None and 2 * count <= copies:
        # The sites that are away may have our rows.
        return Comparison(CopyFinding.UNDECIDED)
    sources = frozenset(site for site, digest in others.items() if digest == best)
    return Comparison(CopyFinding.REPAIR, sources)
