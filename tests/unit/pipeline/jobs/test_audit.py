from __future__ import annotations

from pathlib import PurePath

from siltstone.pipeline.jobs.audit import AuditReport, SlabAudit, Tally, compare
from siltstone.pipeline.lake.ledger import Ledger
from siltstone.pipeline.table import Seam

SEAM = Seam(
    database="messages",
    lake=PurePath("/lake"),
    ledger=Ledger(identity="i", slabs={"0/1": 10, "0/2": 5}),
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
        rows=rows, distinct=different, span=different if span is None else span, digest=digest
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
