from __future__ import annotations

from dataclasses import replace

import pytest

from siltstone.errors import FencedError
from siltstone.session.archive.keys import GroupKeys
from siltstone.session.archive.owned.group import content_of
from siltstone.session.archive.records import SerialRange
from siltstone.store.feed.position import START, Position
from siltstone.store.log.read.pieces import Row
from tests.support.archive_builders import GROUP, ArchiveWorld


def test_progress_and_what_else_there_is_are_saved_and_survive() -> None:
    with ArchiveWorld() as world:
        owned = world.archive.create_groups([GROUP])[0]
        assert (owned.state, owned.is_dirty, owned.save_later()) == (GROUP, False, None)
        owned.put_progress(position=Position({0: 20}), done=(SerialRange(0, 21, 22),))
        owned.put_meta(empty_since_us=None, strategy="round-robin")
        assert owned.is_dirty
        owned.save()
        expected = replace(
            GROUP,
            position=Position({0: 20}, GROUP.identity),
            done=(SerialRange(0, 21, 22),),
            empty_since_us=None,
            strategy="round-robin",
        )
        assert owned.state == expected
        assert world.restart().peek_group("g", "a/+") == expected


def test_what_stays_as_it_is_is_not_saved() -> None:
    with ArchiveWorld() as world:
        owned = world.archive.create_groups([GROUP])[0]
        owned.put_meta(strategy=GROUP.strategy)
        owned.put_progress(position=GROUP.position, done=GROUP.done)
        assert not owned.is_dirty
        owned.put_progress(position=START)
        owned.save()
        assert world.topics("group/+/progress") == []


def test_a_former_leader_can_neither_save_nor_drop() -> None:
    with ArchiveWorld() as world:
        former = world.archive.create_groups([GROUP])[0]
        leader = world.archive.take_group("g", "a/+")
        assert leader is not None
        assert leader.serial > former.serial
        former.put_progress(position=Position({0: 99}))
        with pytest.raises(FencedError):
            former.save()
        with pytest.raises(FencedError):
            former.drop()
        assert leader.state == GROUP
        leader.drop()
        assert world.topics() == []


def test_rows_are_a_group_only_with_its_state() -> None:
    assert content_of([Row("group/x/progress", b"")], GroupKeys("x")) is None
