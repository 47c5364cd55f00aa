from __future__ import annotations

from dataclasses import replace

from siltstone.session.archive.records import DUP, NOT_STORED, RELEASED, SavedInflight
from siltstone.session.archive.start_over import StartOver, group_in, session_in
from siltstone.store.feed.position import START, Position
from siltstone.store.slab.identity import DatabaseIdentity
from tests.support.archive_builders import GROUP, WHOLE, ArchiveWorld

SAME = DatabaseIdentity("5eed", identified=True)
OLD = DatabaseIdentity("5eed", identified=False)
OTHER = DatabaseIdentity("0the", identified=True)
INFLIGHT = (
    SavedInflight(2, 0, 10, 1),
    SavedInflight(3, NOT_STORED, 0, 1),
    SavedInflight(4, 1, 12, 2 | DUP),
    SavedInflight(5, NOT_STORED, 0, 2 | RELEASED),
)
SESSION = replace(WHOLE, inflight=INFLIGHT, unclean=True)
STARTED = replace(
    SESSION,
    subscriptions=tuple(replace(one, since=START) for one in WHOLE.subscriptions),
    position=Position({}, "0the"),
    done=(),
    inflight=(
        SavedInflight(3, NOT_STORED, 0, 1 | DUP),
        # The client may have it: it must release the id before another message has it.
        SavedInflight(4, NOT_STORED, 0, 2 | RELEASED),
        SavedInflight(5, NOT_STORED, 0, 2 | RELEASED | DUP),
    ),
    unclean=False,
)
GIVEN_UP = StartOver("5eed", sum(WHOLE.position.serials.values()), 2)


def test_in_its_own_database_a_session_stands_where_it_was_saved() -> None:
    assert session_in(SESSION, SAME) == (SESSION, None)
    assert group_in(GROUP, SAME) == (GROUP, None)


def test_what_an_earlier_version_saved_belongs_to_a_database_that_is_as_old() -> None:
    assert session_in(replace(SESSION, position=SESSION.position.of("")), OLD) == (SESSION, None)
    assert group_in(replace(GROUP, position=GROUP.position.of("")), OLD) == (GROUP, None)


def test_in_another_database_a_session_starts_at_the_beginning() -> None:
    assert session_in(SESSION, OTHER) == (STARTED, GIVEN_UP)


def test_what_an_earlier_version_saved_starts_over_in_a_later_database() -> None:
    given_up = replace(GIVEN_UP, former="")
    assert session_in(replace(SESSION, position=SESSION.position.of("")), OTHER) == (
        STARTED,
        given_up,
    )


def test_what_is_in_no_store_and_was_not_sent_is_not_a_duplicate() -> None:
    started, _ = session_in(replace(SESSION, unclean=False), OTHER)
    assert started.inflight[0] == SavedInflight(3, NOT_STORED, 0, 1)


def test_in_another_database_a_group_starts_at_the_beginning() -> None:
    started = replace(GROUP, since=START, position=Position({}, "0the"), done=())
    assert group_in(GROUP, OTHER) == (started, StartOver("5eed", 10, 0))


def test_a_session_that_was_taken_is_saved_whole_where_it_starts() -> None:
    world = ArchiveWorld(origin=SAME)
    world.archive.create(SESSION)
    archive = world.restart(origin=OTHER)
    assert archive.peek(SESSION.client_id) == STARTED
    taken = archive.take(SESSION.client_id)
    assert taken is not None
    assert taken.state == STARTED
    taken.save()
    # Without a database to compare with, what is there is shown as it was saved.
    plain = world.restart(origin=None)
    assert plain.peek(SESSION.client_id) == STARTED


def test_a_group_that_was_taken_is_saved_whole_where_it_starts() -> None:
    world = ArchiveWorld(origin=SAME)
    world.archive.create_groups([GROUP])
    started = replace(GROUP, since=START, position=Position({}, "0the"), done=())
    archive = world.restart(origin=OTHER)
    assert archive.peek_group(GROUP.name, GROUP.filter) == started
    taken = archive.take_group(GROUP.name, GROUP.filter)
    assert taken is not None
    assert taken.state == started
    taken.save()
    assert world.restart(origin=None).peek_group(GROUP.name, GROUP.filter) == started
