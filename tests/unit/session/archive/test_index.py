from __future__ import annotations

from dataclasses import replace

from siltstone.session.archive.index import (
    NO_INDEX,
    Index,
    expires_at_us,
    gone,
    group_index,
    move,
    session_index,
    will_at_us,
)
from siltstone.session.archive.keys import GroupKeys, SessionKeys, away_topic, due_topic, word
from siltstone.session.archive.records import NEVER_EXPIRES, SavedSession, SavedWill
from siltstone.store.tx.operations import count_in
from tests.support.archive_builders import GROUP, SECOND_US, WHOLE, ArchiveWorld

KEYS = SessionKeys(WHOLE.client_id)
NAME = WHOLE.client_id.encode()
SUBSCRIPTIONS = {KEYS.filter(each.filter): each for each in WHOLE.subscriptions}


def test_a_session_that_is_away_has_timers_and_counts_for_its_filters() -> None:
    index = session_index(WHOLE, SUBSCRIPTIONS, KEYS)
    assert index.rows == {
        due_topic(65 * SECOND_US, "will", KEYS.word): NAME,
        due_topic(3605 * SECOND_US, "expiry", KEYS.word): NAME,
    }
    assert dict(index.all_counts()) == {
        "count/sessions": b"",
        away_topic(word("$share/g/a/+"), 1): b"$share/g/a/+",
        away_topic(word("b/#"), 2): b"b/#",
    }


def test_an_index_does_not_change_with_the_subscriptions() -> None:
    subscriptions = dict(SUBSCRIPTIONS)
    index = session_index(WHOLE, subscriptions, KEYS)
    subscriptions.clear()
    assert index == session_index(WHOLE, SUBSCRIPTIONS, KEYS)


def test_a_session_that_is_connected_has_neither() -> None:
    connected = replace(WHOLE, connected=True, away_since_us=None)
    assert session_index(connected, SUBSCRIPTIONS, KEYS) == Index(
        {f"connected/{KEYS.word}": NAME}, {"count/sessions": b""}
    )


def test_a_session_that_never_expires_has_no_timer() -> None:
    never = replace(WHOLE, expiry_seconds=NEVER_EXPIRES, will=None)
    assert session_index(never, {}, KEYS).rows == {}
    assert (expires_at_us(never), will_at_us(never)) == (None, None)


def test_a_will_is_not_later_than_the_end_of_the_session() -> None:
    def at(delay: int, expiry: int) -> int | None:
        will = SavedWill(topic=b"t", payload=b"", delay_seconds=delay)
        session = SavedSession(
            client_id="c", will=will, expiry_seconds=expiry, away_since_us=SECOND_US
        )
        return will_at_us(session)

    assert [at(0, 10), at(5, 10), at(50, 10), at(50, NEVER_EXPIRES)] == [
        1 * SECOND_US,
        6 * SECOND_US,
        11 * SECOND_US,
        51 * SECOND_US,
    ]


def test_a_group_without_members_has_a_timer() -> None:
    keys = GroupKeys("$share/g/a/+")
    assert group_index(GROUP, keys) == Index(
        {due_topic(62 * SECOND_US, "group", keys.word): b"$share/g/a/+"}, {"count/groups": b""}
    )
    for other in (
        replace(GROUP, empty_since_us=None),
        replace(GROUP, expiry_seconds=NEVER_EXPIRES),
    ):
        assert group_index(other, keys) == Index({}, {"count/groups": b""})


def test_moving_the_index_leaves_what_follows_from_the_new_state() -> None:
    old = Index({"connected/a": b"a", "connected/b": b"b"}, {"count/x": b"x", "count/y": b"y"})
    new = Index({"connected/b": b"b", "connected/c": b"c"}, {"count/y": b"y", "count/z": b"z"})
    with ArchiveWorld() as world:
        for before, after in ((NO_INDEX, old), (old, new)):
            with world.database.transaction() as tx:
                for topic in gone(before, after):
                    tx.delete(topic)
                move(tx, before, after)
        assert [(topic, value) for topic, _, value in world.rows("connected/+")] == [
            ("connected/b", b"b"),
            ("connected/c", b"c"),
        ]
        assert [
            (topic, count_in(value), value[8:]) for topic, _, value in world.rows("count/+")
        ] == [
            ("count/y", 1, b"y"),
            ("count/z", 1, b"z"),
        ]
