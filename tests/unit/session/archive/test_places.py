from __future__ import annotations

from collections.abc import Iterator

from siltstone.session.archive.places import Page, sessions_before
from siltstone.session.archive.records import SavedSession
from siltstone.store.feed.position import Position
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.identity import DatabaseIdentity
from tests.support.archive_builders import ArchiveWorld

ORIGIN = DatabaseIdentity("here", identified=True)


def session(client_id: str, *serials: int) -> SavedSession:
    position = Position(dict(enumerate(serials)))
    return SavedSession(client_id=client_id, position=position)


def test_those_are_found_that_stand_before_a_serial_in_any_shard() -> None:
    with ArchiveWorld(origin=ORIGIN) as world:
        archive = world.archive
        archive.create_many([session("b", 5, 5), session("a/+", 9, 4), session("c", 5, 9)])
        assert archive.sessions_before({0: 5, 1: 5}) == Page(["a/+"], "")
        assert archive.sessions_before({0: 6, 1: 6}) == Page(["a/+", "b", "c"], "")
        assert archive.sessions_before({0: 6}) == Page(["b", "c"], "")
        assert archive.sessions_before({0: 5, 1: 4}) == Page([], "")


def test_a_shard_without_a_place_begins_with_its_first_row() -> None:
    with ArchiveWorld(origin=ORIGIN) as world:
        archive = world.archive
        archive.create_many([session("a"), session("b", 5)])
        assert archive.sessions_before({1: 1}) == Page(["a", "b"], "")


def test_a_place_of_another_database_counts_for_nothing() -> None:
    with ArchiveWorld(origin=ORIGIN) as world:
        archive = world.archive
        archive.create(session("a", 9))
        assert archive.sessions_before({0: 5}) == Page([], "")
        other = DatabaseIdentity("there", identified=True)
        walk = archive._rows.walk  # noqa: SLF001 - as a broker over another database looks
        assert sessions_before(walk, {0: 5}, other, limit=9) == Page(["a"], "")


def test_pages_follow_each_other() -> None:
    with ArchiveWorld(origin=ORIGIN) as world:
        archive = world.archive
        archive.create_many([session(f"c{number}", number) for number in range(9)])
        walk = archive._rows.walk  # noqa: SLF001 - with pages of our size
        pages: list[list[str]] = []
        after = ""
        while not pages or after:
            page = sessions_before(walk, {0: 7}, ORIGIN, after=after, limit=3)
            pages.append(page.client_ids)
            after = page.after
        assert pages == [["c0", "c1", "c2"], ["c3", "c4", "c5"], ["c6"]]


def test_states_are_seen_before_places() -> None:
    """A session that stands over meanwhile is never found at a place of its former database."""
    with ArchiveWorld(origin=ORIGIN) as world:
        archive = world.archive
        archive.create(session("a", 9))
        asked: list[str] = []

        def walk(topic_filter: str, first_topic: str = "") -> Iterator[Row]:
            for row in archive._rows.walk(topic_filter, first_topic):  # noqa: SLF001
                asked.append(row.topic)
                yield row

        sessions_before(walk, {0: 5}, ORIGIN, limit=9)
        assert asked == ["session/a/state", "session/a/progress"]
