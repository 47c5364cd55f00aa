"""The errors that only a spool raises, sorted by what the caller must do."""

from __future__ import annotations

from pathlib import PurePath

from siltstone.errors import NotFoundError, SiltstoneError
from siltstone.spool.names import Entry


class UnableToCommitError(SiltstoneError):
    """The data was read but not stored; `paths` still hold all of it. Store it again from there.

    `paths` has one path for each item that was read, in order, and `spans` the start and end of its
    data in that file. If the disk is full, several items may share one file, with a table of them
    at its end. The files in `at_risk` could not be moved to a permanent place: the next opening of
    the spool removes them. If the spool was poisoned as well, it may contain an entry with the same
    data when it is opened again.
    """

    def __init__(
        self,
        reason: str,
        *,
        paths: tuple[PurePath, ...],
        spans: tuple[tuple[int, int], ...],
        at_risk: tuple[PurePath, ...] = (),
    ) -> None:
        until = "until the spool is opened again, copy it now" if at_risk else ""
        # If items share a file, the text must show where each one is.
        shared = f" spans={list(spans)}" if len({*paths}) < len(paths) else ""
        super().__init__(
            f"not stored, the data is kept{until and f' {until}'}: {reason}: "
            f"paths={[*map(str, paths)]}{shared}"
        )
        self.paths = paths
        self.spans = spans
        self.at_risk = at_risk

    @property
    def path(self) -> PurePath:
        """The file with the data of the first item."""
        return self.paths[0]


class NoSuchEntryError(NotFoundError):
    """The entry was discarded or never stored here; `entries` has all that a call did not find."""

    def __init__(
        self, entry: Entry, source: PurePath, entries: tuple[Entry, ...] | None = None
    ) -> None:
        self.entry = entry
        self.source = source
        self.entries = (entry,) if entries is None else entries
        more = f" entries={len(self.entries)}" if len(self.entries) > 1 else ""
        super().__init__(f"the entry does not exist: id={entry.id} path={source}{more}")


class CleanupFailedError(SiltstoneError):
    """Storing failed, and so did the removal of the data that it had written: remove `path` by
    hand.

    `error` is the reason why the removal failed; the first error is `__cause__`.
    """

    def __init__(self, path: PurePath, error: SiltstoneError) -> None:
        super().__init__(f"could not remove a partly written file: {error}: path={path}")
        self.path = path
        self.error = error
