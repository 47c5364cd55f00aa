from __future__ import annotations

from dataclasses import replace

import pytest

from siltstone.session.archive.move import find_place, move_group, move_session
from siltstone.session.archive.records import RELEASED, SavedInflight
from siltstone.store.feed.position import Position
from siltstone.store.log.read.pieces import Row
from tests.support.archive_builders import GROUP, WHOLE, ArchiveWorld
from tests.support.builders import NOW_US, World

PLACE = Position({0: 2, 3: 0})


@pytest.mark.parametrize(
    ("place", "serial"),
    [
        ("earliest", 0),
        ("latest", 4),
        (NOW_US - 1_000_000, 0),
        (NOW_US + 10_000_000, 2),
        (NOW_US + 99_000_000, 4),
    ],
)
def test_a_place_is_the_beginning_the_end_or_the_first_frame_of_a_time(
    place: str | int, serial: int
) -> None:
    world = World()
    with world.database() as database:
        for _ in range(2):
            for _ in range(2):
                database.append([Row("t", b"x")]).wait()
            world.clock.advance(10)
        found = find_place(database.feed_source(), place)  # type: ignore[arg-type]
        assert found == Position({0: serial})


def test_a_session_that_is_moved_has_its_subscriptions_and_what_it_must_release() -> None:
    with ArchiveWorld() as world:
        owned = world.archive.create(WHOLE)
        move_session(owned, PLACE)
        owned.save()
        assert world.restart().peek("client/1") == replace(
            WHOLE,
            position=PLACE.of(WHOLE.identity),
            done=(),
            inflight=(SavedInflight(1, 3, 1 << 40, 2 | RELEASED),),
            extra=(),
            subscriptions=tuple(replace(one, since=PLACE) for one in WHOLE.subscriptions),
        )


def test_a_group_that_is_moved_has_nothing_done() -> None:
    with ArchiveWorld() as world:
        owned = world.archive.create_groups([GROUP])[0]
        move_group(owned, PLACE)
        owned.save()
        assert world.restart().peek_group("g", "a/+") == replace(
            GROUP, position=PLACE.of(GROUP.identity), done=()
        )
