from __future__ import annotations

from functools import partial

import pytest

from siltstone.errors import ConflictError, FencedError
from siltstone.session.archive.keys import SESSIONS_FILTER, SessionKeys
from siltstone.session.archive.owned.session import SessionContent
from siltstone.session.archive.rows import ArchiveRows, serial_of
from tests.support.archive_builders import ArchiveWorld, away

KEYS = SessionKeys("c")


def content(client_id: str = "c") -> SessionContent:
    return SessionContent(away(client_id, "a"), SessionKeys(client_id))


def drop_session(world: ArchiveWorld, client_id: str) -> None:
    owned = world.archive.take(client_id)
    assert owned is not None
    owned.drop()


def test_of_two_with_the_same_key_the_last_stays() -> None:
    dropped: list[str] = []

    def drop(key: str) -> None:
        dropped.append(key)
        drop_session(world, key)

    with ArchiveWorld() as world:
        rows = ArchiveRows(world.database)
        (_, first), (_, last) = rows.create_many([("c", content()), ("c", content())], drop)
        assert dropped == ["c"]
        assert first < last
        assert rows.count("count/sessions") == 1


def test_what_is_not_there_cannot_be_taken_and_leaves_no_trace() -> None:
    with ArchiveWorld() as world:
        rows = ArchiveRows(world.database)
        ticket = rows.fence("c", owner_topic=KEYS.owner, state_topic=KEYS.state)
        assert serial_of(ticket) is None
        assert world.topics() == []


def test_creation_tries_again_when_others_come_between_and_gives_up_in_the_end() -> None:
    calls: list[str] = []

    def drop(key: str) -> None:
        calls.append(key)
        if len(calls) == 1:
            raise FencedError(())
        if len(calls) == 2:
            drop_session(world, key)
        else:
            world.archive.create(away(key))

    with ArchiveWorld() as world:
        world.archive.create(away("c"))
        rows = ArchiveRows(world.database)
        rows.create_many([("c", content())], drop)
        assert calls == ["c"] * 2
        with pytest.raises(ConflictError, match="key='c'"):
            rows.create_many([("c", content())], drop)
        assert calls == ["c"] * 12


@pytest.mark.parametrize("shards", [1, 3])
def test_a_walk_goes_by_topic_over_all_shards(shards: int) -> None:
    with ArchiveWorld(shards=shards) as world:
        rows = ArchiveRows(world.database)
        # The topics of some of them sort in another order: `!` and `-` come before `/`.
        names = [f"c{number}" for number in range(18)] + ["c1!", "c7-"]
        rows.create_many([(name, content(name)) for name in names], partial(drop_session, world))
        expected = [f"session/{name}/state" for name in sorted(names)]
        assert [row.topic for row in rows.walk(SESSIONS_FILTER)] == expected
        assert [row.topic for row in rows.walk(SESSIONS_FILTER, expected[5])] == expected[5:]
        assert rows.count("count/sessions") == 20
        found = [row.topic.split("/", 2)[2] for row in rows.rows("c7", "session/c7/#")]
        assert sorted(found) == ["filter/a", "owner", "state"]
