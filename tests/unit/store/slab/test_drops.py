from __future__ import annotations

import logging

import pytest

from siltstone.store.slab.drops import DropLog, DroppedSlab
from siltstone.store.slab.manifest import SlabId


def test_every_drop_is_told_and_what_was_delivered_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "siltstone.store")
    drops = DropLog("messages")
    drops.tell(DroppedSlab(SlabId(0, 1), "age", 7, 100))
    drops.tell(DroppedSlab(SlabId(2, 3), "delivered", 9, 200))
    drops.tell(DroppedSlab(SlabId(2, 4), "delivered", None, 300))
    assert {record.getMessage() for record in caplog.records} == {"slab_dropped"}
    assert [vars(record)["facts"] for record in caplog.records] == [
        {"database": "messages", "slab": slab, "rows": rows, "bytes": size, "why": why}
        for slab, rows, size, why in (
            ("0/1", 7, 100, "age"),
            ("2/3", 9, 200, "delivered"),
            ("2/4", None, 300, "delivered"),
        )
    ]
    assert (drops.reclaimed_rows, drops.reclaimed_bytes) == (9, 500)
