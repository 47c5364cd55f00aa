"""What may go wrong in a spool and is nobody else's trouble, sorted by what the caller must do."""

from __future__ import annotations

from pathlib import PurePath

from siltstone.errors import NotFoundError, SiltstoneError
from siltstone.spool.names import Entry


class UnableToCommitError(SiltstoneError):
    """The data was read and not stored; `paths` still hold all of it. Store it again from there.

    One path for each item that was read, in order, and in `spans` where its data begin and end in
    that file: where the disk is full, several items may be kept in one file, with a table of them
    at its end. Those in `at_risk` could not be moved to where they last: the next opening of the
    spool removes them. After the spool was poisoned as well, an entry with
    the same data may be found when it is opened again.
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
        # Several items in one file need their places there; a file of one item does not.
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
        """Where the data of the first item is."""
        return self.paths[0]


class NoSuchEntryError(NotFoundError):
    """The entry was discarded, or never stored here; `entries` are all of a call that were not."""

    def __init__(
        self, entry: Entry, source: PurePath, entries: tuple[Entry, ...] | None = None
    ) -> None:
        self.entry = entry
        self.source = source
        self.entries = (entry,) if entries is None else entries
        more = f" entries={len(self.entries)}" if len(self.entries) > 1 else ""
        super().__init__(f"the entry does not exist: id={entry.id} path={source}{more}")


class CleanupFailedError(SiltstoneError):
    """Storing failed, and so did removing what it had written: remove `path` by hand.

    `error` kept it from being removed; what had failed first is `__cause__`.
    """

    def __init__(self, path: PurePath, error: SiltstoneError) -> None:
        super().__init__(f"could not remove a partly written file: {error}: path={path}")
        self.path = path
        self.error = error
