"""Names of producers: never the same twice, and those of ended processes are recognised."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.cluster.sites.producer_names import ProducerNames, ended_producers
from siltstone.errors import CorruptionError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.fs.publish import replace_file
from siltstone.store.writer.replication.producers import split_producer
from siltstone.store.writer.replication.sites.planning import Site, SiteRole

PLACE = PurePath("/data/cluster")


def test_a_process_has_numbers_above_those_of_all_before_it() -> None:
    fs = MemoryFileSystem()
    first = ProducerNames(fs, PLACE)
    assert (first.base, first.site) == (-1, b"")
    used = [first.take(), first.take()]
    second = ProducerNames(fs.crash_clone(), PLACE)
    later = second.take()
    assert len({*used, later}) == 3
    assert {split_producer(name)[0] for name in (*used, later)} == {second.site}
    assert max(split_producer(name)[1] for name in used) < second.base
    assert split_producer(later)[1] == second.base


def test_a_site_that_lost_its_directory_has_other_names() -> None:
    names = [ProducerNames(MemoryFileSystem(), PLACE).take() for _ in range(2)]
    assert split_producer(names[0])[0] != split_producer(names[1])[0]


def test_a_damaged_file_is_refused() -> None:
    fs = MemoryFileSystem()
    ProducerNames(fs, PLACE).take()
    replace_file(fs, PLACE / "producers", b"{}")
    with pytest.raises(CorruptionError, match="the names of producers"):
        ProducerNames(fs, PLACE).take()


def test_producers_below_the_block_of_a_process_and_all_of_a_lost_site_have_ended() -> None:
    sites = {
        "c": Site(role=SiteRole.GONE, producers=b"c" * 8),
        "d": Site(role=SiteRole.GONE, producers=b"d" * 8),
        "e": Site(producers=b"e" * 8),
    }
    ended = ended_producers(sites, [(b"a" * 8, 5)], [(b"b" * 8, 0), None, (b"d" * 8, 3)])
    # The process of b is the first of its site; d is gone, but runs again.
    assert ended == [(b"a" * 8, 4), (b"d" * 8, 2), (b"c" * 8, None)]
