"""Repair a damaged database, so that it opens again and serves every row that is left.

Repair needs the lock of the data directory, and the database must be closed. The order of every
change is: removed bytes are in quarantine, durably, before anything replaces them. A crash at any
step therefore leaves damage that the next repair finds again, and no data is lost twice.

- A damaged frame becomes a hole, which keeps its serials; see `restore.py`.
- A file with the name of another one is renamed; see `misplaced.py`.
- A damaged header of a segment is rebuilt from the manifest and the name of the file.
- A file without a valid frame, or a missing one, becomes a segment with one hole.
- An index is rebuilt from its segment, a manifest from all segments; see `remake.py`.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import (
    create_directories,
    move_aside,
    quarantine_file,
    sweep_temporaries,
)
from siltstone.store.log.check.findings import (
    Damage,
    End,
    Expected,
    Finding,
    Survey,
    lost_serials,
    uncounted_loss,
)
from siltstone.store.log.check.misplaced import put_back
from siltstone.store.log.check.quarantine import Quarantine
from siltstone.store.log.check.remake import remake_manifest
from siltstone.store.log.check.restore import Restorer
from siltstone.store.log.check.soundness import TopicRules
from siltstone.store.log.check.survey import NAME_TAKEN, load_index, survey_segment
from siltstone.store.log.opening import identity_of, slab_directory
from siltstone.store.log.slab import bounds_of
from siltstone.store.segment.ahead import settle_prepared
from siltstone.store.segment.body import encode_state
from siltstone.store.segment.chain import (
    lost_segments,
    seal_segment,
    state_header,
)
from siltstone.store.segment.frame import HEADER_BYTES, HOLE, PLAIN, FrameHeader, encode_frame
from siltstone.store.segment.segment import (
    RESERVE_REACH,
    SEGMENT_BYTES_MIN,
    SEGMENT_HEADER_BYTES,
    Segment,
    SegmentHeader,
    declared_bytes,
    open_segment,
    segment_path,
)
from siltstone.store.segment.sift import (
    holds_frames,
    index_path,
    list_segments,
    read_summary,
)
from siltstone.store.segment.writer import SegmentWriter, create_segment
from siltstone.store.slab.manifest import Manifest, SlabRecord, SlabState, read_manifest
from siltstone.topic.structure import NEVER, Structure

# The header is fixed and has a CRC up to here; the positions that change follow.
_FIXED_BYTES: Final = 2048
_PAGE_BYTES: Final = 4096
_ATTEMPTS_MAX: Final = 8
_ROWS_IN_HOLE_MAX: Final = (1 << 32) - 1
# More rows than any slab holds, because a serial must not be used twice.
_ROWS_IN_SLAB_MAX: Final = 1 << 40
_NO_STATE: Final = (b"", b"")


def mend_database(fs: FileSystem, directory: PurePath, quarantine: PurePath) -> list[Finding]:
    """Repair as much as possible; return the findings with their repairs."""
    findings: list[Finding] = []
    try:
        manifest = read_manifest(fs, directory)
    except (NotFoundError, CorruptionError) as exc:
        made = remake_manifest(fs, directory, quarantine, exc)
        if made is None:
            return []
        manifest, finding = made
        findings.append(finding)
    if fs.exists(quarantine):
        sweep_temporaries(fs, quarantine)
    for shard in range(manifest.settings.shards):
        before: End | None = None
        generation = 0
        for record, next_base in slabs_of(manifest, shard):
            mender = _SlabMender(fs, directory, manifest, record, quarantine)
            if before is not None and record.generation == generation + 1:
                mender.inherit(before)
            before = mender.run(next_base)
            generation = record.generation
            findings += mender.findings
    return findings


def slabs_of(manifest: Manifest, shard: int) -> list[tuple[SlabRecord, int | None]]:
    """Return the slabs of a shard, the oldest first, each with the first serial of the generation
    after it; None if that one was dropped or does not exist yet.
    """
    records = manifest.slabs_of(shard)
    serials = {record.generation: record.first_serial for record in records}
    return [(record, serials.get(record.generation + 1)) for record in records]


class _SlabMender:
    """Repairs the segments of one slab, in order."""

    def __init__(
        self,
        fs: FileSystem,
        directory: PurePath,
        manifest: Manifest,
        record: SlabRecord,
        quarantine: PurePath,
    ) -> None:
        self._fs = fs
        self._place = slab_directory(directory, record.id)
        self._record = record
        self._identity = identity_of(manifest, record.id)
        self._segment_bytes = manifest.settings.segment_bytes
        self._quarantine_directory = quarantine
        self._quarantine = Quarantine(fs, quarantine, self._identity)
        self._rules = TopicRules()
        self._state = _NO_STATE
        # The structures that the slab may have begun with, while its first segment is repaired.
        self._beginnings: list[bytes] = []
        self._thresholds = list(manifest.settings.thresholds)
        self._time_us = record.since_us - 1
        self._reached = record.first_serial
        self.findings: list[Finding] = []

    def inherit(self, before: End) -> None:
        """Set the state at the end of the generation before, if it is known."""
        structure = Structure([NEVER])
        structure.apply(before.structure)
        inherited = structure.inherit([NEVER])
        # Earlier versions kept each stream that varies. One without rows does no harm.
        kept = structure.varying_only().export()
        joined = structure.inherit(self._thresholds).export()
        self._beginnings = [joined, inherited.export(), kept]
        inherited.apply(kept)
        self._state = inherited.export(), before.producers

    def run(self, next_base: int | None) -> End | None:
        """Repair all segments; return the end of the last one."""
        if not self._fs.exists(self._place):
            create_directories(self._fs, self._place)
        settle_prepared(self._fs, self._place, self._identity.seed, self._identity.owns)
        self.findings += put_back(self._fs, self._place, self._identity, self._quarantine_directory)
        listed = self._fs.list(self._place)
        lost = lost_segments(self._fs, self._place, listed)
        bounds = bounds_of(self._record, self._identity.seed)
        entries, _ = list_segments(self._fs, self._place, listed, bounds)
        bases = sorted([*(int(PurePath(entry.name).stem) for entry in entries), *lost])
        if not bases and next_base is None:
            bases = [self._begin_higher()]
        before: End | None = None
        number = 0
        while True:
            stop = bases[number] if number < len(bases) else next_base
            # Behind a segment without rows one serial is skipped, because the file name is taken.
            left_out = int(number > 0 and bases[number - 1] == self._reached)
            if stop is not None and stop > self._reached + left_out:
                if number < len(bases) and stop not in lost and self._put_away(stop):
                    del bases[number]
                    continue
                self._fill_gap(self._reached, stop)
                bases.insert(number, self._reached)
            elif number == len(bases):
                return before
            last = number == len(bases) - 1
            if bases[number] in lost:
                after = lost[bases[number]].next_serial if last else bases[number + 1]
                self._fill_gap(bases[number], after)
            expected = Expected(
                identity=self._identity,
                record=self._record,
                before=before,
                next_base=next_base if last else bases[number + 1],
                closed=not last or self._record.state is not SlabState.CURRENT,
            )
            before = self._mend_segment(segment_path(self._place, bases[number]), expected)
            if before is not None:
                self._state = before.structure, before.producers
                self._beginnings = []
                self._time_us = before.last_timestamp_us
                self._reached = before.next_serial
            number += 1

    def _put_away(self, base: int) -> bool:
        """Move a file with the name of a segment to quarantine, if the slab does not need it and
        nothing in it belongs to this slab; return whether it was moved. No row of the slab is lost
        with it.
        """
        path = segment_path(self._place, base)
        try:
            header = open_segment(self._fs, path).header
        except CorruptionError as exc:
            problem = exc.reason
        else:
            if header.seed == self._identity.seed:
                return False
            problem = f"the segment belongs to another slab: its database is {header.database!r}"
        if read_summary(self._fs, path) or holds_frames(self._fs, path, self._identity.seed):
            return False
        problem = f"{problem}; no row is lost"
        directory = self._quarantine_directory
        kept = quarantine_file(self._fs, path, directory, f"{path}: {problem}")
        self._tell(path, 0, problem, f"kept as {kept}")
        return True

    def _mend_segment(self, path: PurePath, expected: Expected) -> End | None:
        """Repair one problem after another, until a survey finds none that can be repaired."""
        changed = stale = False
        survey = self._survey(path, expected)
        for _ in range(_ATTEMPTS_MAX):
            if survey.segment is None:
                self._mend_header(survey)
                stale = True
            elif survey.damages:
                stale = not survey.index_problem
                self._fill(survey)
                changed = True
            elif survey.behind:
                self._clear(survey)
            elif survey.index_problem:
                # If the segment itself was repaired, its stale index is not reported.
                if not self._rebuild_index(survey, tell=not stale):
                    break
            elif changed or survey.bad_cells:
                self._set_cells(survey)
                changed = False
            else:
                break
            survey = self._survey(path, expected)
        return survey.end()

    def _survey(self, path: PurePath, expected: Expected) -> Survey:
        return survey_segment(self._fs, path, expected, self._rules)

    def _tell(self, path: PurePath, offset: int, problem: str, repaired: str) -> None:
        self.findings.append(Finding(path=path, offset=offset, problem=problem, repaired=repaired))

    # Frames

    def _fill(self, survey: Survey) -> None:
        """Replace damaged frames by holes."""
        segment, path = survey.segment, survey.path
        assert segment is not None
        damages = list(survey.damages)
        state = self._state_within(damages)
        restorer = Restorer(segment, damages, state)
        restorer.run()
        while restorer.lost:
            damages += restorer.lost
            restorer = Restorer(segment, damages, state)
            restorer.run()
        for damage in damages:
            data = bytes(segment.view[damage.start : damage.stop])
            kept = self._quarantine.keep(path, damage.start, data, damage.problem)
            self._tell(path, damage.start, damage.problem, f"a hole; kept as {kept}")
        with self._fs.open(path, writable=True) as file:
            for fill in restorer.fills:
                for patch in fill.patches():
                    head = encode_frame(patch.header, patch.body, segment.header.seed)
                    file.write_at(patch.position + len(head), patch.body)
                    file.write_at(patch.position, head)
            file.sync()

    def _state_within(self, damages: list[Damage]) -> tuple[bytes, bytes]:
        """Return the state to restore. If the size of the lost frame shows which structure the slab
        began with, the state is that of the lost frame. All structures together might not fit.
        """
        producers = self._state[1]
        lost = {each.stop - each.start for each in damages if each.start == SEGMENT_HEADER_BYTES}
        for edges in self._beginnings:
            body, _ = encode_state(edges, producers)
            if HEADER_BYTES + len(body) in lost:
                return edges, producers
        return self._state

    def _clear(self, survey: Survey) -> None:
        """Write zeros after the last frame of a segment that accepts no more frames."""
        assert survey.segment is not None
        start, stop = survey.behind.start, survey.behind.stop
        problem = f"{stop - start} bytes follow the last frame"
        kept = self._quarantine.keep(
            survey.path, start, bytes(survey.segment.view[start:stop]), problem
        )
        with self._fs.open(survey.path, writable=True) as file:
            file.write_at(start, bytes(stop - start))
            file.sync()
        self._tell(survey.path, start, problem, f"cleared; kept as {kept}")

    def _rebuild_index(self, survey: Survey, *, tell: bool) -> bool:
        """Rebuild the index; return False if something else has its name."""
        segment, end = survey.segment, survey.end()
        assert segment is not None
        assert end is not None
        if survey.index_problem == NAME_TAKEN:
            return False
        segment.index.next_serial = end.next_serial
        seal_segment(self._fs, segment, structure=end.structure, producers=end.producers)
        if tell:
            path = index_path(survey.path)
            self._tell(path, 0, survey.index_problem, "rebuilt from the segment")
        return True

    def _set_cells(self, survey: Survey) -> None:
        """Set the header positions: everything up to the last frame is synced and visible."""
        assert survey.segment is not None
        file = self._fs.open(survey.path, writable=True)
        segment = Segment(survey.path, file.map(writable=True))
        segment.index = survey.segment.index
        writer = SegmentWriter(file, segment, allocated=segment.index.end_position)
        if segment.reserved_serial != survey.reserved_serial():
            writer.release()
            if not survey.expected.closed:
                writer.reserve(segment.index.next_serial + RESERVE_REACH)
        writer.sync()
        writer.publish()
        file.sync()
        writer.close()
        if survey.bad_cells:
            problem = "a position in the header is invalid"
            self._tell(survey.path, 0, problem, "set to the end of the last frame")

    # Segments

    def _mend_header(self, survey: Survey) -> None:
        """Rebuild the header if frames of this slab follow it; else replace the file by a hole."""
        problem = survey.findings[0].problem
        path = survey.path
        if not holds_frames(self._fs, path, self._identity.seed):
            self._replace(survey, problem)
            return
        with self._fs.open(path, writable=True) as file:
            head = file.read_at(0, SEGMENT_HEADER_BYTES)
            # A file that was cut short gets its size back. Its lost part is then found as damage.
            declared = declared_bytes(head)
            cut_short = declared > file.size()
            size = max(-(-file.size() // _PAGE_BYTES) * _PAGE_BYTES, SEGMENT_BYTES_MIN, declared)
            kept = self._quarantine.keep(path, 0, head, problem)
            if file.size() != size:
                file.truncate(size)
            header = self._header(int(path.stem), size).encode(end=SEGMENT_HEADER_BYTES)
            file.write_at(0, header[:_FIXED_BYTES])
            file.sync()
        lost = "rows may be lost after its end" if cut_short else "no row is lost"
        self._tell(path, 0, f"{problem}; {lost}", f"header rebuilt; kept as {kept}")

    def _header(self, base_serial: int, file_bytes: int) -> SegmentHeader:
        return SegmentHeader(
            database=self._identity.database,
            shard=self._identity.shard,
            generation=self._identity.generation,
            base_serial=base_serial,
            file_bytes=file_bytes,
            created_us=self._record.created_us,
            seed=self._identity.seed,
            salt=self._identity.salt,
            topic=self._identity.topic,
            # A segment without packed frames may say that it has them.
            packs=True,
        )

    def _replace(self, survey: Survey, problem: str) -> None:
        """Move a whole file to quarantine; a segment with one hole takes its name at once."""
        path, base = survey.path, int(survey.path.stem)
        sealed, _ = load_index(self._fs, path)
        entry = next(item for item in self._fs.list(self._place) if item.name == path.name)
        stop = survey.expected.next_base
        if stop is None and sealed is not None and sealed.index.first_serial == base:
            stop = sealed.index.next_serial
        counted = stop is not None
        if stop is None:
            # A serial must not be used twice, and every row takes at least one byte.
            stop = base + max(entry.size_bytes, self._segment_bytes)
        lost = lost_serials(base, stop - base) if counted else uncounted_loss(stop)
        kept = self._quarantine.keep_file(path, f"{problem}; {lost}")
        self._write_hole(base, stop, closed=survey.expected.closed, counted=counted)
        self._tell(path, 0, f"{problem}; {lost}", f"a hole; kept as {kept}")

    def _fill_gap(self, start: int, stop: int) -> None:
        """Replace a missing segment by a segment with one hole."""
        path = segment_path(self._place, start)
        move_aside(self._fs, path)
        self._write_hole(start, stop, closed=True, counted=True)
        problem = f"a segment is missing; {lost_serials(start, stop - start)}"
        self._tell(path, 0, problem, "a hole")

    def _begin_higher(self) -> int:
        """Let a slab that lost all segments continue at a much higher serial; return its first
        serial.
        """
        start, closed = self._reached, self._record.state is not SlabState.CURRENT
        stop = start + _ROWS_IN_SLAB_MAX
        move_aside(self._fs, segment_path(self._place, start))
        self._write_hole(start, stop, closed=closed, counted=False)
        self._tell(
            self._place, 0, f"the slab does not have a segment; {uncounted_loss(stop)}", "a hole"
        )
        return start

    def _write_hole(self, start: int, stop: int, *, closed: bool, counted: bool) -> None:
        """Create a segment with a state frame, and holes for these serials.

        If the number of lost rows is unknown, the segment has a hole without rows, and behind it a
        state frame that continues at `stop`.
        """
        edges, producers = self._state
        edges = edges or Structure([NEVER]).export()
        body, sections = encode_state(edges, producers)
        time_us = self._time_us
        header = state_header(body, sections, serial=start, timestamp_us=time_us)
        holes = -(-(stop - start) // _ROWS_IN_HOLE_MAX) if counted else 2
        needed = SEGMENT_HEADER_BYTES + HEADER_BYTES * (1 + holes) + 2 * len(body)
        size = max(-(-needed // _PAGE_BYTES) * _PAGE_BYTES, SEGMENT_BYTES_MIN)
        writer = create_segment(self._fs, self._place, self._header(start, size), header, body)
        while start < stop:
            rows = min(stop - start, _ROWS_IN_HOLE_MAX) if counted else 0
            hole = FrameHeader(
                kind=HOLE,
                compression=PLAIN,
                section_count=0,
                first_serial=start,
                row_count=rows,
                stream_count=0,
                first_timestamp_us=time_us,
                last_timestamp_us=time_us,
                body_bytes=0,
            )
            writer.write(hole, b"", ())
            start += rows
            if not counted:
                after = state_header(body, sections, serial=stop, timestamp_us=time_us)
                writer.write(after, body, ())
                break
        writer.sync()
        writer.publish()
        writer.sync()
        writer.close()
        if closed:
            seal_segment(self._fs, writer.segment, structure=edges, producers=producers)
