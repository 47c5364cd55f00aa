"""The identity of the database that a saved position belongs to.

A database that is dropped and created again has the same name, and its serials begin at 0 again. A
position of the old database would skip rows of the new one. Every saved position therefore contains
the identity of its database.

Invariants: an identity belongs to one database for ever. A position without an identity was saved
by an early version. A database that a later version created therefore owns no such position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# The identity in positions that an earlier version saved.
UNIDENTIFIED: Final = ""


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """The identity of a database, and whether all its saved positions contain it."""

    text: str
    identified: bool

    def owns(self, saved: str) -> bool:
        """Return whether a position with this identity was saved in this database.

        A position without an identity counts as its own if the database itself is old enough.
        """
        return saved == self.text or (saved == UNIDENTIFIED and not self.identified)


def told(saved: str | None) -> str:
    """Return the identity of a saved position for messages."""
    return saved or "unknown, an earlier version saved it"
