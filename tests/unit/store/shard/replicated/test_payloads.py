from __future__ import annotations

import pytest

from siltstone.store.log.records import DropRecord, RollRecord, SettingsRecord
from siltstone.store.shard.replicated.payloads import (
    BadPayloadError,
    CountedFrame,
    other_record,
    payload_of,
)
from siltstone.store.slab.manifest import SlabId
from siltstone.store.writer.commit_log import RecordKind

ROLL = RollRecord(
    serial=5,
    timestamp_us=6,
    created_us=7,
    segment_bytes=65536,
    room_bytes=100,
    structure=b"structure",
    producers=b"producers",
)


def test_a_record_is_the_same_at_all_sites() -> None:
    for record in (
        ROLL,
        DropRecord([SlabId(0, 1), SlabId(0, 2)], 17),
        SettingsRecord({"flush_interval": 0.5}),
    ):
        found = other_record(record.kind, payload_of(record))
        assert found.parts() == record.parts()


@pytest.mark.parametrize("end", range(len(payload_of(ROLL))))
def test_a_record_that_is_cut_short_is_refused(end: int) -> None:
    with pytest.raises(BadPayloadError, match="ROLL"):
        other_record(RecordKind.ROLL, payload_of(ROLL)[:end])


@pytest.mark.parametrize("payload", [b"", b"SFRM", bytes(64), bytes(200)])
def test_rows_that_are_not_one_frame_are_refused(payload: bytes) -> None:
    with pytest.raises(BadPayloadError, match="ROWS"):
        CountedFrame(payload, 0)
