from __future__ import annotations

import pytest

from siltstone.errors import PoisonedError
from siltstone.store.writer.commit_log import LOCAL_LOG, Record, RecordKind


class Steps:
    """A replica that records its steps."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.fails = ""

    def store(self, record: Record) -> None:
        self.take(f"store {record.kind.name}")

    def sync(self) -> None:
        self.take("sync")

    def publish(self) -> None:
        self.take("publish")

    def take(self, step: str) -> None:
        self.taken.append(step)
        if step == self.fails:
            raise PoisonedError("failed")


@pytest.mark.parametrize(
    ("sync", "steps"), [(True, ["store ROWS", "sync"]), (False, ["store ROWS"])]
)
def test_the_local_log_stores_a_record_and_syncs_it_if_asked(sync: bool, steps: list[str]) -> None:
    replica = Steps()
    LOCAL_LOG.commit(Record(RecordKind.ROWS), replica, sync=sync)
    assert replica.taken == steps


@pytest.mark.parametrize("fails", ["store KV", "sync"])
def test_what_the_replica_raises_is_raised(fails: str) -> None:
    replica = Steps()
    replica.fails = fails
    with pytest.raises(PoisonedError):
        LOCAL_LOG.commit(Record(RecordKind.KV), replica, sync=True)
    assert replica.taken[-1] == fails
