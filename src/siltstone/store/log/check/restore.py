"""The replacements for damaged frames, which keep the rows of all other frames readable.

A hole keeps the space of a frame and its serials. The damaged frame may have contained the edges of
streams that later frames use. The rows of these frames contain the full topics, and the id of a
stream is a hash of its path. The path is therefore found by trying which levels vary, and its edges
are written into the hole. The first frame of a segment becomes a state frame again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from siltstone.store.log.check.findings import Damage
from siltstone.store.segment.body import encode_state
from siltstone.store.segment.chain import state_header
from siltstone.store.segment.frame import EDGES, HEADER_BYTES, HOLE, PLAIN, FrameHeader
from siltstone.store.segment.segment import SEGMENT_HEADER_BYTES, Segment
from siltstone.store.segment.view import FrameView
from siltstone.topic.edges import (
    END,
    LITERAL,
    PLUS,
    ROOT_ID,
    SPECIAL_ROOT_ID,
    edge_id,
    path_edges,
)
from siltstone.topic.structure import NEVER, Structure

# Each further level doubles the number of paths to try.
LEVELS_TRIED_MAX: Final = 14
# The length of a frame has 32 bits; larger damage becomes several holes.
HOLE_BYTES_MAX: Final = 1 << 30

_COUNT_BYTES: Final = 4
_NO_EDGES: Final = bytes(_COUNT_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A frame that is written over damage."""

    position: int
    header: FrameHeader
    body: bytes


def find_levels(stream_id: int, topics: list[bytes]) -> list[bytes] | None:
    """Return the levels of the stream with this id that holds these topics, b"+" for varying
    levels; None if no path that was tried has the id.
    """
    words = [topic.split(b"/") for topic in topics]
    if len({len(levels) for levels in words}) != 1:
        return None
    choices = [
        (level, b"+") if all(other[number] == level for other in words) else (b"+",)
        for number, level in enumerate(words[0])
    ]
    if sum(len(choice) - 1 for choice in choices) > LEVELS_TRIED_MAX:
        return None
    paths: list[tuple[int, list[bytes]]] = [
        (SPECIAL_ROOT_ID if topics[0].startswith(b"$") else ROOT_ID, [])
    ]
    for choice in choices:
        paths = [
            (_child_id(node_id, level), [*levels, level])
            for node_id, levels in paths
            for level in choice
        ]
    for node_id, levels in paths:
        if edge_id(node_id, END, b"") == stream_id:
            return levels
    return None


def _child_id(node_id: int, level: bytes) -> int:
    return edge_id(node_id, PLUS, b"") if level == b"+" else edge_id(node_id, LITERAL, level)


@dataclass(slots=True)
class Fill:
    """The replacement for one damage; it accepts edges while there is space for them."""

    damage: Damage
    producers: bytes
    edges: bytes
    _structure: Structure = field(default_factory=lambda: Structure([NEVER]))
    _known_bytes: int = _COUNT_BYTES
    _known_count: int = 0

    @property
    def is_state(self) -> bool:
        """Whether the damage begins with the first frame of the segment."""
        return self.damage.start == SEGMENT_HEADER_BYTES

    def know(self, structure: bytes) -> None:
        """Set the structure that is known before the damage, and need not be repeated."""
        self._structure.apply(structure)
        self._known_bytes = len(structure)
        self._known_count = int.from_bytes(structure[:_COUNT_BYTES], "little")

    def take(self, edges: bytes) -> bool:
        """Add these edges too; return False if there is no space."""
        self._structure.apply(edges)
        exported = self._structure.export()
        count = int.from_bytes(exported[:_COUNT_BYTES], "little") - self._known_count
        wanted = count.to_bytes(_COUNT_BYTES, "little") + exported[self._known_bytes :]
        if not self._fits(wanted, self.producers):
            return False
        self.edges = wanted
        return True

    def begin_state(self, edges: bytes, producers: bytes) -> bytes:
        """Begin with this state, or with an empty one if there is no space; return its edges."""
        if not edges or not self._fits(edges, producers):
            edges, producers = _NO_EDGES, b""
        self.producers = producers
        self.edges = edges
        self._structure.apply(edges)
        return edges

    def patches(self) -> list[Patch]:
        """Return the frames to write; together they have exactly the size of the damage."""
        body, sections = encode_state(self.edges, self.producers)
        position, left = self.damage.start, self.damage.stop - self.damage.start
        patches: list[Patch] = []
        if self.is_state:
            if not self.damage.rows:
                body = body.ljust(left - HEADER_BYTES, b"\0")
            header = state_header(
                body,
                sections,
                serial=self.damage.first_serial,
                timestamp_us=self.damage.timestamp_us,
            )
            patches.append(Patch(position=position, header=header, body=body))
            position += HEADER_BYTES + len(body)
            left -= HEADER_BYTES + len(body)
            body, sections = b"", 0
        rows = self.damage.rows
        while left:
            length = left if left <= HOLE_BYTES_MAX else HOLE_BYTES_MAX // 2
            body = body.ljust(length - HEADER_BYTES, b"\0")
            first_serial = self.damage.first_serial + self.damage.rows - rows
            header = _hole(self.damage, body, sections, first_serial=first_serial, rows=rows)
            patches.append(Patch(position=position, header=header, body=body))
            position, left = position + length, left - length
            body, sections, rows = b"", 0, 0
        return patches

    def _fits(self, edges: bytes, producers: bytes) -> bool:
        body, _ = encode_state(edges, producers)
        frames = 2 if self.is_state and self.damage.rows else 1
        room = min(self.damage.stop - self.damage.start, HOLE_BYTES_MAX // 2)
        return frames * HEADER_BYTES + len(body) <= room


def _hole(
    damage: Damage, body: bytes, sections: int, *, first_serial: int, rows: int
) -> FrameHeader:
    time_us = damage.timestamp_us
    return FrameHeader(
        kind=HOLE,
        compression=PLAIN,
        section_count=sections,
        first_serial=first_serial,
        row_count=rows,
        stream_count=0,
        first_timestamp_us=time_us,
        last_timestamp_us=time_us,
        body_bytes=len(body),
    )


class Restorer:
    """Scans a damaged segment and collects the edges that its holes must contain."""

    def __init__(self, segment: Segment, damages: list[Damage], state: tuple[bytes, bytes]) -> None:
        self._segment = segment
        self._damages = damages
        self._state = state
        self._structure = Structure([NEVER])
        self.fills: list[Fill] = []
        self.lost: list[Damage] = []

    def run(self) -> None:
        """Fill `fills`, one for each damage, and `lost`: valid frames whose streams are unknown."""
        index = self._segment.index
        steps: list[tuple[int, Damage | int]] = [(item.start, item) for item in self._damages]
        given_up = {item.start for item in self._damages}
        steps += [
            (position, number)
            for number, position in enumerate(index.positions)
            if position not in given_up
        ]
        for _, step in sorted(steps, key=lambda item: item[0]):
            if isinstance(step, Damage):
                self._begin(step)
            else:
                frame = self._segment.frame(step)
                if not self._teach(frame):
                    self.lost.append(_whole_damage(index.positions[step], frame))

    def _begin(self, damage: Damage) -> None:
        fill = Fill(damage, b"", b"")
        if fill.is_state:
            self._structure.apply(fill.begin_state(*self._state))
        else:
            fill.know(self._structure.export())
        self.fills.append(fill)

    def _teach(self, frame: FrameView) -> bool:
        """Apply the edges of a valid frame; add missing edges to the holes before it."""
        edges = frame.section(EDGES)
        complete = self._apply(edges)
        for stream_id, _, _, first, count in frame.directory():
            if self._structure.stream(stream_id) is None:
                topics = frame.topic_words(first, first + count).cast(pa.binary()).to_pylist()
                levels = find_levels(stream_id, topics)
                if levels is None:
                    return False
                path = path_edges(levels, topics[0].startswith(b"$"))
                if not any(fill.take(path) for fill in reversed(self.fills)):
                    return False
                self._structure.apply(path)
        return complete or self._apply(edges)

    def _apply(self, edges: memoryview | None) -> bool:
        if edges is None:
            return True
        try:
            self._structure.apply(edges)
        except ValueError:
            # The edges before the invalid one stay; they must not count as pending.
            self._structure.take_pending()
            return False
        return True


def _whole_damage(position: int, frame: FrameView) -> Damage:
    header = frame.header
    return Damage(
        start=position,
        stop=position + header.length,
        first_serial=header.first_serial,
        rows=header.row_count,
        timestamp_us=header.first_timestamp_us,
        reason="the topics of its streams are lost",
    )
