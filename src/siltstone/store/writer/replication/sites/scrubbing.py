"""Compare the copies of a sealed segment between sites, and decide about our own.

The digest of a segment covers its rows in the order of their serials, not its bytes: sites compact
at different times. A copy that cannot be read has no digest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
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
