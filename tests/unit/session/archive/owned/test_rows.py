from __future__ import annotations

import pytest

from siltstone.errors import (
    ConflictError,
    FencedError,
    OutcomeUnknownError,
    OverloadedError,
    PoisonedError,
    PreconditionError,
    QuotaExceededError,
    UsageError,
)
from siltstone.session.archive.records import ShardSerial
from siltstone.store.tx.commit.ticket import CommitTicket
from tests.support.archive_builders import WHOLE, ArchiveWorld, away
from tests.support.tx_model import held


def filters_of(world: ArchiveWorld) -> list[tuple[str, int]]:
    return [(found.filter, found.count) for found in world.archive.filters()]


def test_nothing_changed_is_nothing_to_save() -> None:
    with ArchiveWorld() as world:
        owned = world.archive.create(WHOLE)
        assert (owned.is_dirty, owned.save_later()) == (False, None)
        owned.put_meta(user=WHOLE.user)
        owned.put_subscription(WHOLE.subscriptions[0])
        owned.put_received(WHOLE.received)
        assert not owned.is_dirty


def test_a_save_writes_only_what_was_changed() -> None:
    with ArchiveWorld() as world:
        owned = world.archive.create(WHOLE)
        before = world.rows()
        owned.put_progress(position=(ShardSerial(0, 99),))
        assert owned.is_dirty
        owned.save()
        changed = {topic for topic, _, _ in {*before} ^ {*world.rows()}}
        assert changed == {"session/client.\x021/progress"}


def test_a_former_owner_can_neither_save_nor_drop() -> None:
    with ArchiveWorld() as world:
        former = world.archive.create(away("c", "a"))
        owner = world.archive.take("c")
        assert owner is not None
        former.put_meta(user="former")
        former.put_progress(position=(ShardSerial(0, 1),))
        with pytest.raises(FencedError):
            former.save()
        with pytest.raises(FencedError):
            former.drop()
        assert former.is_dirty
        assert world.archive.peek("c") == away("c", "a")
        owner.put_meta(user="owner")
        owner.save()
        assert owner.serial > former.serial


def test_what_was_dropped_can_be_neither_saved_nor_dropped_again() -> None:
    with ArchiveWorld() as world:
        owned = world.archive.create(WHOLE)
        other = world.archive.create(away("other", "b/#"))
        owned.put_extra(WHOLE.extra[0]._replace(packet_id=9))
        owned.drop()
        with pytest.raises(UsageError, match="was dropped"):
            owned.save()
        with pytest.raises(UsageError, match="was dropped"):
            owned.drop_later()
        other.drop()
        assert world.topics() == []


def refused(ticket: CommitTicket | None) -> CommitTicket:
    """Let a save be refused when its turn comes, as one of a former leader would be."""
    assert ticket is not None
    ticket.operations.term += 1
    return ticket


def test_saves_that_were_built_on_one_that_failed_fail_too_and_the_next_has_everything() -> None:
    with ArchiveWorld() as world:
        owned = world.archive.create(away("c", "a"))
        with held(world.database):
            owned.put_subscription(away("c", "b").subscriptions[0])
            first = refused(owned.save_later())
            owned.put_subscription(away("c", "c").subscriptions[0])
            second = owned.save_later()
            assert second is not None
        with pytest.raises(ConflictError):
            first.wait()
        with pytest.raises(PreconditionError):
            second.wait()
        assert filters_of(world) == [("a", 1)]
        owned.save()
        assert filters_of(world) == [("a", 1), ("b", 1), ("c", 1)]
        assert world.archive.peek("c") == owned.state
        owned.drop()
        assert world.topics() == []


def test_a_plain_save_does_not_depend_on_one_that_failed() -> None:
    with ArchiveWorld() as world:
        owned = world.archive.create(away("c", "a"))
        with held(world.database):
            owned.put_meta(user="u")
            refused(owned.save_later())
            owned.put_progress(position=(ShardSerial(0, 5),))
            second = owned.save_later()
            assert second is not None
        second.wait()
        found = world.archive.peek("c")
        assert found is not None
        assert (found.user, found.position) == ("", (ShardSerial(0, 5),))
        owned.save()
        assert world.archive.peek("c") == owned.state


def test_without_room_a_save_is_refused_at_once_and_nothing_is_lost() -> None:
    with ArchiveWorld() as world:
        world.database.configure(pending_bytes_max=1)
        owned = world.archive.create(away("c", "a"))
        with held(world.database):
            owned.put_meta(user="first")
            assert owned.save_later() is not None
            owned.put_meta(user="second")
            owned.put_subscription(away("c", "b").subscriptions[0])
            with pytest.raises(OverloadedError):
                owned.save_later()
            assert owned.is_dirty
        owned.save()
        assert world.archive.peek("c") == owned.state
        assert filters_of(world) == [("a", 1), ("b", 1)]


def test_a_save_over_the_quota_is_refused_and_a_drop_is_not() -> None:
    with ArchiveWorld() as world:
        owned = world.archive.create(away("c", "a"))
        world.database.configure(quota_bytes=1)
        owned.put_meta(user="u")
        with pytest.raises(QuotaExceededError):
            owned.save()
        world.database.configure(quota_bytes=None)
        owned.drop()
        assert world.topics() == []


def test_after_a_write_that_failed_nothing_more_is_promised() -> None:
    with ArchiveWorld() as world:
        owned = world.archive.create(away("c", "a"))
        world.fail_write()
        owned.put_meta(user="u")
        with pytest.raises(OutcomeUnknownError):
            owned.save()
        with pytest.raises(PoisonedError):
            owned.save()
        assert world.restart().peek("c") == away("c", "a")
