"""The check of all frames of one segment, from the first to the last.

After damage the check continues at the next valid frame, or where the index says that one begins,
so that all damage is found at once. `store/segment/walker.py` walks, and tells torn frames from
damaged ones.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from siltstone.store.log.check.findings import Damage, Survey, lost_serials
from siltstone.store.log.check.soundness import TopicRules, UnsoundError, open_sound_frame
from siltstone.store.segment.frame import (
    EDGES,
    HEADER,
    HEADER_BYTES,
    HOLE,
    PACKED,
    PRODUCERS,
    ROOM,
    ROWS,
    ROWS_MAX,
    STATE,
    FrameHeader,
)
from siltstone.store.segment.index import SegmentIndex
from siltstone.store.segment.segment import SEGMENT_HEADER_BYTES, Segment
from siltstone.store.segment.view import FrameView
from siltstone.store.segment.walker import MISSING, BreakKind, FrameWalk, Step, torn_or_damaged

_CHUNK_BYTES: Final = 1 << 20


class Walk:
    """The walk through the frames of one segment."""

    def __init__(self, survey: Survey, segment: Segment, rules: TopicRules, data_end: int) -> None:
        self._survey = survey
        self._segment = segment
        self._index = segment.index
        self._rules = rules
        self._closed = survey.expected.closed or survey.sealed is not None
        self._synced = _position(segment, segment.synced_position)
        self._visible = _position(segment, segment.visible_position)
        reach = max(data_end, self._synced, self._visible)
        if survey.sealed is not None:
            reach = max(reach, survey.sealed.index.end_position)
        self._bound = min(reach, segment.header.file_bytes)
        # The problem with the bytes where the last walk over frames ended.
        self._problem = MISSING
        # The starts of rooms that no frame has followed so far.
        self._rooms_from: int | None = None

    def run(self) -> None:
        """Record every frame and every damage, then check the bytes behind them."""
        while self._follow_frames() and self._pass_damage(self._index.end_position):
            pass
        self._leave_rooms()
        if not self._closed:
            self._judge_cells()

    def _walk(self) -> FrameWalk:
        """Return a walk from the place that the check has reached."""
        return FrameWalk(
            self._segment.view,
            self._segment.header.seed,
            position=self._index.end_position,
            serial=self._index.next_serial,
            limit=self._segment.header.file_bytes,
        )

    def _follow_frames(self) -> bool:
        """Record the valid frames up to the next invalid one; return whether frames may follow."""
        walk = self._walk()
        for step in walk:
            if step.header.kind == ROOM:
                self._pass_room(step)
                continue
            if self._is_behind_index(step.position):
                self._survey.sealed = None
                self._survey.index_problem = "index ends before the last frame of the segment"
            self._rooms_from = None
            self._enter(step.position, step.header)
        self._problem = walk.problem or MISSING
        return not self._is_behind_index(walk.position)

    def _is_behind_index(self, position: int) -> bool:
        sealed = self._survey.sealed
        return sealed is not None and position >= sealed.index.end_position

    def _pass_room(self, step: Step) -> None:
        if self._rooms_from is None:
            self._rooms_from = step.position
        self._index.end_position = step.position + step.header.length

    def _leave_rooms(self) -> None:
        """Check the tail.

        Rooms that no frame follows were being filled when the process ended, or when the segment
        was sealed. In a sealed segment they may stay.
        """
        if self._rooms_from is None:
            self._judge_tail()
        elif self._closed:
            self._judge_tail()
            self._index.end_position = self._rooms_from
        else:
            self._index.end_position = self._rooms_from
            self._judge_tail()

    def _enter(self, position: int, header: FrameHeader) -> None:
        survey = self._survey
        self._check_place(position, header)
        try:
            frame = open_sound_frame(self._segment, position, header)
            self._learn(frame)
        except UnsoundError as exc:
            rows = header.first_serial + header.row_count - self._index.next_serial
            self._add_damage(position, position + header.length, rows, str(exc))
            return
        self._index.add(position, header, frame.directory())
        survey.last_timestamp_us = header.last_timestamp_us
        if header.kind == HOLE:
            survey.has_holes = True
            self._note_hole(position, header)
        else:
            survey.rows += header.row_count

    def _note_hole(self, position: int, header: FrameHeader) -> None:
        lost = lost_serials(header.first_serial, header.row_count)
        if header.row_count == 0 and self._index.frame_count == 2:
            # Directly after the state frame, the hole replaces a whole file.
            lost = "an unknown number of rows is lost"
        self._survey.note(position, f"hole: {lost}")

    def _check_place(self, position: int, header: FrameHeader) -> None:
        """Check the header of a frame against the frames before it."""
        survey, record = self._survey, self._survey.expected.record
        first = position == SEGMENT_HEADER_BYTES
        rows = header.kind == ROWS
        earliest = survey.last_timestamp_us + (1 if rows else 0)
        for holds, problem in (
            (not first or header.kind == STATE, "the first frame must be a state frame"),
            (
                header.first_serial == self._index.next_serial
                or (header.kind == STATE and not first),
                f"expected serial {self._index.next_serial}, found {header.first_serial}",
            ),
            (
                earliest <= header.first_timestamp_us <= header.last_timestamp_us,
                "the frame is not later than the frame before it",
            ),
            (
                record.since_us <= header.first_timestamp_us + (0 if rows else 1)
                and (record.until_us is None or header.last_timestamp_us < record.until_us),
                "the frame is outside the time span of its slab",
            ),
            (header.synced_position <= position, "the synced position is after the frame"),
        ):
            if not holds:
                survey.damage(position, problem)

    def _learn(self, frame: FrameView) -> None:
        """Apply edges and producers, and check the rows against them. Raises: UnsoundError."""
        survey = self._survey
        edges, producers = frame.section(EDGES), frame.section(PRODUCERS)
        if frame.header.kind == STATE:
            self._check_state(bytes(edges or b""), bytes(producers or b""))
        try:
            if edges is not None:
                survey.structure.apply(edges)
            strangers = self._rules.strangers(frame, survey.structure)
        except ValueError as exc:
            # Edges of a damaged frame are missing here. That damage is reported, not this frame.
            if not survey.damages:
                raise UnsoundError(str(exc)) from exc
            strangers = []
        if strangers and not survey.damages:
            raise UnsoundError(f"a stream is not in the learned structure: stream={strangers[0]}")
        survey.producers.apply(producers or b"")

    def _check_state(self, edges: bytes, producers: bytes) -> None:
        survey = self._survey
        position = self._index.end_position
        before = survey.expected.before
        wanted: tuple[bytes, bytes] | None = None
        if position > SEGMENT_HEADER_BYTES:
            if not survey.damages and not survey.has_holes:
                wanted = survey.structure.export(), survey.producers.encode()
        elif before is not None and not before.has_holes:
            wanted = before.structure, before.producers
        if wanted not in (None, (edges, producers)):
            survey.damage(position, "the state does not match the frames before it")

    def _pass_damage(self, position: int) -> bool:
        """Record the damage that begins here; return False if the frames end here instead."""
        if position + HEADER_BYTES > self._segment.header.file_bytes:
            return False
        sealed = self._survey.sealed
        if sealed is not None and (known := _indexed(sealed.index, position, self._index)):
            self._add_damage(position, *known, self._problem)
            return True
        stands_to = self._stands_to(position)
        broken = torn_or_damaged(
            self._segment.view,
            self._segment.header.seed,
            position=position,
            serial=self._index.next_serial,
            stands_to=stands_to,
            bound=self._bound,
            closed=self._closed,
        )
        # A writer may have finished this frame during the search.
        if next(iter(self._walk()), None) is not None:
            return True
        if broken.kind is BreakKind.TORN:
            return False
        at_most = False
        if broken.following is not None:
            stop, header = broken.following
            rows = header.first_serial - self._index.next_serial
        else:
            stop = min(self._segment.header.file_bytes, max(stands_to, position + HEADER_BYTES))
            rows, at_most = self._rows_to_end(position, stop)
        self._add_damage(position, stop, rows, self._problem, at_most=at_most)
        return True

    def _stands_to(self, position: int) -> int:
        """Return the position up to which no frame may be missing."""
        sealed, next_base = self._survey.sealed, self._survey.expected.next_base
        if sealed is not None:
            return sealed.index.end_position
        if not self._closed:
            return self._synced
        used = self._used_from(position)
        if next_base is not None and self._index.next_serial + 1 < next_base and used > position:
            return (used + 7) & ~7
        return max(self._synced, self._visible)

    def _rows_to_end(self, position: int, stop: int) -> tuple[int, bool]:
        """Return the number of rows in the last, damaged part, and whether it is only an upper
        bound.

        The number is never too small, because a serial must not be used twice.
        """
        sealed, next_base = self._survey.sealed, self._survey.expected.next_base
        if sealed is not None:
            next_base = sealed.index.next_serial
        if next_base is not None:
            return max(0, next_base - self._index.next_serial), False
        fields = HEADER.unpack_from(self._segment.view, position)
        rows, first_us, last_us = int(fields[7]), int(fields[9]), int(fields[10])
        # The header of a packed frame does not say the number of rows twice.
        is_packed = fields[4] == PACKED
        if not is_packed and 0 < rows <= ROWS_MAX and last_us - first_us + 1 == rows:
            return rows, False
        return min(ROWS_MAX, stop - position), True

    def _add_damage(
        self, start: int, stop: int, rows: int, reason: str, *, at_most: bool = False
    ) -> None:
        survey, first_serial = self._survey, self._index.next_serial
        damage = Damage(
            start=start,
            stop=stop,
            first_serial=first_serial,
            rows=rows,
            timestamp_us=survey.last_timestamp_us,
            reason=reason,
            at_most=at_most,
        )
        survey.damages.append(damage)
        survey.damage(start, damage.problem)
        self._index.end_position = stop
        self._index.next_serial = first_serial + rows

    def _judge_tail(self) -> None:
        end = self._index.end_position
        used = self._used_from(end)
        if used == end:
            return
        if not self._closed:
            self._survey.note(
                end,
                f"torn tail of {used - end} bytes; the next writer removes it",
            )
            return
        self._survey.behind = range(end, used)
        self._survey.damage(end, f"{used - end} bytes follow the last frame")

    def _used_from(self, position: int) -> int:
        """Return the position after the last nonzero byte; `position` if there is none."""
        used = position
        for start in range(position, self._bound, _CHUNK_BYTES):
            piece = bytes(self._segment.view[start : min(self._bound, start + _CHUNK_BYTES)])
            if kept := piece.rstrip(b"\0"):
                used = start + len(kept)
        return used

    def _judge_cells(self) -> None:
        """Check the positions that the writer keeps in the header of the last segment."""
        segment, survey = self._segment, self._survey
        end = self._index.end_position
        borders = {SEGMENT_HEADER_BYTES, end, *self._index.positions}
        problems = [
            problem
            for problem, holds in (
                ("synced position", self._synced > 0),
                ("visible position", self._visible > end or self._visible in borders),
                ("reserved serial", segment.reserved_serial == survey.reserved_serial()),
            )
            if not holds
        ]
        survey.bad_cells = bool(problems)
        for problem in problems:
            survey.damage(0, f"the {problem} in the header is invalid")
        if not problems and self._visible < end:
            survey.note(
                self._visible,
                "readers do not see the last frames until a writer opens the database",
            )


def _position(segment: Segment, value: int) -> int:
    """Return a position from the header, 0 if it is impossible."""
    sane = SEGMENT_HEADER_BYTES <= value <= segment.header.file_bytes and value % 8 == 0
    return value if sane else 0


def _indexed(index: SegmentIndex, position: int, found: SegmentIndex) -> tuple[int, int] | None:
    """Return the end and the number of rows of the frame at `position` from the index; None if the
    index has no such frame.
    """
    number = bisect_right(index.positions, position, 0, index.frame_count) - 1
    if number < 0 or index.positions[number] != position:
        return None
    if index.serials[number] < found.next_serial:
        return None
    after = number + 1
    stop = index.positions[after] if after < index.frame_count else index.end_position
    rows = index.serials[number] + index.row_counts[number] - found.next_serial
    return stop, rows
