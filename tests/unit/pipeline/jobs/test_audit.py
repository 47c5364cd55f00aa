from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.pipeline.jobs.audit import (
    AuditReport,
    SlabAudit,
    Tally,
    compare,
    find_gaps,
    lost_in,
    unlike,
)
from siltstone.pipeline.lake.ledger import Ledger
from siltstone.pipeline.table import Seam
from siltstone.scan.offsets import Loss
from siltstone.store.feed.position import Position
from siltstone.store.log.read.selection import SlabExtent
from siltstone.store.slab.manifest import SlabId

SEAM = Seam(
    database="messages",
    lake=PurePath("/lake"),
    ledger=Ledger(position=Position({}, "i"), slabs={"0/1": 10, "0/2": 5}),
    live={},
)


def counted(**sides: dict[str, Tally]) -> AuditReport:
    none: dict[str, dict[str, Tally]] = {"stored": {}, "waiting": {}, "lake": {}}
    return compare(SEAM, tables={"a": 15}, **(none | sides))


def tally(
    rows: int, *, distinct: int | None = None, span: int | None = None, digest: int = 7
) -> Tally:
    different = rows if distinct is None else distinct
    return Tally(
        rows=rows,
        distinct=different,
        serials=range(different if span is None else span),
        digest=digest,
    )


def test_a_dropped_slab_is_judged_by_the_ledger_and_a_stored_one_by_its_rows() -> None:
    report = counted(
        stored={"0/2": tally(5)},
        waiting={"0/2": tally(2)},
        lake={"0/1": tally(10, span=12), "0/2": tally(5)},
    )
    assert report.is_sound
    assert report.slabs == [
        SlabAudit(
            slab="0/1",
            expected=10,
            stored=None,
            waiting=0,
            tiered=10,
            missing=0,
            duplicates=0,
            gaps=2,
            differs=False,
        ),
        SlabAudit(
            slab="0/2",
            expected=5,
            stored=5,
            waiting=2,
            tiered=5,
            missing=0,
            duplicates=0,
            gaps=0,
            differs=False,
        ),
    ]


def test_what_is_missing_double_or_different_is_told() -> None:
    report = counted(
        stored={"0/2": tally(5)},
        lake={"0/1": tally(11, distinct=9), "0/2": tally(5, digest=8)},
    )
    assert [(slab.missing, slab.duplicates, slab.differs) for slab in report.slabs] == [
        (1, 2, False),
        (0, 0, True),
    ]
    told = report.to_json()
    assert [told[name] for name in ("sound", "missing", "duplicates", "waiting", "tables")] == [
        False,
        1,
        2,
        0,
        {"a": 15},
    ]


def test_slabs_come_in_the_order_of_generations() -> None:
    report = counted(lake={"1/1": tally(1), "0/10": tally(1)})
    assert [slab.slab for slab in report.slabs] == ["0/1", "1/1", "0/2", "0/10"]


def losses(
    *slabs: tuple[int, range, int],
    position: int,
    held: tuple[range, ...] = (),
    batches: tuple[range, ...] = (),
) -> list[Loss]:
    """Return what is lost of shard 0, whose slabs the ledger says to have so many rows."""
    ledger = Ledger(
        position=Position({0: position}, "i"),
        slabs={f"0/{generation}": told for generation, _, told in slabs},
    )
    lake = {
        f"0/{generation}": Tally(rows=len(serials), distinct=len(serials), serials=serials)
        for generation, serials, _ in slabs
        if serials
    }
    seam = Seam(database="messages", lake=PurePath("/lake"), ledger=ledger, live={})
    report = compare(seam, stored={}, waiting={}, lake=lake, tables={})
    extents = [
        SlabExtent(slab=SlabId(0, 10 + number), serials=serials, since_us=0, until_us=None)
        for number, serials in enumerate(held)
    ]
    return lost_in(find_gaps(seam, lake, report, extents), {0: batches})


BEFORE, TAIL = (1, range(3000), 3000), (2, range(3000, 4000), 1000)
AFTER = (3, range(4010, 4020), 10)
LOST = [Loss(shard=0, serials=range(4000, 4010))]


def test_rows_of_a_slab_that_was_dropped_before_it_was_tiered_are_lost() -> None:
    batches = (range(4000), range(4000, 4020))
    found = losses(BEFORE, TAIL, AFTER, position=4020, held=(range(4010, 4020),), batches=batches)
    assert found == LOST
    report = AuditReport(database="messages", slabs=[], tables={}, losses=found)
    assert not report.is_sound
    assert report.findings() == [
        "rows are lost: shard 0, serials 4000 to 4009 are in neither store nor lake"
    ]
    told = report.to_json()
    assert (told["sound"], told["lost"], told["losses"]) == (
        False,
        10,
        [{"shard": 0, "first_serial": 4000, "last_serial": 4009}],
    )


def test_a_slab_that_was_lost_whole_and_the_end_of_the_last_one_are_lost() -> None:
    over = (range(3000, 5000),)
    assert losses(BEFORE, TAIL, (4, AFTER[1], 10), position=4020, batches=over) == LOST
    assert losses(BEFORE, TAIL, position=4010) == LOST


@pytest.mark.parametrize(
    ("held", "batches"),
    [
        # The store has the slab, and knows that it has a hole there or went on after a crash.
        ((range(3000, 4010),), ()),
        # One batch has read the end of the slab before and gone on, so nothing was dropped there.
        ((), (range(3500, 4015),)),
    ],
)
def test_serials_that_were_left_out_are_no_loss(
    held: tuple[range, ...], batches: tuple[range, ...]
) -> None:
    assert losses(BEFORE, TAIL, AFTER, position=4020, held=held, batches=batches) == []


def test_rows_that_are_missing_are_not_lost_as_well() -> None:
    assert losses(BEFORE, (2, range(3000, 4000), 1010), AFTER, position=4020) == []
    assert losses(BEFORE, TAIL, (3, range(0), 10), position=4010) == []


def test_what_was_dropped_before_the_lake_began_is_no_loss() -> None:
    assert losses(TAIL, position=4000) == []
    assert losses(position=4000) == []


def test_only_slabs_that_the_store_does_not_prove_are_counted_again() -> None:
    lake = {name: tally(5) for name in ("0/1", "0/2", "0/3", "0/4")}
    stored = {"0/2": tally(5), "0/3": tally(5, digest=8), "0/4": tally(6)}
    assert unlike(lake, stored) == {name: lake[name] for name in ("0/1", "0/3", "0/4")}
