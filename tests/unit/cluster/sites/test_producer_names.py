"""Names of producers: never the same twice, and those of ended processes are recognised."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.clock import ManualClock
from siltstone.cluster.sites.producer_names import ProducerNames, ended_producers
from siltstone.errors import CorruptionError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.fs.publish import replace_file
from siltstone.store.writer.replication.producers import split_producer
from siltstone.store.writer.replication.sites.planning import Site, SiteRole

PLACE = PurePath("/data/cluster")


def test_a_process_has_numbers_above_those_of_all_before_it() -> None:
    fs = MemoryFileSystem()
    first = ProducerNames(fs, PLACE, ManualClock())
    assert (first.base, first.site) == (-1, b"")
    used = [first.take(), first.take()]
    second = ProducerNames(fs.crash_clone(), PLACE, ManualClock())
    later = second.take()
    assert len({*used, later}) == 3
    assert {split_producer(name)[0] for name in (*used, later)} == {second.site}
    assert max(split_producer(name)[1] for name in used) < second.base
    assert split_producer(later)[1] == second.base


def test_a_site_that_lost_its_directory_has_other_names() -> None:
    names = [ProducerNames(MemoryFileSystem(), PLACE, ManualClock()).take() for _ in range(2)]
    assert split_producer(names[0])[0] != split_producer(names[1])[0]


def test_an_old_state_of_a_directory_gives_out_no_name_again() -> None:
    fs, clock = MemoryFileSystem(), ManualClock()
    ProducerNames(fs, PLACE, clock).take()
    backup = fs.crash_clone()
    clock.advance(60)
    used = ProducerNames(fs, PLACE, clock).take()
    clock.advance(60)
    names = ProducerNames(backup, PLACE, clock)
    assert names.take() != used
    # Retiring the earlier process of the directory does not retire this one.
    assert names.base > split_producer(used)[1]


def test_the_clock_may_be_set_back() -> None:
    fs = MemoryFileSystem()
    used = ProducerNames(fs, PLACE, ManualClock(2_000_000_000_000_000)).take()
    later = ProducerNames(fs, PLACE, ManualClock(1_000_000_000_000_000)).take()
    assert split_producer(later)[1] > split_producer(used)[1]


def test_a_damaged_file_is_refused() -> None:
    fs = MemoryFileSystem()
    ProducerNames(fs, PLACE, ManualClock()).take()
    replace_file(fs, PLACE / "producers", b"{}")
    with pytest.raises(CorruptionError, match="the names of producers"):
        ProducerNames(fs, PLACE, ManualClock()).take()


def test_producers_below_the_block_of_a_process_and_all_of_a_lost_site_have_ended() -> None:
    sites = {
        "c": Site(role=SiteRole.GONE, producers=b"c" * 8),
        "d": Site(role=SiteRole.GONE, producers=b"d" * 8),
        "e": Site(producers=b"e" * 8),
    }
    ended = ended_producers(sites, [(b"a" * 8, 5)], [(b"b" * 8, 0), None, (b"d" * 8, 3)])
    # The process of b is the first of its site; d is gone, but runs again.
    assert ended == [(b"a" * 8, 4), (b"d" * 8, 2), (b"c" * 8, None)]


def test_a_producer_of_a_process_that_is_heard_is_never_retired() -> None:
    gone = {"b": Site(role=SiteRole.GONE, producers=b"b" * 8)}
    # The first process of a site that an operator gave up is heard again.
    assert ended_producers(gone, [(b"a" * 8, 0)], [(b"b" * 8, 0)]) == []
    # Two processes with the same first bytes: the older one runs too.
    assert ended_producers({}, [(b"a" * 8, 9)], [(b"a" * 8, 5)]) == [(b"a" * 8, 4)]


def test_sites_with_copies_of_one_directory_do_not_retire_each_other() -> None:
    copies = {"a": Site(producers=b"a" * 8), "b": Site(producers=b"a" * 8)}
    # One of them is not heard, and runs.
    assert ended_producers(copies, [(b"a" * 8, 9)], []) == []
