"""Which database a saved position belongs to.

A database that is dropped and created again has the same name, and its serials begin at 0 again: a
position of the former one would skip rows of the new one. So every saved position carries the
identity of its database.

Invariants: an identity belongs to one database for ever; a position without identity was saved by a
version that wrote none, so a database that a later version created owns none of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# What a position has instead of an identity that an earlier version saved.
UNIDENTIFIED: Final = ""


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """The identity of a database, and whether all its saved positions carry it."""

    text: str
    identified: bool

    def owns(self, saved: str) -> bool:
        """Say whether a position with this identity was saved in this database.

        One without identity was, as far as anything tells, where the database is old enough.
        """
        return saved == self.text or (saved == UNIDENTIFIED and not self.identified)


def told(saved: str) -> str:
    """Return the identity of a saved position as people read it."""
    return saved or "unknown, an earlier version saved it"
