from __future__ import annotations

import pytest

from siltstone.errors import ClosedError
from siltstone.store.kv.keys import TIME_END, row_key, row_prefix
from siltstone.store.kv.memory import MemoryEngine, MemoryView
from siltstone.store.kv.slab import KeyValueSlab
from siltstone.store.tx.commit.conflicts import ReadRange, RecentWrites
from siltstone.store.tx.commit.pending import PendingGroup
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.structure import Structure
from tests.support.kv_suite import changes_of

STORED = [("a/x", 1), ("a/x", 5), ("a/y", 1), ("b/x", 1)]


class WatchedEngine(MemoryEngine):
    """Remembers the views that it has given."""

    def __init__(self) -> None:
        super().__init__()
        self.views: list[MemoryView] = []

    def view(self, family: str) -> MemoryView:
        self.views.append(super().view(family))
        return self.views[-1]


class Workshop:
    """A slab with stored rows, and a group over it."""

    def __init__(self, stored: list[tuple[str, int]]) -> None:
        self.engine = engine = WatchedEngine()
        engine.create_family("f")
        self.structure = Structure([0])
        values: dict[bytes, bytes | None] = {}
        for topic, time_us in stored:
            values[self.key(topic, time_us)] = b"stored"
        engine.write(changes_of("f", values))
        published = Structure([0])
        published.apply(self.structure.export())
        self.structure.take_pending()
        self.slab = KeyValueSlab(engine, "f", published, timed=True, topics_max=100)
        self.recent = RecentWrites(100_000, 5.0, 0, 0.0)
        self.group = PendingGroup(self.slab, self.structure, self.recent, 0, None)
        self.recent.begin(1)

    def key(self, topic: str, time_us: int) -> bytes:
        placement = self.structure.learn(topic.encode())
        return row_key(row_prefix(placement.stream.id, placement.varying), time_us, timed=True)

    def delete(self, text: str, since_us: int = 0, until_us: int = TIME_END) -> None:
        self.group.delete(TopicFilter.parse(text), since_us, until_us)

    def deleted(self, rows: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return which rows the group will delete."""
        found = []
        for topic, time_us in rows:
            key = self.key(topic, time_us)
            covered = any(keys.start <= key < keys.stop for keys in self.group.ranges)
            if self.group.values.get(key, b"") is None or (
                covered and key not in self.group.values
            ):
                found.append((topic, time_us))
        return found

    def changed(self, topic: str, since_us: int, until_us: int) -> bool:
        read = ReadRange(topic.encode(), None, since_us, until_us)
        return self.recent.conflicting(read, 0) != b""


def test_what_was_put_is_found_before_what_is_stored() -> None:
    shop = Workshop(STORED)
    group = shop.group
    assert (group.get(b"a/x", 1), group.get(b"a/x", 2), group.get(b"n/n", 1)) == (
        b"stored",
        None,
        None,
    )
    group.put(b"a/x", 1, b"new")
    group.put(b"n/n", 1, b"first of its topic")
    assert (group.get(b"a/x", 1), group.get(b"n/n", 1)) == (b"new", b"first of its topic")
    assert shop.changed("a/x", 1, 2)
    assert not shop.changed("a/x", 2, 9)
    assert shop.slab.place(b"n/n") is not None, "its structure is known: +/+"


def test_what_a_topic_teaches_stays_in_the_group() -> None:
    shop = Workshop([])
    shop.group.put(b"a/b/c", 1, b"v")
    assert shop.structure.has_pending()
    assert list(shop.group.places) == [b"a/b/c"]
    assert shop.slab.place(b"a/b/c") is None
    assert shop.slab.places == {}


@pytest.mark.parametrize(
    ("text", "since_us", "until_us", "expected"),
    [
        ("a/x", 0, TIME_END, [("a/x", 1), ("a/x", 5)]),
        ("a/x", 1, 5, [("a/x", 1)]),
        ("a/+", 1, 2, [("a/x", 1), ("a/y", 1)]),
        ("#", 0, TIME_END, STORED),
        ("+/x", 5, 6, [("a/x", 5)]),
        ("c/#", 0, TIME_END, []),
        ("c", 0, TIME_END, []),
    ],
)
def test_stored_rows_are_deleted_by_filter_and_half_open_time(
    text: str, since_us: int, until_us: int, expected: list[tuple[str, int]]
) -> None:
    shop = Workshop(STORED)
    shop.delete(text, since_us, until_us)
    assert shop.deleted(STORED) == expected
    for topic, time_us in STORED:
        assert shop.changed(topic, time_us, time_us + 1) == ((topic, time_us) in expected)


@pytest.mark.parametrize("text", ["n/1", "n/+", "#"])
def test_pending_rows_are_deleted_too_and_what_is_put_later_is_not(text: str) -> None:
    shop = Workshop([])
    shop.group.put(b"n/1", 1, b"v")
    shop.group.put(b"n/1", 9, b"v")
    shop.delete(text, 0, 5)
    assert (shop.group.get(b"n/1", 1), shop.group.get(b"n/1", 9)) == (None, b"v")
    shop.group.put(b"n/1", 1, b"again")
    assert shop.group.get(b"n/1", 1) == b"again"


def test_what_is_deleted_already_is_no_change() -> None:
    shop = Workshop(STORED)
    shop.delete("a/y")
    noted = len(shop.recent)
    shop.delete("a/y")
    shop.delete("a/+", 1, 1)
    assert len(shop.recent) == noted


@pytest.mark.parametrize("text", ["m/x", "m/+", "#"])
def test_many_rows_of_a_topic_are_deleted_as_a_range_of_times(text: str) -> None:
    many = [("m/x", time_us) for time_us in range(100)]
    shop = Workshop([*many, ("m/y", 50), ("m/a", 50)])
    shop.group.put(b"m/x", 30, b"pending")
    shop.delete(text, 10, 90)
    kept = [*many[:10], *many[90:]]
    everything = [*many, ("m/y", 50), ("m/a", 50)]
    others = [] if text == "m/x" else [("m/y", 50), ("m/a", 50)]
    assert shop.deleted(everything) == [*many[10:90], *others]
    assert [shop.group.get(b"m/x", time_us) for _, time_us in many] == [
        b"stored" if row in kept else None for row in many
    ]
    assert len(shop.group.ranges) == 1
    assert len(shop.group.values) <= 20
    assert shop.changed("m/x", 10, 11)
    assert shop.changed("m/x", 89, 90)
    assert not shop.changed("m/x", 90, 99)
    assert not shop.changed("m/x", 0, 10)
    shop.group.put(b"m/x", 40, b"after")
    assert shop.group.get(b"m/x", 40) == b"after"


def test_a_group_is_crowded_by_what_it_holds() -> None:
    shop = Workshop([])
    for time_us in range(512):
        shop.group.put(b"a", time_us, b"")
    assert not shop.group.is_large()
    shop.group.put(b"a", 512, b"vvv")
    assert shop.group.is_large()
    assert shop.group.size_bytes == 513 * len(shop.key("a", 0)) + 3


def test_the_look_at_what_is_stored_is_released() -> None:
    shop = Workshop(STORED)
    shop.group.release()
    assert shop.engine.views == []
    shop.delete("+/#")
    [view] = shop.engine.views
    assert view.items(b"", b"\xff" * 16, 1) != []
    shop.group.release()
    shop.group.release()
    with pytest.raises(ClosedError, match="the snapshot view or its database is closed"):
        view.get(b"")
