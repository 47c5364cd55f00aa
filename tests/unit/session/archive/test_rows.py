from __future__ import annotations

import pytest

from siltstone.errors import ConflictError, FencedError
from siltstone.session.archive.keys import SESSIONS_FILTER, SessionKeys
from siltstone.session.archive.owned.session import SessionContent
from siltstone.session.archive.rows import ArchiveRows, serial_of
from tests.support.archive_builders import ArchiveWorld, away

KEYS = SessionKeys("c")


def content(client_id: str = "c") -> SessionContent:
    return SessionContent(away(client_id, "a"), SessionKeys(client_id))


def test_only_one_of_two_can_create_the_same() -> None:
    with ArchiveWorld() as world:
        rows = ArchiveRows(world.database)
        assert serial_of(rows.create("c", content(), content().stored(1))) == 1
        assert serial_of(rows.create("c", content(), content().stored(1))) is None
        assert rows.count("count/sessions") == 1


def test_what_is_not_there_cannot_be_taken_and_leaves_no_trace() -> None:
    with ArchiveWorld() as world:
        rows = ArchiveRows(world.database)
        ticket = rows.fence("c", owner_topic=KEYS.owner, state_topic=KEYS.state)
        assert serial_of(ticket) is None
        assert world.topics() == []


def test_replacing_tries_again_when_others_come_between_and_gives_up_in_the_end() -> None:
    calls: list[int] = []

    def drop() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            raise FencedError(())
        if len(calls) >= 3:
            world.archive.create(away("c"))

    with ArchiveWorld() as world:
        rows = ArchiveRows(world.database)
        assert rows.replace("c", content(), content().stored(1), drop) == 1
        assert calls == [0, 1]
        with pytest.raises(ConflictError, match="key='c'"):
            rows.replace("c", content(), content().stored(1), drop)
        assert len(calls) == 12


@pytest.mark.parametrize("shards", [1, 3])
def test_a_walk_goes_by_topic_over_all_shards(shards: int) -> None:
    with ArchiveWorld(shards=shards) as world:
        rows = ArchiveRows(world.database)
        names = [f"c{number}" for number in range(20)]
        for name in names:
            rows.create(name, content(name), content(name).stored(1)).wait()
        expected = [f"session/{name}/state" for name in sorted(names)]
        assert [row.topic for row in rows.walk(SESSIONS_FILTER)] == expected
        assert [row.topic for row in rows.walk(SESSIONS_FILTER, expected[5])] == expected[5:]
        assert rows.count("count/sessions") == 20
        found = [row.topic.split("/", 2)[2] for row in rows.rows("c7", "session/c7/#")]
        assert sorted(found) == ["filter/a", "owner", "state"]
