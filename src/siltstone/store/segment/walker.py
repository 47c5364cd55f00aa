"""The walk through the frames of a segment, and the rule that tells torn frames from damaged ones.

Recovery, readers that follow a writer, readers of planned runs and `verify` all use this walk.

Before the synced position every frame must be valid. Behind it an invalid frame is torn: this frame
and everything after it were never acknowledged as synced. There is one exception: if a later valid
frame was written when the invalid one was already synced, the invalid frame is damaged, not torn.
In a segment that accepts no more frames, a later valid frame is proof too: the segment was synced
when it was sealed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from enum import Enum
from typing import Final, NamedTuple

from siltstone.store.segment.frame import (
    HEADER_BYTES,
    MAGIC,
    ROOM,
    FrameFormatError,
    FrameHeader,
    crc_matches,
    decode_header,
    head_matches,
)

MISSING: Final = "a frame is missing"
CHECKSUM: Final = "the frame does not match its checksum"
EARLIER: Final = "the frame has serials of earlier frames"
_CHUNK_BYTES: Final = 1 << 20
_BUDGET_BYTES: Final = 1 << 34


class BreakKind(Enum):
    """Whether a place without a valid frame is the torn end of a crash, or damage."""

    TORN = "torn"
    DAMAGED = "damaged"


class Step(NamedTuple):
    """A valid frame or room. `checked` is False if only the head of the frame was checked."""

    position: int
    header: FrameHeader
    checked: bool


class FrameBreak(NamedTuple):
    """A place without a valid frame: its kind, and position and header of the next valid frame if
    there is one.
    """

    kind: BreakKind
    following: tuple[int, FrameHeader] | None


class FrameWalk:
    """A walk through consecutive valid frames and rooms of a mapped segment.

    The walk ends at the limit, or at the first place without a valid frame. `position` is the end
    of the walk. `problem` describes what is wrong there; at the limit it is empty. A frame whose
    serials were used by a frame before it is not valid: it is the rest of an earlier tail.

    Before `trusted_to`, only the head of a frame is checked, with streams and edges. The rows are
    checked when they are read.
    """

    def __init__(
        self,
        view: memoryview,
        seed: int,
        *,
        position: int,
        serial: int,
        limit: int,
        trusted_to: int = 0,
    ) -> None:
        self._view = view
        self._seed = seed
        self._limit = limit
        self._trusted_to = trusted_to
        self.position = position
        self.serial = serial
        self.problem = ""

    def __iter__(self) -> Iterator[Step]:
        while self.position < self._limit:
            step = self._step()
            if step is None:
                return
            yield step
            header = step.header
            self.position = step.position + header.length
            if header.kind != ROOM:
                self.serial = header.first_serial + header.row_count

    def _step(self) -> Step | None:
        position = self.position
        try:
            header = decode_header(self._view, position, self._limit)
        except FrameFormatError as exc:
            self.problem = str(exc)
            return None
        if header is None:
            self.problem = MISSING
            return None
        if header.first_serial < self.serial:
            self.problem = EARLIER
            return None
        is_trusted = position < self._trusted_to
        if is_trusted and head_matches(self._view, position, header, self._seed):
            return Step(position, header, checked=False)
        if crc_matches(self._view, position, header, self._seed):
            return Step(position, header, checked=True)
        self.problem = CHECKSUM
        return None


def torn_or_damaged(
    view: memoryview,
    seed: int,
    *,
    position: int,
    serial: int,
    stands_to: int,
    bound: int,
    closed: bool = False,
) -> FrameBreak:
    """Tell torn from damaged at a place without a valid frame; find the next valid frame too.

    It is searched before `bound`. No frame may be missing before `stands_to`. `closed` means that
    the segment accepts no more frames. `serial` is the first one that a later frame may have.
    """
    damaged = position < stands_to
    following: tuple[int, FrameHeader] | None = None
    for place, header in whole_frames(view, position + 8, bound, seed):
        if following is None and header.first_serial >= serial:
            following = place, header
            damaged = damaged or closed
        damaged = damaged or header.synced_position > position
        if damaged and following is not None:
            break
    return FrameBreak(BreakKind.DAMAGED if damaged else BreakKind.TORN, following)


def whole_frames(
    view: memoryview, start: int, stop: int, seed: int
) -> Generator[tuple[int, FrameHeader], None, None]:
    """Yield the valid frames that begin in a range of a mapped segment, at any multiple of 8."""
    budget = _BUDGET_BYTES
    for chunk in range(start, stop, _CHUNK_BYTES):
        piece = bytes(view[chunk : min(stop, chunk + _CHUNK_BYTES)])
        found = piece.find(MAGIC)
        while found >= 0:
            position = chunk + found
            if position % 8 == 0:
                header = _decoded(view, position)
                # A payload may contain many byte strings that look like headers. The budget limits
                # the work.
                budget -= HEADER_BYTES if header is None else header.length
                if budget < 0:
                    return
                if header is not None and crc_matches(view, position, header, seed):
                    yield position, header
            found = piece.find(MAGIC, found + 1)


def _decoded(view: memoryview, position: int) -> FrameHeader | None:
    try:
        return decode_header(view, position, len(view))
    except FrameFormatError:
        return None
