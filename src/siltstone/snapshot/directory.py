"""A directory of snapshots: `state.<serial>.gz`, and the link `state` to the newest valid one.

    state -> state.000000000007.gz   state.000000000007.gz   state.000000000006.gz   LOCK

A snapshot is written under a temporary name, synced and renamed. Then the link is moved, and then
the oldest snapshots are removed. The directory is synced after each of these steps.

Invariants:
- after the first snapshot, the link always points to a complete snapshot, even after a crash;
- the target of the link is never removed, and neither is a file with a foreign name;
- the serial in the names only grows, so a clock that goes back has no effect;
- a save that fails leaves the link and the snapshots as they were, and no file of its own;
- a snapshot that cannot be read goes to quarantine, but only if another one replaces it, or if the
  caller allows an empty state.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from siltstone.clock import Clock
from siltstone.errors import (
    CorruptionError,
    DiskError,
    NotFoundError,
    SiltstoneError,
    UsageError,
)
from siltstone.fs.api import EntryKind, FileSystem
from siltstone.fs.paths import LOCK
from siltstone.fs.publish import TEMPORARY_SUFFIX, create_directories, quarantine_file
from siltstone.snapshot.format.contents import Contents
from siltstone.snapshot.format.records import About, Record, StateSink
from siltstone.snapshot.format.totals import Summary, Totals
from siltstone.snapshot.loader import apply_snapshot, verify_snapshot
from siltstone.snapshot.writer import Pace, publish_snapshot
from siltstone.version import __version__

LINK: Final = "state"
KEEP: Final = 2
_NEW_LINK: Final = LINK + TEMPORARY_SUFFIX
_NAME: Final = re.compile(r"state\.(\d{12})\.gz")
_UNFINISHED: Final = re.compile(rf"state\.\d{{12}}\.gz{re.escape(TEMPORARY_SUFFIX)}")


def name_of(serial: int) -> str:
    """Return the file name of a snapshot."""
    return f"state.{serial:012d}.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A snapshot that was written. `prune_error` is an error from the removal of old snapshots; the
    new one is kept in any case.
    """

    path: PurePath
    serial: int
    size_bytes: int
    totals: Totals
    pruned: list[str]
    prune_error: SiltstoneError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """A snapshot that could not be loaded, and its path in quarantine."""

    path: PurePath
    error: SiltstoneError


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The snapshot that was loaded, None if there was none, and the ones that were not valid."""

    path: PurePath | None
    summary: Summary | None
    bad: list[Bad]
    # The target of the link, if that file does not exist.
    missing: str = ""


class SnapshotDirectory:
    """One directory of snapshots, locked against other writers."""

    def __init__(
        self,
        fs: FileSystem,
        clock: Clock,
        directory: PurePath,
        quarantine: PurePath,
        *,
        keep: int = KEEP,
    ) -> None:
        """Create the directory if necessary, lock it, and remove unfinished files after a crash.

        Raises: LockedError.
        """
        self.directory = directory
        self._fs = fs
        self._clock = clock
        self._quarantine = quarantine
        self._keep = max(1, keep)
        create_directories(fs, directory)
        self._lock = fs.lock(directory / LOCK)
        try:
            self._sweep()
            self._last_serial = max([*self._serials(), self._linked() or 0])
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    # Saving

    def save(
        self,
        records: Iterable[Record | None],
        *,
        source: str,
        pace: Pace | None = None,
    ) -> Saved:
        """Write a snapshot and point the link to it; durable when this returns.

        Raises: what the records raise, StorageFullError, DiskError. Nothing has changed then, with
        one exception: if the last sync of the directory failed, the link is the old or the new one.
        """
        self._sweep()
        serial = self._last_serial + 1
        path = self.directory / name_of(serial)
        about = About(
            serial=serial,
            created_us=self._clock.now_us(),
            source=source,
            writer=f"siltstone {__version__}",
        )
        try:
            totals, size_bytes = publish_snapshot(self._fs, path, about, records, pace=pace)
            self._last_serial = serial
            self._move_link(path)
        except SiltstoneError:
            self._forget(path)
            raise
        pruned, prune_error = self._prune()
        return Saved(
            path=path,
            serial=serial,
            size_bytes=size_bytes,
            totals=totals,
            pruned=pruned,
            prune_error=prune_error,
        )

    def _move_link(self, path: PurePath) -> None:
        new_link = self.directory / _NEW_LINK
        self._fs.symlink(PurePath(path.name), new_link)
        self._fs.rename(new_link, self.directory / LINK)
        self._fs.sync_directory(self.directory)

    def _forget(self, path: PurePath) -> None:
        """Remove a snapshot that the link could not be moved to, unless the link points to it."""
        with suppress(SiltstoneError):
            if self._target() != path.name:
                self._fs.remove(path)

    def _prune(self) -> tuple[list[str], SiltstoneError | None]:
        """Remove all snapshots except the newest ones."""
        pruned: list[str] = []
        try:
            kept = {LINK, self._target()}
            for serial in sorted(self._serials(), reverse=True)[self._keep :]:
                if name_of(serial) not in kept:
                    self._fs.remove(self.directory / name_of(serial))
                    pruned.append(name_of(serial))
            if pruned:
                self._fs.sync_directory(self.directory)
        except SiltstoneError as exc:
            return pruned, exc
        return pruned, None

    # Loading

    def load(self, sink: StateSink, contents: Contents, *, allow_empty: bool = False) -> Loaded:
        """Load the newest valid snapshot: the target of the link, or otherwise the newest other
        one.

        Damaged snapshots go to quarantine. If there never was a snapshot, nothing is loaded.

        Raises: CorruptionError if there were snapshots and none is valid, unless an empty state is
        allowed; UsageError for a snapshot of a newer version; DiskError.
        """
        bad: list[Bad] = []
        target = self._target()
        missing = "" if not target or self._fs.exists(self.directory / target) else target
        found, summary = self._find_valid(bad)
        if found is None and not allow_empty and (bad or self._has_link()):
            reasons = "; ".join(str(each.error) for each in bad) or "the link names a missing file"
            raise CorruptionError(
                f"no snapshot is valid; restore one, or start without state with --allow-empty: "
                f"{reasons}",
                path=self.directory,
            )
        if found is not None and summary is not None:
            with self._fs.open(found, writable=False) as file:
                apply_snapshot(file, contents, sink, summary)
        moved = [
            Bad(
                path=quarantine_file(self._fs, each.path, self._quarantine, str(each.error)),
                error=each.error,
            )
            for each in bad
        ]
        if found is not None and self._target() != found.name:
            # The target of the link was moved to quarantine: the link must not stay broken after a
            # crash.
            self._sweep()
            self._move_link(found)
        return Loaded(path=found, summary=summary, bad=moved, missing=missing)

    def _find_valid(self, bad: list[Bad]) -> tuple[PurePath | None, Summary | None]:
        """Return the snapshot to load; add the invalid ones to `bad`."""
        serials = sorted(self._serials(), reverse=True)
        linked = self._linked()
        if linked in serials:
            serials.remove(linked)
            serials.insert(0, linked)
        for serial in serials:
            path = self.directory / name_of(serial)
            try:
                with self._fs.open(path, writable=False) as file:
                    return path, verify_snapshot(file)
            except CorruptionError as exc:
                bad.append(Bad(path=path, error=exc))
            except DiskError as exc:
                # EIO: the medium cannot read the file. Any other error may be temporary.
                if exc.errno != errno.EIO:
                    raise
                bad.append(Bad(path=path, error=exc))
        return None, None

    # Names

    def _serials(self) -> list[int]:
        return [serial for serial, _ in list_snapshots(self._fs, self.directory)]

    def _target(self) -> str:
        """Return the target of the link, "" if there is no link."""
        return link_target(self._fs, self.directory)

    def _has_link(self) -> bool:
        return self._fs.exists(self.directory / LINK)

    def _linked(self) -> int | None:
        """Return the serial of the snapshot that the link names, even if it does not exist."""
        named = _NAME.fullmatch(self._target())
        return int(named[1]) if named else None

    def _sweep(self) -> None:
        """Remove unfinished files, from a crash or a removal that failed."""
        swept = False
        for entry in self._fs.list(self.directory):
            is_file = entry.kind is EntryKind.FILE and _UNFINISHED.fullmatch(entry.name)
            is_link = entry.kind is EntryKind.OTHER and entry.name == _NEW_LINK
            if is_file or is_link:
                self._fs.remove(self.directory / entry.name)
                swept = True
        if swept:
            self._fs.sync_directory(self.directory)


def list_snapshots(fs: FileSystem, directory: PurePath) -> list[tuple[int, int]]:
    """Return serial and size of the snapshots in a directory, oldest first; needs no lock."""
    return sorted(
        (int(named[1]), entry.size_bytes)
        for entry in fs.list(directory)
        if entry.kind is EntryKind.FILE and (named := _NAME.fullmatch(entry.name))
    )


def link_target(fs: FileSystem, directory: PurePath) -> str:
    """Return the target of the link, "" if there is no link. Raises: UsageError."""
    try:
        return str(fs.readlink(directory / LINK))
    except NotFoundError:
        return ""
    except UsageError as exc:
        raise UsageError(f"{directory / LINK} must be a symbolic link: move the file away") from exc
