"""What a look depends on; what it returns is in the tests of the transaction."""

from __future__ import annotations

import pytest

from siltstone.clock import ManualClock
from siltstone.errors import ClosedError, UsageError
from siltstone.store.kv.keys import STATE_KEY, TIME_END, encode_state, row_key, row_prefix
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.kv.slab import KeyValueSlab
from siltstone.store.tx.operations import (
    COMMIT_SERIAL,
    MONOTONIC,
    NO_ID,
    Addition,
    Deletion,
    Operations,
)
from siltstone.store.tx.view import TransactionView, readable
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.structure import Structure
from tests.support.kv_suite import changes_of

NOW_US = 1_000


class Workshop:
    """A sight of a slab with two rows of a/x, at 1 and 5, as the commit 7 has left it."""

    def __init__(self, timestamp_us: int = 2_000) -> None:
        engine = MemoryEngine()
        engine.create_family("f")
        structure = Structure([0])
        placement = structure.learn(b"a/x")
        place = row_prefix(placement.stream.id, placement.varying)
        values: dict[bytes, bytes | None] = {
            row_key(place, time_us, timed=True): b"%d" % time_us for time_us in (1, 5)
        }
        engine.write(changes_of("f", values | {STATE_KEY: encode_state(7, timestamp_us)}))
        structure.take_pending()
        self.slab = KeyValueSlab(engine, "f", structure, timed=True, topics_max=100)
        self.operations = Operations(1, 1, True, NO_ID)  # noqa: FBT003 - by position
        self.sight = TransactionView(self.slab, ManualClock(NOW_US), self.operations)

    def depends(self) -> list[tuple[str, int, int]]:
        """Return what was read."""
        reads = self.operations.reads or []
        return [(str(read), read.since_us, read.until_us) for read in reads]


def test_the_first_look_settles_the_serial() -> None:
    assert Workshop().operations.read_serial == 7


def test_a_value_depends_on_its_row_alone() -> None:
    shop = Workshop()
    assert [shop.sight.get(b"a/x", time_us) for time_us in (1, 2)] == [b"1", None]
    assert shop.sight.get(b"never/written/so", 1) is None
    assert shop.depends() == [("a/x", 1, 2), ("a/x", 2, 3), ("never/written/so", 1, 2)]


def test_a_value_of_its_own_depends_on_nothing() -> None:
    shop = Workshop()
    shop.operations.writes[b"a/x", 1] = b"own"
    assert shop.sight.get(b"a/x", 1) == b"own"
    assert shop.depends() == []


def test_the_newest_depends_on_what_is_not_older() -> None:
    shop = Workshop()
    assert (shop.sight.newest(b"a/x"), shop.sight.newest(b"b/x")) == (b"5", None)
    assert shop.depends() == [("a/x", 5, TIME_END), ("b/x", 0, TIME_END)]


def test_the_newest_beside_changes_of_its_own_depends_on_all() -> None:
    shop = Workshop()
    shop.operations.add_deletion(Deletion(TopicFilter.parse("a/x"), 5, TIME_END))
    assert shop.sight.newest(b"a/x") == b"1"
    assert shop.depends() == [("a/x", 0, TIME_END)]


def test_a_read_depends_on_all_that_was_asked_for() -> None:
    shop = Workshop()
    found = shop.sight.read(b"", TopicFilter.parse("+/x"), 2, 9)
    assert [(row.topic, row.time_us) for row in found] == [(b"a/x", 5)]
    assert shop.depends() == [("+/x", 2, 9)]


@pytest.mark.parametrize(("timestamp_us", "first_us"), [(2_000, 2_001), (500, NOW_US)])
def test_a_time_that_the_commit_gives_is_after_now_and_after_those_given(
    timestamp_us: int, first_us: int
) -> None:
    shop = Workshop(timestamp_us)
    assert [shop.sight.settled(time_us) for time_us in (MONOTONIC, -5, 0, 7)] == [
        first_us,
        first_us,
        0,
        7,
    ]


def test_a_sight_that_was_released_sees_nothing() -> None:
    shop = Workshop()
    shop.sight.release()
    with pytest.raises(ClosedError):
        shop.sight.get(b"a/x", 1)


def test_what_the_commit_gives_cannot_be_read_before() -> None:
    assert readable(b"v") == b"v"
    for value in (COMMIT_SERIAL, Addition(1, b"")):
        with pytest.raises(UsageError, match="cannot be read before the commit"):
            readable(value)
