"""The findings of a check of the store, and the known facts about a segment during the check."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

from siltstone.store.segment.chain import SlabIdentity
from siltstone.store.segment.index import SealedIndex
from siltstone.store.segment.segment import RESERVE_REACH, Segment
from siltstone.store.slab.manifest import SlabRecord
from siltstone.store.writer.producers import ProducerTable
from siltstone.topic.structure import NEVER, Structure

Severity = Literal["damage", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem that a check found.

    A note needs no repair. `repaired` says what repair did about damage; it is empty if it did
    nothing.
    """

    path: PurePath
    offset: int
    problem: str
    severity: Severity = "damage"
    repaired: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end of a segment, and the state with which its successor begins."""

    next_serial: int
    last_timestamp_us: int
    structure: bytes
    producers: bytes
    has_holes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The facts about a segment that the manifest and the neighbouring segments imply.

    A closed segment must have an index. The segment before, if there is one, is in the same slab.
    """

    identity: SlabIdentity
    record: SlabRecord
    before: End | None
    next_base: int | None
    closed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A range of bytes without a valid frame, and the serials that are lost with it.

    `at_most` means that the number of rows is unknown and `rows` is its upper bound.
    """

    start: int
    stop: int
    first_serial: int
    rows: int
    timestamp_us: int
    reason: str
    at_most: bool = False

    @property
    def problem(self) -> str:
        """The problem, and the lost rows."""
        lost = lost_serials(self.first_serial, self.rows, at_most=self.at_most)
        return f"{self.reason}; {lost}"


@dataclass(slots=True, kw_only=True)
class Survey:
    """The result of the check of a segment; `segment` is None if the header is not valid.

    `behind` is a range with bytes after the last frame of a segment that accepts no more frames.
    `bad_cells` means that positions in the header are impossible.
    """

    path: PurePath
    expected: Expected
    segment: Segment | None = None
    sealed: SealedIndex | None = None
    index_problem: str = ""
    behind: range = range(0)
    bad_cells: bool = False
    has_holes: bool = False
    rows: int = 0
    last_timestamp_us: int = 0
    damages: list[Damage] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    structure: Structure = field(default_factory=lambda: Structure([NEVER]))
    producers: ProducerTable = field(default_factory=ProducerTable)

    def note(self, offset: int, problem: str) -> None:
        """Add a finding that needs no repair."""
        self._find(offset, problem, "note")

    def damage(self, offset: int, problem: str) -> None:
        """Add a finding of damage."""
        self._find(offset, problem, "damage")

    def reserved_serial(self) -> int:
        """Return the reserved serial of the header, 0 if it is impossible."""
        if self.segment is None:
            return 0
        serial, next_base = self.segment.reserved_serial, self.expected.next_base
        sane = serial <= self.segment.index.next_serial + RESERVE_REACH
        return serial if sane and (next_base is None or serial <= next_base) else 0

    def end(self) -> End | None:
        """Return the end of the segment, None if it is unknown."""
        if self.segment is None:
            return None
        next_serial = max(self.segment.index.next_serial, self.reserved_serial())
        if self.sealed is not None and not self.index_problem:
            next_serial = self.sealed.index.next_serial
        return End(
            next_serial=next_serial,
            last_timestamp_us=self.last_timestamp_us,
            structure=self.structure.export(),
            producers=self.producers.encode(),
            has_holes=self.has_holes,
        )

    def _find(self, offset: int, problem: str, severity: Severity) -> None:
        self.findings.append(
            Finding(path=self.path, offset=offset, problem=problem, severity=severity)
        )


def uncounted_loss(next_serial: int) -> str:
    """Return a text that says that an unknown number of rows is lost."""
    return f"an unknown number of rows is lost; the next serial is {next_serial}"


def lost_serials(first: int, rows: int, *, at_most: bool = False) -> str:
    """Return a text that says which rows are lost, or at most lost."""
    if rows == 0:
        return "no row is lost"
    count = f"at most {rows}" if at_most else rows
    return f"{count} rows are lost: serials {first} to {first + rows - 1}"
