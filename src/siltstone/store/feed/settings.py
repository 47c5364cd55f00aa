"""How much feeds read and keep at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSettings:
    """Limits of a hub; whole frames are read, so the last one may go beyond them.

    `decode` says that rows are wanted as lists: reads make them, off the owner's thread.
    """

    read_rows: int = 8192
    read_bytes: int = 4 * 1024 * 1024
    # A read that finds nothing ends after so many frames, so that others get their turn.
    read_frames: int = 4096
    # What a shard keeps in memory, of the rows that were committed last and of those read last.
    held_bytes: int = 16 * 1024 * 1024
    held_max: int = 1024
    # So many filters are looked for in one read.
    filters_max: int = 1024
    # A feed with less than this, or half of what it ever had, lets the others go first, once.
    resume_rows: int = 1024
    # So many batches are handed over from memory before the owner gets a turn.
    dispatches_max: int = 64
    decode: bool = True
