"""What a check of the store finds, and what is known of a segment while it is checked."""

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
    """One thing that is not as it should be. A note needs no repair; repaired tells what was done
    about damage, and is empty where nothing was.
    """

    path: PurePath
    offset: int
    problem: str
    severity: Severity = "damage"
    repaired: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How far a segment goes, and what its successor begins with."""

    next_serial: int
    last_timestamp_us: int
    structure: bytes
    producers: bytes
    has_holes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What manifest and neighbours say of a segment. One that is closed must have an index; the one
    before it, where there is one, belongs to the same slab.
    """

    identity: SlabIdentity
    record: SlabRecord
    before: End | None
    next_base: int | None
    closed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A range of bytes that holds no sound frame, and the serials that went with it, which are at
    most these where nobody knows how many there were.
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
        """What is wrong here, and what is lost."""
        lost = lost_serials(self.first_serial, self.rows, at_most=self.at_most)
        return f"{self.reason}; {lost}"


@dataclass(slots=True, kw_only=True)
class Survey:
    """What a segment was found to be; without a header that can be trusted there is no segment.

    behind is where bytes stand behind the last frame of a segment that takes no more; bad_cells
    says that positions in the header cannot be true.
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
        """Return the reserved serial that the header holds, 0 where it cannot be true."""
        if self.segment is None:
            return 0
        serial, next_base = self.segment.reserved_serial, self.expected.next_base
        sane = serial <= self.segment.index.next_serial + RESERVE_REACH
        return serial if sane and (next_base is None or serial <= next_base) else 0

    def end(self) -> End | None:
        """Return where the segment ends, None where nobody can tell."""
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
    """Say that rows are lost where nothing is left that could tell how many there were."""
    return f"an unknown number of rows is lost; the next serial is {next_serial}"


def lost_serials(first: int, rows: int, *, at_most: bool = False) -> str:
    """Say which rows are lost; at most these where nobody knows how many there were."""
    if rows == 0:
        return "no row is lost"
    count = f"at most {rows}" if at_most else rows
    return f"{count} rows are lost: serials {first} to {first + rows - 1}"
