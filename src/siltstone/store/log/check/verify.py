"""Check every invariant of a database on the disk, offline, on any file system.

A check changes nothing and takes no lock. While another process writes, it checks the data that
readers may see. Repair needs the lock of the data directory, held by the caller, and the database
must be closed. The report contains the repairs with the findings, and everything is checked again
after the repair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from typing import Final

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.fs.api import DirectoryEntry, EntryKind, FileSystem
from siltstone.fs.publish import TEMPORARY_SUFFIX
from siltstone.store.log.check.findings import End, Expected, Finding, Severity
from siltstone.store.log.check.repair import mend_database, slabs_of
from siltstone.store.log.check.soundness import TopicRules
from siltstone.store.log.check.survey import survey_segment
from siltstone.store.log.opening import identity_of, slab_directory
from siltstone.store.log.slab import bounds_of
from siltstone.store.segment.ahead import PREPARED, begun_header
from siltstone.store.segment.chain import lost_segments, order_problem
from siltstone.store.segment.segment import segment_path
from siltstone.store.segment.sift import index_path, list_segments
from siltstone.store.slab.added_logs import is_journal, journal_path
from siltstone.store.slab.manifest import (
    COMPACTING,
    LEADERS,
    MANIFEST,
    REPLICATION,
    RESERVE,
    Manifest,
    SlabRecord,
    SlabState,
    read_manifest,
)
from siltstone.store.slab.marks import MARKS

_LEFT_BY_A_CRASH: Final = "a file that a crash left; the next start removes it"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The findings, and how much was checked."""

    findings: tuple[Finding, ...]
    segments: int
    frames: int
    rows: int
    bytes: int

    @property
    def damaged(self) -> bool:
        """Whether there is a finding other than a note, repaired or not."""
        return any(finding.severity == "damage" for finding in self.findings)


def verify_database(
    fs: FileSystem,
    directory: PurePath,
    *,
    repair: bool = False,
    quarantine: PurePath,
    progress: Callable[[int], None] = lambda _size_bytes: None,
) -> VerifyReport:
    """Check the database in this directory; with `repair`, first repair as much as possible.

    `progress` is called with the size of each segment that was checked. Bytes that repair removes
    from a segment are kept in the quarantine directory.

    Raises: DiskError, StorageFullError.
    """
    mended = mend_database(fs, directory, quarantine) if repair else []
    check = _Check(fs, directory, progress)
    check.run()
    return VerifyReport(
        findings=(*mended, *check.findings),
        segments=check.segments,
        frames=check.frames,
        rows=check.rows,
        bytes=check.bytes,
    )


def manifest_problems(manifest: Manifest, directory: PurePath) -> list[str]:
    """Return the problems of the slabs that a manifest names."""
    problems: list[str] = []
    if manifest.database != directory.name:
        problems.append(f"the manifest belongs to database {manifest.database!r}")
    shards = manifest.settings.shards
    named = Counter(record.id for record in manifest.slabs)
    problems += [
        f"slab {slab} belongs to an unknown shard: shards={shards}"
        for slab in (*named, *manifest.dropping)
        if not 0 <= slab.shard < shards
    ]
    problems += [f"slab {slab} is repeated" for slab, count in named.items() if count > 1]
    problems += [
        f"slab {slab} is listed as existing and as dropped"
        for slab in manifest.dropping
        if slab in named
    ]
    for shard in range(shards):
        problems += shard_problems(shard, [record for record, _ in slabs_of(manifest, shard)])
    return problems


def shard_problems(shard: int, records: list[SlabRecord]) -> Iterator[str]:
    """Yield the problems of the slabs of a shard, which are in order of their generations."""
    current = [record.id for record in records if record.state is SlabState.CURRENT]
    if not records or current != [records[-1].id]:
        yield f"shard {shard} must have one current slab, the newest"
    for record in records:
        if (record.until_us is None) != (record.state is SlabState.CURRENT):
            yield f"slab {record.id} is {record.state.value} but until_us={record.until_us}"
        if record.until_us is not None and record.until_us < record.since_us:
            yield f"slab {record.id} ends before it begins"
    for before, after in pairwise(records):
        # If two slabs do not adjoin, the slab between them was dropped.
        adjoin = after.generation == before.generation + 1
        until_us = after.since_us if before.until_us is None else before.until_us
        # After a slab with timestamps ahead of the clock, times may go back.
        if before.closed_us is None and (
            until_us > after.since_us or (adjoin and until_us != after.since_us)
        ):
            yield f"slab {after.id} does not begin where {before.id} ends"
        if after.first_serial < before.first_serial:
            yield f"slab {after.id} has lower serials than {before.id}"


class _Check:
    """One pass over a database."""

    def __init__(
        self, fs: FileSystem, directory: PurePath, progress: Callable[[int], None]
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._progress = progress
        self.findings: list[Finding] = []
        self.segments = 0
        self.frames = 0
        self.rows = 0
        self.bytes = 0

    def run(self) -> None:
        """Check the manifest, then every slab that it names, then all other files."""
        path = self._directory / MANIFEST
        try:
            manifest = read_manifest(self._fs, self._directory)
        except CorruptionError as exc:
            self._find(
                exc.path, f"{exc.reason}; run verify with --repair, or restore it from a backup"
            )
            return
        except NotFoundError:
            self._find(
                path,
                "the manifest is missing; run verify with --repair, or restore it from a backup",
            )
            return
        for problem in manifest_problems(manifest, self._directory):
            self._find(path, problem)
        for shard in range(manifest.settings.shards):
            for record, next_base in slabs_of(manifest, shard):
                self._slab(manifest, record, next_base)
        self._strangers(manifest)

    def _find(self, path: PurePath, problem: str, severity: Severity = "damage") -> None:
        self.findings.append(Finding(path=path, offset=0, problem=problem, severity=severity))

    def _slab(self, manifest: Manifest, record: SlabRecord, next_base: int | None) -> None:
        """Check the segments of a slab, which must reach the serial where the next slab begins."""
        found = len(self.findings)
        try:
            self._segments(manifest, record, next_base)
        except NotFoundError:
            # Another process may have dropped it during the check.
            if record.id not in (slab.id for slab in self._manifest_now().slabs):
                del self.findings[found:]
            else:
                place = slab_directory(self._directory, record.id)
                self._find(place, "files of the slab are missing")

    def _manifest_now(self) -> Manifest:
        return read_manifest(self._fs, self._directory)

    def _segments(self, manifest: Manifest, record: SlabRecord, next_base: int | None) -> None:
        place = slab_directory(self._directory, record.id)
        listed = self._fs.list(place)
        lost = lost_segments(self._fs, place, listed)
        for base in lost:
            self._find(segment_path(place, base), "the segment is missing, but its index exists")
        owned = {index_path(segment_path(place, base)) for base in lost}
        identity = identity_of(manifest, record.id)
        bounds = bounds_of(record, identity.seed)
        entries, foreign = list_segments(self._fs, place, listed, bounds)
        for name in foreign:
            if name == PREPARED:
                self._prepared(place, listed)
            elif (place / name) not in owned:
                self._stranger(place / name)
        if not entries:
            self._find(place, "the slab does not have a segment")
        rules = TopicRules()
        bases = [int(PurePath(entry.name).stem) for entry in entries]
        before: End | None = None
        for number, entry in enumerate(entries):
            last = number == len(entries) - 1
            is_current = record.state is SlabState.CURRENT
            # The index of the segment before the last one is written later, or at the next start.
            is_open = (
                is_current and number == len(entries) - 2 and not self._has_index(place, entry)
            )
            expected = Expected(
                identity=identity,
                record=record,
                before=before,
                next_base=next_base if last else bases[number + 1],
                closed=not is_current or not (last or is_open),
            )
            path = place / entry.name
            survey = survey_segment(self._fs, path, expected, rules)
            self.findings += survey.findings
            self.segments += 1
            self.rows += survey.rows
            if survey.segment is not None:
                self.frames += survey.segment.index.frame_count
                self.bytes += survey.segment.index.end_position
                self._progress(survey.segment.index.end_position)
            before = survey.end()
            if before is not None and expected.next_base is not None:
                problem = order_problem(bases[number], before.next_serial, expected.next_base)
                if problem:
                    self._find(path, problem)
        if bases and bases[0] != record.first_serial:
            problem = (
                f"a segment is missing: the first one must begin with serial {record.first_serial}"
            )
            self._find(place, problem)

    def _has_index(self, place: PurePath, entry: DirectoryEntry) -> bool:
        return self._fs.exists(index_path(place / entry.name))

    def _prepared(self, place: PurePath, listed: list[DirectoryEntry]) -> None:
        """Report a prepared segment if it has a header: a power cut has taken back its name."""
        entry = next(each for each in listed if each.name == PREPARED)
        if begun_header(self._fs, place / PREPARED, entry) is not None:
            self._find(
                place / PREPARED, "a segment without its name; the next start names it", "note"
            )

    def _strangers(self, manifest: Manifest) -> None:
        """Report files and directories that the manifest does not name."""
        named: dict[str, set[str]] = {}
        for record in manifest.slabs:
            named.setdefault(str(record.shard), set()).add(str(record.generation))
        dropping: dict[str, set[str]] = {}
        for slab in manifest.dropping:
            dropping.setdefault(str(slab.shard), set()).add(str(slab.generation))
        journal = journal_path(self._directory, manifest.journal)
        for entry in self._fs.list(self._directory):
            path = self._directory / entry.name
            if entry.kind is EntryKind.DIRECTORY and (
                entry.name in named or entry.name in dropping
            ):
                self._shard_strangers(
                    path, named.get(entry.name, set()), dropping.get(entry.name, set())
                )
            elif is_journal(entry.name):
                if not manifest.has_journal or path != journal:
                    self._find(path, _LEFT_BY_A_CRASH, "note")
            elif entry.name not in (MANIFEST, RESERVE, MARKS, LEADERS, COMPACTING, REPLICATION):
                self._stranger(path)

    def _shard_strangers(self, path: PurePath, generations: set[str], given_up: set[str]) -> None:
        for entry in self._fs.list(path):
            if entry.kind is EntryKind.DIRECTORY and entry.name in generations:
                continue
            if entry.kind is EntryKind.DIRECTORY and entry.name in given_up:
                self._find(path / entry.name, "a dropped slab; the next start removes it", "note")
            elif entry.kind is EntryKind.DIRECTORY and entry.name.isdecimal():
                self._find(path / entry.name, "a slab that is not in the manifest", "note")
            else:
                self._stranger(path / entry.name)

    def _stranger(self, path: PurePath) -> None:
        if path.name.endswith(TEMPORARY_SUFFIX):
            self._find(path, _LEFT_BY_A_CRASH, "note")
        else:
            self._find(path, "not a file of the store; it stays as it is", "note")
