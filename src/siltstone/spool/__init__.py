"""A durable queue of files: only the public names."""

from siltstone.spool.contents import EntryStream, Source
from siltstone.spool.errors import CleanupFailedError, NoSuchEntryError, UnableToCommitError
from siltstone.spool.names import METADATA_BYTES_MAX, Entry, entry
from siltstone.spool.spool import Done, Spool, SpoolStats, create, ensure
from siltstone.spool.spool import open_spool as open  # noqa: A004 - siltstone.spool.open

__all__ = [
    "METADATA_BYTES_MAX",
    "CleanupFailedError",
    "Done",
    "Entry",
    "EntryStream",
    "NoSuchEntryError",
    "Source",
    "Spool",
    "SpoolStats",
    "UnableToCommitError",
    "create",
    "ensure",
    "entry",
    "open",
]
