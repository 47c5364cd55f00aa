from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

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
from siltstone.session.archive.owned.parts import CommitInParts
from siltstone.session.archive.owned.rows import Submitted
from siltstone.session.archive.owned.session import OwnedSession
from siltstone.session.archive.records import SavedSession
from siltstone.store.feed.position import Position
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
        owned.put_progress(position=Position({0: 99}))
        assert owned.is_dirty
        owned.save()
        changed = {topic for topic, _, _ in {*before} ^ {*world.rows()}}
        assert changed == {"session/client.\x021/progress"}
        before = world.rows()
        owned.put_received(())
        owned.save()
        changed = {topic for topic, _, _ in {*before} ^ {*world.rows()}}
        assert changed == {"session/client.\x021/received"}


def test_a_former_owner_can_neither_save_nor_drop() -> None:
    with ArchiveWorld() as world:
        former = world.archive.create(away("c", "a"))
        owner = world.archive.take("c")
        assert owner is not None
        former.put_meta(user="former")
        former.put_progress(position=Position({0: 1}))
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
            owned.put_progress(position=Position({0: 5}))
            second = owned.save_later()
            assert second is not None
        second.wait()
        found = world.archive.peek("c")
        assert found is not None
        assert (found.user, found.position.serials) == ("", {0: 5})
        owned.save()
        assert world.archive.peek("c") == owned.state


def test_a_plain_save_that_fails_does_not_take_back_the_state_that_was_saved_after_it() -> None:
    with ArchiveWorld() as world:
        owned = world.archive.create(away("c", "a"))
        with held(world.database):
            owned.put_progress(position=Position({0: 5}))
            first = refused(owned.save_later())
            owned.put_meta(user="u")
            second = owned.save_later()
            assert second is not None
        with pytest.raises(ConflictError):
            first.wait()
        second.wait()
        owned.put_meta(user="v")
        owned.save()
        assert world.archive.peek("c") == owned.state


def test_a_deletion_that_was_built_on_a_failed_save_fails_too_and_may_be_repeated() -> None:
    with ArchiveWorld() as world:
        owned = world.archive.create(away("c", "a"))
        with held(world.database):
            owned.put_subscription(away("c", "b").subscriptions[0])
            first = refused(owned.save_later())
            second = owned.drop_later()
        with pytest.raises(ConflictError):
            first.wait()
        with pytest.raises(PreconditionError):
            second.wait()
        assert filters_of(world) == [("a", 1)]
        owned.drop()
        assert world.topics() == []


def test_a_deletion_removes_rows_whose_removal_was_not_saved() -> None:
    with ArchiveWorld() as world:
        owned = world.archive.create(WHOLE)
        owned.drop_subscription("b/#")
        owned.drop_extra(WHOLE.extra[0].packet_id)
        owned.drop()
        assert world.topics() == []


def test_a_state_that_alone_was_refused_for_want_of_room_is_saved_later() -> None:
    with ArchiveWorld() as world:
        world.database.configure(pending_bytes_max=1)
        owned = world.archive.create(away("c", "a"))
        with held(world.database):
            owned.put_progress(position=Position({0: 5}))
            assert owned.save_later() is not None
            owned.put_meta(user="u")
            with pytest.raises(OverloadedError):
                owned.save_later()
            assert owned.is_dirty
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


class Turns:
    """Calls that are made one at a time."""

    def __init__(self) -> None:
        self.acts: deque[Callable[[], None]] = deque()
        self.count = 0

    def run(self, count: int = 1_000) -> None:
        while self.acts and count:
            self.acts.popleft()()
            self.count += 1
            count -= 1


def many(count: int) -> SavedSession:
    return away("c", *(f"f/{number:04}" for number in range(count)))


def outcomes_of(ticket: Submitted | None) -> list[Exception | None]:
    """Return the list that receives the outcome of a save."""
    outcomes: list[Exception | None] = []
    assert ticket is not None
    ticket.on_done(lambda known: outcomes.append(known.error))
    return outcomes


def wait_behind(world: ArchiveWorld) -> None:
    """Wait for everything that was submitted, by one more commit."""
    world.archive.create(away("behind")).drop()


def connected(owned: OwnedSession, turns: Turns) -> Submitted | None:
    owned.put_meta(connected=True, away_since_us=None)
    return owned.save_in_parts(turns.acts.append)


class TestParts:
    def test_a_small_save_has_one_part(self) -> None:
        with ArchiveWorld() as world:
            turns = Turns()
            owned = world.archive.create(away("c", "a", "b"))
            ticket = connected(owned, turns)
            assert isinstance(ticket, CommitTicket)
            ticket.wait()
            assert isinstance(owned.drop_in_parts(turns.acts.append), CommitTicket)
            assert not turns.acts

    def test_the_counts_of_many_filters_are_prepared_in_turns_and_stored_together(self) -> None:
        with ArchiveWorld() as world:
            turns = Turns()
            owned = world.archive.create(many(1_000))
            outcomes = outcomes_of(connected(owned, turns))
            turns.run()
            wait_behind(world)
            assert (turns.count, outcomes) == (5, [None])
            assert (filters_of(world), world.archive.peek("c")) == ([], owned.state)

    def test_nothing_is_stored_before_the_last_part(self) -> None:
        with ArchiveWorld() as world:
            turns = Turns()
            owned = world.archive.create(many(1_000))
            ticket = connected(owned, turns)
            turns.run(4)
            assert len(turns.acts) == 1
            assert world.archive.peek("c") == many(1_000)
            assert ticket is not None
            assert (ticket.done, ticket.error) == (False, None)
            assert world.restart().peek("c") == many(1_000)

    def test_many_filters_are_deleted_in_turns(self) -> None:
        with ArchiveWorld() as world:
            turns = Turns()
            owned = world.archive.create(many(1_000))
            outcomes = outcomes_of(owned.drop_in_parts(turns.acts.append))
            turns.run()
            assert turns.count == 10
            wait_behind(world)
            assert (outcomes, world.topics()) == ([None], [])

    def test_what_is_being_deleted_cannot_be_deleted_again(self) -> None:
        with ArchiveWorld() as world:
            owned = world.archive.create(many(1_000))
            owned.drop_in_parts(Turns().acts.append)
            with pytest.raises(UsageError, match="was dropped"):
                owned.drop_later()
            wait_behind(world)
            assert world.topics() == []

    def test_changes_after_the_begin_belong_to_the_next_save(self) -> None:
        with ArchiveWorld() as world:
            turns = Turns()
            owned = world.archive.create(many(1_000))
            outcomes = outcomes_of(connected(owned, turns))
            was = owned.state
            owned.put_meta(connected=False, away_since_us=7)
            owned.drop_subscription("f/0000")
            owned.put_progress(position=Position({0: 5}))
            turns.run()
            wait_behind(world)
            assert (outcomes, world.archive.peek("c")) == ([None], was)
            assert owned.is_dirty
            owned.save()
            assert world.archive.peek("c") == owned.state
            assert filters_of(world) == [(f"f/{number:04}", 1) for number in range(1, 1_000)]

    @pytest.mark.parametrize("done", range(5))
    def test_a_later_save_or_deletion_completes_the_preparation_first(self, done: int) -> None:
        for is_drop in (False, True):
            with ArchiveWorld() as world:
                turns = Turns()
                owned = world.archive.create(many(1_000))
                outcomes = outcomes_of(connected(owned, turns))
                turns.run(done)
                if is_drop:
                    owned.drop()
                    assert (outcomes, world.topics()) == ([None], [])
                else:
                    owned.put_meta(connected=False, away_since_us=7)
                    owned.save()
                    assert (outcomes, world.archive.peek("c")) == ([None], owned.state)
                    assert len(filters_of(world)) == 1_000
                turns.run()
                assert outcomes == [None]

    def test_without_room_the_ticket_has_the_error_and_nothing_is_lost(self) -> None:
        with ArchiveWorld() as world:
            turns = Turns()
            owned = world.archive.create(many(1_000))
            other = world.archive.create(away("d", "d"))
            world.database.configure(pending_bytes_max=1)
            with held(world.database):
                other.put_meta(user="u")
                assert other.save_later() is not None
                outcomes = outcomes_of(connected(owned, turns))
                turns.run()
                assert [type(error) for error in outcomes] == [OverloadedError]
                assert owned.is_dirty
            owned.save()
            assert world.archive.peek("c") == owned.state
            assert filters_of(world) == [("d", 1)]

    def test_a_former_owner_is_fenced_off_between_the_parts(self) -> None:
        with ArchiveWorld() as world:
            turns = Turns()
            former = world.archive.create(many(1_000))
            outcomes = outcomes_of(connected(former, turns))
            turns.run(2)
            owner = world.archive.take("c")
            assert owner is not None
            turns.run()
            owner.put_meta(user="owner")
            owner.save()
            assert [type(error) for error in outcomes] == [FencedError]
            assert world.archive.peek("c") == replace(many(1_000), user="owner")

    @pytest.mark.parametrize("is_completed", [False, True])
    @pytest.mark.parametrize(
        ("mistake", "kind"),
        [(ZeroDivisionError(), OutcomeUnknownError), (UsageError("too much"), UsageError)],
    )
    def test_a_mistake_in_a_part_fails_the_save_and_nothing_is_lost(
        self,
        monkeypatch: pytest.MonkeyPatch,
        mistake: Exception,
        kind: type[Exception],
        *,
        is_completed: bool,
    ) -> None:
        def fail(_: None) -> None:
            raise mistake

        with ArchiveWorld() as world:
            turns = Turns()
            owned = world.archive.create(many(1_000))
            ticket = connected(owned, turns)
            assert isinstance(ticket, CommitInParts)
            outcomes = outcomes_of(ticket)
            monkeypatch.setattr(ticket, "_parts", map(fail, [None]))
            if is_completed:
                # As a later save does.
                ticket.complete()
            turns.run()
            assert [type(error) for error in outcomes] == [kind]
            assert (ticket.done, owned.is_dirty) == (True, True)
            owned.save()
            assert world.archive.peek("c") == owned.state
