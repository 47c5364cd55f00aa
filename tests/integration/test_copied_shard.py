"""A site that the shared log cannot help any more copies a shard from another site."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import PurePath
from random import Random

import pytest

from siltstone.errors import CorruptionError, RetryError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.log.check.verify import verify_database
from siltstone.store.segment.segment import open_segment
from siltstone.store.shard.replicated.damage import digest_of_rows
from tests.integration.test_replicated_store import Three, until

PLACE = PurePath("/store/data/m")


@pytest.fixture
def three() -> Iterator[Three]:
    with ExitStack() as closing:
        yield Three(closing)


def fill(three: Three, start: int, count: int) -> None:
    """Append rows that need several segments, and another generation in the middle."""
    for group in range(start, start + count):
        three.append("a", *[bytes(5000) + b"%d-%d" % (group, i) for i in range(4)])
        if group % 4 == 3:
            three.databases["a"].seal()


def trim(three: Three) -> None:
    three.tick()
    three.logs.first = len(three.logs.messages["m", 0])


def leave(three: Three, name: str, rng: Random | None = None) -> None:
    three.sites[name].crash()
    three.files[name] = three.files[name].crash_clone(rng)


def copied(three: Three, name: str) -> None:
    """Wait until a site has copied, and has read the rest."""

    def is_current() -> bool:
        log = three.sites[name].attached.get(("m", 0))
        last = len(three.logs.messages["m", 0])
        return log is not None and log.view.progress.sequence == last

    until(is_current, f"{name} has copied")


def assert_equal(three: Three) -> None:
    rows = three.rows("a")
    for name in "bc":
        assert three.rows(name) == rows, name
        report = verify_database(three.files[name], PLACE, quarantine=PurePath("/quarantine"))
        assert [
            finding.problem for finding in report.findings if finding.severity == "damage"
        ] == []


def test_a_site_behind_the_trim_copies_what_it_lacks_and_then_reads_the_log(three: Three) -> None:
    three.lead("a")
    fill(three, 0, 6)
    three.settle()
    three.tick()
    leave(three, "b")
    fill(three, 6, 6)
    trim(three)
    three.start("b")
    copied(three, "b")
    # It had the first segments, and links them.
    everything = sum(len(data) for data in three.segments("a").values())
    assert 0 < three.sites["b"].fetched < everything * 3
    three.append("b", b"after")
    three.settle()
    assert_equal(three)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_site_without_files_copies_everything(three: Three, is_dropped: bool) -> None:
    three.lead("a")
    fill(three, 0, 9)
    three.settle()
    if is_dropped:
        for record in three.databases["a"].slabs()[:2]:
            three.databases["a"].drop_slab(record.slab)
    three.settle()
    leave(three, "c")
    trim(three)
    three.files["c"] = MemoryFileSystem()
    three.start("c")
    copied(three, "c")
    three.append("c", b"after")
    three.settle()
    assert_equal(three)
    # It can lead, with all that it copied.
    three.lead("c")
    three.append("b", b"last")
    three.settle()
    assert_equal(three)


def test_calls_that_wait_at_a_site_that_copies_are_stored(three: Three) -> None:
    three.lead("a")
    fill(three, 0, 3)
    leave(three, "b")
    fill(three, 3, 3)
    trim(three)
    three.start("b")
    three.append("b", b"waited")
    copied(three, "b")
    three.settle()
    assert_equal(three)
    assert three.rows("b")[-1][1] == b"waited"


@pytest.mark.parametrize("parts", range(1, 18, 4))
def test_a_copy_that_ends_early_continues_after_a_power_cut(three: Three, parts: int) -> None:
    three.lead("a")
    fill(three, 0, 7)
    leave(three, "b")
    trim(three)
    three.files["b"] = MemoryFileSystem()
    three.start("b")
    copied(three, "b")
    whole = three.sites["b"].fetched
    leave(three, "b")
    three.files["b"] = MemoryFileSystem()
    site = three.start_cut("b", copies=parts)
    assert site.copying is not None
    site.copying.join()
    assert site.failed is not None
    leave(three, "b", Random(parts))
    three.start("b")
    copied(three, "b")
    assert three.sites["b"].fetched <= whole
    three.append("a", b"after")
    three.settle()
    assert_equal(three)


@pytest.mark.parametrize("operations", range(60))
def test_a_power_cut_while_a_copy_is_installed_leaves_a_whole_shard(
    three: Three, operations: int
) -> None:
    three.lead("a")
    three.append("a", b"1")
    three.settle()
    three.tick()
    leave(three, "b")
    three.append("a", b"2")
    three.databases["a"].seal()
    three.append("a", b"3")
    trim(three)
    site = three.start_cut("b", operations=operations)
    if site.copying is not None:
        site.copying.join()
    three.files["b"].operations_left = None
    leave(three, "b", Random(operations))
    three.start("b")
    copied(three, "b")
    three.append("a", b"4")
    three.settle()
    assert_equal(three)
    assert [value for _, value in three.rows("b")] == [b"1", b"2", b"3", b"4"]


def test_a_damaged_source_spreads_nothing(three: Three) -> None:
    three.lead("a")
    fill(three, 0, 5)
    three.settle()
    before = three.rows("b")
    leave(three, "b")
    leave(three, "c")
    # Two records at least, or the trim may end where the site had read.
    fill(three, 5, 2)
    trim(three)
    segment = PLACE / "0/1" / sorted(three.segments("a"))[1]
    with three.files["a"].open(segment, writable=True) as file:
        at = file.data_end(4096) // 2
        file.write_at(at, bytes([file.read_at(at, 1)[0] ^ 1]))
    site = three.start_cut("b")
    assert site.copying is not None
    site.copying.join()
    assert "damaged" in str(site.failed)
    # What it had not synced is lost.
    rows = three.rows("b")
    assert rows == before[: len(rows)]


def flip(three: Three, name: str, part: float = 0.5) -> str:
    """Flip a bit in the first sealed segment of a site; return its path."""
    log = three.sites[name].attached["m", 0]
    path = log.sealed_segments()[0]
    segment = open_segment(three.files[name], log.place / path)
    segment.follow()
    at = int(segment.index.positions[1] + (segment.index.end_position - 4096) * part / 2)
    with three.files[name].open(log.place / path, writable=True) as file:
        file.write_at(at, bytes([file.read_at(at, 1)[0] ^ 1]))
    return path


def test_a_damaged_segment_is_replaced_by_that_of_another_site(three: Three) -> None:
    three.lead("a")
    fill(three, 0, 8)
    three.settle()
    three.tick()
    site, log = three.sites["b"], three.sites["b"].attached["m", 0]
    path = flip(three, "b")
    with pytest.raises(CorruptionError):
        digest_of_rows(log.fs, log.place, path)
    log.remember_damaged([path])
    kept = [each for each in log.sealed_segments() if each != path]
    site.repairs = frozenset([*kept, *(each.replace(".seg", ".idx") for each in kept)])
    site.copy(log, 1)
    assert site.copying is not None
    site.copying.join(20.0)
    assert site.failed is None
    fetched = site.fetched
    copied(three, "b")
    log = three.sites["b"].attached["m", 0]
    assert log.damaged() == frozenset()
    assert digest_of_rows(log.fs, log.place, path) == digest_of_rows(
        three.files["a"], log.place, path
    )
    # The damaged segment and the last one, and no others.
    assert 0 < fetched < 3 * 64 * 1024
    three.append("b", b"after")
    three.settle()
    assert_equal(three)


def test_a_leader_does_not_replace_its_own_files(three: Three) -> None:
    three.lead("a")
    fill(three, 0, 2)
    three.settle()
    log = three.sites["a"].attached["m", 0]
    site = three.sites["a"]
    site.repairs = frozenset(log.sealed_segments())
    site.copy(log, 1)
    assert site.copying is not None
    site.copying.join(20.0)
    assert isinstance(site.failed, RetryError)


def test_a_site_that_lost_synced_rows_reads_the_log_from_the_beginning(three: Three) -> None:
    three.lead("a")
    fill(three, 0, 3)
    three.append("a", *[bytes(5000) + b"%d" % i for i in range(4)])
    three.settle()
    three.tick()
    log = three.sites["b"].attached["m", 0]
    until(lambda: log.view.synced == log.view.progress.sequence, "everything is marked")
    leave(three, "b")
    files = three.files["b"]
    names = sorted(entry.name for entry in files.list(PLACE / "0" / "1"))
    assert len(names) > 2
    files.remove(PLACE / "0" / "1" / names[-1])
    three.start("b")
    copied(three, "b")
    assert_equal(three)
