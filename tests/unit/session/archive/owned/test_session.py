from __future__ import annotations

from dataclasses import replace

import pytest

from siltstone.errors import CorruptionError
from siltstone.session.archive.keys import SessionKeys
from siltstone.session.archive.owned.session import OwnedSession, SessionContent, content_of
from siltstone.session.archive.records import (
    SavedInflight,
    SavedMessage,
    SavedReceived,
    SavedSession,
    SavedSubscription,
    SerialRange,
)
from siltstone.store.feed.position import START, Position
from siltstone.store.log.read.pieces import Row
from tests.support.archive_builders import WHOLE, ArchiveWorld, away

MESSAGE = SavedMessage(9, b"t", b"p", 1, b"", 5)


def reloaded(world: ArchiveWorld, owned: OwnedSession) -> SavedSession | None:
    """Save, kill the broker, and return what the next one finds."""
    owned.save()
    return world.restart().peek(owned.client_id)


def test_every_part_is_changed_and_saved_by_itself() -> None:
    with ArchiveWorld() as world:
        owned = world.archive.create(WHOLE)
        assert (owned.state, owned.client_id) == (WHOLE, WHOLE.client_id)
        owned.put_meta(user="bob", version=5, connected=True, run=8, away_since_us=None, will=None)
        owned.put_subscription(replace(WHOLE.subscriptions[1], qos=0))
        owned.put_subscription(SavedSubscription(filter="a"))
        assert owned.drop_subscription("$share/g/a/+")
        owned.put_progress(
            position=Position({0: 11}),
            done=(SerialRange(0, 12, 13),),
            inflight=(SavedInflight(4, 0, 11, 1),),
            next_packet_id=5,
        )
        owned.put_received([SavedReceived(6)])
        owned.put_extra(MESSAGE)
        assert owned.drop_extra(3)
        expected = replace(
            WHOLE,
            user="bob",
            version=5,
            connected=True,
            run=8,
            away_since_us=None,
            will=None,
            subscriptions=(
                SavedSubscription(filter="a"),
                replace(WHOLE.subscriptions[1], qos=0),
            ),
            position=Position({0: 11}, WHOLE.identity),
            done=(SerialRange(0, 12, 13),),
            inflight=(SavedInflight(4, 0, 11, 1),),
            next_packet_id=5,
            received=(SavedReceived(6),),
            extra=(MESSAGE,),
        )
        assert owned.state == expected
        assert reloaded(world, owned) == expected


def test_what_comes_to_nothing_takes_no_row() -> None:
    with ArchiveWorld() as world:
        owned = world.archive.create(WHOLE)
        owned.put_progress(position=START)
        owned.put_received(())
        owned.drop_extra(3)
        for subscription in WHOLE.subscriptions:
            owned.drop_subscription(subscription.filter)
        owned.save()
        assert world.topics("session/#") == [
            "session/client.\x021/owner",
            "session/client.\x021/state",
        ]
        assert world.archive.peek(WHOLE.client_id) == owned.state


def test_what_is_not_there_cannot_be_dropped_and_changes_nothing() -> None:
    with ArchiveWorld() as world:
        owned = world.archive.create(away("c", "a"))
        assert (owned.drop_subscription("b"), owned.drop_extra(1)) == (False, False)
        assert not owned.is_dirty


def test_rows_are_a_session_only_with_its_state_and_none_of_them_unknown() -> None:
    keys = SessionKeys("c")
    content = SessionContent(away("c", "a"), keys)
    rows = [Row(keys.state, content.stored(4).state), Row(keys.owner, b"")]
    found = content_of(rows, keys)
    assert found is not None
    assert (found[0].session(), found[1].revision) == (away("c"), 4)
    assert content_of(rows[1:], keys) is None
    with pytest.raises(CorruptionError, match="session/c/strange"):
        content_of([*rows, Row("session/c/strange", b"")], keys)
