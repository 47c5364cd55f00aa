from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Thread

import pytest

from siltstone.errors import (
    ClosedError,
    FencedError,
    OutcomeUnknownError,
    OverloadedError,
    RetryError,
    UsageError,
)
from siltstone.session.archive.owned.joint import JointSaves
from siltstone.session.archive.owned.rows import Submitted
from siltstone.session.archive.owned.session import OwnedSession
from siltstone.store.feed.position import Position
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.transaction import Transaction
from tests.support.archive_builders import ArchiveWorld, away
from tests.support.tx_model import held

SOON: deque[Callable[[], None]] = deque()


def moved(owned: OwnedSession, joint: JointSaves, serial: int) -> Submitted | None:
    owned.put_progress(position=Position({0: serial}))
    return owned.save_jointly(joint, SOON.append)


def outcomes_of(*tickets: Submitted | None) -> list[Exception | None]:
    outcomes: list[Exception | None] = []
    for ticket in tickets:
        assert ticket is not None
        ticket.on_done(lambda known: outcomes.append(known.error))
    return outcomes


def wait_behind(world: ArchiveWorld) -> None:
    """Wait for everything that was submitted, by one more commit."""
    world.archive.create(away("behind")).drop()


def saved(world: ArchiveWorld, client_id: str) -> int:
    found = world.archive.peek(client_id)
    assert found is not None
    return found.position.serial(0)


def sessions(world: ArchiveWorld, count: int) -> list[OwnedSession]:
    return world.archive.create_many([away(f"c{number}") for number in range(count)])


def test_the_positions_of_many_sessions_are_one_commit() -> None:
    with ArchiveWorld() as world:
        owned = sessions(world, 100)
        wait_behind(world)
        joint = JointSaves()
        tickets = [moved(each, joint, 1 + number) for number, each in enumerate(owned)]
        assert len(set(map(id, tickets))) == 1
        assert saved(world, "c7") == 0, "nothing is stored before all were added"
        outcomes = outcomes_of(*tickets)
        joint.submit()
        wait_behind(world)
        assert outcomes == [None] * 100
        assert [saved(world, f"c{number}") for number in range(100)] == list(range(1, 101))
        assert [each.is_dirty for each in owned] == [False] * 100


def test_after_many_saves_another_commit_begins() -> None:
    with ArchiveWorld() as world:
        owned = sessions(world, 257)
        joint = JointSaves()
        tickets = [moved(each, joint, 5) for each in owned]
        assert len(set(map(id, tickets))) == 2
        joint.submit()
        wait_behind(world)
        assert {saved(world, f"c{number}") for number in range(257)} == {5}


def test_a_session_that_did_not_move_is_not_saved() -> None:
    with ArchiveWorld() as world:
        (owned,) = sessions(world, 1)
        joint = JointSaves()
        assert owned.save_jointly(joint, SOON.append) is None
        joint.submit()


def test_a_changed_state_is_saved_alone() -> None:
    with ArchiveWorld() as world:
        (owned,) = sessions(world, 1)
        owned.put_meta(user="u")
        ticket = moved(owned, JointSaves(), 5)
        assert isinstance(ticket, CommitTicket)
        ticket.wait()
        assert saved(world, "c0") == 5


def test_if_one_has_another_owner_none_is_stored_and_each_is_tried_again_alone() -> None:
    with ArchiveWorld() as world:
        lost, kept = sessions(world, 2)
        assert world.archive.take("c0") is not None
        joint = JointSaves()
        outcomes = outcomes_of(moved(lost, joint, 5), moved(kept, joint, 6))
        joint.submit()
        wait_behind(world)
        assert [type(error) for error in outcomes] == [RetryError, RetryError]
        assert (saved(world, "c0"), saved(world, "c1")) == (0, 0)
        assert kept.is_dirty
        kept.save()
        with pytest.raises(FencedError):
            lost.save()
        assert (saved(world, "c0"), saved(world, "c1")) == (0, 6)


def test_the_only_one_with_another_owner_learns_it() -> None:
    with ArchiveWorld() as world:
        (lost,) = sessions(world, 1)
        assert world.archive.take("c0") is not None
        joint = JointSaves()
        outcomes = outcomes_of(moved(lost, joint, 5))
        joint.submit()
        wait_behind(world)
        assert [type(error) for error in outcomes] == [FencedError]


def test_without_room_each_ticket_has_the_error_and_nothing_is_lost() -> None:
    with ArchiveWorld() as world:
        owned = sessions(world, 3)
        world.database.configure(pending_bytes_max=1)
        with held(world.database):
            owned[0].put_meta(user="u")
            assert owned[0].save_later() is not None
            joint = JointSaves()
            tickets = [moved(each, joint, 5) for each in owned[1:]]
            joint.submit()
            outcomes = outcomes_of(*tickets)
            assert [type(error) for error in outcomes] == [OverloadedError] * 2
            assert owned[1].is_dirty
        owned[1].save()
        assert saved(world, "c1") == 5


def test_what_was_dropped_is_not_saved() -> None:
    with ArchiveWorld() as world:
        (owned,) = sessions(world, 1)
        owned.drop()
        with pytest.raises(UsageError, match="was dropped"):
            moved(owned, JointSaves(), 5)


def test_an_internal_error_ends_every_ticket(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with ArchiveWorld() as world:
        joint = JointSaves()
        tickets = [joint.join(shard, world.database.transaction, 0) for shard in (0, 0, 1)]
        outcomes: list[Exception | None] = []
        for ticket in tickets:
            ticket.transaction.write("t", b"")
            ticket.on_done(lambda known: outcomes.append(known.error))
        with monkeypatch.context() as limits:
            # The shard begins its thread with the first transaction.
            limits.setattr(Thread, "start", no_more_threads)
            joint.submit()
        assert [type(error) for error in outcomes] == [OutcomeUnknownError] * 3
        assert "no more threads" in caplog.text
        (owned,) = sessions(world, 1)
        assert not owned.is_dirty, "the shard works when there are threads again"


def no_more_threads(_: Thread) -> None:
    raise RuntimeError("no more threads")


def test_if_a_second_transaction_cannot_begin_the_first_is_stored() -> None:
    with ArchiveWorld() as world:
        owned = sessions(world, 256)
        joint = JointSaves()
        tickets = [moved(each, joint, 5) for each in owned]
        outcomes = outcomes_of(*tickets)

        def closed() -> Transaction:
            raise ClosedError("the database is closed")

        with pytest.raises(ClosedError):
            joint.join(0, closed, 0)
        joint.submit()
        wait_behind(world)
        assert outcomes == [None] * 256
