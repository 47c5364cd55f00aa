"""Sites of a replicated database compact their segments at different times, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import PurePath

import pytest

from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.log.check.verify import verify_database
from siltstone.store.log.compact.rewrite import Rewritten, rewrite_segment
from siltstone.store.shard import compaction
from siltstone.store.shard.replicated.damage import digest_of_rows
from siltstone.units import SECOND_US
from tests.integration.test_copied_shard import copied, leave, trim
from tests.integration.test_replicated_store import Three, until
from tests.support.compacting import compact_all

PLACE = PurePath("/store/data/m")
SHARD = PLACE / "0"


@pytest.fixture
def three() -> Iterator[Three]:
    with ExitStack() as closing:
        yield Three(closing)


def fill(three: Three, start: int = 0) -> None:
    """Append rows in small frames, in two generations; the second one stays open."""
    for number in range(start, start + 30):
        three.append("a", b"%d" % number)
    three.databases["a"].seal()
    three.append("a", b"open")
    three.settle()


def segments(three: Three, name: str) -> list[str]:
    found: list[str] = three.sites[name].attached["m", 0].sealed_segments()
    return found


def digests(three: Three, name: str) -> list[bytes]:
    return [digest_of_rows(three.files[name], SHARD, path) for path in segments(three, name)]


def check_equal(three: Three) -> None:
    three.settle()
    rows = three.rows("a")
    for name in "abc":
        assert three.rows(name) == rows
        assert (segments(three, name), digests(three, name)) == (
            segments(three, "a"),
            digests(three, "a"),
        )
        report = verify_database(three.files[name], PLACE, quarantine=PurePath("/quarantine"))
        assert [each for each in report.findings if each.severity == "damage"] == []


def compacted(three: Three, name: str) -> list[int]:
    return [slab.compacted for slab in three.databases[name].slabs()]


def test_each_site_compacts_its_own_segments_and_the_rows_stay_equal(three: Three) -> None:
    three.lead("a")
    fill(three)
    before = three.rows("a")
    assert len(compact_all(three.databases["b"])) == 1
    assert [compacted(three, name) for name in "abc"] == [[0, 0], [1, 0], [0, 0]]
    assert three.segments("b") != three.segments("a")
    check_equal(three)
    assert three.rows("b") == before
    # Records about slabs that are compacted at some sites only.
    fill(three, 100)
    assert len(compact_all(three.databases["a"])) == 2
    assert [compacted(three, name) for name in "abc"] == [[1, 1, 0], [1, 0, 0], [0, 0, 0]]
    check_equal(three)
    three.databases["a"].drop_slab(three.databases["a"].slabs()[0].slab)
    check_equal(three)
    assert [compacted(three, name) for name in "abc"] == [[1, 0], [0, 0], [0, 0]]


def test_a_compacted_segment_stays_compacted_after_a_power_cut(three: Three) -> None:
    three.lead("a")
    fill(three)
    compact_all(three.databases["b"])
    leave(three, "b")
    three.start("b")
    copied(three, "b")
    assert compacted(three, "b") == [1, 0]
    check_equal(three)


def test_a_site_copies_compacted_segments(three: Three) -> None:
    three.lead("a")
    fill(three)
    for name in "ab":
        compact_all(three.databases[name])
    leave(three, "c")
    three.append("a", b"meanwhile")
    trim(three)
    three.files["c"] = MemoryFileSystem()
    three.start("c")
    copied(three, "c")
    assert compacted(three, "c") == [1, 0]
    check_equal(three)


@pytest.mark.parametrize("name", ["source", "target"])
def test_a_repair_keeps_the_segments_of_this_site_as_they_are(three: Three, name: str) -> None:
    three.lead("a")
    fill(three)
    fill(three, 100)
    # The source and the target differ in what is compacted.
    for each in "ac" if name == "source" else "b":
        compact_all(three.databases[each])
    leave(three, "b")
    trim(three)
    first, second = [path for path in segments(three, "a") if path.endswith("seg")][:2]
    three.files["b"].open(SHARD / second, writable=True).write_at(5000, b"damage")
    site = three.sites["b"] = three.logs.site("b")
    index = first.replace(".seg", ".idx")
    site.repairs = frozenset({first, index})
    store = site.open(three.files["b"])
    three.closing.callback(store.close)
    three.databases["b"] = store.ensure("m")
    log = site.attached["m", 0]
    three.append("a", b"more")
    three.settle()
    site.copy(log, 1)
    until(lambda: log is not site.attached.get(("m", 0)), "b is repaired")
    until(lambda: ("m", 0) in site.attached, "b reads again")
    expected = [0, 1, 0] if name == "source" else [1, 0, 0]
    assert compacted(three, "b") == expected
    check_equal(three)


def test_a_segment_that_was_replaced_by_a_copy_is_not_replaced_again(three: Three) -> None:
    three.lead("a")
    fill(three)
    leave(three, "b")
    fill(three, 100)
    trim(three)
    # It knows only the old files, and begins to compact one while it copies.
    site = three.sites["b"] = three.logs.site("b")
    site.copies = 0
    store = site.open(three.files["b"])
    three.closing.callback(store.close)
    database = three.databases["b"] = store.ensure("m")
    (job, *_) = database.compaction.jobs()

    def rewrite(source: PurePath, target: PurePath) -> Rewritten:
        made = rewrite_segment(three.files["b"], source, target)
        site.copies = 1 << 60
        site.copy(site.attached["m", 0], 1)
        until(lambda: site.copying is not None, "it copies")
        assert site.copying is not None
        site.copying.join()
        return made

    assert database.compaction.run(job, rewrite) is None
    copied(three, "b")
    assert compacted(three, "b") == [0, 0, 0]
    check_equal(three)


def test_only_the_leader_ends_a_segment_for_compaction(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A few frames are enough, and they may be new.
    monkeypatch.setattr(compaction, "SCATTERED_MIN", 2)
    monkeypatch.setattr(compaction, "_AGE_US", -3600 * SECOND_US)
    three.lead("a")
    for number in range(10):
        three.append("a", b"%d" % number)
    three.settle()
    for name in "bc":
        three.databases[name].compaction.end_segments()
    three.settle()
    assert [segments(three, name) for name in "abc"] == [[], [], []]
    three.databases["a"].compaction.end_segments()
    three.settle()
    assert [len(segments(three, name)) for name in "abc"] == [1, 1, 1]
    assert len(compact_all(three.databases["c"])) == 1
    check_equal(three)
