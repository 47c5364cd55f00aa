"""How much feeds read and keep at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSettings:
    """Limits of a hub; whole frames are read, so the last one may exceed them.

    `decode` means that rows are wanted as lists: reads decode them, not on the owner's thread.
    """

    read_rows: int = 8192
    read_bytes: int = 4 * 1024 * 1024
    # A read that finds nothing ends after this number of frames, so that other reads can run.
    read_frames: int = 4096
    # The memory of a shard for the last committed rows, and again for the last rows read.
    held_bytes: int = 16 * 1024 * 1024
    held_max: int = 1024
    # The maximum number of filters in one read.
    filters_max: int = 1024
    # A feed with less credit than this, or than half of its highest credit, lets others go first,
    # once.
    resume_rows: int = 1024
    # The number of batches that are delivered from memory before the owner can do other work.
    dispatches_max: int = 64
    decode: bool = True
