"""Frames with learned edges, as the committer writes them, and the expected segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from siltstone.store.log.check.findings import Expected
from siltstone.store.log.write.frame_builder import Call, FrameBuilder
from siltstone.store.segment.chain import SlabIdentity
from siltstone.store.slab.manifest import SlabRecord, SlabState
from siltstone.topic.structure import Structure, TopicPlace
from tests.support.frames import NOW_US, SEED, Frame, built_frame
from tests.support.row_batches import row_batch

RECORD: Final = SlabRecord(
    shard=3,
    generation=7,
    state=SlabState.CURRENT,
    since_us=NOW_US,
    until_us=None,
    created_us=NOW_US,
)
EXPECTED: Final = Expected(
    identity=SlabIdentity(database="plant", shard=3, generation=7, seed=SEED),
    record=RECORD,
    before=None,
    next_base=None,
    closed=False,
)


def learned_frame(
    structure: Structure,
    topics: Sequence[bytes],
    *,
    serial: int = 0,
    timestamp_us: int = 0,
    producers: bytes = b"",
) -> Frame:
    """Return a frame with a row for each topic and the edges that the topics add."""
    values = [b"%d" % number for number in range(len(topics))]
    call = Call(row_batch(list(topics), values, b""))
    built = FrameBuilder(structure, 100).build([call], timestamp_us or NOW_US + serial)
    built.producers = producers
    return built_frame(built, serial=serial)


def topic_of(placement: TopicPlace) -> bytes:
    """Return the topic of a placement."""
    words = iter(placement.varying.split(b"/"))
    return b"/".join(next(words) if level == b"+" else level for level in placement.stream.levels)
